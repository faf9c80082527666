package k8s

import (
	"fmt"
	"regexp"
)

// quantity writes bytes as Kubernetes does, rounded up to MiB: "96Gi", "1536Mi".
func quantity(n uint64) string {
	mi := (n + 1<<20 - 1) >> 20
	if mi%1024 == 0 {
		return fmt.Sprintf("%dGi", mi/1024)
	}
	return fmt.Sprintf("%dMi", mi)
}

// wholeGiB rounds up.
func wholeGiB(n uint64) uint64 { return (n + 1<<30 - 1) >> 30 << 30 }

var cpus = regexp.MustCompile(`^([1-9][0-9]{0,5}(\.[0-9]{1,3})?|0?\.[0-9]{0,2}[1-9]|[1-9][0-9]{0,8}m)$`)

// ParseCPU parses a number of processors, as 16, 0.5 or 500m.
func ParseCPU(s string) (string, error) {
	if !cpus.MatchString(s) {
		return "", fmt.Errorf("must be a number of processors, as 16, 0.5 or 500m")
	}
	return s, nil
}
