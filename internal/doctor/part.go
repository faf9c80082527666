package doctor

import (
	"context"
	"fmt"
	"time"
)

// check is one question.
type check struct {
	name string // in kebab case, what the row is called
	look func(context.Context) []Finding
}

// one makes a check that has one answer.
func one(name string, look func(context.Context) Finding) check {
	return check{name, func(ctx context.Context) []Finding { return []Finding{look(ctx)} }}
}

// part is checks about one thing, made in turn.
type part struct {
	theme  string
	checks []check

	hangs  string // what it is, if a check has no answer
	remedy string // and what to do then
}

// How long a check may take before it counts as hanging: files of the kernel's own and programs, what a child
// looks at, a driver that has to start, and a measurement.
const (
	hereLimit   = 10 * time.Second
	childLimit  = 6 * time.Second
	deviceLimit = 30 * time.Second
	rateLimit   = 60 * time.Second
)

// run makes the checks of a part in this process.
func (p part) run(ctx context.Context, limit time.Duration) (found []Finding) {
	for _, c := range p.checks {
		found = append(found, p.make(ctx, c, limit)...)
	}
	return found
}

// make makes one check. One that hangs is left to itself.
func (p part) make(ctx context.Context, c check, limit time.Duration) []Finding {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer := make(chan []Finding, 1)
	go func() {
		defer func() {
			if defect := recover(); defect != nil {
				answer <- []Finding{fail("this is a defect in ebb: please report it", "the check itself failed: %v", defect)}
			}
		}()
		answer <- c.look(ctx)
	}()
	var found []Finding
	select {
	case found = <-answer:
	case <-time.After(limit + time.Second): // what heeds ctx has answered by then
		found = []Finding{p.noAnswer(limit)}
	}
	for i := range found {
		found[i].Theme, found[i].Check = p.theme, c.name
	}
	return found
}

func (p part) noAnswer(limit time.Duration) Finding {
	hangs, remedy := p.hangs, p.remedy
	if hangs == "" {
		hangs, remedy = "it hangs", "find out what hangs: dmesg, ps (state D)"
	}
	return fail(remedy, "no answer in %v: %s", limit, hangs)
}

// unanswered are the rows of checks that were not made since the one before them hangs or died.
func (p part) unanswered(made int, why string) (found []Finding) {
	for _, c := range p.checks[min(made, len(p.checks)):] {
		found = append(found, Finding{Theme: p.theme, Check: c.name, Status: Skip, Text: why})
	}
	return found
}

// errorText is an error in one line.
func errorText(err error) string { return oneLine(fmt.Sprint(err)) }
