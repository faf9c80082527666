package slurm

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Membership is whether a rank is of a job.
type Membership int

// The values of Membership.
const (
	NotKnown Membership = iota
	Member
	Other
)

// MemberOf tells whether the rank with a control socket is of a job, whose parts have these numbers. Its process's
// environment says so, as Slurm set it; where that cannot be looked at (another pid namespace), the name of ebb's job,
// if it is Slurm's.
func MemberOf(numbers []string, socket string, who control.Who) Membership {
	if job, ok := jobOf(environOf(socket)); ok {
		return member(slices.Contains(numbers, job))
	}
	rest, slurms := strings.CutPrefix(who.Job, "slurm-")
	number, _, _ := strings.Cut(rest, ".")
	number, _, _ = strings.Cut(number, "-")
	if !slurms || !idForm.MatchString(number) {
		return NotKnown
	}
	return member(slices.Contains(numbers, number))
}

func member(yes bool) Membership {
	if yes {
		return Member
	}
	return Other
}

// environOf is the environment of the process with a control socket; nothing where it cannot be looked at.
func environOf(socket string) []byte {
	owner, ok := control.ParseSocketName(filepath.Base(socket))
	if !ok || !rankdir.Alive(owner) {
		return nil
	}
	environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", owner.PID)) // without it nothing is known
	return environ
}

// jobOf is the Slurm job of a process by its environment; ok is false where it has none.
func jobOf(environ []byte) (job string, ok bool) {
	for value := range valuesIn(environ, "SLURM_JOB_ID") {
		if idForm.MatchString(value) {
			return value, true
		}
	}
	return "", false
}

// valuesIn are the values of a variable in an environment.
func valuesIn(environ []byte, name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if value, found := bytes.CutPrefix(entry, []byte(name+"=")); found && !yield(string(value)) {
				return
			}
		}
	}
}

// Place is the place of a rank in its world, as its launcher told its process.
type Place struct {
	World string `json:"world"` // the same for the ranks of one world, and for no others of the job
	Size  int    `json:"size"`
	Rank  int    `json:"rank"`
}

// PlaceOf is the place of the rank with a control socket; ok is false where its process has none, or cannot be looked at.
func PlaceOf(socket string) (p Place, ok bool) { return placeIn(environOf(socket)) }

// placeIn reads a place out of an environment. Ranks are of one world that meet at one address.
func placeIn(environ []byte) (p Place, ok bool) {
	value := func(name string) string {
		for v := range valuesIn(environ, name) {
			return v
		}
		return ""
	}
	rank, err1 := strconv.Atoi(value("RANK"))
	size, err2 := strconv.Atoi(value("WORLD_SIZE"))
	if err1 != nil || err2 != nil || rank < 0 || rank >= size {
		return Place{}, false
	}
	job, _ := jobOf(environ)
	world := fmt.Sprintf("%s %d %s:%s", job, size, value("MASTER_ADDR"), value("MASTER_PORT"))
	if len(world) > maxWorld {
		world = world[:maxWorld]
	}
	return Place{World: strings.ToValidUTF8(world, "?"), Size: size, Rank: rank}, true
}

// maxWorld is more bytes than an address and a port have.
const maxWorld = 300

// Absent are the numbers of ranks that are in none of the places, though a world of theirs has them, for each world in
// the order of worlds.
func Absent(places []Place) (absent []Place) {
	ranks := map[string]map[int]bool{}
	sizes := map[string]int{}
	for _, p := range places {
		if ranks[p.World] == nil {
			ranks[p.World] = map[int]bool{}
		}
		ranks[p.World][p.Rank], sizes[p.World] = true, max(sizes[p.World], p.Size)
	}
	for _, world := range slices.Sorted(maps.Keys(ranks)) {
		if sizes[world] > maxRanks {
			continue // no world of Slurm's
		}
		for rank := range sizes[world] {
			if !ranks[world][rank] {
				absent = append(absent, Place{World: world, Size: sizes[world], Rank: rank})
			}
		}
	}
	return absent
}

// maxRanks is more than any job has.
const maxRanks = 1 << 20

// RuntimeDirs are the directories that processes of a job on this node name for their control sockets (EBB_RUNTIME_DIR):
// the batch script may, and the caller need not know of it. Processes of other users cannot be looked at.
func RuntimeDirs(numbers []string) []string { return runtimeDirs("/proc", numbers) }

func runtimeDirs(proc string, numbers []string) (dirs []string) {
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "environ"))
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // ended meanwhile, or another user's
		}
		if job, ok := jobOf(environ); !ok || !slices.Contains(numbers, job) {
			continue
		}
		for dir := range valuesIn(environ, "EBB_RUNTIME_DIR") {
			if filepath.IsAbs(dir) && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	slices.Sort(dirs)
	return dirs
}
