package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// board is lines on a terminal that are drawn again and again. On anything else it draws nothing.
type board struct {
	file  *os.File // nil: no terminal
	drawn int      // lines on the screen
}

func newBoard(f *os.File) *board {
	if os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(f.Fd())) {
		return &board{}
	}
	return &board{file: f}
}

// shown reports whether anybody sees the board.
func (b *board) shown() bool { return b.file != nil }

// size is the room that lines have now: the user may change the terminal meanwhile.
func (b *board) size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(b.file.Fd()))
	if err != nil || columns <= 0 || rows <= 0 { // a terminal that does not tell
		columns, rows = 80, 24
	}
	return min(columns-1, textWidth), rows - 1
}

// draw replaces what was drawn before. There must be room for the lines.
func (b *board) draw(lines []string) {
	if b.file == nil {
		return
	}
	columns, _ := b.size()
	var out strings.Builder
	b.home(&out)
	for _, line := range lines {
		if utf8.RuneCountInString(line) > columns {
			line = string([]rune(line)[:max(columns, 0)])
		}
		out.WriteString(line + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	fmt.Fprint(b.file, out.String())
	b.drawn = len(lines)
}

// clear takes the lines away.
func (b *board) clear() {
	if b.file == nil {
		return
	}
	var out strings.Builder
	b.home(&out)
	fmt.Fprint(b.file, out.String()+"\x1b[J")
	b.drawn = 0
}

// home goes to where the first line is.
func (b *board) home(out io.Writer) {
	fmt.Fprint(out, "\r")
	if b.drawn > 0 {
		fmt.Fprintf(out, "\x1b[%dA", b.drawn)
	}
}

// bar is a bar of that many columns, of which a part is full.
func bar(part, whole uint64, columns int) string {
	full := columns
	if whole > 0 && part < whole {
		full = int(float64(columns) * float64(part) / float64(whole))
	}
	return strings.Repeat("█", full) + strings.Repeat("░", columns-full)
}
