package engine

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
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
		if paths := quarantine(e.backings.files.Usage().Hung).Paths; len(paths) > 0 {
			why += ": no answer from " + strings.Join(paths, ", ")
		}
		e.log.Printf("exit: %s", e.leftOnDisk(why))
	}
}

func (e *Engine) removeAll() {
	e.endControl()
	e.removeMaps()
	err := e.backings.files.Close()
	switch hang := (*filesys.HangError)(nil); {
	case errors.As(err, &hang):
		e.log.Printf("exit: %s", e.leftOnDisk(hang.Error()))
	case err != nil:
		e.log.Printf("remove backup files: %v", err)
		e.removePointers()
	default:
		e.removePointers()
	}
	if err := e.states.store.Close(); err != nil {
		e.log.Printf("remove the files of streamed state: %v", err)
	}
	for _, l := range e.leases {
		if err := l.Release(); err != nil {
			e.log.Printf("release lease: %v", err)
		}
	}
}

// leftOnDisk says what an exit leaves behind, in which of the directories used so far, and why.
func (e *Engine) leftOnDisk(why string) string {
	u := e.backings.files.Usage()
	files := fmt.Sprintf("%d backup files", u.Files)
	if u.Files == 1 {
		files = "1 backup file"
	}
	var dirs []string
	for _, d := range u.Dirs {
		dirs = append(dirs, d.Dir)
	}
	return fmt.Sprintf("%s (%s) left behind in %s, for the launcher or ebb gc to remove when the disk answers: %s",
		files, store.Size(u.DiskBytes), strings.Join(dirs, ", "), why)
}
