package bench

import (
	"math"
	"slices"
)

// confidence is what an interval is to cover at least.
const confidence = 0.90

// Interval is the median of some values with an interval that covers the true median.
type Interval struct {
	Median   float64 `json:"median"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	Coverage float64 `json:"coverage"` // probability, whatever the distribution
}

// summarize is the median of values with the interval between two order statistics: the narrowest
// pair, equally far from both ends, that covers the median of the distribution with a probability of
// at least confidence. It takes no assumption about the distribution and no random numbers. Fewer
// than five values cannot reach that: the interval is then from the lowest to the highest, and
// Coverage says what it is worth. No values: all is NaN.
func summarize(values []float64) Interval {
	n := len(values)
	if n == 0 {
		nan := math.NaN()
		return Interval{nan, nan, nan, 0}
	}
	sorted := slices.Sorted(slices.Values(values))
	rank, coverage := 1, coverageOf(n, 1)
	for k := 2; k <= (n+1)/2; k++ {
		c := coverageOf(n, k)
		if c < confidence {
			break
		}
		rank, coverage = k, c
	}
	return Interval{Median: medianOf(sorted), Low: sorted[rank-1], High: sorted[n-rank], Coverage: coverage}
}

// coverageOf is the probability that the median lies between the k-th lowest and the k-th highest of
// n values: that neither fewer than k of n fair coins fall on one side nor on the other.
func coverageOf(n, k int) float64 {
	tail, ways := 0.0, 1.0 // ways: n over i
	for i := range k {
		tail += ways
		ways = ways * float64(n-i) / float64(i+1)
	}
	return max(0, 1-2*tail/math.Pow(2, float64(n)))
}

// medianOf is the median of sorted values.
func medianOf(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

func median(values []float64) float64 { return summarize(values).Median }

// paired divides values of the same round by one another.
func paired(above, below []float64) []float64 {
	out := make([]float64, min(len(above), len(below)))
	for i := range out {
		out[i] = above[i] / below[i]
	}
	return out
}

// alternated is a list, backwards in every other round.
func alternated[T any](list []T, round int) []T {
	out := slices.Clone(list)
	if round%2 == 1 {
		slices.Reverse(out)
	}
	return out
}
