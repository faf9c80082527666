package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var nearly = cmpopts.EquateApprox(1e-9, 1e-12)

func TestIntervalIsBetweenOrderStatistics(t *testing.T) {
	for _, c := range []struct {
		n                 int
		low, high, median float64 // of the values 1 to n
		coverage          float64
	}{
		{1, 1, 1, 1, 0},
		{2, 1, 2, 1.5, 0.5},
		{4, 1, 4, 2.5, 1 - 2.0/16},
		{5, 1, 5, 3, 1 - 2.0/32},
		{7, 1, 7, 4, 1 - 2.0/128},
		{8, 2, 7, 4.5, 1 - 2*(1+8)/256.0},
		{11, 3, 9, 6, 1 - 2*(1+11+55)/2048.0},
		{15, 4, 12, 8, 1 - 2*(1+15+105+455)/32768.0},
	} {
		var values []float64
		for i := range c.n {
			values = append(values, float64(c.n-i)) // any order
		}
		before := slices.Clone(values)
		got := summarize(values)
		want := Interval{Median: c.median, Low: c.low, High: c.high, Coverage: c.coverage}
		if diff := cmp.Diff(want, got, nearly); diff != "" {
			t.Errorf("%d values (-want +got):\n%s", c.n, diff)
		}
		if !slices.Equal(before, values) {
			t.Errorf("%d values: their order was changed", c.n)
		}
	}
}

// Whatever the distribution, at least 90 % of the intervals hold its median.
func TestIntervalCoversTheMedian(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, d := range map[string]struct {
		draw   func() float64
		median float64
	}{
		"uniform":     {random.Float64, 0.5},
		"exponential": {random.ExpFloat64, math.Ln2},
		"heavy tail":  {func() float64 { return 1 / random.Float64() }, 2},
	} {
		for _, n := range []int{5, 6, 9, 12, 25} {
			const runs = 4000
			hits := 0
			for range runs {
				values := make([]float64, n)
				for i := range values {
					values[i] = d.draw()
				}
				if s := summarize(values); s.Low <= d.median && d.median <= s.High {
					hits++
				}
			}
			// Five standard deviations of a share of 0.9 below it.
			if share := float64(hits) / runs; share < confidence-5*math.Sqrt(0.09/runs) {
				t.Errorf("%s, %d values: %.3f of the intervals hold the median, want %.2f", name, n, share, confidence)
			}
		}
	}
}

func TestNothingMeasuredIsNoNumber(t *testing.T) {
	if s := summarize(nil); !math.IsNaN(s.Median) || s.Coverage != 0 {
		t.Errorf("no values give %+v", s)
	}
}

func TestRatiosAreOfTheSameRound(t *testing.T) {
	got := paired([]float64{2, 9, 8}, []float64{1, 3, 2})
	if diff := cmp.Diff([]float64{2, 3, 4}, got, nearly); diff != "" {
		t.Error(diff)
	}
	// The median of ratios is not the ratio of medians.
	f := ratio("pause", "ebb", "x", series{"a", unitRate, []float64{2, 9, 8}}, series{"b", unitRate, []float64{1, 3, 2}})
	if f.Median != 3 || f.Sides[0].Median != 8 || f.Sides[1].Median != 2 {
		t.Errorf("ratio %v of sides %v", f.Median, f.Sides)
	}
}

// Of a round that was not finished there may be one side only.
func TestARatioIsOfTheRoundsThatBothHave(t *testing.T) {
	f := ratio("pause", "ebb", "x", series{"a", unitRate, []float64{2, 9, 8, 100}}, series{"b", unitRate, []float64{1, 3, 2}})
	if len(f.Values) != 3 || f.Median != 3 || f.Sides[0].Median != 8 {
		t.Errorf("values %v, median %v, sides %v", f.Values, f.Median, f.Sides)
	}
}

func TestOfNeighboursEitherComesFirst(t *testing.T) {
	list := []string{"a", "b", "c"}
	for round, want := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"a", "b", "c"}} {
		if diff := cmp.Diff(want, alternated(list, round)); diff != "" {
			t.Errorf("round %d: %s", round, diff)
		}
	}
}
