package launch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FindCommand finds the program that a shell would run for name: a path when it holds a slash,
// else the first executable file of that name in PATH. The errors carry the statuses 127 and
// 126 of a shell.
func FindCommand(name, path string) (string, error) {
	if name == "" {
		return "", failf(StatusNotFound, "the command is empty: name a program after --")
	}
	if strings.Contains(name, "/") {
		if err := executable(name); err != nil {
			return "", commandError(name, err)
		}
		return name, nil
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "." // an empty entry is the working directory
		}
		file := filepath.Join(dir, name)
		if !strings.Contains(file, "/") {
			file = "./" + file
		}
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && denied == nil && errors.Is(err, fs.ErrPermission) {
			denied = commandError(file, err)
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", failf(StatusNotFound, "command not found: %s: check its name and PATH", name)
}

func commandError(file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return failf(StatusNotFound, "command not found: %s: check the path", file)
	}
	return failf(StatusNotExecutable, "command cannot be executed: %w", err)
}

// executable checks that file is a regular file that this process may execute.
func executable(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return &fs.PathError{Op: "execute", Path: file, Err: unix.EISDIR}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "execute", Path: file, Err: err}
	}
	return nil
}
