package store

import "github.com/ebb-offload/ebb/internal/filesys"

// This file is about disks that do not answer. A call that has no answer within Options.Timeout is
// left to itself (filesys.Deadline), and whoever waited for it gets an error that matches
// filesys.ErrHang and, as every error of a disk, ErrIO. No lock is held any more then. What the call
// may still do is harmless:
//
//   - A write that failed leaves its block absent. The file is then given up with its backing (the
//     caller's part), and no file ever gets its name again, so that a late write lands in no file
//     that is in use.
//   - A late read fills memory that its caller does not use before filesys.InUse says so.
//   - A file that is made late is removed.
//
// Names that could not be removed are removed when the disk answers, when the caller tries it again,
// or by Close.

// Retry lets directories be used again in which calls hang, and tries to remove what is left there.
// The engine calls it at the begin of an operation; without it, what concerns such a directory
// fails at once, so that an operation waits for a disk once and not for each of its files.
func (s *Store) Retry() {
	s.deadline.Retry()
	if s.litter.Load() {
		s.sweep()
	}
}

// sweep removes the files that could not be removed before.
func (s *Store) sweep() {
	s.litter.Store(false)
	s.mu.Lock()
	all := make([]*backing, 0, len(s.backings))
	for b := range s.backings {
		all = append(all, b)
	}
	s.mu.Unlock()
	for _, b := range all {
		b.sweep() // what fails is litter again
	}
}

func (b *backing) sweep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !b.released:
		_ = b.clean()
	case b.giveUp() == nil:
		b.store.released(b)
	default: // of host memory, too
		b.store.litter.Store(true)
	}
}

// hangs reports whether err is that of a call that still hangs.
func hangs(err error) bool {
	returned := filesys.InUse(err)
	if returned == nil {
		return false
	}
	select {
	case <-returned:
		return false
	default:
		return true
	}
}
