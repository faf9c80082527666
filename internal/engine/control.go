package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/server"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/version"
)

// Calls are ebb's own functions as a program calls them, guards and settings included. The control socket calls
// them, each on a goroutine that is locked to its thread. ask, not 0, comes back in Settings.Ask.
type Calls interface {
	Status() ([]byte, *control.Error)
	Pause(tags []string, timeout float64, ask uint64) (control.Done, *control.Error)
	Resume(tags []string, timeout float64, ask uint64) (control.Done, *control.Error)
	Read(addr uint64, p []byte) *control.Error
}

// remote is the control socket of an engine.
type remote struct {
	server   *server.Server // nil: there is none
	pointers []string       // files beside the leases that name it

	mu   sync.Mutex // guards the fields below
	last uint64
	asks map[uint64]*ask
}

// ask is a pause asked for on the control socket.
type ask struct {
	id        string          // of the request; may be empty
	gone      <-chan struct{} // closed when nobody waits for it
	withdrawn bool            // therefore nothing was begun; guarded by remote.mu
}

// startControl serves the control socket, where one is wanted. Without it the process does as well: what is wrong is
// told, and no error.
func (e *Engine) startControl() {
	e.remote.asks = map[uint64]*ask{}
	c := e.config
	if c.Calls == nil {
		return
	}
	name := control.SocketName(e.self)
	path := filepath.Join(control.Place(c.RuntimeDir, c.XDGRuntimeDir, os.Geteuid(), name), name)
	if why := control.Unfit(c.RuntimeDir, name); c.RuntimeDir != "" && why != "" {
		e.log.Printf("the control socket is in %s: EBB_RUNTIME_DIR=%s %s; name a short directory", filepath.Dir(path), c.RuntimeDir, why)
	}
	s, err := server.Start(server.Options{
		Socket: path,
		Hello:  control.Hello{V: control.Version, EBB: version.Version, Who: e.events.who, Started: time.Now()},
		Handle: e.handle,
		Note:   c.NoteDescriptor,
		Broken: func(defect any) {
			e.log.Printf("this process can no longer be commanded from outside: defect in ebb: %v", defect)
		},
	})
	if err != nil {
		e.log.Printf("this process cannot be commanded from outside: %v", err)
		return
	}
	e.remote.server = s
	e.events.mu.Lock()
	e.events.publish = s.Publish
	e.events.mu.Unlock()
	if c.Lease == "" {
		return
	}
	for _, lease := range append([]string{c.Lease}, c.MoreLeases...) {
		pointer := control.PointerPath(lease, e.self)
		if err := e.inLeaseDir("creation", pointer, func() error { return control.WritePointer(pointer, path) }); err != nil {
			e.sayError(fmt.Errorf("name the control socket beside the lease: %w", err))
			continue
		}
		e.remote.pointers = append(e.remote.pointers, pointer)
	}
}

// endControl tells that the process ends, and removes the control socket.
func (e *Engine) endControl() {
	e.tell(control.Event{Kind: control.EventExit})
	e.events.flush()
	if e.remote.server == nil {
		return
	}
	e.remote.server.Close()
}

// removePointers removes the files that name the socket. Where the disk gives no answer they are for the launcher
// to remove, as all else there.
func (e *Engine) removePointers() {
	for _, pointer := range e.remote.pointers {
		e.sayError(e.inLeaseDir("removal", pointer, func() error { return control.RemovePointer(pointer) }))
	}
}

// inLeaseDir does work on a file beside a lease, and waits for it as for other file calls.
func (e *Engine) inLeaseDir(what, path string, do func() error) error {
	_, err := filesys.Do(e.backings.files.Deadline(), what, filepath.Dir(path), func() (struct{}, error) { return struct{}{}, do() }, nil)
	return err
}

// handle carries out what is asked for on the control socket.
func (e *Engine) handle(a *server.Ask) server.Answer {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	switch a.Cmd {
	case control.CmdStatus:
		text, fault := e.config.Calls.Status()
		return server.Answer{Result: json.RawMessage(text), Err: fault}
	case control.CmdPause:
		return e.move(a, e.config.Calls.Pause)
	case control.CmdResume:
		return e.move(a, e.config.Calls.Resume)
	case control.CmdRead:
		p := make([]byte, a.Size)
		addr, _ := a.At() // checked when it was parsed
		return server.Answer{Result: control.Bytes{Data: p}, Err: e.config.Calls.Read(addr, p)}
	case control.CmdDevices:
		list, err := e.deviceList()
		if err != nil {
			return server.Answer{Err: &control.Error{Code: Code(err), Message: err.Error()}}
		}
		return server.Answer{Result: list}
	}
	return server.Answer{Err: control.Invalid("unknown command %q", a.Cmd)}
}

// move carries out a pause, which is withdrawn when all who asked go away before it began, or a resume.
func (e *Engine) move(a *server.Ask, call func([]string, float64, uint64) (control.Done, *control.Error)) server.Answer {
	timeout := -1.0 // of a pause: no limit; of a resume: EBB_RESUME_WAIT
	if a.Timeout != nil {
		timeout = *a.Timeout
	}
	number, asked := e.remote.add(a.ID, a.Gone)
	begin := time.Now()
	done, fault := call(a.Tags, timeout, number)
	if a.Cmd == control.CmdPause {
		done.Waited = max(0, time.Since(begin).Seconds()-done.Seconds)
	}
	switch {
	case e.remote.take(number, asked):
		return server.Answer{Withdrawn: true}
	case fault == nil:
		return server.Answer{Result: done}
	case done.Allocations > 0:
		fault.Done = &done
	}
	return server.Answer{Err: fault}
}

// add enters a pause or resume that is asked for.
func (r *remote) add(id string, gone <-chan struct{}) (number uint64, a *ask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	a = &ask{id: id, gone: gone}
	r.asks[r.last] = a
	return r.last, a
}

// take ends it; withdrawn: nothing was done, since nobody waited for it any more.
func (r *remote) take(number uint64, a *ask) (withdrawn bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asks, number)
	return a.withdrawn
}

// gone is closed when nobody waits for what was asked for; nil of a program's own call.
func (r *remote) gone(number uint64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.asks[number]; a != nil {
		return a.gone
	}
	return nil
}

// id is that of what was asked for; empty of a program's own call.
func (r *remote) id(number uint64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.asks[number]; a != nil {
		return a.id
	}
	return ""
}

// withdraw marks a pause that has not begun as withdrawn, if nobody waits for it.
func (r *remote) withdraw(number uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.asks[number]
	if a == nil {
		return false
	}
	select {
	case <-a.gone:
		a.withdrawn = true
	default:
	}
	return a.withdrawn
}

// deviceList is what the driver says of the devices that memory is managed on. Their contexts exist, so that
// asking makes none.
func (e *Engine) deviceList() ([]control.Device, error) {
	e.background.RLock()
	defer e.background.RUnlock()
	list := []control.Device{}
	for _, dev := range e.usedDevices() {
		d := control.Device{Ordinal: dev, Holders: []control.Holder{}}
		err := e.withDevice(dev, func() (err error) {
			d.Free, d.Total, err = e.drv.MemInfo()
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("ask device %d for its memory: %w", dev, err)
		}
		if d.Name, err = e.drv.DeviceName(dev); err != nil {
			return nil, fmt.Errorf("ask device %d for its name: %w", dev, err)
		}
		d.UUID, _ = e.drv.UUID(dev)      // without NVML it is not told,
		holders, _ := e.drv.Holders(dev) // nor are these
		for _, h := range holders {
			d.Holders = append(d.Holders, control.Holder(h))
		}
		list = append(list, d)
	}
	return list, nil
}
