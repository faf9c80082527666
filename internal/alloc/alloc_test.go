package alloc

import (
	"errors"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/mem"
	"pgregory.net/rapid"
)

func add(t *Table, base mem.Addr, size uint64, tag string) *Allocation {
	a := &Allocation{Base: base, Size: size, Reserved: size, Tag: tag, Backup: BackupDisk}
	t.Add(a)
	return a
}

func TestFindLooksIntoRanges(t *testing.T) {
	tab := New()
	a, b := add(tab, 1000, 100, "x"), add(tab, 2000, 50, "x")
	for _, c := range []struct {
		addr mem.Addr
		size uint64
		want *Allocation
	}{
		{1000, 100, a}, {1000, 0, a}, {1099, 1, a}, {2049, 1, b}, {2000, 50, b},
		{999, 1, nil}, {1100, 1, nil}, {1050, 51, nil}, {2050, 0, nil}, {5000, 1, nil}, {0, 1, nil},
		{1000, 1<<64 - 1, nil},
	} {
		got, _, err := tab.Find(c.addr, c.size)
		if got != c.want || (c.want == nil) != errors.Is(err, ErrNotManaged) {
			t.Errorf("Find(%d, %d) = %v, %v", c.addr, c.size, got, err)
		}
	}
}

func TestPausesAreCountedByTagWhenTheyTookItsMemory(t *testing.T) {
	tab := New()
	a, b, c := add(tab, 1000, 100, "x"), add(tab, 2000, 50, "x"), add(tab, 3000, 50, "y")
	counts := func(when string, x, y uint64) {
		t.Helper()
		if tab.Taken("x") != x || tab.Taken("y") != y || tab.Taken("z") != 0 {
			t.Errorf("%s: %d of x, %d of y, %d of z; want %d, %d, 0", when, tab.Taken("x"), tab.Taken("y"), tab.Taken("z"), x, y)
		}
	}
	move := func(begin func([]string) ([]*Allocation, error), to State, tags ...string) {
		t.Helper()
		set, err := begin(tags)
		if err != nil {
			t.Fatal(err)
		}
		tab.Settle(set, to)
	}
	counts("at first", 0, 0)
	move(tab.BeginPause, Active, "x")
	counts("a pause that failed", 0, 0)
	move(tab.BeginPause, Paused, "x")
	counts("a pause of two allocations", 1, 0)
	move(tab.BeginPause, Paused, "x")
	counts("a pause that found nothing", 1, 0)
	move(tab.BeginResume, Paused)
	counts("a resume that failed", 1, 0)
	move(tab.BeginResume, Active)
	move(tab.BeginPause, Paused)
	counts("a pause of all", 2, 1)
	for _, gone := range []*Allocation{a, b, c} {
		if _, _, err := tab.Remove(gone.Base); err != nil {
			t.Fatal(err)
		}
	}
	counts("the memory is gone", 2, 1)
}

func TestRemoveTakesOnlyABase(t *testing.T) {
	tab := New()
	a := add(tab, 1000, 100, "x")
	if _, _, err := tab.Remove(1001); !errors.Is(err, ErrNotManaged) {
		t.Fatalf("inner address: %v", err)
	}
	if got, s, err := tab.Remove(1000); got != a || s != Active || err != nil {
		t.Fatalf("got %v %v %v", got, s, err)
	}
	if _, _, err := tab.Remove(1000); !errors.Is(err, ErrNotManaged) {
		t.Fatalf("again: %v", err)
	}
}

func TestRemoveWaitsForAPause(t *testing.T) {
	tab := New()
	add(tab, 1000, 100, "x")
	set, err := tab.BeginPause(nil)
	if err != nil {
		t.Fatal(err)
	}
	removed := make(chan State)
	go func() {
		_, s, _ := tab.Remove(1000)
		removed <- s
	}()
	tab.Settle(set, Paused)
	if s := <-removed; s != Paused { // never Pausing
		t.Fatalf("removed in state %v", s)
	}
}

func TestBeginTakesOnlyMatchingStatesAndTags(t *testing.T) {
	tab := New()
	a, b := add(tab, 2000, 1, "b"), add(tab, 1000, 1, "a")
	set, err := tab.BeginPause([]string{"a", "b"})
	if err != nil || len(set) != 2 || set[0] != b || set[1] != a {
		t.Fatalf("got %v, %v; want both by address", set, err)
	}
	if again, _ := tab.BeginPause(nil); len(again) != 0 {
		t.Fatalf("pausing memory was taken a second time: %v", again)
	}
	tab.Settle(set[:1], Paused)
	tab.Settle(set[1:], Active)
	if set, _ := tab.BeginResume(nil); len(set) != 1 || set[0] != b {
		t.Fatalf("resume took %v", set)
	}
}

func TestATagStaysKnownAfterItsLastAllocation(t *testing.T) {
	tab := New()
	if _, err := tab.BeginPause([]string{"x"}); !errors.Is(err, ErrUnknownTag) || !strings.Contains(err.Error(), "none yet") {
		t.Fatalf("got %v", err)
	}
	add(tab, 1000, 1, "x")
	if _, _, err := tab.Remove(1000); err != nil {
		t.Fatal(err)
	}
	if set, err := tab.BeginPause([]string{"x"}); err != nil || len(set) != 0 {
		t.Fatalf("got %v, %v", set, err)
	}
}

// Random operations against a map: the table finds what the map holds, and sums agree.
func TestTableAgreesWithAModel(t *testing.T) {
	type entry struct {
		size uint64
		tag  string
		s    State
	}
	rapid.Check(t, func(t *rapid.T) {
		tab, model := New(), map[mem.Addr]entry{}
		tags := rapid.SampledFrom([]string{"a", "b", "c"})
		for _, tag := range []string{"a", "b", "c"} { // make all known
			add(tab, 1, 1, tag)
			_, _, _ = tab.Remove(1)
		}
		begin := func(do func([]string) ([]*Allocation, error), from, to State) {
			tag := tags.Draw(t, "tag")
			set, err := do([]string{tag})
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range set {
				if m := model[a.Base]; m.s != from || m.tag != tag {
					t.Fatalf("took %v in state %v", a, m.s)
				}
				model[a.Base] = entry{a.Size, tag, to}
			}
			for _, m := range model {
				if m.s == from && m.tag == tag {
					t.Fatalf("left one %v in state %v", m, from)
				}
			}
			tab.Settle(set, to)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				base := mem.Addr(rapid.Uint64Range(1, 50).Draw(t, "slot") * 1000)
				if _, taken := model[base]; taken {
					t.Skip("taken")
				}
				e := entry{rapid.Uint64Range(1, 1000).Draw(t, "size"), tags.Draw(t, "tag"), Active}
				add(tab, base, e.size, e.tag)
				model[base] = e
			},
			"remove": func(t *rapid.T) {
				base := mem.Addr(rapid.Uint64Range(1, 50).Draw(t, "slot") * 1000)
				_, s, err := tab.Remove(base)
				if m, ok := model[base]; ok != (err == nil) || ok && s != m.s {
					t.Fatalf("Remove(%v) = %v, %v; model %v %v", base, s, err, m, ok)
				}
				delete(model, base)
			},
			"pause":  func(*rapid.T) { begin(tab.BeginPause, Active, Paused) },
			"resume": func(*rapid.T) { begin(tab.BeginResume, Paused, Active) },
			"": func(t *rapid.T) {
				var active, paused uint64
				away := false
				for _, s := range tab.Summary() {
					active += s.Active
					paused += s.Paused[BackupDisk]
				}
				for base, m := range model {
					if m.s == Active {
						active -= m.size
					} else {
						paused -= m.size
						away = true
					}
					if a, s, err := tab.Find(base+mem.Addr(m.size-1), 1); err != nil || a.Base != base || s != m.s {
						t.Fatalf("Find in %v: %v %v %v", base, a, s, err)
					}
				}
				if tab.AnyPaused() != away {
					t.Fatalf("something is paused: %t", !away)
				}
				if active != 0 || paused != 0 || len(tab.All()) != len(model) {
					t.Fatalf("sums are off by %d active, %d paused", active, paused)
				}
			},
		})
	})
}
