package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Disk is a disk directory that ranks use. Sizes are bytes.
type Disk struct {
	Dir   string `json:"dir"`
	Files uint64 `json:"files_bytes"` // that the files of the ranks hold in all their directories
	Free  uint64 `json:"free_bytes"`  // for this user
	Total uint64 `json:"total_bytes"` // of the file system
	Err   string `json:"error,omitempty"`
}

// Disks looks at the disk directories of ranks. One whose file system does not answer in time has an error.
func Disks(ctx context.Context, all []RankStatus, patience time.Duration) []Disk {
	var disks []Disk
	for _, r := range all {
		dirs := []string{r.Status.Disk.Dir}
		for _, d := range r.Status.Disk.Dirs {
			dirs = append(dirs, d.Dir)
		}
		counted := false
		for _, dir := range dirs {
			if dir == "" {
				continue
			}
			if base, _, ok := rankdir.OfDir(dir); ok {
				dir = base
			}
			i := slices.IndexFunc(disks, func(d Disk) bool { return d.Dir == dir })
			if i < 0 {
				i = len(disks)
				disks = append(disks, Disk{Dir: dir})
			}
			if !counted { // the files of a rank that uses several are counted with the first
				counted = true
				disks[i].Files += r.Status.Disk.Bytes
			}
		}
	}
	slices.SortFunc(disks, func(a, b Disk) int { return strings.Compare(a.Dir, b.Dir) })

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	type room struct {
		i   int
		st  unix.Statfs_t
		err error
	}
	rooms := make(chan room, len(disks)) // with room for those that come when nobody waits any more
	for i, d := range disks {
		disks[i].Err = fmt.Sprintf("no answer in %v: the file system or its device hangs", patience)
		go func() {
			r := room{i: i}
			r.err = unix.Statfs(d.Dir, &r.st)
			rooms <- r
		}()
	}
	for range disks {
		select {
		case r := <-rooms:
			d := &disks[r.i]
			d.Err = ""
			if r.err != nil {
				d.Err = r.err.Error()
				continue
			}
			d.Free, d.Total = r.st.Bavail*uint64(r.st.Bsize), r.st.Blocks*uint64(r.st.Bsize)
		case <-ctx.Done():
			return disks
		}
	}
	return disks
}
