package launch

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// piped runs a pump over a pipe that write fills, and returns what came out.
func piped(t interface{ Fatal(...any) }, label string, write func(w *os.File)) string {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p := startPump(r, label, &sink{mu: new(sync.Mutex), w: &out})
	write(w)
	w.Close()
	<-p.done
	return out.String()
}

func TestLinesGetTheLabel(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "",
		"\n":                    "> \n",
		"a\nb\n":                "> a\n> b\n",
		"no end":                "> no end\n",
		"a\r\nb\r\n":            "> a\r\n> b\r\n",
		"50%\r100%\rdone\n":     "> 50%\r> 100%\r> done\n",
		"bar\r":                 "> bar\r\n",
		"\r\r\n\n":              "> \r> \r\n> \n",
		"a\x00b\xff\n":          "> a\x00b\xff\n",
		strings.Repeat("x", 10): "> xxxxxxxxxx\n",
	} {
		if got := piped(t, "> ", func(w *os.File) { _, _ = io.WriteString(w, in) }); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// labelled is the specification of a pump for streams without overlong lines.
func labelled(label, in string) string {
	var out strings.Builder
	for len(in) > 0 {
		end := len(in)
		for i := range in {
			if in[i] == '\n' || in[i] == '\r' && !strings.HasPrefix(in[i+1:], "\n") {
				end = i + 1
				break
			}
		}
		out.WriteString(label + in[:end])
		in = in[end:]
	}
	s := out.String()
	if s != "" && !strings.HasSuffix(s, "\n") {
		s += "\n"
	}
	return s
}

func TestAnyBytesInAnyPiecesComeOutWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.StringMatching(`[ab\r\n]{0,9}`)).Draw(t, "pieces")
		p := &pump{label: []byte("> "), done: make(chan struct{})}
		var out bytes.Buffer
		p.sink = &sink{mu: new(sync.Mutex), w: &out}
		for _, piece := range pieces {
			if err := p.lines([]byte(piece)); err != nil {
				t.Fatal(err)
			}
		}
		p.rest()
		if want := labelled("> ", strings.Join(pieces, "")); out.String() != want {
			t.Fatalf("got %q, want %q", out.String(), want)
		}
	})
}

// Two streams of one rank and those of others share a sink.
func TestManyRanksNeverMixLines(t *testing.T) {
	const ranks, lines = 16, 2000
	var out bytes.Buffer
	s := &sink{mu: new(sync.Mutex), w: &out}
	var pumps []*pump
	for rank := range ranks {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pumps = append(pumps, startPump(r, fmt.Sprintf("[%d] ", rank), s))
		go func() {
			defer w.Close()
			rng := rand.New(rand.NewPCG(1, uint64(rank)))
			var text bytes.Buffer
			for i := range lines {
				fmt.Fprintf(&text, "%d:%d:%s\n", rank, i, strings.Repeat("x", rng.IntN(100)))
			}
			for text.Len() > 0 { // cut anywhere
				_, _ = w.Write(text.Next(1 + rng.IntN(500)))
			}
		}()
	}
	for _, p := range pumps {
		<-p.done
	}
	next := make([]int, ranks)
	for line := range strings.Lines(out.String()) {
		var label, rank, i int
		var fill string
		n, _ := fmt.Sscanf(line, "[%d] %d:%d:%s", &label, &rank, &i, &fill)
		if n < 3 || label != rank || strings.Trim(fill, "x") != "" || !strings.HasSuffix(line, "\n") {
			t.Fatalf("mixed line %q", line)
		}
		if i != next[rank] {
			t.Fatalf("rank %d: line %d follows line %d", rank, i, next[rank]-1)
		}
		next[rank]++
	}
	for rank, n := range next {
		if n != lines {
			t.Errorf("rank %d: %d of %d lines", rank, n, lines)
		}
	}
}

func TestALineWithoutEndIsCutAndBounded(t *testing.T) {
	const size = 5*maxLine/2 + 17
	got := piped(t, "> ", func(w *os.File) { _, _ = w.Write(bytes.Repeat([]byte("y"), size)) })
	if n := strings.Count(got, "y"); n != size {
		t.Errorf("%d of %d bytes came out", n, size)
	}
	for line := range strings.Lines(got) {
		if !strings.HasPrefix(line, "> y") || len(line) > maxLine+readSize+len("> \n") {
			t.Fatalf("piece of %d bytes begins %.20q", len(line), line)
		}
	}
}

// A process that the rank left behind keeps the pipe open: what was written is passed on, and
// the pump ends.
func TestAStoppedPumpWritesWhatIsThereAndEnds(t *testing.T) {
	for range 50 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		p := startPump(r, "> ", &sink{mu: new(sync.Mutex), w: &out})
		_, _ = io.WriteString(w, strings.Repeat("line\n", 5000)+"last words")
		p.stop()
		<-p.done
		if want := strings.Repeat("> line\n", 5000) + "> last words\n"; out.String() != want {
			t.Fatalf("%d bytes came out, want %d", out.Len(), len(want))
		}
		if _, err := w.Write([]byte("x")); err == nil {
			t.Fatal("the pipe is still read")
		}
		w.Close()
	}
}

func TestAStoppedPumpDoesNotFollowAnEndlessWriter(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startPump(r, "> ", &sink{mu: new(sync.Mutex), w: io.Discard})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := io.WriteString(w, "for ever\n"); err != nil {
				return
			}
		}
	}()
	p.stop()
	<-p.done
	<-ended
	w.Close()
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestNobodyReadsEbbSoNobodyReadsTheRank(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startPump(r, "> ", &sink{mu: new(sync.Mutex), w: brokenWriter{}})
	_, _ = io.WriteString(w, "x\n")
	<-p.done
	if _, err := io.WriteString(w, "y\n"); err == nil {
		t.Error("the rank can go on writing into a pipe that nobody reads")
	}
	w.Close()
}

func TestStreamsOfOneFileShareALock(t *testing.T) {
	a, b, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if out, errs := newSinks(b, b); out.mu != errs.mu {
		t.Error("one file, two locks: lines can mix")
	}
	if out, errs := newSinks(a, os.Stderr); out.mu == errs.mu {
		t.Error("two files, one lock: a stuck reader of one stops the other")
	}
}
