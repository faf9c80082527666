package hostmem

import (
	"errors"
	"fmt"
	"math"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// ErrMemory says that the host has too little memory.
var ErrMemory = errors.New("not enough host memory")

// ShortError says that memory was not taken because too little would be left.
type ShortError struct {
	Need    uint64 // bytes
	Left    uint64 // what may be taken before the limit is reached
	Reserve uint64 // what is kept free of it
	Limit   string // what sets the limit, with numbers: "cgroup /x allows 64.0 GiB, 15.8 GiB in use"
}

func (e *ShortError) Error() string {
	return fmt.Sprintf("%v: %s needed, %s left (%s; %s stay free); free some, raise the limit, or use the disk (--offload-train-target disk or auto)",
		ErrMemory, sizes.Binary(e.Need), sizes.Binary(e.Left), e.Limit, sizes.Binary(e.Reserve))
}

// Unwrap makes errors.Is(err, ErrMemory) true.
func (e *ShortError) Unwrap() error { return ErrMemory }

// The guard keeps the node away from the kernel's OOM killer, which would end some process, not
// the call that took too much. It looks at what there is; it reserves nothing. When several ranks
// take memory at the same time each can see the same room as free: therefore large takings are
// made in parts with a look before each, and guardReserve is more than the ranks of a node can
// have under way at a time.
const guardReserve = 2 << 30

// Check refuses n bytes, with a *ShortError, when the node or a memory cgroup of this process
// would have less left after them than a reserve: n, at most 2 GiB and at most a sixteenth of the
// memory. It is for one taking; the cost is that of reading a few files. Where the system does not
// say what it has, nothing is refused.
func Check(n uint64) error { return check(n, n) }

// CheckPart is Check with the whole reserve: before each part of something large.
func CheckPart(n uint64) error { return check(n, math.MaxUint64) }

// check is for n bytes that are part of a whole.
func check(n, whole uint64) error {
	limits, err := Look()
	if err != nil {
		return nil
	}
	return limits.check(n, whole)
}

func (l Limits) check(n, whole uint64) error {
	for _, b := range l.bounds() {
		reserve := min(whole, guardReserve, b.total/16)
		if left := b.left(); left < reserve || n > left-reserve {
			return &ShortError{Need: n, Left: left, Reserve: reserve, Limit: b.String()}
		}
	}
	return nil
}

// Left is how many bytes may be taken before the node or a memory cgroup of this process has none left;
// 0 where the system does not say.
func Left() uint64 {
	limits, err := Look()
	if err != nil {
		return 0
	}
	return limits.left()
}

func (l Limits) left() uint64 {
	least := uint64(math.MaxUint64)
	for _, b := range l.bounds() {
		least = min(least, b.left())
	}
	return max(least, 1) // none at all is known, too
}

// Verdict is how much host memory a rank may use, and why.
type Verdict struct {
	Bytes   uint64 // whole MiB
	Limit   string // what sets the limit, with numbers
	Ranks   int    // that share it
	Reserve uint64 // bytes of the limit that no rank takes
}

// String is one line, without the place it is about.
func (v Verdict) String() string {
	ranks := "1 rank"
	if v.Ranks != 1 {
		ranks = fmt.Sprintf("%d ranks", v.Ranks)
	}
	return fmt.Sprintf("%s: %s, %s, reserve %s", sizes.Binary(v.Bytes), v.Limit, ranks, sizes.Binary(v.Reserve))
}

// Budget is what this rank may take now: an equal share of what node and cgroups leave, less a
// reserve. The reserve is for what else the job and the node will want while ranks are paused: data
// loaders, file cache, the rollout engine's own host memory. It is a twentieth of the memory, at
// least 2 GiB (a kernel under less begins to reclaim what is in use), and at most an eighth, so that
// a small cgroup still has a budget.
func Budget(ranks int) (Verdict, error) {
	limits, err := Look()
	if err != nil {
		return Verdict{}, err
	}
	return limits.share(ranks), nil
}

// Capacity is what this rank may ever take: Budget as if nothing were in use.
func Capacity(ranks int) (Verdict, error) {
	limits, err := Look()
	if err != nil {
		return Verdict{}, err
	}
	return limits.empty().share(ranks), nil
}

// share is the smallest share of all bounds.
func (l Limits) share(ranks int) Verdict {
	ranks = max(ranks, 1)
	least := Verdict{Bytes: math.MaxUint64}
	for _, b := range l.bounds() {
		reserve := min(max(b.total/20, 2<<30), b.total/8)
		bytes := uint64(0)
		if left := b.left(); left > reserve {
			bytes = (left - reserve) / uint64(ranks) &^ (1<<20 - 1)
		}
		if bytes < least.Bytes {
			least = Verdict{Bytes: bytes, Limit: b.String(), Ranks: ranks, Reserve: reserve}
		}
	}
	return least
}

// bound is one limit of memory.
type bound struct {
	name        string // "cgroup /x allows", "the node has"
	total, used uint64 // bytes; used: without what can be reclaimed
	known       bool   // used was looked at
}

func (b bound) left() uint64 {
	if b.used > b.total {
		return 0
	}
	return b.total - b.used
}

func (b bound) String() string {
	s := b.name + " " + sizes.Binary(b.total)
	if b.known {
		s += ", " + sizes.Binary(b.used) + " in use"
	}
	return s
}

// bounds are the node's and those of the cgroups, the innermost first.
func (l Limits) bounds() []bound {
	var list []bound
	for _, g := range l.Groups {
		list = append(list, bound{name: "cgroup " + g.Path + " allows", total: g.Limit, used: g.Used, known: !l.unused})
	}
	return append(list, bound{name: "the node has", total: l.Total, used: l.Total - min(l.Available, l.Total), known: !l.unused})
}

// empty is as if nothing were in use.
func (l Limits) empty() Limits {
	l.Available, l.unused = l.Total, true
	groups := make([]Group, len(l.Groups))
	for i, g := range l.Groups {
		groups[i] = Group{Path: g.Path, Limit: g.Limit}
	}
	l.Groups = groups
	return l
}
