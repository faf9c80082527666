package bench

import (
	"fmt"
	"slices"
)

// operation is a pause, a resume or a raw transfer that was timed.
type operation struct {
	bytes      uint64
	begin, end float64 // of the machine's monotonic clock
	cpu        float64 // CPU seconds of the process
	host       uint64  // its own host memory afterwards
	out        outcome // what ebb says about it; zero for others
}

func (o operation) seconds() float64 { return o.end - o.begin }

// operations are those of the rounds, in order.
type operations []operation

// series takes a number of each operation.
func (o operations) series(what, unit string, of func(operation) float64) series {
	s := series{what: what, unit: unit}
	for _, one := range o {
		s.values = append(s.values, of(one))
	}
	return s
}

// rates are logical GB/s.
func (o operations) rates(what string) series {
	return o.series(what, unitRate, func(o operation) float64 { return float64(o.bytes) / 1e9 / o.seconds() })
}

// moving is the rate of the phase in which bytes are moved, of those that were: what is left beside it does not
// grow with the time that disk or link take.
func (o operations) moving(what string) series {
	return o.series(what, unitRate, func(o operation) float64 {
		return float64(o.out.HostBytes+o.out.DiskBytes) / 1e9 / o.out.Phases["move"]
	})
}

// tellMoving reports whether the operations say how long they moved bytes.
func (o operations) tellMoving() bool {
	return len(o) > 0 && !slices.ContainsFunc(o, func(o operation) bool { return o.out.Phases["move"] <= 0 })
}

// movingRatios compares the moving of pauses and resumes with what disk or link do by themselves, of an actor of ebb.
func (a *actor) movingRatios(rowOut, rowIn, name, out, in string, writes, reads series) (figures []Figure) {
	if a.pauses.tellMoving() {
		figures = append(figures, ratio(rowOut, a.lib.name, name+"pause, the moving alone / "+out, a.pauses.moving("moving"), writes))
	}
	if a.wakes.tellMoving() {
		figures = append(figures, ratio(rowIn, a.lib.name, name+"resume, the moving alone / "+in, a.wakes.moving("moving"), reads))
	}
	return figures
}

func (o operations) times(what string) series { return o.series(what, unitSeconds, operation.seconds) }

func (o operations) cpuPerGB(what string) series {
	return o.series(what, unitCPU, func(o operation) float64 { return o.cpu / (float64(o.bytes) / 1e9) })
}

// actor is memory of one process under a library.
type actor struct {
	s      *session
	lib    library
	rank   *rank
	bytes  uint64
	row    string // whose time it is
	zero   uint64 // of the bytes, in gradients that are zero
	dead   uint64 // of the bytes, with content that nobody needs: a pause is told
	rounds int    // in which it takes part, from the first on; 0: all
	sum    string // checksum that its content must have after the next resume
	pauses operations
	wakes  operations // resumes
	again  operations // second pauses, where there are some
	third  operations // pauses after a touch

	shape   shape
	staging uint64         // pinned bytes, as ebb tells
	ways    map[string]way // how pauses and resumes move bytes, where ebb tried what is best
}

// shape is how ebb moves bytes: what raw arms do likewise.
type shape struct {
	writers, readers int // workers
	block            uint64
	files            int
}

// shapeOf is the shape that ebb tells. Where it found out how many workers are best, it uses that
// many, and not all that it has.
func shapeOf(st status) shape {
	sh := shape{writers: st.Workers, readers: st.Workers, block: st.BlockBytes, files: max(st.Disk.Files, 1)}
	for _, p := range st.Probes {
		switch p.Operation {
		case "pause":
			sh.writers = p.Workers
		case "resume":
			sh.readers = p.Workers
		}
	}
	if last := st.LastPause; last != nil && last.Workers > 0 {
		sh.writers = last.Workers
	}
	if last := st.LastResume; last != nil && last.Workers > 0 {
		sh.readers = last.Workers
	}
	return sh
}

// actorOptions say what an actor is.
type actorOptions struct {
	backup string // disk or cpu
	bytes  uint64
	pieces uint64
	adamw  bool
	dead   bool      // with as much more as nobody needs: a quarter of the others
	disks  []*folder // nil: all
	env    []string
	row    string // whose time it is
}

// pieceBytes is the largest allocation of an actor that is cut into several.
const pieceBytes = 256 * mib

func piecesOf(bytes uint64) uint64 { return max(1, bytes/pieceBytes) }

// pieceText names an actor: "16 x 256 MiB".
func pieceText(bytes, pieces uint64) string {
	return fmt.Sprintf("%d x %s", pieces, sizeText(bytes/pieces))
}

// actor starts a process and allocates memory in it.
func (s *session) actor(lib library, o actorOptions) (*actor, error) {
	r, err := s.start(lib, true, o.disks, o.env...)
	if err != nil {
		return nil, err
	}
	a := &actor{s: s, lib: lib, rank: r, bytes: o.bytes, row: o.row}
	if o.adamw {
		var made []float64
		made, err = r.measure(fmt.Sprintf("adamw tag=all backup=%s bytes=%d", o.backup, o.bytes), "bytes", "zero")
		if err == nil {
			a.bytes, a.zero = uint64(made[0]), uint64(made[1])
		}
	} else {
		_, err = r.call("alloc tag=all backup=%s bytes=%d pieces=%d", o.backup, o.bytes, o.pieces)
	}
	if err == nil && o.dead {
		a.dead = deadBytes(a.bytes)
		a.bytes += a.dead
		_, err = r.call("alloc tag=%s backup=%s bytes=%d pieces=%d", deadTag, o.backup, a.dead, piecesOf(a.dead))
	}
	if err == nil && lib.ebb && s.report.Machine.Device == "" {
		var st status
		st, err = r.status()
		s.report.Machine.Device = st.Device
	}
	return a, err
}

// deadTag is what the memory is called whose content nobody needs.
const deadTag = "dead"

// deadBytes is how many a training of so many bytes leaves behind in its allocator, in these actors: a fifth of all.
func deadBytes(live uint64) uint64 { return max(live/4/unit*unit, unit) }

// actors starts one actor for each library and carries out a first cycle.
func (s *session) actors(o actorOptions) ([]*actor, error) {
	var actors []*actor
	for _, lib := range s.libs {
		a, err := s.warmActor(lib, o)
		if err != nil {
			return nil, err
		}
		actors = append(actors, a)
	}
	return actors, nil
}

// warmActor starts an actor and carries out a first cycle, which makes files, buffers and streams;
// bytes must survive it.
func (s *session) warmActor(lib library, o actorOptions) (*actor, error) {
	defer s.timing(o.row)()
	a, err := s.actor(lib, o)
	if err == nil {
		err = s.warm(a)
	}
	return a, err
}

// warm carries out the first cycle of an actor.
func (s *session) warm(a *actor) error {
	err := a.fill()
	if err == nil {
		err = a.verify()
	}
	if err == nil && a.lib.ebb && s.report.Setup.Block == 0 {
		s.noteShape(a.shape)
	}
	return err
}

// fill gives the actor new content.
func (a *actor) fill() error {
	a.s.seed++
	_, err := a.rank.call("fill tag=all seed=%d", a.s.seed)
	if err == nil && a.dead > 0 { // nobody's, and not zero
		_, err = a.rank.call("fill tag=%s seed=%d", deadTag, a.s.seed+1)
		a.s.seed++
	}
	return err
}

func (a *actor) checksum() (string, error) {
	got, err := a.rank.call("checksum tag=all")
	return got.values["sum"], err
}

// operate carries out a pause or resume of everything.
func (a *actor) operate(verb string) (operation, error) {
	command := verb
	if a.dead > 0 && verb == "pause" {
		command += " dead=" + deadTag
	}
	o, free, err := a.rank.operate(command)
	if err != nil {
		return o, err
	}
	o.bytes = a.bytes
	// The device is shared with whatever else runs on it, hence not to the byte.
	if moved := float64(a.bytes) / 2; verb == "pause" && free < moved || verb == "resume" && -free < moved {
		return o, &RankError{Who: a.rank.who, Command: verb,
			Text: fmt.Sprintf("free device memory changed by %.0f bytes, not by the %d of the actor: nothing was moved, or another process took or gave back memory meanwhile: measure on a device that nobody else uses", free, a.bytes)}
	}
	if !a.lib.ebb {
		return o, nil
	}
	st, err := a.rank.status()
	if err != nil {
		return o, err
	}
	if !st.Disk.Direct && len(a.s.folders) > 0 {
		return o, &RankError{Who: a.rank.who, Command: verb, Text: "the file system refuses O_DIRECT: name a directory on another one with --disk-dir"}
	}
	last := st.LastPause
	if verb == "resume" {
		last = st.LastResume
	}
	if last != nil {
		o.out = *last
	}
	a.shape, a.staging, a.ways = shapeOf(st), st.StagingBytes, st.ways()
	return o, nil
}

// operate carries out a pause or resume of everything. freed is by how much the device's free
// memory grew.
func (r *rank) operate(command string) (o operation, freed float64, err error) {
	v, err := r.measure(command, "begin", "end", "cpu", "host_after", "free_before", "free_after")
	if err != nil {
		return o, 0, err
	}
	return operation{begin: v[0], end: v[1], cpu: v[2], host: uint64(v[3])}, v[5] - v[4], nil
}

// timed carries out a pause or resume and notes it.
func (a *actor) timed(verb string, notes *operations) error {
	o, err := a.operate(verb)
	if err != nil {
		return err
	}
	*notes = append(*notes, o)
	return nil
}

// verify is a cycle that is not measured, after which every byte must be what it was.
func (a *actor) verify() error {
	if err := a.remember(); err != nil {
		return err
	}
	for _, verb := range []string{"pause", "resume"} {
		if _, err := a.operate(verb); err != nil {
			return err
		}
	}
	return a.compare()
}

// remember takes the checksum that compare will ask for.
func (a *actor) remember() (err error) {
	a.sum, err = a.checksum()
	return err
}

// compare is an error unless every byte is what it was.
func (a *actor) compare() error {
	sum, err := a.checksum()
	if err == nil && sum != a.sum {
		err = &RankError{Who: a.rank.who, Command: "checksum", Text: "BYTES DIFFER after a pause and resume"}
	}
	return err
}

func (s *session) endActors(actors ...*actor) error {
	for _, a := range actors {
		if err := s.end(a.rank); err != nil {
			return err
		}
	}
	return nil
}

// arm is one side of a comparison.
type arm struct {
	row string // whose time it is
	do  func() error
}

// inTurn carries out arms one after the other, backwards in every other round: neighbours stay
// neighbours, and either comes first as often as the other.
func (s *session) inTurn(round int, arms ...arm) error {
	for _, one := range alternated(arms, round) {
		stop := s.timing(one.row)
		err := one.do()
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// arms are those of actors, each carrying out a pause or resume that is noted.
func arms(actors []*actor, verb string) []arm {
	var list []arm
	for _, a := range actors {
		notes := &a.pauses
		if verb == "resume" {
			notes = &a.wakes
		}
		list = append(list, arm{a.row, func() error { return a.timed(verb, notes) }})
	}
	return list
}

// rounds carries out cycles: every actor gets new content and is paused and resumed, with further
// arms in turn with either. In its last round an actor's bytes are compared. after, if any, ends a
// round.
func (s *session) rounds(actors []*actor, besidePause, besideResume []arm, after func() error) error {
	for round := range s.o.Rounds {
		s.say(round)
		var playing, last []*actor
		for _, a := range actors {
			rounds := s.o.Rounds
			if a.rounds > 0 {
				rounds = min(a.rounds, rounds)
			}
			if round < rounds {
				playing = append(playing, a)
			}
			if round == rounds-1 {
				last = append(last, a)
			}
		}
		err := each(playing, (*actor).fill)
		if err == nil {
			err = each(last, (*actor).remember)
		}
		if err == nil {
			err = s.inTurn(round, slices.Concat(besidePause, arms(playing, "pause"))...)
		}
		if err == nil {
			err = s.inTurn(round, slices.Concat(besideResume, arms(playing, "resume"))...)
		}
		if err == nil {
			err = each(last, (*actor).compare)
		}
		if err == nil && after != nil {
			err = after()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each does the same with actors, one after the other.
func each(actors []*actor, do func(*actor) error) error {
	for _, a := range actors {
		stop := a.s.timing(a.row)
		err := do(a)
		stop()
		if err != nil {
			return err
		}
	}
	return nil
}
