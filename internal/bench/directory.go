package bench

import (
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/launch"
)

// checkDirectory refuses a directory whose disk cannot be measured.
func checkDirectory(dir string) (Disk, error) {
	const remedy = "name a directory on a local disk with --disk-dir"
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return Disk{}, launch.Usagef("disk directory %s: %w; make it, or %s", dir, err, remedy)
	case info.Mode()&fs.ModeSymlink != 0:
		return Disk{}, launch.Usagef("disk directory %s is a symbolic link: name the directory it points to with --disk-dir", dir)
	case !info.IsDir():
		return Disk{}, launch.Usagef("disk directory %s is not a directory: %s", dir, remedy)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return Disk{}, launch.Usagef("disk directory %s is not writable: %w; %s", dir, err, remedy)
	}
	if strings.ContainsAny(dir, ":\n") {
		return Disk{}, launch.Usagef("disk directory %q has a colon or a line break in its name: %s", dir, remedy)
	}
	on, err := launch.FileSystemOf(dir)
	switch {
	case err != nil:
		return Disk{}, launch.Usagef("disk directory %s: its file system cannot be found out: %w; %s", dir, err, remedy)
	case on.InMemory:
		return Disk{}, launch.Usagef("disk directory %s lies on %s, which is %s: that is memory, no disk; %s", dir, on.Mount, on.Type, remedy)
	case on.Network:
		return Disk{}, launch.Usagef("disk directory %s lies on %s, a network file system (%s); %s", dir, on.Mount, on.Type, remedy)
	}
	return Disk{Dir: dir, FileSystem: on.Type, Mount: on.Mount}, nil
}

// sameDisk are two directories of one device, if there are any.
func sameDisk(dirs []string) (a, b string, same bool) {
	seen := map[uint64]string{}
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			continue
		}
		if first, ok := seen[st.Dev]; ok {
			return first, dir, true
		}
		seen[st.Dev] = dir
	}
	return "", "", false
}
