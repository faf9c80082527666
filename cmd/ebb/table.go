package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// textWidth is how wide output for people is at most, in columns.
const textWidth = 100

// table is lines of cells, aligned in columns. Columns are as wide as their widest cell.
type table struct {
	left []bool // by column: aligned to the left
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// narrowest is the least width of a column of numbers, so that tables of small ones are as easy to read.
const narrowest = 6

// widths are those of the columns.
func (t *table) widths() []int {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			if i >= len(t.left) {
				widths[i] = max(widths[i], narrowest)
			}
		}
	}
	return widths
}

// gap is how many blanks are between columns: two, where there is room for them.
func (t *table) gap() int {
	widths := t.widths()
	if sum(widths)+2*(len(widths)-1) <= textWidth {
		return 2
	}
	return 1
}

func sum(widths []int) (n int) {
	for _, w := range widths {
		n += w
	}
	return n
}

// width is that of the widest line.
func (t *table) width() int {
	widths := t.widths()
	return sum(widths) + t.gap()*(len(widths)-1)
}

// lines are the rows, without blanks at their ends.
func (t *table) lines() []string {
	widths, gap := t.widths(), strings.Repeat(" ", t.gap())
	var lines []string
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString(gap)
			}
			blanks := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < len(t.left) && t.left[i] {
				line.WriteString(cell + blanks)
			} else {
				line.WriteString(blanks + cell)
			}
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}

// heading is the line above a table that has a title over each of some columns and those that follow it.
func (t *table) heading(titles map[int]string) string {
	var line strings.Builder
	at := 0
	for column, w := range t.widths() {
		if title := titles[column]; title != "" {
			line.WriteString(strings.Repeat(" ", max(0, at-utf8.RuneCountInString(line.String()))))
			line.WriteString(title)
		}
		at += w + t.gap()
	}
	return line.String()
}

// shortenNames makes the table as narrow as the screen, as far as the cells of the first column can be shortened.
func (t *table) shortenNames() {
	if over := t.width() - textWidth; over > 0 {
		names := t.widths()[0] - over
		for _, row := range t.rows {
			row[0] = cut(row[0], max(names, narrowest))
		}
	}
}

// print writes the rows.
func (t *table) print(w io.Writer) {
	for _, line := range t.lines() {
		fmt.Fprintln(w, line)
	}
}

// wrap breaks a text into lines of the screen's width; those after the first begin with the indent.
func wrap(text, indent string) []string { return wrapAfter("", indent, text) }

// wrapAfter is wrap where the first line begins with something of its own.
func wrapAfter(first, indent, text string) []string {
	var lines []string
	line := first
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > textWidth:
			lines = append(lines, line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// printWrapped writes a text in lines of the screen's width, as wrapAfter breaks it.
func printWrapped(w io.Writer, first, indent, text string) {
	for _, line := range wrapAfter(first, indent, text) {
		fmt.Fprintln(w, line)
	}
}

// cut shortens a text to a number of columns; what is left out is in its midst.
func cut(text string, columns int) string {
	runes := []rune(text)
	if len(runes) <= columns || columns < 3 {
		return text
	}
	tail := (columns - 1) * 2 / 3
	return string(runes[:columns-1-tail]) + "…" + string(runes[len(runes)-tail:])
}
