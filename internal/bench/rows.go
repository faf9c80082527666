package bench

import "slices"

// Row is what --rows chooses.
type Row struct {
	Name string
	Text string
}

// Rows are all rows, in the order in which they are printed.
var Rows = []Row{
	{"pause", "pause to disk / raw write in place"},
	{"resume", "resume from disk / raw read"},
	{"checks", "time in checks / time of the pause or resume"},
	{"cpu-seconds", "CPU seconds for each GB, raw ones beside them"},
	{"first-pause", "first pause of a process / raw write into fresh extents, preparation included"},
	{"chunk", "staging of 64 MiB / of 256 MiB"},
	{"cpu-first", "host memory: first pause of a process, making the memory included"},
	{"cpu", "host memory: later pauses and resumes / pinned copies; without keeping it"},
	{"host-half", "half the bytes in host memory, half on disk: time / all on disk"},
	{"adamw", "an actor of AdamW with zeroed gradients: logical rate / raw write"},
	{"dead", "the same with dead bytes, which stay behind: logical rate / raw write"},
	{"unchanged", "second pause of an unchanged actor, and of one changed in a tenth"},
	{"small", "10,000 x 2 MiB (fewer where --gib says so) / few large allocations"},
	{"pinned", "host memory pinned while the actor grows 8 times"},
	{"ranks", "several ranks on the disks: sum / raw sum, slowest / fastest"},
	{"sizes", "seconds against bytes, from an eighth of the size on"},
	{"raw", "the raw limits by themselves, reads and writes at the same time included"},
}

func rowNamed(name string) (Row, bool) {
	i := slices.IndexFunc(Rows, func(r Row) bool { return r.Name == name })
	if i < 0 {
		return Row{}, false
	}
	return Rows[i], true
}

// experiment measures some rows at once.
type experiment struct {
	name string
	rows []string
	need func(*session) need
	run  func(*session) error
}

// The experiments. What each takes, in multiples of the actor's size, is what its code holds at the
// same time: libraries, raw files.
var experiments []experiment

func init() {
	var cycled []string
	for _, p := range parts {
		cycled = append(cycled, p.rows...)
	}
	experiments = []experiment{
		{"cycles to disk", cycled, (*session).needOfCycles, (*session).cycles},
		{"first pause", []string{"first-pause"}, func(s *session) need {
			return need{device: s.bytes, disk: 2 * s.bytes, processes: 2}
		}, (*session).firstPauses},
		{"host memory, first pause", []string{"cpu-first"}, func(s *session) need {
			return need{device: s.bytes, host: s.bytes, processes: 2}
		}, (*session).firstHostPauses},
		{"host memory", []string{"cpu"}, func(s *session) need {
			n := len(s.libs) + 1
			return need{device: uint64(n) * s.bytes, host: uint64(n) * s.bytes, processes: 1 + n}
		}, (*session).hostCycles},
		{"growing actor", []string{"pinned"}, func(s *session) need {
			return need{device: s.bytes, disk: s.bytes, processes: 2}
		}, (*session).pinned},
		{"ranks", []string{"ranks"}, func(s *session) need {
			sum := uint64(s.o.Ranks) * s.rankBytes()
			return need{device: sum, disk: 2 * sum, processes: 1 + s.o.Ranks}
		}, (*session).ranks},
		{"raw limits", []string{"raw"}, func(s *session) need {
			return need{device: s.bytes, disk: s.bytes, processes: 2}
		}, (*session).rawLimits},
	}
}

// needOfCycles is the most that a part takes by itself. Those that fit share their rounds.
func (s *session) needOfCycles() need {
	var n need
	for _, p := range s.parts() {
		n = n.most(s.needOf([]part{p}))
	}
	return n
}
