package engine

import (
	"encoding/json"
	"testing"

	"github.com/ebb-offload/ebb/internal/mem"
)

// The status says of each tag where its paused bytes are, whatever they were meant for: host memory that
// disk backups use, files, or nowhere.
func TestTheStatusSaysWherePausedBytesAre(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 1 << 20, HostArena: true, HostBytes: 1 << 20})
	a, b := r.make(3<<20+5, 0, disk("d")), r.make(2<<20, 1, disk("d"))
	r.write(a, 2<<20, make([]byte, 1<<20))
	c := r.make(1<<20+7, 0, pinned("c"))
	r.write(c, 0, make([]byte, 1<<19))
	r.make(1<<20, 0, none("n"))
	s := r.set
	s.Unused = []mem.Range{{Addr: b.addr + 1<<20, Bytes: 1 << 20}}
	where := func() map[string]TagStatus {
		var s Status
		check(t, json.Unmarshal(r.Status(nil), &s))
		byTag := map[string]TagStatus{}
		for _, tag := range s.Tags {
			if tag.Skipped+tag.InHost+tag.InFiles != tag.Host+tag.Disk {
				t.Errorf("not all bytes are somewhere: %+v", tag)
			}
			byTag[tag.Tag] = tag
		}
		return byTag
	}
	if got := where(); got["d"].Active != 5<<20+5 || got["d"].Skipped+got["d"].InHost+got["d"].InFiles > 0 {
		t.Errorf("active: %+v", got)
	}
	_, err := r.Pause(nil, s)
	check(t, err)
	got := where()
	if d := got["d"]; d.InHost != 1<<20 || d.Skipped != 2<<20 || d.InFiles != 2<<20+5 {
		t.Errorf("disk: %+v", d)
	}
	if c := got["c"]; c.InHost != 1<<19+7 || c.Skipped != 1<<19 || c.InFiles != 0 {
		t.Errorf("cpu: %+v", c)
	}
	if n := got["n"]; n.Discarded != 1<<20 {
		t.Errorf("none: %+v", n)
	}
	r.resume()
	if got := where(); got["d"].Active != 5<<20+5 || got["d"].InFiles != 0 {
		t.Errorf("active again: %+v", got)
	}
}
