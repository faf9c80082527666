package swap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
)

// Two hand-overs of the same ranks or engines would undo each other's steps: one pauses what the other brings
// back. So each holds a lock on every job of its ranks and on every engine. The locks of jobs lie beside the ranks'
// sockets, where every ebb that can reach those ranks finds them, whatever its environment; those of engines where
// ebb's notes about engines are. The kernel drops a lock when its holder's process ends, however it ends.

// ByServe is the command where a hand-over was asked for over HTTP.
const ByServe = "ebb serve"

// Holder is a hand-over under way, as its lock tells.
type Holder struct {
	PID   int       `json:"pid"`
	By    string    `json:"by"` // the command
	To    string    `json:"to"`
	Since time.Time `json:"since"`
}

// HeldError says that another hand-over of the same ranks or engine is under way; nothing was moved.
type HeldError struct {
	What   string        // the job or the engine
	Holder Holder        // PID 0: it has not told yet
	Here   bool          // its PID is one of this process's PID namespace
	Waited time.Duration // for its end
}

func (e *HeldError) Error() string {
	text := "another hand-over of " + e.What + " is under way"
	if e.Holder.PID != 0 {
		text += fmt.Sprintf(": %s", e.Holder)
	}
	if e.Here && e.Holder.By != ByServe { // a server does other things too
		text += fmt.Sprintf("; if it hangs, kill %d ends it and leaves ranks and engines where they are", e.Holder.PID)
	}
	return text + "; this one moved nothing"
}

func (h Holder) String() string {
	return fmt.Sprintf("%s, process %d, hands over to %s since %s (%s)", h.By, h.PID, h.To,
		h.Since.Local().Format(time.TimeOnly), max(time.Since(h.Since), 0).Round(time.Second))
}

// held are the locks of a hand-over, in the order in which all take them, so that no two wait for each other.
type held []lock

type lock struct {
	path string
	fd   int
}

// locks are what a hand-over must hold: paths, and what each stands for.
func (o Options) locks() map[string]string {
	all := map[string]string{}
	job := func(w control.Who, socket string) {
		name := "the ranks of job " + w.Job
		if w.Job == "" {
			name = "the ranks without a job"
		}
		all[lockPath(filepath.Dir(socket), "job", w.Job)] = name
	}
	for _, r := range o.Ranks {
		job(r.Who, r.Socket)
	}
	for _, s := range o.Silent {
		job(s.Who, s.Socket)
	}
	for _, e := range o.Engines {
		if o.Settings.Notes != "" {
			all[lockPath(o.Settings.Notes, "engine", e.name())] = "engine " + e.name()
		}
	}
	return all
}

func lockPath(dir, kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(dir, fmt.Sprintf("swap-%s-%s.lock", kind, hex.EncodeToString(sum[:8])))
}

// take takes the locks of a hand-over. It waits for another's end, unless NoWait; then it looks for the ranks anew,
// since it does not know what became of them meanwhile.
func (h *handOver) take(ctx context.Context) (held, error) {
	for {
		wanted := h.locks()
		all, waited, err := h.takeAll(ctx, wanted)
		h.report.Waited += waited.Seconds()
		if err != nil || waited == 0 || h.Again == nil {
			return all, err
		}
		if h.Ranks, h.Silent, err = h.Again(ctx); err != nil {
			all.release()
			return nil, err
		}
		if maps.Equal(wanted, h.locks()) {
			return all, nil
		}
		all.release()
	}
}

func (h *handOver) takeAll(ctx context.Context, wanted map[string]string) (all held, waited time.Duration, err error) {
	self := Holder{PID: os.Getpid(), By: h.By, To: h.To, Since: time.Now()}
	for _, path := range slices.Sorted(maps.Keys(wanted)) {
		begin, told := time.Now(), false
		for {
			fd, err := tryLock(path, self)
			if err == nil {
				all = append(all, lock{path, fd})
				break
			}
			if errors.Is(err, unix.ENOENT) {
				if filepath.Dir(path) != h.Settings.Notes {
					break // the directory went with the ranks in it
				}
				// An engine is there without any rank, and this directory made by whom it serves first.
				if err = os.MkdirAll(h.Settings.Notes, 0o700); err == nil {
					continue
				}
			}
			if !errors.Is(err, unix.EWOULDBLOCK) {
				all.release()
				return nil, waited, fmt.Errorf("keep other hand-overs of %s out with the lock %s: %w; %s; nothing was moved", wanted[path], path, err, remedy(path, err))
			}
			by := holder(path)
			if by.PID != 0 && !told && h.Waiting != nil && !h.NoWait {
				told = true
				h.Waiting(by)
			}
			if h.NoWait || stopped(ctx) {
				all.release()
				by := holder(path)
				return nil, waited, &HeldError{What: wanted[path], Holder: by, Here: here(path, by.PID), Waited: time.Since(begin)}
			}
			waited += measureEvery
		}
	}
	return all, waited, nil
}

// release gives the locks back.
func (l held) release() {
	for _, one := range slices.Backward(l) {
		if isThere(one.fd, one.path) {
			_ = unix.Unlink(one.path) // while it is held: who waits for it sees then that it is no longer the one there
		}
		_ = unix.Close(one.fd)
	}
}

// holder is whose lock it is; empty where that is not known.
func holder(path string) (h Holder) {
	const most = 4096
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return Holder{}
	}
	defer func() { _ = unix.Close(fd) }()
	text := make([]byte, most)
	n, err := unix.Pread(fd, text, 0)
	if err != nil || json.Unmarshal(text[:n], &h) != nil {
		return Holder{}
	}
	return h
}

// here reports whether the process that holds the lock has this number in this process's PID namespace. Another one may
// have it where the holder runs in a container: the kernel tells.
func here(path string, pid int) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return false
	}
	// While the list is read, which is done in parts, it passes over a lock when one before it is given back.
	for range 8 {
		if listed(st.Ino, pid) {
			return true
		}
	}
	return false
}

// listed reports whether the kernel's list of locks has one of a process on an inode.
func listed(inode uint64, pid int) bool {
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(locks)) { // 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && f[4] == strconv.Itoa(pid) && strings.HasSuffix(f[5], fmt.Sprintf(":%d", inode)) {
			return true
		}
	}
	return false
}
