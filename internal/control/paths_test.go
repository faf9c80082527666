package control

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/testutil"
)

func self(t *testing.T) rankdir.Owner {
	t.Helper()
	o, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// dead is a process that has ended.
func dead(t *testing.T) rankdir.Owner {
	t.Helper()
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	o := self(t)
	o.PID, o.StartTime = c.Process.Pid, 1
	return o
}

func TestSocketNamesSayWhoseTheyAre(t *testing.T) {
	o := self(t)
	name := SocketName(o)
	want := o
	want.BootID, want.UID = o.BootID[:8], -1
	if got, ok := ParseSocketName(name); !ok || got != want {
		t.Errorf("%s is %+v, %t, want %+v", name, got, ok, want)
	}
	for _, other := range []string{
		"", ".sock", "x", name + "x", "x" + name, strings.TrimSuffix(name, ".sock"), "../" + name,
		"01234567-f-0-1.sock", "01234567-f-01-1.sock", "01234567-0f-1-1.sock", "01234567-f-99999999999-1.sock", "0123456-f-1-1.sock",
		"01234567-f-1-99999999999999999999.sock",
	} {
		if _, ok := ParseSocketName(other); ok {
			t.Errorf("%q passes for the name of a socket", other)
		}
	}
	if Dead(name) {
		t.Error("this process counts as dead")
	}
	if !Dead(SocketName(dead(t))) {
		t.Error("a process that has ended does not count as dead")
	}
	another := o
	another.BootID = "ffffffff"
	if Dead(SocketName(another)) {
		t.Error("a process of another boot, perhaps on another machine, counts as dead")
	}
}

func TestDirectoriesOfSockets(t *testing.T) {
	env := map[string]string{}
	getenv := func(name string) string { return env[name] }
	want := func(dirs ...string) {
		t.Helper()
		if diff := cmp.Diff(dirs, Dirs(getenv, 7)); diff != "" {
			t.Errorf("%v: (-want +got)\n%s", env, diff)
		}
	}
	want("/run/user/7/ebb", "/tmp/ebb-7")
	env["XDG_RUNTIME_DIR"] = "/run/user/7"
	want("/run/user/7/ebb", "/tmp/ebb-7")
	env["EBB_RUNTIME_DIR"] = "/x"
	env["XDG_RUNTIME_DIR"] = "/y"
	want("/x", "/y/ebb", "/run/user/7/ebb", "/tmp/ebb-7")
}

func TestPlaceIsTheFirstDirectoryThatWillDo(t *testing.T) {
	xdg := testutil.SocketDir(t)
	long := "/" + strings.Repeat("x", 100)
	for _, c := range []struct{ runtime, xdg, want string }{
		{"/x", xdg, "/x"},
		{"", xdg, xdg + "/ebb"},
		{"", "/nowhere", "/tmp/ebb-7"},
		{"", "", "/tmp/ebb-7"},
		{"relative", xdg, xdg + "/ebb"},
		{long, xdg, xdg + "/ebb"},
		{long, long, "/tmp/ebb-7"},
	} {
		if got := Place(c.runtime, c.xdg, 7, "name.sock"); got != c.want {
			t.Errorf("with %q and %q: %s, want %s", c.runtime, c.xdg, got, c.want)
		}
	}
}

func listenAt(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
}

func TestOnlySocketsOfTheDeadAreRemoved(t *testing.T) {
	dir := testutil.SocketDir(t)
	gone := dead(t)
	live, stale := filepath.Join(dir, SocketName(self(t))), filepath.Join(dir, SocketName(gone))
	listenAt(t, live)
	listenAt(t, stale)
	gone.StartTime++
	file := filepath.Join(dir, SocketName(gone)) // bears the name, and is no socket
	gone.StartTime++
	link := filepath.Join(dir, SocketName(gone))
	other := filepath.Join(dir, "other.sock")
	listenAt(t, other)
	for _, err := range []error{os.WriteFile(file, nil, 0o600), os.Symlink(live, link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dirs := []string{filepath.Join(dir, "nowhere"), dir}
	for _, dry := range []bool{true, false} {
		removed, err := RemoveDead(dirs, dry)
		if err != nil || !slices.Equal(removed, []string{stale}) {
			t.Errorf("dry %t: removed %q, %v, want %q", dry, removed, err, stale)
		}
		if _, err := os.Lstat(stale); os.IsNotExist(err) == dry {
			t.Errorf("dry %t: %v", dry, err)
		}
	}
	for _, path := range []string{live, file, link, other} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

func TestPointersNameSockets(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, ".ebb")
	if list, err := Pointers(base); err != nil || list != nil {
		t.Errorf("without the directory: %q, %v", list, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	me := self(t)
	pointer := PointerPath(filepath.Join(dir, "job__actor_cell0_rank0.lease"), me)
	if want := filepath.Join(dir, fmt.Sprintf("job__actor_cell0_rank0.%d-%d.control", me.PID, me.StartTime)); pointer != want {
		t.Errorf("%s, want %s", pointer, want)
	}
	socket := "/run/x/" + SocketName(me)
	for range 2 { // a program that replaced itself finds the file of the one before
		if err := WritePointer(pointer, socket); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"a.control": "", "b.control": socket, "c.control": "relative/" + SocketName(me) + "\n",
		"d.control": "/etc/passwd\n", "e.control": strings.Repeat("x", 5000), "f": socket + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(pointer, filepath.Join(dir, "g.control")); err != nil {
		t.Fatal(err)
	}
	if list, err := Pointers(base); err != nil || !slices.Equal(list, []string{socket}) {
		t.Errorf("%q, %v, want %q", list, err, socket)
	}
	for range 2 {
		if err := RemovePointer(pointer); err != nil {
			t.Error(err)
		}
	}
	if list, err := Pointers(base); err != nil || len(list) > 0 {
		t.Errorf("after the removal: %q, %v", list, err)
	}
	if err := WritePointer(filepath.Join(base, "nowhere/x.control"), socket); err == nil {
		t.Error("a pointer in no directory was written")
	}
}
