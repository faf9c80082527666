package store

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWhatADirectoryMovedIsCounted(t *testing.T) {
	w := newWorld(t, mode{dirs: 2})
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	var wrote, read uint64
	for i, d := range w.store.Usage().Dirs {
		if d.Dir != w.dirs[i] || d.WriteBytes == 0 || d.ReadBytes != d.WriteBytes || d.WriteBusy <= 0 || d.ReadBusy <= 0 {
			t.Errorf("directory %d: %+v", i, d)
		}
		wrote, read = wrote+d.WriteBytes, read+d.ReadBytes
	}
	if want := 2 * alignUp(w.size); wrote != want || read != want {
		t.Errorf("%d bytes written, %d read, want %d", wrote, read, want)
	}
}

// TestASlowDirectoryIsNamed by its rate between two readings.
func TestASlowDirectoryIsNamed(t *testing.T) {
	const moved = 1 << 30
	at := func(writeTime ...float64) (u Usage) {
		for i, seconds := range writeTime {
			u.Dirs = append(u.Dirs, DirUsage{
				Dir: string(rune('a' + i)), ReadBytes: moved, ReadBusy: time.Second,
				WriteBytes: moved, WriteBusy: time.Duration(seconds * float64(time.Second)),
			})
		}
		return u
	}
	for _, c := range []struct {
		what  string
		usage Usage
		slow  string
	}{
		{"one directory is never slow", at(100), ""},
		{"alike", at(1, 1.1, 0.9), ""},
		{"somewhat slower", at(1, 1.9), ""},
		{"less than half of the other", at(1, 2.1), "b"},
		{"of four, less than half of the others' median", at(1, 5, 1, 1), "b"},
		{"a fast one makes the others not slow", at(1, 1, 0.1), ""},
		{"two of five", at(9, 1, 1, 9, 1), "ad"},
	} {
		var names string
		for _, d := range c.usage.Slow(Usage{}) {
			if names += d.Dir; !d.Writing || !strings.Contains(d.String(), d.Dir+" is slow: it writes ") {
				t.Errorf("%s: %v", c.what, d)
			}
		}
		if names != c.slow {
			t.Errorf("%s: slow are %q, want %q", c.what, names, c.slow)
		}
	}

	// Only what happened since the earlier reading counts, and little is not judged.
	before := at(1, 10)
	after := at(1, 10)
	if slow := after.Slow(before); slow != nil {
		t.Errorf("nothing moved, yet slow are %v", slow)
	}
	for i := range after.Dirs {
		after.Dirs[i].ReadBytes += slowBytes - uint64(1-i)
		after.Dirs[i].ReadBusy += time.Duration(1+9*i) * time.Second
	}
	if slow := after.Slow(before); slow != nil {
		t.Errorf("one directory moved too little, yet slow are %v", slow)
	}
	after.Dirs[0].ReadBytes++
	slow := after.Slow(before)
	if len(slow) != 1 || slow[0].Dir != "b" || slow[0].Writing || !slices.IsSorted([]float64{slow[0].Rate, slow[0].Others}) {
		t.Errorf("slow are %v, want b reading", slow)
	}
}
