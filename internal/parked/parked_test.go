package parked

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const testRank = "j/actor_cell0_rank0"

// place is a disk directory with a rank directory, and its map.
type place struct {
	base, dir string
	faults    *filesys.Faults
	file      *File
	m         *Map
}

// newPlace has one allocation of two blocks in a file.
func newPlace(t *testing.T) *place {
	t.Helper()
	base := t.TempDir()
	p := &place{base: base, dir: filepath.Join(base, testRank), faults: filesys.NewFaults(filesys.Kernel{})}
	must(t, os.MkdirAll(p.dir, 0o700))
	must(t, os.Mkdir(filepath.Join(base, ".ebb"), 0o700))
	self, err := rankdir.Self()
	must(t, err)
	key, err := fingerprint.NewKey()
	must(t, err)
	content := []byte(strings.Repeat("parked bytes ", 1000))[:8192]
	must(t, os.WriteFile(filepath.Join(p.dir, "f.bak"), content, 0o600))
	first, _ := key.Of(content[:4096])
	second, _ := key.Of(content[4096:5000])
	p.m = &Map{Rank: testRank, Owner: self, Key: key.Bytes(), Allocations: []Allocation{
		{ID: 1, Address: 0x7000, Size: 5000, Tag: "x", File: "f.bak", Blocks: []Block{
			{Offset: 0, Bytes: 4096, Known: true, Sum: first},
			{Offset: 4096, Bytes: 904, At: 4096, Known: true, Sum: second},
		}},
		{ID: 2, Address: 0x9000, Size: 1 << 20, Tag: "y", Host: 1 << 20, Blocks: []Block{}},
	}}
	p.file = NewFile(p.faults, filepath.Join(base, ".ebb", "j__actor_cell0_rank0.lease"), self)
	return p
}

// one is the only report.
func (p *place) one(t *testing.T) Report {
	t.Helper()
	reports, known, err := Verify(p.base, nil)
	if err != nil || !known || len(reports) != 1 {
		t.Fatalf("%v %v %v", reports, known, err)
	}
	return reports[0]
}

func (p *place) names(t *testing.T) string {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(p.base, ".ebb"))
	must(t, err)
	return fmt.Sprint(list)
}

func TestAMapComesBackAsItWasWritten(t *testing.T) {
	p := newPlace(t)
	p.m.Owner.UID = -1
	p.m.Allocations[1].Freed = true
	p.m.Allocations[0].Blocks[1].State, p.m.Allocations[0].Blocks[1].Known = Dead, false
	got, err := decode(p.m.encode())
	if err != nil || !reflect.DeepEqual(got, p.m) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, p.m)
	}
}

func TestVerifyReadsWhatTheMapSays(t *testing.T) {
	p := newPlace(t)
	must(t, p.file.Write(p.m))
	want := Report{Rank: testRank, Outcome: Good, PID: os.Getpid(), Allocations: 2, Files: 1, Bytes: 5000, Blocks: 2, Host: 1 << 20, BadBlocks: []Wrong{}}
	if got := p.one(t); !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	info, err := os.Stat(filepath.Join(p.base, ".ebb", p.file.name))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	// Bytes behind the last block are nobody's.
	f, err := os.OpenFile(filepath.Join(p.dir, "f.bak"), os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("?"), 5000)
	must(t, err)
	if got := p.one(t); got.Outcome != Good {
		t.Errorf("%+v", got)
	}
	_, err = f.WriteAt([]byte("?"), 4999)
	must(t, errors.Join(err, f.Close()))
	if got := p.one(t); got.Outcome != Bad || len(got.BadBlocks) != 1 || got.BadBlocks[0].Offset != 4096 || got.BadBlocks[0].Tag != "x" {
		t.Errorf("%+v", got)
	}
	// What was freed since is not looked at.
	must(t, p.file.Free(0))
	if got := p.one(t); got.Outcome != Good || got.Allocations != 1 {
		t.Errorf("%+v", got)
	}
	must(t, p.file.Remove())
	must(t, p.file.Remove())
	must(t, p.file.Free(1))
	if reports, known, err := Verify(p.base, nil); len(reports) > 0 || !known || err != nil {
		t.Errorf("%v %v %v", reports, known, err)
	}
}

func TestARankWhoseProcessHasEndedIsCalledDead(t *testing.T) {
	p := newPlace(t)
	p.m.Owner.StartTime-- // this pid is another process's now
	must(t, p.file.Write(p.m))
	if got := p.one(t); got.Outcome != Ended || !got.ProcessDead || got.Bytes != 5000 || !got.Checked() {
		t.Errorf("%+v", got)
	}
	must(t, os.Truncate(filepath.Join(p.dir, "f.bak"), 4096))
	if got := p.one(t); got.Outcome != Bad || !got.ProcessDead || got.Bad() != 1 {
		t.Errorf("%+v", got)
	}
}

func TestAFileThatIsGoneIsToldOnce(t *testing.T) {
	p := newPlace(t)
	must(t, p.file.Write(p.m))
	must(t, os.Remove(filepath.Join(p.dir, "f.bak")))
	got := p.one(t)
	if got.Outcome != Bad || got.Bad() != 2 || len(got.BadBlocks) != 1 || got.BadBlocks[0].Bytes != 5000 || got.BadBlocks[0].Blocks != 2 {
		t.Errorf("%+v", got)
	}
}

func TestBytesInHostMemoryAloneAreNotChecked(t *testing.T) {
	p := newPlace(t)
	p.m.Allocations = p.m.Allocations[1:]
	must(t, p.file.Write(p.m))
	if got := p.one(t); got.Outcome != Good || got.Checked() {
		t.Errorf("%+v", got)
	}
}

func TestWhereThereAreNoMaps(t *testing.T) {
	if reports, known, err := Verify(t.TempDir(), nil); len(reports) > 0 || known || err != nil {
		t.Errorf("%v %v %v", reports, known, err)
	}
	if _, _, err := Verify(filepath.Join(t.TempDir(), "missing"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Each call that fails leaves the map that was there, a new one, or none; never half of one, and no other file.
func TestEachCallOfAWriteFails(t *testing.T) {
	dry := newPlace(t)
	must(t, dry.file.Write(dry.m))
	calls := 0
	for _, n := range dry.faults.Calls() {
		calls += n
	}
	for _, what := range []string{"EIO", "EINTR"} {
		for n := 1; n <= calls; n++ {
			p := newPlace(t)
			must(t, p.file.Write(p.m))
			must(t, p.faults.Set(fmt.Sprintf("any:%d:%s", n, what)))
			err := p.file.Write(p.m)
			must(t, p.faults.Set(""))
			if what == "EINTR" && err != nil && !strings.Contains(err.Error(), "interrupted") {
				t.Errorf("call %d interrupted: %v", n, err)
			}
			reports, _, e := Verify(p.base, nil)
			if e != nil || len(reports) == 1 && reports[0].Outcome != Good || err == nil && len(reports) != 1 {
				t.Errorf("call %d fails with %s (%v): %+v, %v", n, what, err, reports, e)
			}
			must(t, p.file.Write(p.m)) // and again
			if got := p.names(t); strings.Contains(got, "tmp") || p.one(t).Outcome != Good {
				t.Errorf("call %d: left %s", n, got)
			}
		}
	}
}

func TestAMapThatIsNoneIsNotUsed(t *testing.T) {
	for what, plant := range map[string]func(p *place, path string) error{
		"nothing":        func(_ *place, path string) error { return os.WriteFile(path, nil, 0o600) },
		"half of one":    func(p *place, path string) error { q := p.m.encode(); return os.WriteFile(path, q[:len(q)/2], 0o600) },
		"a flipped bit":  func(p *place, path string) error { q := p.m.encode(); q[60] ^= 4; return os.WriteFile(path, q, 0o600) },
		"open to others": func(p *place, path string) error { return os.WriteFile(path, p.m.encode(), 0o644) },
		"a symlink":      func(_ *place, path string) error { return os.Symlink("/etc/hostname", path) },
		"a pipe":         func(_ *place, path string) error { return unix.Mkfifo(path, 0o600) },
		"of another rank": func(p *place, path string) error {
			p.m.Rank = "j/actor_cell0_rank1"
			return os.WriteFile(path, p.m.encode(), 0o600)
		},
		"a file elsewhere": func(p *place, path string) error {
			p.m.Allocations[0].File = "../../../etc/passwd"
			return os.WriteFile(path, p.m.encode(), 0o600)
		},
		"a short key": func(p *place, path string) error {
			p.m.Key = p.m.Key[1:]
			return os.WriteFile(path, p.m.encode(), 0o600)
		},
	} {
		p := newPlace(t)
		must(t, plant(p, filepath.Join(p.base, ".ebb", p.file.name)))
		if got := p.one(t); got.Outcome != Unread || !strings.Contains(got.Why, p.file.name) {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// A link in place of the rank directory, or of a file, leads nowhere.
func TestNoLinkIsFollowed(t *testing.T) {
	p := newPlace(t)
	must(t, p.file.Write(p.m))
	must(t, os.Rename(p.dir, p.dir+"-away"))
	must(t, os.Symlink(p.dir+"-away", p.dir))
	if got := p.one(t); got.Outcome != Bad || got.Bad() != 2 {
		t.Errorf("%+v", got)
	}
}

func FuzzMap(f *testing.F) {
	m := Map{Rank: testRank, Allocations: []Allocation{{ID: 1, File: "f", Blocks: []Block{{Bytes: 1}}}}}
	f.Add(m.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := decode(p)
		if err != nil {
			return
		}
		again, err := decode(m.encode())
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v came back as %+v (%v)", m, again, err)
		}
	})
}

// BenchmarkWrite writes the map of so many allocations of one block each.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := &Map{Rank: testRank, Key: make([]byte, 1000)}
			for i := range n {
				m.Allocations = append(m.Allocations, Allocation{ID: uint64(i), Tag: "default", File: fmt.Sprintf("ebb-12345678-f0000000-12345-123456789-%d.bak", i), Blocks: []Block{{Bytes: 2 << 20, Known: true}}})
			}
			base := b.TempDir()
			file := NewFile(filesys.NewFaults(filesys.Kernel{}), filepath.Join(base, "j__actor_cell0_rank0.lease"), rankdir.Owner{PID: 1})
			for b.Loop() {
				must(b, file.Write(m))
			}
		})
	}
}
