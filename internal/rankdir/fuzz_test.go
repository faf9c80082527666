package rankdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// A name that is taken for a data file's is the one that its owner makes.
func FuzzDataFileName(f *testing.F) {
	f.Add("ebb-0123abcd-f0000001-42-1000-7.bak")
	f.Add("ebb-0123abcd-f0000001-042-1000-7.bak")
	f.Add("ebb-0123ABCD-f0000001-42-1000-7.bak")
	f.Add("ebb-0123abcd-f0000001-4294967296-1000-18446744073709551615.bak")
	f.Add("../ebb-0123abcd-f0000001-42-1000-7.bak")
	f.Fuzz(func(t *testing.T, name string) {
		owner, seq, ok := ParseDataFile(name)
		if !ok {
			return
		}
		if owner.DataFile(seq) != name || owner.PID <= 0 || owner.PID > math.MaxInt32 || filepath.Base(name) != name || len(name) > 255 {
			t.Errorf("%q is %+v number %d", name, owner, seq)
		}
	})
}

// A name that is taken for a lease's or a marker's is that of one identity, whose paths stay below
// the base.
func FuzzKey(f *testing.F) {
	f.Add("job__actor_cell0_rank1")
	f.Add("a__b__c_cell0_rank1")
	f.Add("job__actor_cell00_rank1")
	f.Add("../x__actor_cell0_rank1")
	f.Add("job____cell0_rank0")
	f.Fuzz(func(t *testing.T, key string) {
		id, ok := parseKey(key)
		if !ok {
			return
		}
		if id.key() != key || id.Validate() != nil {
			t.Errorf("%q is %+v", key, id)
		}
		staysBelow(t, id)
	})
}

func staysBelow(t *testing.T, id Identity) {
	t.Helper()
	for path, depth := range map[string]int{id.Path("/base"): 3, id.LeasePath("/base"): 3, id.MarkerPath("/base"): 3} {
		if parts := strings.Split(strings.TrimPrefix(path, "/base"), "/"); !strings.HasPrefix(path, "/base/") || len(parts) != depth || filepath.Clean(path) != path {
			t.Errorf("%+v: %q", id, path)
		}
		if len(filepath.Base(path)+tempSuffix) > 255 {
			t.Errorf("%+v: a name of %d bytes", id, len(filepath.Base(path)))
		}
	}
}

// An identity that is accepted makes safe names, and is found again from them.
func FuzzIdentity(f *testing.F) {
	f.Add("job", "actor", 0, 1)
	f.Add("a__b", "c", 0, 0)
	f.Add(".ebb", "actor", 0, 0)
	f.Add("job", "a_cell1_rank2", 3, 4)
	f.Add("..", "a/b", -1, 1<<40)
	f.Fuzz(func(t *testing.T, job, role string, cell, rank int) {
		id := Identity{Job: job, Role: role, Cell: cell, Rank: rank}
		if err := id.Validate(); err != nil {
			if bad := (*IdentityError)(nil); !errors.As(err, &bad) || !utf8.ValidString(err.Error()) && utf8.ValidString(job+role) {
				t.Errorf("%+v: %v", id, err)
			}
			return
		}
		if got, ok := parseKey(id.key()); !ok || got != id {
			t.Errorf("%+v has the key %q, which is %+v, %v", id, id.key(), got, ok)
		}
		if !dirName.MatchString(id.dirName()) {
			t.Errorf("%+v has the directory name %q", id, id.dirName())
		}
		staysBelow(t, id)
	})
}

// A marker that is believed is of the rank in its name, of this user, and no text breaks the reader.
func FuzzMarker(f *testing.F) {
	self, err := Self()
	if err != nil {
		f.Fatal(err)
	}
	good := marker{Version: markerVersion, Identity: testIdentity("job"), Dir: "/base/job/actor_cell0_rank1", Base: dirID{1, 2, 3}, RankDir: dirID{1, 4, 5}, Supervisor: self, Host: "node"}
	text, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	name := good.Identity.key() + markerSuffix
	f.Add(name, text)
	f.Add(name, []byte("null"))
	f.Add(name, []byte(`{"version":1}`))
	f.Add(name, []byte(`{"version":1,"identity":{"job":"../..","role":"actor"}}`))
	f.Add("other__actor_cell0_rank1.marker", text)
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		m, err := decodeMarker(name, text)
		if err != nil {
			if !errors.Is(err, errMarker) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if m.Version != markerVersion || m.Identity.Validate() != nil || m.Identity.key()+markerSuffix != name || m.Supervisor.UID != self.UID {
			t.Errorf("%q is believed of %q: %+v", text, name, m)
		}
		staysBelow(t, m.Identity)
	})
}

// Whatever a process calls itself, its start time is the kernel's.
func FuzzProcessStat(f *testing.F) {
	f.Add("sleep", uint64(4194560), uint64(123456))
	f.Add("a) Z 1 1 (b", uint64(0), uint64(1))
	f.Add(") ) )", uint64(4), uint64(math.MaxUint64))
	f.Add("new\nline", uint64(4), uint64(7))
	f.Fuzz(func(t *testing.T, name string, flags, start uint64) {
		text := statOf(name, flags, start)
		p, err := parseStat([]byte(text))
		if err != nil || p != (process{state: 'S', flags: flags, start: start}) {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
		for cut := range len(text) {
			if p, err := parseStat([]byte(text[:cut])); err == nil && p.state == 0 {
				t.Errorf("%q: %+v", text[:cut], p)
			}
		}
	})
}

// statOf is /proc/<pid>/stat of a process.
func statOf(name string, flags, start uint64) string {
	return fmt.Sprintf("42 (%s) S 1 42 42 0 -1 %d 100 0 0 0 5 6 0 0 20 0 1 0 %d 1000000 200 18446744073709551615\n", name, flags, start)
}

// What is shown of a name is one line without control characters.
func FuzzPrintable(f *testing.F) {
	f.Add("model.safetensors")
	f.Add("a\nb\x1b[2J")
	f.Add("\xff")
	f.Add("\u202e")
	f.Fuzz(func(t *testing.T, name string) {
		shown := printable(name)
		if !utf8.ValidString(shown) || strings.ContainsFunc(shown, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x202e }) {
			t.Errorf("%q is shown as %q", name, shown)
		}
	})
}
