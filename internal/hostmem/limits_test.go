package hostmem

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"
)

const gib = 1 << 30

// tree unpacks the files of a machine and returns their root.
func tree(t *testing.T, name string) string {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata/limits", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := txtar.Write(archive, root); err != nil {
		t.Fatal(err)
	}
	return root
}

// The files under testdata are those of real systems, cut to what is read.
func TestWhatLimitsTheMemoryOfAProcess(t *testing.T) {
	const total, available = 65952444 << 10, 58720256 << 10
	for name, groups := range map[string][]Group{
		"v2-host": {
			{Path: "/system.slice/train.service", Limit: 16 * gib, Used: 2 * gib},
			{Path: "/system.slice", Limit: 32 * gib, Used: 16 * gib},
		},
		"v2-container": {{Path: "/", Limit: 12 * gib, Used: 4 * gib}},
		"v2-unlimited": nil,
		"v1-container": {{Path: "/docker/3601745b3bd54d9780436faa5f0e4f72", Limit: 8 * gib, Used: 1 * gib}},
		"v1-slurm":     {{Path: "/slurm/uid_1000/job_42/step_0", Limit: 20 * gib, Used: 6 * gib}},
		"hybrid":       {{Path: "/jobs/a b", Limit: 4 * gib, Used: 1 * gib}},
		"outside":      {{Path: "/", Limit: 8 * gib, Used: 4 * gib}},
		"none":         nil,
		"broken":       {{Path: "/a/b", Limit: 1 * gib, Used: 2 * gib}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := look(tree(t, name))
			if err != nil {
				t.Fatal(err)
			}
			want := Limits{Total: total, Available: available, Groups: groups}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Limits{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnUnknownNodeIsAnError(t *testing.T) {
	root := t.TempDir()
	if _, err := look(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no meminfo: %v", err)
	}
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "MemTotal: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: x kB\n", "MemTotal: 5\nMemAvailable: 3 kB\n"} {
		if err := os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if l, err := look(root); err == nil || !strings.Contains(err.Error(), "/proc/meminfo") {
			t.Errorf("%q: %+v, %v", text, l, err)
		}
	}
}

func TestThisMachineHasLimits(t *testing.T) {
	l, err := Look()
	if err != nil || l.Total < 64<<20 || l.Available == 0 || l.Available > l.Total {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestLimitOfAFile(t *testing.T) {
	for text, want := range map[string]uint64{
		"0\n": 0, "1073741824\n": gib, "5": 5, "9223372036853727231": unlimited - 1,
	} {
		if got, known := parseLimit(text); !known || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, known, want)
		}
	}
	for _, text := range []string{"max\n", "", "-1", "1 GiB", "9223372036854771712\n", "9223372036854710272\n", "18446744073709551615", "99999999999999999999"} {
		if got, known := parseLimit(text); known || got != math.MaxUint64 {
			t.Errorf("%q: %d, %v; want no limit", text, got, known)
		}
	}
}

func FuzzMeminfo(f *testing.F) {
	f.Add("MemTotal:       65952444 kB\nMemFree:        52113712 kB\nMemAvailable:   58720256 kB\n")
	f.Add("MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n")
	f.Fuzz(func(t *testing.T, text string) {
		total, available, err := parseMeminfo(text)
		if err != nil && (total != 0 || available != 0) {
			t.Errorf("%d and %d beside the error %v", total, available, err)
		}
		if total%1024 != 0 || available%1024 != 0 {
			t.Errorf("%d and %d are no kB", total, available)
		}
	})
}

// Whatever the kernel's texts say, the groups are directories below a mount, from the inside out.
func FuzzMemoryGroups(f *testing.F) {
	cases, err := filepath.Glob("testdata/limits/*.txtar")
	if err != nil || len(cases) == 0 {
		f.Fatal("no cases: ", err)
	}
	for _, file := range cases {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		texts := map[string]string{}
		for _, member := range archive.Files {
			texts[member.Name] = string(member.Data)
		}
		f.Add(texts["proc/self/cgroup"], texts["proc/self/mountinfo"])
	}
	f.Fuzz(func(t *testing.T, membership, mountinfo string) {
		groups := memoryGroups(membership, mountinfo)
		for i, g := range groups {
			if !filepath.IsAbs(g.dir) || filepath.Clean(g.dir) != g.dir {
				t.Errorf("group %+v", g)
			}
			if i > 0 && filepath.Dir(groups[i-1].dir) != g.dir {
				t.Errorf("%s is not the parent of %s", g.dir, groups[i-1].dir)
			}
			if g.ancestor != (i > 0) {
				t.Errorf("group %d: %+v", i, g)
			}
		}
	})
}

func FuzzLimit(f *testing.F) {
	for _, text := range []string{"max\n", "9223372036854771712\n", "1073741824\n", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, known := parseLimit(text); known != (n < unlimited) {
			t.Errorf("%d, known %v", n, known)
		}
	})
}

func FuzzStat(f *testing.F) {
	f.Add("cache 2147483648\nhierarchical_memory_limit 8589934592\ntotal_inactive_file 1610612736\n")
	f.Add("inactive_file\nactive_file -1\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, n := range parseStat(text) {
			// Sums of two do not overflow.
			if n+n < n || strings.ContainsAny(name, " \n") {
				t.Errorf("%q %d", name, n)
			}
		}
	})
}
