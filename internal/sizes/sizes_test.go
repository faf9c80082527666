package sizes

import (
	"math"
	"testing"
)

func TestForms(t *testing.T) {
	for _, c := range []struct {
		n                                          uint64
		binary, decimal, exact, both, decimalFirst string
	}{
		{0, "0 bytes", "0 bytes", "0 bytes", "0 bytes", "0 bytes"},
		{1, "1 byte", "1 byte", "1 byte", "1 byte", "1 byte"},
		{999, "999 bytes", "999 bytes", "999 bytes", "999 bytes", "999 bytes"},
		{1000, "1000 bytes", "1.00 kB", "1000 bytes", "1000 bytes", "1000 bytes"},
		{1024, "1.0 KiB", "1.02 kB", "1 KiB", "1 KiB (1 kB)", "1024 bytes"},
		{3 << 19, "1.5 MiB", "1.57 MB", "1.5 MiB", "1.5 MiB (1.6 MB)", "1.6 MB (1.5 MiB)"},
		{80 << 20, "80.0 MiB", "83.89 MB", "80 MiB", "80 MiB (83.9 MB)", "83.9 MB (80.0 MiB)"},
		{5 << 28, "1.2 GiB", "1.34 GB", "1.25 GiB", "1.2 GiB (1.3 GB)", "1.34 GB (1.25 GiB)"},
		{3 << 40, "3.0 TiB", "3.30 TB", "3 TiB", "3 TiB (3.3 TB)", "3298.53 GB (3072.00 GiB)"},
		{math.MaxUint64, "16.0 EiB", "18.45 EB", "16 EiB", "16 EiB (18.4 EB)", "18446744073.71 GB (17179869184.00 GiB)"},
	} {
		for form, got := range map[string][2]string{
			"Binary": {Binary(c.n), c.binary}, "Decimal": {Decimal(c.n), c.decimal}, "Exact": {Exact(c.n), c.exact},
			"Both": {Both(c.n), c.both}, "DecimalFirst": {DecimalFirst(c.n), c.decimalFirst},
		} {
			if got[0] != got[1] {
				t.Errorf("%s(%d) is %q, want %q", form, c.n, got[0], got[1])
			}
		}
	}
}

func TestNumbersOfATableHaveSixCharactersAtMost(t *testing.T) {
	for n, want := range map[uint64]string{0: "0.00", 5e6: "5.00", 671e6: "671.0", 40e9: "40.00", 999_999e9: "999999"} {
		if got := UnitFor(n).Of(n); got != want || len(got) > 6 {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	if u := UnitFor(2e9); u.Name != "GB" || u.Of(500e6) != "0.50" {
		t.Errorf("%+v", u)
	}
}
