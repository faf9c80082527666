package hostmem

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestTheGuardKeepsAReserve(t *testing.T) {
	large := Limits{Total: 1024 * gib, Available: 100 * gib}
	small := Limits{Total: 1024 * gib, Available: 100 * gib, Groups: []Group{{Path: "/x", Limit: 4 * gib, Used: 3 * gib}}}
	for _, c := range []struct {
		limits      Limits
		need, whole uint64
		ok          bool
	}{
		{large, 98 * gib, 98 * gib, true}, // 2 GiB stay free
		{large, 98*gib + 1, 98*gib + 1, false},
		{large, 98 * gib, math.MaxUint64, true},
		{Limits{Total: 1024 * gib, Available: 1 * gib}, gib / 2, gib / 2, true}, // a small need, a small reserve
		{Limits{Total: 1024 * gib, Available: 1 * gib}, gib/2 + 1, gib/2 + 1, false},
		{Limits{Total: 1024 * gib, Available: 1 * gib}, gib / 2, math.MaxUint64, false}, // part of something large
		{small, gib * 3 / 4, gib * 3 / 4, true},                                         // a sixteenth of 4 GiB stays free
		{small, gib*3/4 + 1, gib*3/4 + 1, false},
		{Limits{Total: gib, Available: gib, Groups: []Group{{Path: "/full", Limit: gib, Used: 2 * gib}}}, 1, 1, false},
		{large, 0, 0, true},
		{large, math.MaxUint64, math.MaxUint64, false},
	} {
		err := c.limits.check(c.need, c.whole)
		if (err == nil) != c.ok {
			t.Errorf("%+v: %d of %d: %v, want ok %v", c.limits, c.need, c.whole, err, c.ok)
		}
		if err != nil && !errors.Is(err, ErrMemory) {
			t.Errorf("%v is not ErrMemory", err)
		}
	}
}

func TestARefusalSaysWhatWhyAndWhatToDo(t *testing.T) {
	l := Limits{Total: 1024 * gib, Available: 512 * gib, Groups: []Group{{Path: "/jobs/x", Limit: 64 * gib, Used: 15*gib + 4*gib/5}}}
	err := l.check(60*gib, 60*gib)
	var short *ShortError
	if !errors.As(err, &short) || short.Need != 60*gib || short.Reserve != 2*gib {
		t.Fatalf("%+v", err)
	}
	const want = "not enough host memory: 60.0 GiB needed, 48.2 GiB left (cgroup /jobs/x allows 64.0 GiB, 15.8 GiB in use; 2.0 GiB stay free); " +
		"free some, raise the limit, or use the disk (--offload-train-target disk or auto)"
	if err.Error() != want {
		t.Errorf("%s\nwant\n%s", err, want)
	}
}

func TestWhatIsLeftIsThatOfTheTightestLimit(t *testing.T) {
	l := Limits{Total: 64 << 30, Available: 40 << 30}
	if got := l.left(); got != 40<<30 {
		t.Errorf("of the node: %d", got)
	}
	l.Groups = []Group{{Path: "/job", Limit: 16 << 30, Used: 10 << 30}, {Path: "/", Limit: 60 << 30, Used: 50 << 30}}
	if got := l.left(); got != 6<<30 {
		t.Errorf("of the group: %d", got)
	}
	l.Groups[0].Used = 17 << 30
	if got := l.left(); got != 1 {
		t.Errorf("of a group that has none: %d", got)
	}
}

func TestBudgetIsAnEqualShareOfTheTightestLimit(t *testing.T) {
	node := Limits{Total: 1000 * gib, Available: 850 * gib}
	inGroup := node
	inGroup.Groups = []Group{{Path: "/x", Limit: 64 * gib, Used: 14 * gib}, {Path: "/", Limit: 900 * gib, Used: 895 * gib}}
	for _, c := range []struct {
		limits Limits
		ranks  int
		want   string
	}{
		{node, 8, "100.0 GiB: the node has 1000.0 GiB, 150.0 GiB in use, 8 ranks, reserve 50.0 GiB"},
		{node, 1, "800.0 GiB: the node has 1000.0 GiB, 150.0 GiB in use, 1 rank, reserve 50.0 GiB"},
		{node, 0, "800.0 GiB: the node has 1000.0 GiB, 150.0 GiB in use, 1 rank, reserve 50.0 GiB"},
		{Limits{Total: 1000 * gib, Available: 850 * gib, Groups: inGroup.Groups[:1]}, 4,
			"11.7 GiB: cgroup /x allows 64.0 GiB, 14.0 GiB in use, 4 ranks, reserve 3.2 GiB"},
		{inGroup, 4, "0 bytes: cgroup / allows 900.0 GiB, 895.0 GiB in use, 4 ranks, reserve 45.0 GiB"},
		{Limits{Total: 16 * gib, Available: 10 * gib}, 2, "4.0 GiB: the node has 16.0 GiB, 6.0 GiB in use, 2 ranks, reserve 2.0 GiB"},
		{Limits{Total: 1 * gib, Available: 1 * gib}, 1, "896.0 MiB: the node has 1.0 GiB, 0 bytes in use, 1 rank, reserve 128.0 MiB"},
	} {
		v := c.limits.share(c.ranks)
		if v.String() != c.want {
			t.Errorf("%s\nwant\n%s", v, c.want)
		}
		if v.Bytes%(1<<20) != 0 || strings.Contains(v.String(), "\n") {
			t.Errorf("%d bytes", v.Bytes)
		}
	}
}

func TestCapacityLeavesOutWhatIsInUse(t *testing.T) {
	l := Limits{Total: 1000 * gib, Available: 1 * gib, Groups: []Group{{Path: "/x", Limit: 160 * gib, Used: 160 * gib}}}
	if got, want := l.empty().share(2).String(), "76.0 GiB: cgroup /x allows 160.0 GiB, 2 ranks, reserve 8.0 GiB"; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if l.Groups[0].Used == 0 {
		t.Error("the original was changed")
	}
}
