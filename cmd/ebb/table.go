package main

import (
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

// widths are those of the columns.
func (t *table) widths() []int {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// width is that of the widest line.
func (t *table) width() int {
	at := -1
	for _, w := range t.widths() {
		at += w + 1
	}
	return at
}

// lines are the rows, without blanks at their ends.
func (t *table) lines() []string {
	widths := t.widths()
	var lines []string
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteByte(' ')
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

// start is the column of the screen in which a column of the table begins.
func (t *table) start(column int) int {
	at := 0
	for _, w := range t.widths()[:column] {
		at += w + 1
	}
	return at
}

// wrap breaks a text into lines of the screen's width; those after the first begin with the indent.
func wrap(text, indent string) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > textWidth:
			lines = append(lines, line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
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
