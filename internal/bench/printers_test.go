package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/launch"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sample is a report with one of everything.
func sample() Report {
	r := Report{
		MessageType: "bench", Version: "1.2.3",
		Machine: Machine{
			Device: "NVIDIA H200", Driver: 13000, CPUs: 16, Memory: 128 * gib, Kernel: "6.18.44",
			Disks: []Disk{{Dir: "/scratch/me", FileSystem: "ext4", Mount: "/scratch"}},
		},
		Setup: Setup{Bytes: 4 * gib, Rounds: 5, Ranks: 4, ChunkMB: 256, Writers: 8, Readers: 16, Block: 4 * mib, Against: "/opt/tms/libtms.so"},
	}
	write := series{"raw write", unitRate, []float64{2.9, 2.95, 3, 2.8, 2.85}}
	first, second := series{"first", unitSeconds, []float64{1.5, 1.4, 1.6, 1.5, 1.5}}, series{"second", unitSeconds, []float64{0.02, 0.01, 0.03, 0.02, 0.02}}
	r.Figures = []Figure{
		value("raw", "raw", "raw write in place", unitRate, write.values),
		value("cpu-seconds", "raw", "raw write, CPU seconds", unitCPU, []float64{0.0101, 0.0102, 0.0103, 0.0104, 0.0105}),
		ratio("unchanged", "ebb", "second pause, unchanged: time / first", second, first).atMost(0.05),
		value("unchanged", "ebb", "second pause, unchanged: written", unitBytes, []float64{0, 0, 0, 4096, 8 * mib}).atMost(0),
		ratio("pause", "ebb", "pause / raw write in place", series{"pause", unitRate, []float64{2.8, 2.9, 2.9, 2.75, 2.8}}, write).atLeast(0.92),
		ratio("small", "ebb", "pause, 10000 x 2 MiB / 16 x 256 MiB, GB/s", series{"many small", unitRate, []float64{2.8, 2.9, 2.9}}, write).atLeast(0.85),
		ratio("pause", "tms", "pause / raw write in place", series{"pause", unitRate, []float64{1.3, 1.2, 1.4, 1.3, 1.3}}, write),
		ratio("adamw", "ebb", "pause, an AdamW actor with a text that is wider than its column", write, write).
			noting("zero blocks: 22.2 % of the bytes, 22.2 % skipped; bound 1.286; and more words so that the note needs a second line"),
		value("pinned", "ebb", "growth of host memory meanwhile", unitBytes, []float64{-284 * 1024}),
		missing("checks", "ebb", "time in checks / time of the pause", "ebb_status does not tell check_seconds"),
	}
	for _, size := range []uint64{gib, 4 * gib} {
		for i := range 3 {
			seconds := float64(size) / 1e9 / 2.9 * (1 + 0.05*float64(i))
			r.Points = append(r.Points,
				Point{"write", "raw", size, seconds * 0.97}, Point{"pause", "ebb", size, seconds}, Point{"pause", "tms", size, 2 * seconds},
				Point{"read", "raw", size, seconds * 1.4}, Point{"resume", "ebb", size, seconds * 1.5})
		}
	}
	r.Spans = []Spans{
		{
			Row: "pause", What: "16 x 256 MiB", Operation: "pause", Rounds: 5, Seconds: 1.48, Workers: 8,
			Phases: map[string]float64{"wait": 0.0001, "room": 0.0014, "hash": 0.0013, "move": 1.47, "check": 0.0011, "commit": 0.0012, "unmap": 0.0038, "rest": 0.0004},
			Trials: []Trial{{4, false, 2.2, 0}, {8, false, 2.7, 0}, {16, false, 2.71, 0}},
		},
		{
			Row: "cpu", What: "16 x 256 MiB", Operation: "pause", Rounds: 5, Seconds: 0.0841, Workers: 1, Snapshot: true,
			Phases: map[string]float64{"hash": 0.0012, "move": 0.0789, "check": 0.0011, "unmap": 0.0021},
			Trials: []Trial{{1, true, 53.1, 0.0007}, {8, false, 51.3, 0}},
		},
		{
			Row: "small", What: "10000 x 2 MiB", Operation: "resume", Rounds: 3, Seconds: 11.04, Workers: 4,
			Phases: map[string]float64{"create": 0.144, "move": 10.9},
		},
	}
	r.Took, r.Seconds = []Took{{"pause, resume, checks, cpu-seconds", 60.04}, {"small", 78.5}}, 150
	r.Ended = "ended by SIGTERM; nothing is left behind"
	r.sort()
	return r
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got; go test -update writes it anew):\n%s", name, diff)
	}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	sample().WriteText(&out, false)
	golden(t, "report.txt", out.Bytes())
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > columns {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.TrimRight(line, " ") != line {
			t.Errorf("blanks at the end of %q", line)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences without being asked for")
	}
	out.Reset()
	sample().WriteText(&out, true)
	if !strings.Contains(out.String(), "\x1b[1m") {
		t.Error("nothing is bold")
	}
}

// However long phases took, their numbers stand apart.
func TestLongPhasesKeepToTheirColumns(t *testing.T) {
	sp := Spans{Row: "cpu-seconds", What: "100000 x 255.99 MiB", Operation: "pause", Seconds: 98_765.4, Workers: 16, Phases: map[string]float64{}}
	long := []float64{0.09994, 0.09996, 999.9994, 999.9996, 12_345.6, 98_765.4, 0.0001, 1e-9}
	for i, name := range []string{"wait", "room", "hash", "move", "check", "commit", "unmap", "rest"} {
		sp.Phases[name] = long[i]
	}
	var out bytes.Buffer
	printer{w: &out}.spansTable(Report{Spans: []Spans{sp}}, "pause")
	line := strings.Split(out.String(), "\n")[2]
	want := []string{"cpu-seconds", "100000", "x", "255.99", "MiB", "98765s", "99.9", "100", "999999", "1000s", "12346s", "98765s", "0.1", "0.0"}
	if diff := cmp.Diff(want, strings.Fields(line)); diff != "" || utf8.RuneCountInString(line) > columns {
		t.Errorf("%s\n%s", line, diff)
	}
}

// Goals are of ebb, and of a GPU. A figure of which nothing was measured is none.
func TestGoalsAreForEbbOnAGPU(t *testing.T) {
	goals := func(device string) (named []string) {
		s := &session{o: NewOptions()}
		s.o.Device = device
		s.add(
			value("pause", "ebb", "reached", unitRatio, []float64{1}).atLeast(0.92),
			value("pause", "tms", "other", unitRatio, []float64{1}).atLeast(0.92),
			value("pause", "ebb", "none", unitRatio, nil).atLeast(0.92),
		)
		if len(s.report.Figures) != 2 {
			t.Errorf("figures %+v", s.report.Figures)
		}
		for _, f := range s.report.Figures {
			if text := goal(f); text != "" {
				named = append(named, f.What+" "+text)
			}
		}
		return named
	}
	if got := goals("0"); !slices.Equal(got, []string{"reached >= 0.92"}) {
		t.Errorf("on a GPU %q", got)
	}
	if got := goals(launch.DeviceSoft); len(got) > 0 {
		t.Errorf("on the software device %q", got)
	}
}

func TestRatiosComeFirst(t *testing.T) {
	ratios := true
	for _, f := range sample().Figures {
		if f.isRatio() && !ratios {
			t.Errorf("the ratio %q stands behind a rate", f.What)
		}
		ratios = f.isRatio()
	}
}

func TestJSONIsReadBackAsItWas(t *testing.T) {
	document, err := sample().JSON()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", document)
	var back Report
	if err := json.Unmarshal(document, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), back); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPlot(t *testing.T) {
	var out bytes.Buffer
	if err := sample().WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.svg", out.Bytes())
	wellFormed(t, out.Bytes())
}

// Names of directories and devices are text, not markup, and a plot without points is one too.
func TestPlotTakesAnyText(t *testing.T) {
	r := sample()
	r.Machine.Device, r.Points = "<&\">", nil
	var out bytes.Buffer
	if err := r.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, out.Bytes())
	if strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "Inf") {
		t.Errorf("numbers that are none:\n%s", &out)
	}
}

func wellFormed(t *testing.T, document []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(document))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
	}
}

func TestTicksAreRoundAndReachTheTop(t *testing.T) {
	for top, want := range map[float64][]float64{
		4:    {0, 1, 2, 3, 4},
		0.33: {0, 0.1, 0.2, 0.3, 0.4},
		128:  {0, 50, 100, 150},
		0:    {0, 0.2, 0.4, 0.6, 0.8, 1},
	} {
		if diff := cmp.Diff(want, ticks(top), nearly); diff != "" {
			t.Errorf("up to %v (-want +got):\n%s", top, diff)
		}
	}
}
