package doctor

import (
	"fmt"
	"strings"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// Status is the verdict of a check.
type Status string

// Verdicts.
const (
	OK   Status = "OK"
	Warn Status = "WARN" // works, and is not as it should be
	Fail Status = "FAIL" // a run, or its first pause, will fail
	Skip Status = "SKIP" // could not be looked at
)

// Finding is one row.
type Finding struct {
	Theme  string `json:"theme"` // what the part is about: "disk /scratch/me"
	Check  string `json:"check"`
	Status Status `json:"status"`
	Text   string `json:"text"` // the reason
	Remedy string `json:"remedy,omitempty"`
	// Values are the numbers in the text, for programs; bytes and bytes a second.
	Values map[string]float64 `json:"values,omitempty"`
	Facts  []Fact             `json:"facts,omitempty"`
}

// Fact is a line of a bug report.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func ok(format string, args ...any) Finding { return verdict(OK, "", format, args) }

func warn(remedy, format string, args ...any) Finding { return verdict(Warn, remedy, format, args) }

func fail(remedy, format string, args ...any) Finding { return verdict(Fail, remedy, format, args) }

func skip(format string, args ...any) Finding { return verdict(Skip, "", format, args) }

func verdict(s Status, remedy, format string, args []any) Finding {
	return Finding{Status: s, Remedy: oneLine(remedy), Text: oneLine(fmt.Sprintf(format, args...))}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// with is the row with a verdict's text.
func (f Finding) with(v Finding) Finding {
	v.Theme, v.Check = f.Theme, f.Check
	return v
}

// fact adds a line for bug reports.
func (f Finding) fact(name, format string, args ...any) Finding {
	f.Facts = append(f.Facts, Fact{name, oneLine(fmt.Sprintf(format, args...))})
	return f
}

// value adds a number.
func (f Finding) value(name string, v float64) Finding {
	values := map[string]float64{name: v}
	for n, v := range f.Values {
		values[n] = v
	}
	f.Values = values
	return f
}

func size(n uint64) string { return sizes.Both(n) }

// list is names with commas and an "and".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
