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
// backup files of others that lie in it. Two that take room at the same moment do not see each other.
func Alone(sys filesys.System, dir string, self rankdir.Owner) *Table {
	return &Table{sys: sys, base: dir, self: self, place: -1}
}

// takeAlone is Take. Called with mu held.
func (t *Table) takeAlone(n, quota uint64) error {
	if quota > 0 {
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
	}
	t.held += n
	return nil
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
