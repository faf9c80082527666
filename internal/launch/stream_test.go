package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// valuesOf are those settings that speak of streamed state, or of parking.
func valuesOf(settings []Setting) map[string]string {
	found := map[string]string{}
	for _, s := range settings {
		if strings.Contains(s.Name, "STATE") || strings.HasPrefix(s.Name, "TMS_") || s.Name == "EBB_DISK_DIRS" {
			found[s.Name] = s.Value
		}
	}
	return found
}

// Parking and streamed state have nothing to do with one another: either, both or none.
func TestWhatARankIsToldOfStreamedState(t *testing.T) {
	streamed := map[string]string{
		"EBB_STATE_DIRS": "/a/r:/b/r", "EBB_STATE_LEASES": "/a/l:/b/l", "EBB_STREAM_OPTIMIZER_STATE_TO_DISK": "1",
		"EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE": "bf16", "EBB_OPTIMIZER_STATE_NVME_DIR": "/a,/b",
	}
	parked := map[string]string{
		"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "0", "TMS_INIT_ENABLE_DISK_BACKUP": "1",
		"TMS_DISK_BACKUP_DIR": "/d/r", "TMS_DISK_BACKUP_CHUNK_MB": "256",
	}
	for _, c := range []struct{ park, stream bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		o, r, want := NewOptions(), Rank{}, map[string]string{}
		if c.park {
			o.Offload, o.Target, r.Dirs = true, TargetDisk, []string{"/d/r"}
			for k, v := range parked {
				want[k] = v
			}
		}
		if c.stream {
			o.StateDirs, o.MomentDtype = []string{"/a", "/b"}, MomentBF16
			r.StateDirs, r.StateLeases = []string{"/a/r", "/b/r"}, []string{"/a/l", "/b/l"}
			for k, v := range streamed {
				want[k] = v
			}
		}
		got, err := Settings(o, Libraries{Preload: "/lib/torch_memory_saver/libebb.so"}, r, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, valuesOf(got)); d != "" {
			t.Errorf("park %v, stream %v:\n%s", c.park, c.stream, d)
		}
		preloads := false
		for _, s := range got {
			preloads = preloads || s.Name == "LD_PRELOAD"
		}
		if preloads != (c.park || c.stream) {
			t.Errorf("park %v, stream %v: the library is preloaded: %v", c.park, c.stream, preloads)
		}
	}
}

func TestMomentsAreFP32WhereNothingIsSaid(t *testing.T) {
	o := NewOptions()
	o.StreamState = true
	got, err := Settings(o, Libraries{Preload: "/lib/libebb.so"}, Rank{StateDirs: []string{"/x"}}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if v := valuesOf(got); v["EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE"] != "fp32" || v["EBB_STATE_DIRS"] != "/x" || v["EBB_STATE_LEASES"] != "" {
		t.Errorf("%v", v)
	}
}

func TestTypesOfMoments(t *testing.T) {
	for _, word := range []string{"fp32", "bf16", "fp16"} {
		if got, err := ParseMoment(word); err != nil || got != word {
			t.Errorf("%s: %q, %v", word, got, err)
		}
	}
	for word, says := range map[string]string{"fp8": "second moment", "fp8_e4m3": "second moment", "float": "one of", "": "one of"} {
		if _, err := ParseMoment(word); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", word, err)
		}
	}
}

func TestFlagsOfStreamedStateThatHaveNoEffectAreRefused(t *testing.T) {
	o := NewOptions()
	o.MomentDtype = MomentFP16
	if err := o.Validate(1, 0); err == nil || !strings.Contains(err.Error(), "--optimizer-state-nvme-dir") {
		t.Errorf("%v", err)
	}
	o.StreamState = true
	if err := o.Validate(1, 0); err != nil {
		t.Error(err)
	}
	o.StateDirs = []string{"/a:b"}
	if _, err := o.StateBases(os.Getenv, 0); err == nil || !strings.Contains(err.Error(), "colon") {
		t.Errorf("%v", err)
	}
}

// The directory of streamed state is that of backups where no other is named, and one directory has one lease.
func TestDirectoriesOfStreamedState(t *testing.T) {
	root := t.TempDir()
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	for _, dir := range []string{a, b} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(root, "link")
	if err := os.Symlink(a, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		o    Options
		want Places
	}{
		{"none", Options{DiskDirs: []string{a}}, Places{}},
		{"only backups", Options{Offload: true, Target: TargetDisk, DiskDirs: []string{a}}, Places{Disk: []string{a}, All: []string{a}}},
		{"only state", Options{StateDirs: []string{b}}, Places{State: []string{b}, All: []string{b}}},
		{"state in the disk directory, nothing parked", Options{StreamState: true, DiskDirs: []string{a}}, Places{State: []string{a}, All: []string{a}}},
		{"both in one", Options{Offload: true, Target: TargetDisk, DiskDirs: []string{a}, StreamState: true}, Places{Disk: []string{a}, State: []string{a}, All: []string{a}}},
		{"both in one by two names", Options{Offload: true, Target: TargetDisk, DiskDirs: []string{a}, StateDirs: []string{link, b}},
			Places{Disk: []string{a}, State: []string{a, b}, All: []string{a, b}}},
	} {
		t.Run(c.what, func(t *testing.T) {
			getenv := func(string) string { return "" }
			got, err := NewDisks(getenv).places(c.o, getenv, 0, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(Places{})); d != "" {
				t.Error(d)
			}
			if len(got.All) == 0 {
				return // nothing is claimed
			}
			ranks := []Rank{{Job: "j", Role: "actor", LocalRank: 1}}
			claims, err := claimAll(NewDisks(getenv), got, ranks, c.o, func(string) {})
			if err != nil {
				t.Fatal(err)
			}
			if len(claims.list) != len(c.want.All) {
				t.Errorf("%d claims in %v", len(claims.list), c.want.All)
			}
			if r := ranks[0]; len(r.Dirs) != len(c.want.Disk) || len(r.StateDirs) != len(c.want.State) || len(r.StateLeases) != len(r.StateDirs) {
				t.Errorf("the rank has %v and %v", r.Dirs, r.StateDirs)
			}
			claims.reclaim()
		})
	}
}
