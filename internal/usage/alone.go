package usage

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Alone is the table of a directory that a process was merely given, by a user and not by ebb. Nothing
// is written there, and nothing above it is looked at: what counts is what this process takes, and the
// backup files of others that lie in it. So that two that take room at the same moment see each other, the
// directory itself is locked (flock) from before a file's room is counted until the file shows it.
func Alone(sys filesys.System, dir string, self rankdir.Owner) *Table {
	return &Table{sys: sys, base: dir, self: self, place: -1}
}

// alone is what a table of that kind holds of the directory's lock. Guarded by Table.mu.
type alone struct {
	fd     int // with the lock; valid while taking > 0
	taking int // calls of Take whose room does not show yet
}

// takeAlone is Take. Called with mu held.
func (t *Table) takeAlone(n, quota uint64) error {
	if quota == 0 {
		t.held += n
		return nil
	}
	if err := t.lockAlone(); err != nil {
		return fmt.Errorf("lock %s, to count the backup files in it: %w", t.base, err)
	}
	err := t.countAlone(n, quota)
	if err != nil {
		t.unlockAlone()
		return err
	}
	t.held += n
	return nil
}

func (t *Table) countAlone(n, quota uint64) error {
	list, err := t.others()
	if err != nil {
		return fmt.Errorf("count the backup files in %s: %w", t.base, err)
	}
	list = append(list, Record{Owner: t.self, Held: t.held})
	var held uint64
	for _, r := range list {
		held += r.Held
	}
	if held+n > quota {
		return refusal(t.base, quota, held, n, list)
	}
	return nil
}

// lockAlone locks the directory, unless a Take of this process has it locked.
func (t *Table) lockAlone() error {
	if t.alone.taking == 0 {
		fd, err := openat(t.sys, unix.AT_FDCWD, t.base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
		if err == nil {
			if err = await(lockWait, func() error { return t.sys.LockDir(fd, true) }); err != nil {
				_ = t.sys.Close(fd)
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		t.alone.fd = fd // -1: the directory is not there, and nobody has anything in it
	}
	t.alone.taking++
	return nil
}

// unlockAlone ends a Take.
func (t *Table) unlockAlone() {
	if t.alone.taking--; t.alone.taking == 0 && t.alone.fd >= 0 {
		_ = t.sys.LockDir(t.alone.fd, false) // a forked child may have the descriptor too
		_ = t.sys.Close(t.alone.fd)
	}
}

// Taken says that what a Take counted, with that quota, shows in the directory as the size of a file, or was given back.
func (t *Table) Taken(quota uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rank == "" && quota > 0 {
		t.unlockAlone()
	}
}

// others are what the files of other processes in the directory hold.
func (t *Table) others() (list []Record, err error) {
	dir, err := t.sys.Opendir(t.base, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = t.sys.Close(dir) }()
	names, err := t.sys.Names(dir)
	if err != nil {
		return nil, err
	}
	at := map[string]int{} // prefix to place in list
	for _, name := range names {
		owner, _, ours := rankdir.ParseDataFile(name)
		if !ours || sameProcess(owner, t.self) {
			continue
		}
		var st unix.Stat_t
		err := filesys.Retry(func() error { return t.sys.Fstatat(dir, name, &st) })
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		i, known := at[owner.FilePrefix()]
		if !known {
			i = len(list)
			at[owner.FilePrefix()] = i
			list = append(list, Record{Owner: owner})
		}
		list[i].Held += uint64(st.Size)
	}
	return list, nil
}
