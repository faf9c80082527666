package doctor

import (
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/version"
)

// facts are what a bug report needs: versions, the system, what the checks found out, and settings.
func (x examination) facts(found []Finding) []Fact {
	facts := []Fact{{"ebb", fmt.Sprintf("%s (%s, %s/%s)", version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)}}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		facts = append(facts, Fact{"kernel", unix.ByteSliceToString(name.Release[:]) + " " + unix.ByteSliceToString(name.Machine[:])})
	}
	if system := distribution(x.system); system != "" {
		facts = append(facts, Fact{"system", system})
	}
	facts = append(facts, Fact{"cpus", fmt.Sprint(runtime.NumCPU())})
	seen := map[Fact]bool{}
	for _, f := range found {
		for _, fact := range f.Facts {
			if !seen[fact] {
				seen[fact] = true
				facts = append(facts, fact)
			}
		}
	}
	if x.o.PID == 0 {
		facts = append(facts, shown(x.getenv)...)
	}
	return facts
}

// distribution is PRETTY_NAME of os-release.
func distribution(s system) string {
	for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, err := s.read(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			if value, found := strings.CutPrefix(line, "PRETTY_NAME="); found {
				return strings.Trim(strings.TrimSpace(value), `"`)
			}
		}
	}
	return ""
}
