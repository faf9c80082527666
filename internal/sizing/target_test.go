package sizing

import (
	"math"
	"strings"
	"testing"
)

func load(ranks uint64, k Kinds) Load { return Load{{Ranks: ranks, Kinds: k}} }

// node is one with plenty of everything.
func plenty() Node {
	return Node{
		GPU: 100e9, Host: 1e15, HostKnown: true, Chunk: 256 << 20, DiskFree: 1e15, DiskKnown: true,
		Link: rate(50), Write: rate(2), Read: rate(4), Fresh: rate(1),
	}
}

func rate(gb float64) Range { return Range{gb * 1e9, gb * 1e9, gb * 1e9} }

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*math.Abs(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Eight ranks of 10 GB each over a disk of 2 GB/s take 40 s; each alone could copy in 0.2 s.
func TestRanksShareTheDiskAndHaveALinkEach(t *testing.T) {
	targets := plenty().Targets(load(8, Kinds{Weights: 10e9}), All)
	cpu, disk := targets[0], targets[2]
	near(t, "pause to host memory", cpu.Pause.Typical, 0.2/pauseOfLink.Typical)
	near(t, "resume from it", cpu.Resume.Typical, 0.2/resumeOfLink.Typical)
	near(t, "pause to disk", disk.Pause.Typical, 40/pauseOfDisk.Typical)
	near(t, "resume from it", disk.Resume.Typical, 20/resumeOfDisk.Typical)
	near(t, "first pause to disk", disk.FirstPause.Typical, 80/pauseOfDisk.Typical)
	for _, target := range targets {
		for _, r := range []Range{target.Pause, target.Resume, target.FirstPause} {
			if !(r.Low <= r.Typical && r.Typical <= r.High) {
				t.Errorf("%s: %+v is no range", target.Name, r)
			}
		}
	}
}

// One rank on a fast array: the link is the slower one.
func TestAFastDiskLeavesTheLink(t *testing.T) {
	n := plenty()
	n.Write, n.Read = rate(500), rate(500)
	disk := n.Targets(load(1, Kinds{Weights: 10e9}), All)[2]
	near(t, "pause", disk.Pause.Typical, 0.2/pauseOfLink.Typical)
	near(t, "resume", disk.Resume.Typical, 0.2/resumeOfLink.Typical)
}

// Zero gradients are not moved, and take their room all the same.
func TestZeroGradientsTakeRoomAndNoTime(t *testing.T) {
	k := Kinds{Weights: 2e9, Gradients: 4e9, Master: 4e9, Moments: 8e9}
	all, but := plenty().disk(load(1, k), All), plenty().disk(load(1, k), ButZeroGradients)
	near(t, "time", but.Pause.Typical/all.Pause.Typical, 14.0/18)
	if but.DiskBytes != 18e9 || but.Written != 14e9 {
		t.Errorf("room %d, written %d", but.DiskBytes, but.Written)
	}
}

// With host memory for half of each rank, half goes to the disk.
func TestAutoTakesHostMemoryFirst(t *testing.T) {
	n := plenty()
	n.Chunk = 0
	n.Host = 2 * (5 << 30)
	auto := n.auto(load(2, Kinds{Weights: 10 << 30}), All)
	if !auto.Fits || auto.HostMB != 5<<10 || auto.HostBytes != 10<<30 || auto.DiskBytes != 10<<30 || auto.Written != 10<<30 {
		t.Errorf("%+v", auto)
	}
	near(t, "pause", auto.Pause.Typical, n.disk(load(2, Kinds{Weights: 5 << 30}), All).Pause.Typical)
}

func TestWhatDoesNotFitSaysWhatIsMissing(t *testing.T) {
	k := load(8, Kinds{Weights: 10e9})
	for _, c := range []struct {
		name string
		node func(*Node)
		fits string
		says string
	}{
		{"all of it", func(*Node) {}, "cpu auto disk", ""},
		{"less host memory", func(n *Node) { n.Host = 50e9 }, "auto disk", "80.0 GB) needed, 46.6 GiB (50.0 GB) there"},
		{"host memory for less than the staging buffers", func(n *Node) { n.Host = 1e9 }, "", "host memory: 2.0 GiB (2.1 GB) needed"},
		{"host memory for the staging buffers alone", func(n *Node) { n.Host = 8 * 256 << 20 }, "disk", "no host memory is left"},
		{"host memory for little more", func(n *Node) { n.Host = 8*256<<20 + 1e9 }, "disk", "the disk target does as well"},
		{"less room on the disk", func(n *Node) { n.DiskFree = 1e9 }, "cpu auto", "74.5 GiB (80.0 GB) needed on disk, 953.7 MiB (1000.0 MB) free"},
		{"neither", func(n *Node) { n.Host, n.DiskFree = 50e9, 1e9 }, "", "free"},
		{"room that is not known", func(n *Node) { n.DiskKnown = false; n.DiskFree = 0 }, "cpu auto disk", ""},
		{"host memory that is not known", func(n *Node) { n.HostKnown = false; n.Host = 0 }, "disk", "is not known"},
	} {
		n := plenty()
		c.node(&n)
		var fits, why []string
		for _, target := range n.Targets(k, All) {
			if target.Fits {
				fits = append(fits, target.Name)
			} else {
				why = append(why, target.Why)
			}
			if target.Fits == (target.Why != "") {
				t.Errorf("%s: %s fits %v, because %q", c.name, target.Name, target.Fits, target.Why)
			}
		}
		if got := strings.Join(fits, " "); got != c.fits || !strings.Contains(strings.Join(why, "; "), c.says) {
			t.Errorf("%s: %q fit, want %q; %q, want %q", c.name, got, c.fits, why, c.says)
		}
	}
}

// What fits as far as is known is not what was seen to fit.
func TestWhatWasNotCheckedIsNamed(t *testing.T) {
	n := plenty()
	n.HostKnown, n.DiskKnown = false, false
	targets := n.Targets(load(1, Kinds{Weights: 10e9}), All)
	NotChecked(targets, UncheckedGPU)
	for i, want := range []string{"gpu", "gpu", "host disk gpu"} { // cpu and auto do not fit host memory that is not known
		if got := strings.Join(targets[i].Unchecked, " "); got != want {
			t.Errorf("%s: %q, want %q", targets[i].Name, got, want)
		}
	}
	if targets = plenty().Targets(load(1, Kinds{Weights: 10e9}), All); len(targets[2].Unchecked) > 0 {
		t.Errorf("%+v", targets[2])
	}
}

func TestEveryTargetIsRefusedBesideItsOwnReason(t *testing.T) {
	n := plenty()
	n.Host = 5e9
	targets := n.Targets(load(1, Kinds{Weights: 10e9}), All)
	Refuse(targets, "the GPU is too small")
	for _, target := range targets {
		if target.Fits || !strings.HasSuffix(target.Why, "the GPU is too small") {
			t.Errorf("%+v", target)
		}
	}
	if !strings.HasPrefix(targets[0].Why, "host memory: ") {
		t.Errorf("%+v", targets[0])
	}
}

func TestSecondsAreUnknownWhereTheRateIs(t *testing.T) {
	n := plenty()
	n.Write, n.Read, n.Fresh = Range{}, Range{}, Range{}
	for _, target := range n.Targets(load(1, Kinds{Weights: 10e9}), All) {
		if known := target.Pause.Known(); known != (target.Written == 0) {
			t.Errorf("%s: pause known %v", target.Name, known)
		}
	}
}

func TestWhetherTheStepFitsTheGPU(t *testing.T) {
	k := Kinds{Weights: 2e9, Gradients: 4e9, Master: 4e9, Moments: 8e9}
	if got := (Node{GPU: 8e9}).StepFits(Kinds{Weights: 2e9, Gradients: 4e9, Master: 4e9}); got != FitNo {
		t.Errorf("an optimizer without moments, of which nothing can be streamed: %s", got)
	}
	for gpu, want := range map[uint64]Fit{0: FitUnknown, 20e9: FitYes, 19e9: FitYes, 18.5e9: FitStream, 7e9: FitStream, 6.5e9: FitNo} {
		if got := (Node{GPU: gpu, Margin: 1e9}).StepFits(k); got != want {
			t.Errorf("GPU of %d bytes: %s, want %s", gpu, got, want)
		}
	}
}

// 8 ranks of 46.1 GB, a pause every ten minutes, 8 drives of 3.84 TB rated at one write a day for five
// years: 53 TB a day where 30.7 are rated.
func TestWear(t *testing.T) {
	w := WearOf(8*46.1e9, 144, OfDWPD(1, 3.84e12, 5, 8))
	near(t, "a day", w.BytesPerDay, 53.1072e12)
	near(t, "rating", float64(w.Rating), 8*7.008e15)
	near(t, "years", w.Years, 5*30.72/53.1072)
	near(t, "TBW", float64(OfTBW(7008, 8)), float64(OfDWPD(1, 3.84e12, 5, 8)))
	if w := WearOf(0, 144, OfTBW(1, 1)); w.Years != 0 {
		t.Errorf("nothing written: %v years", w.Years)
	}
}

func TestParsers(t *testing.T) {
	for text, want := range map[string]uint64{"7B": 7e9, "0.6b": 6e8, "124M": 124e6, "1.5T": 15e11, "7000000000": 7e9, "3k": 3000} {
		if got, err := ParseCount(text); err != nil || got != want {
			t.Errorf("ParseCount(%q) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "B", "-7B", "0", "NaN", "Inf", "1e30", "7BB", "7 8", "0x7Z", "70", "999999"} {
		if got, err := ParseCount(text); err == nil {
			t.Errorf("ParseCount(%q) = %d", text, got)
		}
	}
	if _, err := ParseRate("2700"); err == nil || !strings.Contains(err.Error(), "give GB/s (10⁹ bytes a second), as 2.7 for 2700 MB/s") {
		t.Errorf("a rate in MB/s: %v", err)
	}
	if r, err := ParseRate("2-8"); err != nil || r != (Range{2e9, 4e9, 8e9}) {
		t.Errorf("ParseRate: %v, %v", r, err)
	}
	for _, text := range []string{"", "0", "-1", "3-2", "NaN", "NaN-NaN", "1-", "x", "1e9", "Inf"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("ParseRate(%q) = %v", text, got)
		}
	}
	for text, want := range map[string]uint64{"0": 0, "64GiB": 64 << 30, "64 MB": 64e6, "68719476736": 64 << 30, "1.5G": 15e8} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "1e30GB", "x", "64", " 80 ", "131,072", "0.5"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %v", text, got)
		}
	}
	if _, err := ParseSize("64"); err == nil || !strings.Contains(err.Error(), "as 64GiB") {
		t.Errorf("a size without its unit: %v", err)
	}
	if _, err := ParseCount("70"); err == nil || !strings.Contains(err.Error(), "as 70B or 70M") {
		t.Errorf("parameters without their unit: %v", err)
	}
	for _, text := range []string{"", "0", "-1", "1.5", "99999999999999999999"} {
		if got, err := ParseWays(text); err == nil {
			t.Errorf("ParseWays(%q) = %v", text, got)
		}
	}
	for _, text := range []string{"", "0", "NaN", "Inf", "-1"} {
		if got, err := ParsePositive("years")(text); err == nil || !strings.Contains(err.Error(), "number of years above 0") {
			t.Errorf("ParsePositive(%q) = %v", text, got)
		}
	}
}

func TestMediansAndTheirEnds(t *testing.T) {
	if got := Of(3, 1, 2); got != (Range{1, 2, 3}) {
		t.Error(got)
	}
	if got := Of(4, 1); got != (Range{1, 2.5, 4}) {
		t.Error(got)
	}
	if Of().Known() {
		t.Error("no measurement is known")
	}
}
