package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// width is the longest line, in columns.
const width = 100

// Colours of verdicts (ECMA-48).
var colours = map[Status]string{OK: "\x1b[32m", Warn: "\x1b[33m", Fail: "\x1b[1;31m", Skip: "\x1b[2m"}

const (
	bold  = "\x1b[1m"
	plain = "\x1b[0m"
)

// WriteText writes the page for people.
func (r Result) WriteText(w io.Writer, coloured bool) {
	names := 0
	for _, f := range r.Findings {
		names = max(names, len(f.Check))
	}
	theme := ""
	for _, f := range r.Findings {
		if f.Theme != theme {
			if theme != "" {
				fmt.Fprintln(w)
			}
			theme = f.Theme
			if coloured {
				fmt.Fprintln(w, bold+theme+plain)
			} else {
				fmt.Fprintln(w, theme)
			}
		}
		mark := fmt.Sprintf("%-6s", "["+string(f.Status)+"]")
		if coloured {
			mark = colours[f.Status] + mark + plain
		}
		indent := len("[FAIL] ") + names + 2
		lines := wrap(f.Text, width-indent)
		fmt.Fprintf(w, "%s %-*s  %s\n", mark, names, f.Check, lines[0])
		for _, line := range lines[1:] {
			fmt.Fprintf(w, "%*s%s\n", indent, "", line)
		}
		if f.Remedy != "" {
			for i, line := range wrap(f.Remedy, width-indent-2) {
				arrow := "→ "
				if i > 0 {
					arrow = "  "
				}
				fmt.Fprintf(w, "%*s%s%s\n", indent, "", arrow, line)
			}
		}
	}
	fmt.Fprintf(w, "\n%s\n", r.summary())
	r.writeFacts(w)
}

func (r Result) summary() string {
	parts := []string{fmt.Sprintf("%d ok", r.Count(OK))}
	for _, c := range []struct {
		status    Status
		one, many string
	}{{Warn, "warning", "warnings"}, {Fail, "failed", "failed"}, {Skip, "not looked at", "not looked at"}} {
		switch n := r.Count(c.status); {
		case n == 1:
			parts = append(parts, "1 "+c.one)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", n, c.many))
		}
	}
	return fmt.Sprintf("%s, in %.1f s", strings.Join(parts, ", "), r.Seconds)
}

// writeFacts writes what goes into a bug report: plain lines to be copied as they are.
func (r Result) writeFacts(w io.Writer) {
	fmt.Fprintln(w, "\nFor a bug report (settings of ebb, CUDA and PyTorch; no other variables):")
	fmt.Fprintln(w, "```")
	for _, f := range r.Facts {
		for i, line := range wrap(f.Name+": "+f.Value, width-2) {
			if i > 0 {
				line = "  " + line
			}
			fmt.Fprintln(w, line)
		}
	}
	for _, f := range r.Findings {
		if f.Status == Warn || f.Status == Fail {
			for i, line := range wrap(fmt.Sprintf("%s %s (%s): %s", f.Status, f.Check, f.Theme, f.Text), width-2) {
				if i > 0 {
					line = "  " + line
				}
				fmt.Fprintln(w, line)
			}
		}
	}
	fmt.Fprintln(w, "```")
}

// wrap breaks a text between words into lines of at most so many columns; a longer word is broken
// too. There is at least one line.
func wrap(text string, columns int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		for utf8.RuneCountInString(word) > columns {
			cut := len(string([]rune(word)[:columns]))
			if line != "" {
				lines, line = append(lines, line), ""
			}
			lines, word = append(lines, word[:cut]), word[cut:]
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= columns:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" || len(lines) == 0 {
		lines = append(lines, line)
	}
	return lines
}
