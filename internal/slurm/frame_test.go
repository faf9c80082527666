package slurm

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// lines are what a task writes for an answer.
func lines(t testing.TB, node, answer string) []string {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, node)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Alive(); err != nil {
		t.Fatal(err)
	}
	if err := w.Answer([]byte(answer)); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func TestAnswersOfManyAreToldApart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		nodes := []string{"n1", "n2", "n10"}
		want, streams := map[string]string{}, map[string][]string{}
		for _, node := range nodes {
			want[node] = strings.Map(func(r rune) rune {
				if r == '\n' || r == '\r' {
					return ' '
				}
				return r
			}, rapid.StringN(0, -1, 5*maxPiece).Draw(rt, node))
			streams[node] = lines(t, node, want[node])
			for _, line := range streams[node] {
				if len(line) >= maxLine {
					rt.Fatalf("a line of %d bytes: srun would cut it", len(line))
				}
			}
		}
		a := newAnswers(nodes)
		for len(streams) > 0 {
			node := rapid.SampledFrom(nodes).Draw(rt, "next")
			if len(streams[node]) == 0 {
				delete(streams, node)
				continue
			}
			a.take([]byte(streams[node][0]))
			streams[node] = streams[node][1:]
			if rapid.Bool().Draw(rt, "other") {
				a.take([]byte(rapid.SampledFrom([]string{"", "welcome to n1", "ebb1 n7 + x", "ebb1 n1", "ebb1", "ebb1  "}).Draw(rt, "line")))
			}
		}
		for _, node := range nodes {
			if s := a.of[node]; !s.whole || string(s.text) != want[node] {
				rt.Errorf("%s: %q, %v; want %q", node, s.text, s.err, want[node])
			}
		}
	})
}

func TestAnAnswerThatIsNotWholeIsNone(t *testing.T) {
	whole := lines(t, "n1", strings.Repeat("x", 3*maxPiece))
	for skip := range whole {
		a := newAnswers([]string{"n1"})
		for i, line := range whole {
			if i != skip {
				a.take([]byte(line))
			}
		}
		alive := strings.HasPrefix(whole[skip], "ebb1 n1 . ")
		if s := a.of["n1"]; s.whole != alive {
			t.Errorf("without %.20q: whole %v, %v", whole[skip], s.whole, s.err)
		}
	}
}

func TestAnAnswerHasABound(t *testing.T) {
	a := newAnswers([]string{"n1"})
	piece := []byte("ebb1 n1 + " + strings.Repeat("x", maxPiece))
	for range maxAnswer/maxPiece + 2 {
		a.take(piece)
	}
	if s := a.of["n1"]; s.err == nil || s.text != nil {
		t.Errorf("%d bytes are kept, %v", len(s.text), s.err)
	}
	w, err := NewWriter(io.Discard, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Answer(make([]byte, maxAnswer+1)); err == nil {
		t.Error("an answer above the bound is sent")
	}
	if err := w.Answer([]byte("a\nb")); err == nil {
		t.Error("an answer with a line break is sent")
	}
}

func TestAllAnswersTogetherHaveABound(t *testing.T) {
	a := newAnswers([]string{"n1", "n2", "n3"})
	a.all = maxAll - 3*maxPiece // as if others had said so much
	piece := func(node string) *said { return a.take([]byte("ebb1 " + node + " + " + strings.Repeat("x", maxPiece))) }
	for _, node := range []string{"n1", "n2", "n2"} {
		if s := piece(node); s.err != nil {
			t.Fatalf("%s: %v", node, s.err)
		}
	}
	if s := piece("n2"); s.err == nil || s.text != nil {
		t.Errorf("%d bytes are kept, %v", len(s.text), s.err)
	}
	for _, node := range []string{"n3", "n1"} { // what was kept of it is room for others
		if s := piece(node); s.err != nil {
			t.Errorf("%s: %v", node, s.err)
		}
	}
}

func TestOnlyATaskOfSlurmAnswers(t *testing.T) {
	for _, bad := range []string{"", "a b", "a\nb", "-", strings.Repeat("n", 300)} {
		if _, err := NewWriter(io.Discard, bad); err == nil {
			t.Errorf("%q is taken for a node", bad)
		}
	}
}

func TestATaskSaysThatItIsThere(t *testing.T) {
	r, w := io.Pipe()
	task, err := NewWriter(w, "n1")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan []byte)
	go readLines(r, said)
	stopped := make(chan func(), 1)
	go func() { stopped <- task.StayAlive(time.Millisecond) }()
	for range 3 {
		if line := string(<-said); line != "ebb1 n1 . " {
			t.Errorf("%q", line)
		}
	}
	drain(said)
	(<-stopped)()
	_ = w.Close()
}

func FuzzWhatTasksSay(f *testing.F) {
	f.Add([]byte("ebb1 n1 . \nebb1 n1 + {}\nebb1 n1 = 2\n"))
	f.Add([]byte("hello\nebb1 n1 = -1\nebb1 n1 = 0\n"))
	f.Add([]byte("ebb1 n1 + " + strings.Repeat("x", 2*maxLine) + "\nebb1 n1 = 2\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, said := newAnswers([]string{"n1", "n2"}), make(chan []byte)
		go readLines(bytes.NewReader(text), said)
		for line := range said {
			if len(line) >= maxLine || bytes.ContainsRune(line, '\n') {
				t.Fatalf("a line of %d bytes", len(line))
			}
			a.take(line)
		}
		for node, s := range a.of {
			if len(s.text) > len(text) || s.whole && s.err != nil || s.whole && !s.heard || len(a.of) != 2 {
				t.Fatalf("%s: %+v", node, s)
			}
		}
	})
}

func TestLinesThatAreTooLongAreLeftOut(t *testing.T) {
	long := strings.Repeat("x", maxLine+rand.IntN(3*maxLine))
	said := make(chan []byte)
	go readLines(strings.NewReader("a\n"+long+"\nb\n"+long), said)
	var got []string
	for line := range said {
		got = append(got, string(line))
	}
	if strings.Join(got, " ") != "a b" {
		t.Errorf("%d lines", len(got))
	}
}
