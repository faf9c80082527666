package launch

import (
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/hostmem"
)

// refusal checks that err is a usage error of one line that says each of the words.
func refusal(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted; want a refusal that says %q", words)
	}
	if got := StatusOf(err); got != StatusUsage {
		t.Errorf("status %d, want %d: %v", got, StatusUsage, err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestDefaultsAreThoseOfTheReference(t *testing.T) {
	o := NewOptions()
	if o.Offload || o.Target != "cpu" || o.ChunkMB != 256 || o.Role != "actor" || o.Cell != 0 || o.Device != "auto" || o.Ranks != 1 {
		t.Errorf("defaults are %+v", o)
	}
	if o.Margin() != 1<<30 {
		t.Errorf("margin is %d, want 1 GiB", o.Margin())
	}
	o.Device = DeviceSoft
	if o.Margin() != 0 {
		t.Errorf("margin on the software device is %d, want 0", o.Margin())
	}
	o.MarginBytes = 5
	if o.Margin() != 5 {
		t.Errorf("margin is %d, want what was asked for", o.Margin())
	}
}

func TestEachRankOfANodeBeginsWithAnotherDirectory(t *testing.T) {
	o := NewOptions()
	o.DiskDirs = []string{"/a", "/b/../c", "/d"}
	bases, err := o.DiskBases(Lookup(nil), 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rank, local int
		want        string
	}{{0, 0, "/a /c /d"}, {9, 1, "/c /d /a"}, {4, 2, "/d /a /c"}, {5, 3, "/a /c /d"}, {4, -1, "/c /d /a"}, {-1, -1, "/a /c /d"}} {
		if got := strings.Join(BasesOf(bases, Rank{Rank: c.rank, LocalRank: c.local}), " "); got != c.want {
			t.Errorf("rank %d, local rank %d: %s, want %s", c.rank, c.local, got, c.want)
		}
	}
	if got := strings.Join(bases, " "); got != "/a /c /d" {
		t.Errorf("the list itself became %s", got)
	}
}

// A list of directories reaches the rank as one variable, separated by colons.
func TestAColonIsRefusedInOneOfSeveralDirectories(t *testing.T) {
	o := NewOptions()
	o.DiskDirs = []string{"/a", "/b:c"}
	_, err := o.DiskBases(Lookup(nil), 7)
	refusal(t, err, "--offload-train-disk-dir /b:c", "colon")
	o.DiskDirs = o.DiskDirs[1:]
	if bases, err := o.DiskBases(Lookup(nil), 7); err != nil || bases[0] != "/b:c" {
		t.Errorf("alone: %v, %v", bases, err)
	}
}

func TestHostMemoryBudgetIsCappedByTheMemory(t *testing.T) {
	o := NewOptions()
	capacity := hostmem.Verdict{Bytes: 10 << 30, Limit: "the node has 24.0 GiB", Ranks: 2, Reserve: 2 << 30}
	for _, mb := range []int{0, 1, 10 << 10} {
		o.HostMB = mb
		if got, warning := o.CapHost(capacity); got != mb || warning != "" {
			t.Errorf("%d: %d, %q", mb, got, warning)
		}
	}
	o.HostMB = 10<<10 + 1
	got, warning := o.CapHost(capacity)
	const want = "--offload-train-host-mb 10241 is more than the memory here: 10240 is used (10.0 GiB: the node has 24.0 GiB, 2 ranks, reserve 2.0 GiB)"
	if got != 10<<10 || warning != want {
		t.Errorf("%d, %q", got, warning)
	}
}

func TestOptionsThatMakeNoSenseTogether(t *testing.T) {
	disk := NewOptions()
	disk.Target, disk.Offload = TargetDisk, true
	const memory = 8 << 30

	without := disk
	without.Offload = false
	refusal(t, without.Validate(1, memory), "--offload-train-target disk", "--offload-train")

	auto := without
	auto.Target = TargetAuto
	refusal(t, auto.Validate(1, memory), "--offload-train-target auto", "--offload-train")
	host := NewOptions()
	host.HostMB = 5
	refusal(t, host.Validate(1, memory), "--offload-train-host-mb", "add --offload-train --offload-train-target auto")
	host.Offload = true
	refusal(t, host.Validate(1, memory), "--offload-train-host-mb 5", "the cpu target", "--offload-train-target auto")
	for _, target := range []string{TargetDisk, TargetAuto} {
		host.Target = target
		if err := host.Validate(1, memory); err != nil {
			t.Errorf("a host budget with the %s target: %v", target, err)
		}
	}

	quota := NewOptions()
	quota.Quota = 1
	refusal(t, quota.Validate(1, memory), "--offload-train-disk-quota-gb", "--offload-train-target disk")
	quota.Offload, quota.Target = true, TargetAuto
	if err := quota.Validate(1, memory); err != nil {
		t.Errorf("a quota of the disk: %v", err)
	}

	large := disk
	large.ChunkMB = 8<<10 + 1
	refusal(t, large.Validate(1, memory), "--offload-train-disk-chunk-mb 8193", "8.0 GiB of memory")

	shared := disk
	shared.ChunkMB = 2 << 10
	if err := shared.Validate(4, memory); err != nil {
		t.Errorf("4 ranks with 2 GiB in 8 GiB: %v", err)
	}
	refusal(t, shared.Validate(5, memory), "5 ranks would pin 10 GiB")

	one := disk
	one.ChunkMB = 9 << 10
	refusal(t, one.Validate(1, memory), "1 rank would pin")

	if err := large.Validate(1, 0); err != nil {
		t.Errorf("unknown memory is no reason to refuse: %v", err)
	}
	cpu := large
	cpu.Target, cpu.DiskDirs = TargetCPU, []string{"/a", "/b"}
	if err := cpu.Validate(1, memory); err != nil {
		t.Errorf("the cpu target looks at no directory and no chunk: %v", err)
	}
}

func TestParsersRefuse(t *testing.T) {
	for what, bad := range map[string]struct {
		parse  func(string) error
		values []string
	}{
		"ranks":  {func(s string) error { _, err := ParseRanks(s); return err }, []string{"0", "-1", "x", "", "1.5", "5000", "99999999999999999999"}},
		"chunk":  {func(s string) error { _, err := ParseChunkMB(s); return err }, []string{"0", "-1", "x", "", "256MB", "99999999999999999999"}},
		"host":   {func(s string) error { _, err := ParseHostMB(s); return err }, []string{"0", "-1", "x", "", "auto", "4GiB", "1.5", "99999999999999999999"}},
		"quota":  {func(s string) error { _, err := ParseQuotaGB(s); return err }, []string{"0", "-1", "x", "", "1GB", "NaN", "Inf", "0.0001", "1e300"}},
		"index":  {func(s string) error { _, err := ParseIndex(s); return err }, []string{"-1", "a/b", "1 2", "", "0x1"}},
		"margin": {func(s string) error { _, err := ParseMargin(s); return err }, []string{"-1", "x", "", "-5MiB", "99999999999999999999"}},
		"time":   {func(s string) error { _, err := ParseTime(s); return err }, []string{"-1s", "-1", "x", "", "5x", "NaN", "Inf", "1e300", "200h"}},
		"switch": {func(s string) error { _, err := ParseSwitch(s); return err }, []string{"", "maybe", "2", "yes"}},
		"choice": {func(s string) error { _, err := ParseChoice(s, "cpu", "disk"); return err }, []string{"", "tape", "CPU"}},
		"dirs":   {func(s string) error { _, err := ParseDirs(s); return err }, []string{"", ",", "/a,", ",/a", "/a,,/b", "/a, ", "/a\n/b"}},
	} {
		for _, v := range bad.values {
			if bad.parse(v) == nil {
				t.Errorf("%s %q is accepted", what, v)
			}
		}
	}
}

func TestCountsOfThings(t *testing.T) {
	for want, got := range map[string]string{
		"1 file": Count(1, "file"), "2 files": Count(2, "file"), "0 files": Count(0, "file"),
		"1 rank directory": Count(1, "rank directory"), "2 rank directories": Count(2, "rank directory"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestParsersAccept(t *testing.T) {
	if n, err := ParseRanks("64"); n != 64 || err != nil {
		t.Error(n, err)
	}
	for s, want := range map[string]int64{"0": 0, "1073741824": 1 << 30, "512MiB": 512 << 20, "1GB": 1e9} {
		if n, err := ParseMargin(s); n != want || err != nil {
			t.Errorf("margin %q: %d, %v", s, n, err)
		}
	}
	for s, want := range map[string]time.Duration{"2m": 2 * time.Minute, "5": 5 * time.Second, "0.5": 500 * time.Millisecond, "0": 0} {
		if d, err := ParseTime(s); d != want || err != nil {
			t.Errorf("time %q: %v, %v", s, d, err)
		}
	}
	if dirs, err := ParseDirs("/a b,/c"); len(dirs) != 2 || dirs[0] != "/a b" || dirs[1] != "/c" || err != nil {
		t.Error(dirs, err)
	}
}

func TestMemoryOfThisMachine(t *testing.T) {
	if Memory() < 64<<20 {
		t.Errorf("this machine has %d bytes of memory?", Memory())
	}
}
