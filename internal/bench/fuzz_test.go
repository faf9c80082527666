package bench

import (
	"math"
	"strings"
	"testing"
)

// What a measured process answers is values, JSON, or an error, whatever it writes.
func FuzzAnswer(f *testing.F) {
	f.Add("ok seconds=1.5 bytes=3\n")
	f.Add("ok {\"a\":1}\n")
	f.Add("error no memory\n")
	f.Add("ok a b\n")
	f.Add("ok =\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, line string) {
		a, err := parseAnswer(line)
		if err != nil {
			if a.values != nil || a.json != "" {
				t.Errorf("%q: %+v beside the error %v", line, a, err)
			}
			return
		}
		if (a.values == nil) == (a.json == "") {
			t.Errorf("%q is %+v", line, a)
		}
		for key := range a.values {
			if numbers, err := a.numbers(key); err == nil && len(numbers) != 1 {
				t.Errorf("%q: %s is %v", line, key, numbers)
			}
		}
	})
}

// What a flag's parser accepts is within its bounds.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{"", "0", "3", "-1", "1e9", "NaN", "Inf", "0x1p-3", "1023", "soft", "auto", "raw write, raw read", ","} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseGiB(s); err == nil && !(v >= 1.0/64 && v <= 1<<20) || math.IsInf(v, 0) {
			t.Errorf("%q is %v GiB", s, v)
		}
		if n, err := ParseRounds(s); err == nil && (n < 1 || n > 1000) {
			t.Errorf("%q is %d rounds", s, n)
		}
		if n, err := ParseRanks(s); err == nil && (n < 2 || n > 64) {
			t.Errorf("%q is %d ranks", s, n)
		}
		if d, err := ParseDevice(s); err == nil && (d == "" || strings.ContainsAny(d, "-+ ")) {
			t.Errorf("%q is the device %q", s, d)
		}
		rows, err := ParseRows(s)
		for _, name := range rows {
			if _, ok := rowNamed(name); !ok {
				t.Errorf("%q names the row %q (%v)", s, name, err)
			}
		}
	})
}

// What is taken for a marker is one of a run's folder, whatever is in the file.
func FuzzMarker(f *testing.F) {
	f.Add([]byte(`{"version":1,"name":"ebb-bench-0123456789abcdef","folder":{"dev":1,"ino":2,"born":3},"owner":{}}`))
	f.Add([]byte(`{"version":1,"name":"ebb-bench-../../x"}`))
	f.Add([]byte(`{`))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, text []byte) {
		m := parseMarker(text)
		if m != nil && (m.Version != markerVersion || !runName.MatchString(m.Name) || strings.Contains(m.Name, "/")) {
			t.Errorf("%q is taken as %+v", text, m)
		}
	})
}
