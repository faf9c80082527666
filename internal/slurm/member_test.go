package slurm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestThePlaceOfARankInItsWorld(t *testing.T) {
	place := func(environ string) (Place, bool) {
		return placeIn([]byte(strings.ReplaceAll(environ, " ", "\x00") + "\x00"))
	}
	const base = "SLURM_JOB_ID=77 RANK=3 WORLD_SIZE=8 MASTER_ADDR=n1 MASTER_PORT=29500"
	first, ok := place(base)
	if !ok || first.Rank != 3 || first.Size != 8 {
		t.Fatalf("%+v, %v", first, ok)
	}
	if same, _ := place(strings.Replace(base, "RANK=3", "RANK=4", 1) + " EBB_JOB=other SLURM_STEP_ID=2"); same.World != first.World {
		t.Errorf("%+v and %+v are of one world", first, same)
	}
	for _, other := range []string{"SLURM_JOB_ID=78", "WORLD_SIZE=9", "MASTER_ADDR=n2", "MASTER_PORT=29501"} {
		name, _, _ := strings.Cut(other, "=")
		var words []string
		for _, word := range strings.Fields(base) {
			if !strings.HasPrefix(word, name+"=") {
				words = append(words, word)
			}
		}
		if p, ok := place(strings.Join(append(words, other), " ")); !ok || p.World == first.World {
			t.Errorf("%s: %+v is of another world than %+v", other, p, first)
		}
	}
	for _, none := range []string{"", "RANK=1", "WORLD_SIZE=2", "RANK=2 WORLD_SIZE=2", "RANK=-1 WORLD_SIZE=2", "RANK=x WORLD_SIZE=2", "RANK=0 WORLD_SIZE=x"} {
		if p, ok := place(none); ok {
			t.Errorf("%q: %+v", none, p)
		}
	}
	if p, _ := place(base + strings.Repeat("x", 5000)); len(p.World) > maxWorld {
		t.Errorf("the name of a world has %d bytes", len(p.World))
	}
	// Nothing is known of a process that is not there.
	if _, ok := PlaceOf("/tmp/ebb-0/01234567-f000022a-1-1.sock"); ok {
		t.Error("a process that is not there has a place")
	}
}

func TestRanksThatAreInNoPlace(t *testing.T) {
	in := func(world string, size int, ranks ...int) (places []Place) {
		for _, rank := range ranks {
			places = append(places, Place{World: world, Size: size, Rank: rank})
		}
		return places
	}
	for name, c := range map[string]struct{ places, want []Place }{
		"none":               {nil, nil},
		"all":                {in("a", 3, 2, 0, 1), nil},
		"twice":              {in("a", 2, 0, 0, 1), nil},
		"two of four":        {in("a", 4, 3, 1), in("a", 4, 0, 2)},
		"two worlds":         {slices.Concat(in("a", 2, 0, 1), in("b", 2, 1)), in("b", 2, 0)},
		"no world of anyone": {in("a", 1<<40, 0), nil},
	} {
		if got := Absent(c.places); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The batch script may name another directory of sockets than the caller has.
func TestDirectoriesOfSocketsThatProcessesOfTheJobName(t *testing.T) {
	proc := t.TempDir()
	for pid, environ := range map[string]string{
		"10": "SLURM_JOB_ID=77 EBB_RUNTIME_DIR=/run/b", "11": "EBB_RUNTIME_DIR=/run/a SLURM_JOB_ID=77", "12": "SLURM_JOB_ID=77 EBB_RUNTIME_DIR=/run/b",
		"13": "SLURM_JOB_ID=78 EBB_RUNTIME_DIR=/run/other", "14": "EBB_RUNTIME_DIR=/run/none", "15": "SLURM_JOB_ID=77 EBB_RUNTIME_DIR=relative", "16": "SLURM_JOB_ID=77",
		"self": "SLURM_JOB_ID=77 EBB_RUNTIME_DIR=/run/self",
	} {
		if err := os.Mkdir(filepath.Join(proc, pid), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "environ"), []byte(strings.ReplaceAll(environ, " ", "\x00")+"\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := runtimeDirs(proc, []string{"77", "80"}); !slices.Equal(got, []string{"/run/a", "/run/b"}) {
		t.Errorf("%q", got)
	}
}
