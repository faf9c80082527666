package launch

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCommandsAreFoundAsAShellFindsThem(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/prog": 0o600, "b/prog": 0o700, "a/data": 0o600, "b/own": 0o700} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "a", "own"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(dir, "b"))
	path := filepath.Join(dir, "a") + ":" + filepath.Join(dir, "b")

	for _, c := range []struct {
		name, path, want string
		status           int
	}{
		{"prog", path, filepath.Join(dir, "b", "prog"), 0}, // a/prog cannot be executed: the search goes on
		{"own", path, filepath.Join(dir, "b", "own"), 0},   // a/own is a directory
		{"prog", "", "", StatusNotFound},
		{"prog", ":" + dir, "./prog", 0}, // an empty entry is the working directory
		{"./prog", "", "./prog", 0},
		{dir + "/b/prog", "", dir + "/b/prog", 0},
		{"data", path, "", StatusNotExecutable},
		{"nothing", path, "", StatusNotFound},
		{"", path, "", StatusNotFound},
		{"./nothing", path, "", StatusNotFound},
		{"./prog/below", path, "", StatusNotFound},
		{dir + "/a/data", path, "", StatusNotExecutable},
		{dir, path, "", StatusNotExecutable},
	} {
		got, err := FindCommand(c.name, c.path)
		if got != c.want || StatusOf(err) != c.status {
			t.Errorf("%q in %q: %q, status %d (%v); want %q, status %d", c.name, c.path, got, StatusOf(err), err, c.want, c.status)
		}
	}
}
