package hostmem

import "testing"

// A set of CPUs that is accepted is that of the kernel's text: numbers in the order of its parts.
func FuzzCPUList(f *testing.F) {
	for _, s := range []string{"", "0", "0-3,8,10-11\n", "3-1", "-", "0-", ",", "65536", "0-65535", "+1", " 1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 64 {
			return // no new way through it, only larger sets
		}
		cpus, err := parseCPUList(text)
		if err != nil && cpus != nil {
			t.Errorf("%q: %v beside the error %v", text, cpus, err)
		}
		for _, c := range cpus {
			if c < 0 || c > 0xffff {
				t.Errorf("%q: CPU %d", text, c)
			}
		}
	})
}
