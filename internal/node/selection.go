package node

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/ebb-offload/ebb/internal/control"
)

// Selection says which ranks are meant: those of one of the roles, and one of the ranks, and so on. An empty
// list leaves its question open; the empty Selection means all.
type Selection struct {
	Roles []string
	Ranks []string
	Cells []string
	Jobs  []string
	PIDs  []int
}

// SelectionError says which value selects nothing, and what there is.
type SelectionError struct {
	What, Value string   // "role", "critic"; What is "" where only the combination selects nothing
	Exist       []string // values of that kind, or the ranks
}

func (e *SelectionError) Error() string {
	if e.What == "" {
		return "no rank is all of that at once; there are: " + strings.Join(e.Exist, ", ")
	}
	if len(e.Exist) == 0 {
		return fmt.Sprintf("no %s %q: no rank has one", e.What, e.Value)
	}
	return fmt.Sprintf("no %s %q; there are: %s", e.What, e.Value, strings.Join(e.Exist, ", "))
}

// All reports whether nothing is left out.
func (s Selection) All() bool {
	return len(s.Roles)+len(s.Ranks)+len(s.Cells)+len(s.Jobs)+len(s.PIDs) == 0
}

// Means reports whether a rank is meant.
func (s Selection) Means(w control.Who) bool {
	return s.each(func(_ string, wanted []string, of func(control.Who) string) bool {
		return len(wanted) == 0 || slices.Contains(wanted, of(w))
	})
}

// each goes through the five questions until one answers false.
func (s Selection) each(question func(what string, wanted []string, of func(control.Who) string) bool) bool {
	pids := make([]string, len(s.PIDs))
	for i, pid := range s.PIDs {
		pids[i] = strconv.Itoa(pid)
	}
	return question("role", s.Roles, func(w control.Who) string { return w.Role }) &&
		question("rank", s.Ranks, func(w control.Who) string { return w.Rank }) &&
		question("cell", s.Cells, func(w control.Who) string { return w.Cell }) &&
		question("job", s.Jobs, func(w control.Who) string { return w.Job }) &&
		question("pid", pids, func(w control.Who) string { return strconv.Itoa(w.PID) })
}

// Select returns the ranks that are meant. A value that no rank has is a *SelectionError.
func Select(ranks []Rank, s Selection) ([]Rank, error) {
	selected, _, err := SelectBoth(ranks, nil, s)
	return selected, err
}

// SelectBoth is Select among those too that did not answer. One of whom something is not known is meant
// unless what is known says otherwise: nobody can tell that it is another one.
func SelectBoth(ranks []Rank, silent []Silent, s Selection) ([]Rank, []Silent, error) {
	known := make([]control.Who, 0, len(ranks)+len(silent))
	for _, r := range ranks {
		known = append(known, r.Who)
	}
	for _, q := range silent {
		known = append(known, q.Who)
	}
	var missing error
	s.each(func(what string, wanted []string, of func(control.Who) string) bool {
		for _, value := range wanted {
			if !slices.ContainsFunc(known, func(w control.Who) bool { return of(w) == value }) {
				missing = &SelectionError{What: what, Value: value, Exist: distinct(known, of)}
				return false
			}
		}
		return true
	})
	if missing != nil {
		return nil, nil, missing
	}
	selected, unanswered := s.Of(ranks, silent)
	if len(selected)+len(unanswered) == 0 && len(known) > 0 {
		return nil, nil, &SelectionError{Exist: distinct(known, Name)}
	}
	return selected, unanswered, nil
}

// Of is SelectBoth where values that no rank has are nothing wrong: on one of several nodes.
func (s Selection) Of(ranks []Rank, silent []Silent) (selected []Rank, unanswered []Silent) {
	for _, r := range ranks {
		if s.Means(r.Who) {
			selected = append(selected, r)
		}
	}
	for _, q := range silent {
		if s.mayMean(q.Who) {
			unanswered = append(unanswered, q)
		}
	}
	return selected, unanswered
}

// KnowTags returns a *SelectionError for a tag that no rank has. It is nil where a rank did not say which it has.
func KnowTags(all []RankStatus, tags []string) error {
	var exist []string
	for _, r := range all {
		if r.Err != "" {
			return nil
		}
		for _, t := range r.Status.Tags {
			if !slices.Contains(exist, t.Tag) {
				exist = append(exist, t.Tag)
			}
		}
	}
	slices.Sort(exist)
	for _, tag := range tags {
		if !slices.Contains(exist, tag) {
			return &SelectionError{What: "tag", Value: tag, Exist: exist}
		}
	}
	return nil
}

// mayMean is Means where what is not known counts as right.
func (s Selection) mayMean(w control.Who) bool {
	return s.each(func(_ string, wanted []string, of func(control.Who) string) bool {
		value := of(w)
		return len(wanted) == 0 || value == "" || value == "0" && w.PID == 0 || slices.Contains(wanted, value)
	})
}

// distinct are the different values of all, numbers by size.
func distinct(all []control.Who, of func(control.Who) string) []string {
	var values []string
	for _, w := range all {
		if v := of(w); v != "" && !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	sort.Slice(values, func(i, j int) bool { return before(values[i], values[j]) })
	return values
}

// before orders numbers by size and other texts by their letters, after the numbers.
func before(a, b string) bool {
	m, errA := strconv.Atoi(a)
	n, errB := strconv.Atoi(b)
	switch {
	case errA == nil && errB == nil && m != n:
		return m < n
	case (errA == nil) != (errB == nil):
		return errA == nil
	}
	return a < b
}
