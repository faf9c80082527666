package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The event logs of a run: a directory of files, one for each rank. Ranks append to theirs; ebb only
// makes the directory.

// eventLogPath is the event log of a rank in a directory, or nothing without one.
func (r Rank) eventLogPath(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("%s__%s_cell%d_rank%d.jsonl", r.Job, r.Role, r.Cell, max(r.Rank, 0)))
}

// ParseEventLog parses --event-log into an absolute path.
func ParseEventLog(s string) (string, error) {
	dirs, err := ParseDirs(s)
	if err != nil {
		return "", err
	}
	if len(dirs) > 1 {
		return "", errors.New("must name one directory, without a comma in its path")
	}
	abs, err := filepath.Abs(dirs[0])
	if err != nil {
		return "", fmt.Errorf("%w; name an absolute path", err)
	}
	return abs, nil
}

// CheckEventLog checks that the directory of event logs can be used, or made. An empty one is none.
func CheckEventLog(dir string) error {
	if dir == "" {
		return nil
	}
	const remedy = "name another directory with --event-log"
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(dir); err == nil {
			return Usagef("event log directory %s is a symbolic link to nowhere: correct it, or %s", dir, remedy)
		}
		if err := checkParent(filepath.Dir(dir)); err != nil {
			return Usagef("event log directory %s cannot be made: %w, or %s", dir, err, remedy)
		}
		if err := writable(filepath.Dir(dir)); err != nil {
			return Usagef("event log directory %s cannot be made: %w; %s", dir, err, remedy)
		}
		return nil
	case err != nil:
		return Usagef("event log directory %s cannot be looked at: %w; %s", dir, err, remedy)
	case !info.IsDir():
		return Usagef("event log directory %s is not a directory: %s", dir, remedy)
	}
	if err := writable(dir); err != nil {
		return Usagef("event log directory %s: %w; %s", dir, err, remedy)
	}
	return nil
}

// MakeEventLog makes the directory of event logs if it is missing, for this user alone.
func MakeEventLog(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Usagef("event log directory %s: %w; name another directory with --event-log", dir, err)
	}
	return nil
}
