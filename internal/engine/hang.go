package engine

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/sizes"
	"github.com/ebb-offload/ebb/internal/store"
)

// This file is about disks that give no answer. Every file call has a deadline (Config.IOTimeout):
// after it the call is left to itself, and with it its thread, its staging memory and, of a pause,
// its file (packages filesys, store and pipeline). The operation fails as by any other error of the
// disk: a pause leaves the memory active, a resume leaves it paused with its file kept. Engine.op is
// free again then. The next operation tries the disk anew.

// Quarantine is what file calls that had no answer still hold.
type Quarantine struct {
	Threads int      `json:"threads"` // each in a call that hangs
	Bytes   uint64   `json:"bytes"`   // of staging memory, in place of which as much was made
	Paths   []string `json:"paths"`   // what they wait for, the longest first; each once
}

func quarantine(hung []filesys.Hung) Quarantine {
	q := Quarantine{Threads: len(hung), Paths: []string{}}
	seen := map[string]bool{}
	for _, h := range hung {
		q.Bytes += uint64(h.Bytes)
		if !seen[h.Path] {
			q.Paths = append(q.Paths, h.Path)
			seen[h.Path] = true
		}
	}
	return q
}

// spareBlock makes pinned memory for one block, in place of what is in quarantine.
func (e *Engine) spareBlock() ([]byte, func() error, error) {
	return e.pinBlock(e.anyDevice(), e.block)
}

// pinBlock makes n bytes of pinned memory near a device, and what frees them.
func (e *Engine) pinBlock(dev int, n uint64) ([]byte, func() error, error) {
	memory, free, err := hostmem.Pages(n, e.drv.NUMANode(dev))
	if err != nil {
		return nil, nil, err
	}
	p := unsafe.Pointer(unsafe.SliceData(memory))
	if err := e.withDevice(dev, func() error { return e.drv.HostRegister(p, n) }); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("pin %d bytes of host memory: %w", n, err), free())
	}
	unpin := func() error {
		return errors.Join(e.withDevice(dev, func() error { return e.drv.HostUnregister(p) }), free())
	}
	return memory, unpin, nil
}

// tellLeft logs that a backup could not be removed: of a disk that hangs once, not for each of its
// files.
func (e *Engine) tellLeft(err error) {
	if hang := (*filesys.HangError)(nil); errors.As(err, &hang) {
		e.sayOnce(fmt.Sprintf("%s gives no answer: backups of freed memory stay there until it does", filepath.Dir(hang.Path)))
		return
	}
	e.log.Print(err)
}

// Shutdown removes the backup files of this process and gives up its lease. It touches no
// device: at process exit the driver may be gone. Further pauses fail. A disk that hangs is not
// waited for longer than by other calls: what stays there is told, and is for the launcher.
func (e *Engine) Shutdown() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = guarded(0, func(int) error {
			e.removeAll()
			return nil
		})
	}()
	var late <-chan time.Time // never
	if limit := e.config.IOTimeout; limit > 0 {
		// Its own calls give up at the limit: the rest is for what is not a file call of the store.
		timer := time.NewTimer(limit + limit/4)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-done:
	case <-late:
		why := fmt.Sprintf("not done after %v", e.config.IOTimeout)
		hung := append(e.backings.files.Usage().Hung, e.states.store.Usage().Hung...)
		if paths := quarantine(hung).Paths; len(paths) > 0 {
			why += ": no answer from " + strings.Join(paths, ", ")
		}
		e.tellLeftAtExit(why)
	}
}

// removeAll removes what this process has on its disks. Of calls that have no answer it tells once, at the end: each
// thing that is in the way of one directory would else have a line of its own.
func (e *Engine) removeAll() {
	e.endControl()
	var hung error
	tell := func(what string, err error) {
		switch {
		case errors.Is(err, filesys.ErrHang):
			if hung == nil {
				hung = err
			}
		case err != nil && !errors.Is(err, store.ErrClosed):
			e.log.Printf("%s: %v", what, err)
		}
	}
	e.removeMaps(tell)
	tell("remove backup files", e.backings.files.Close())
	tell("remove the files of streamed state", e.states.store.Close())
	hang := (*filesys.HangError)(nil)
	switch {
	case hung == nil:
		e.removePointers()
	case errors.As(hung, &hang):
		e.tellLeftAtExit(hang.Error())
	default:
		e.tellLeftAtExit(hung.Error())
	}
	for _, l := range e.leases {
		if err := l.Release(); err != nil {
			e.log.Printf("release lease: %v", err)
		}
	}
}

// tellLeftAtExit says what an exit leaves behind, once: it may be known at the deadline, and again when the last call
// has ended.
func (e *Engine) tellLeftAtExit(why string) {
	e.leaving.Do(func() { e.log.Printf("exit: %s", e.leftOnDisk(why)) })
}

// leftOnDisk says what an exit leaves behind, in which of the directories used so far, and why.
func (e *Engine) leftOnDisk(why string) string {
	var what, dirs []string
	for _, of := range []struct {
		usage     store.Usage
		one, more string
	}{
		{e.backings.files.Usage(), "1 backup file", "backup files"},
		{e.states.store.Usage(), "1 file of streamed state", "files of streamed state"},
	} {
		switch n := of.usage.Files; n {
		case 0:
			continue
		case 1:
			what = append(what, fmt.Sprintf("%s (%s)", of.one, sizes.Binary(of.usage.DiskBytes)))
		default:
			what = append(what, fmt.Sprintf("%d %s (%s)", n, of.more, sizes.Binary(of.usage.DiskBytes)))
		}
		for _, d := range of.usage.Dirs {
			if !slices.Contains(dirs, d.Dir) {
				dirs = append(dirs, d.Dir)
			}
		}
	}
	if len(what) == 0 { // the map, or the socket's name
		what, dirs = []string{"files"}, []string{filepath.Dir(e.config.Lease)}
	}
	return fmt.Sprintf("%s left behind in %s, for the launcher or ebb gc to remove when the disk answers: %s",
		strings.Join(what, " and "), strings.Join(dirs, ", "), why)
}
