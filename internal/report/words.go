package report

import (
	"fmt"
	"math"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// size is a number of bytes in powers of 1000, and both in powers of 1024 too.
func size(n uint64) string { return sizes.Decimal(n) }

func both(n float64) string { return sizes.DecimalFirst(uint64(max(n, 0))) }

// duration is a time in seconds, for people.
func duration(s float64) string {
	whole := func(big, small int64, bigName, smallName string) string {
		text := fmt.Sprintf("%d %s", big, bigName)
		if small > 0 {
			text += fmt.Sprintf(" %d %s", small, smallName)
		}
		return text
	}
	n := int64(math.Round(s))
	switch {
	case s <= 0:
		return "0 s"
	case s < 0.0995:
		return fmt.Sprintf("%.1f ms", s*1000)
	case s < 9.995:
		return fmt.Sprintf("%.2f s", s)
	case s < 99.95:
		return fmt.Sprintf("%.1f s", s)
	case n < 3600:
		return whole(n/60, n%60, "min", "s")
	case n < 48*3600:
		n = int64(math.Round(s / 60))
		return whole(n/60, n%60, "h", "min")
	default:
		n = int64(math.Round(s / 3600))
		return whole(n/24, n%24, "d", "h")
	}
}

// percent is a share; a small one is not told as nothing.
func percent(part, whole float64) string {
	switch p := 100 * part / whole; {
	case whole <= 0 || part <= 0:
		return "0 %"
	case p < 0.1:
		return "< 0.1 %"
	case p < 9.95:
		return fmt.Sprintf("%.1f %%", p)
	default:
		return fmt.Sprintf("%.0f %%", p)
	}
}

// rate is a number of GB/s.
func rate(r float64) string {
	switch {
	case r <= 0:
		return "–"
	case r < 99.5:
		return strconv.FormatFloat(r, 'f', 2, 64)
	}
	return strconv.FormatFloat(r, 'f', 0, 64)
}

// unit is that in which all sizes of a table are told.
type unit struct {
	Name string
	by   float64
}

func unitFor(largest float64) unit {
	switch {
	case largest >= 1e15:
		return unit{"TB", 1e12}
	case largest >= 1e9:
		return unit{"GB", 1e9}
	case largest >= 1e6:
		return unit{"MB", 1e6}
	}
	return unit{"kB", 1e3}
}

// of is a size in the unit, with one decimal. What is there is not told as nothing.
func (u unit) of(n float64) string {
	switch v := n / u.by; {
	case n <= 0:
		return "0"
	case v < 0.05:
		return "< 0.1"
	default:
		return humanize.CommafWithDigits(math.Round(v*10)/10, 1)
	}
}

// seconds is a time in a column of them.
func seconds(s float64) string {
	switch {
	case s <= 0:
		return "0"
	case s < 0.0005:
		return "< 0.001"
	case s < 1:
		return fmt.Sprintf("%.3f", s)
	case s < 100:
		return fmt.Sprintf("%.2f", s)
	}
	return humanize.CommafWithDigits(math.Round(s), 0)
}
