package engine

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// A process that execs is another program with the number and the start time that it had: what its former
// program had parked bears its name and looks alive, and nobody can resume it. There is one engine in a
// process, and it has no file yet in a directory in which it is about to take room for the first time. So
// files there that bear the process's name are the former program's.

// former is where this engine has looked for such files.
type former struct {
	mu    sync.Mutex // guards the fields below; held while files are removed
	paths map[string]bool
	dirs  map[[2]uint64]bool // device and inode: a directory may have several paths
}

// removeFormer removes the files that a former program of this process left in a directory. What cannot be
// removed is told, and stays until the process's end.
func (e *Engine) removeFormer(dir string) {
	f := &e.former
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.paths[dir] {
		return
	}
	if f.paths == nil {
		f.paths, f.dirs = map[string]bool{}, map[[2]uint64]bool{}
	}
	f.paths[dir] = true
	disk := e.backings.files.Deadline()
	type found struct {
		report rankdir.Report
		dir    [2]uint64
	}
	got, err := filesys.Do(disk, "sweep", dir, func() (g found, err error) {
		fd, err := e.sys.Opendir(dir, 0)
		if err != nil {
			return g, err
		}
		defer func() { _ = e.sys.Close(fd) }()
		var st unix.Stat_t
		if err := e.sys.Fstat(fd, &st); err != nil {
			return g, err
		}
		if g.dir = [2]uint64{st.Dev, st.Ino}; f.dirs[g.dir] {
			return g, nil
		}
		how := rankdir.SweepOptions{Discard: e.config.Discard, Progress: func() { disk.Moved(dir) }}
		g.report, err = rankdir.SweepOwn(fd, dir, e.self, how)
		return g, err
	}, nil)
	if errors.Is(err, filesys.ErrHang) { // the pause will say so, and the next one looks again
		delete(f.paths, dir)
		return
	}
	if err != nil {
		e.sayOnce(fmt.Sprintf("look for files of this process's former program in %s: %v", dir, err))
		return
	}
	f.dirs[got.dir] = true
	if n := len(got.report.Files); n > 0 {
		e.log.Printf("removed %d backup files, %s, that this process's former program left in %s when it was replaced (exec)",
			n, sizes.Binary(got.report.Bytes), dir)
	}
}
