package bench

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// part is what some rows need of the rounds in which actors go to disk and back. All parts share the
// rounds: each round every actor gets new bytes, is paused and is resumed, in turn with the others
// and with raw files.
type part struct {
	rows    []string
	need    func(*session) need                              // beside the main actors and the raw files; nil: nothing
	start   func(*session) ([]*actor, error)                 // actors of its own; nil: none
	raw     func(*session, *cast, []*actor) (rawArms, error) // raw files of its own; nil: none
	after   func(*session, *cast) error                      // at the end of each round; may be nil
	figures func(*session, *cast, []*actor)                  // of whole rounds
}

// cast is who takes part in the rounds beside the actors of the parts.
type cast struct {
	main          []*actor // of each library: random bytes, with the settings asked for
	writes, reads operations
	touched       float64 // share of the bytes that a third pause found changed

	smallWrites, smallReads operations // of as many raw files as there are small allocations
}

// rawArms are raw transfers beside pauses and resumes, and what ends them.
type rawArms struct {
	write, read []arm
	end         func() error
}

// parts are all there are, by the rows that they give.
var parts = []part{
	{rows: []string{"pause", "resume", "checks", "cpu-seconds"}, figures: (*session).mainFigures},
	{rows: []string{"chunk"}, need: func(s *session) need {
		n := uint64(len(s.otherChunks()))
		return need{device: n * s.bytes, disk: n * s.bytes, processes: int(n)}
	}, start: (*session).startChunks, figures: (*session).chunkFigures},
	{rows: []string{"host-half"}, need: func(s *session) need {
		return need{device: s.bytes, host: s.bytes / 2, disk: s.bytes, processes: 1}
	}, start: (*session).startHalf, figures: (*session).halfFigures},
	{rows: []string{"adamw"}, need: func(s *session) need { return s.forEach(s.bytes) }, start: (*session).startAdamW, figures: (*session).adamwFigures},
	{rows: []string{"dead"}, need: func(s *session) need {
		size := s.bytes + deadBytes(s.bytes)
		return need{device: size, disk: size, processes: 1}
	}, start: (*session).startDead, figures: (*session).deadFigures},
	{rows: []string{"unchanged"}, after: (*session).pauseAgain, figures: (*session).unchangedFigures},
	{rows: []string{"small"}, need: func(s *session) need {
		return s.forEach(s.smallBytes()).plus(need{disk: s.smallBytes()})
	}, start: (*session).startSmall, raw: (*session).rawSmall, figures: (*session).smallFigures},
	{rows: []string{"sizes"}, need: func(s *session) need {
		var n need
		for _, size := range s.smallerSizes() {
			n = n.plus(s.forEach(size))
		}
		return n
	}, start: (*session).startSizes, figures: (*session).sizesFigures},
}

// forEach is what an actor of that size of each library takes.
func (s *session) forEach(size uint64) need {
	n := uint64(len(s.libs))
	return need{device: n * size, disk: n * size, processes: len(s.libs)}
}

// needOf is what parts take that share their rounds.
func (s *session) needOf(together []part) need {
	n := s.forEach(s.bytes).plus(need{disk: s.bytes, processes: 1})
	for _, p := range together {
		if p.need != nil {
			n = n.plus(p.need(s))
		}
	}
	return n
}

// parts are those that give the rows asked for.
func (s *session) parts() []part {
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !slices.ContainsFunc(p.rows, s.wants) })
}

// share puts parts together that fit into the room there is at the same time.
func (s *session) share() (passes [][]part, err error) {
	for _, p := range s.parts() {
		if last := len(passes) - 1; last >= 0 {
			if more := append(slices.Clone(passes[last]), p); s.fits(s.needOf(more)) == nil {
				passes[last] = more
				continue
			}
		}
		alone := []part{p}
		if err := s.fits(s.needOf(alone)); err != nil {
			return nil, err
		}
		passes = append(passes, alone)
	}
	return passes, nil
}

// cycles carries out the rounds of all parts asked for.
func (s *session) cycles() error {
	passes, err := s.share()
	if err != nil {
		return err
	}
	for i, together := range passes {
		if err := s.cycle(together, i == 0); err != nil {
			return err
		}
	}
	return nil
}

// cycle carries out the rounds of some parts. The first time its operations are points of the plot.
func (s *session) cycle(together []part, first bool) error {
	c, raw, err := s.mainCast()
	if err != nil {
		return err
	}
	own := make([][]*actor, len(together))
	everybody := slices.Clone(c.main)
	writes, reads := []arm{raw.arm(mainRows, "write", &c.writes)}, []arm{raw.arm(mainRows, "read", &c.reads)}
	ends := []func() error{raw.close}
	for i, p := range together {
		if p.start == nil {
			continue
		}
		if own[i], err = p.start(s); err != nil {
			return err
		}
		everybody = append(everybody, own[i]...)
		if p.raw != nil {
			arms, err := p.raw(s, c, own[i])
			if err != nil {
				return err
			}
			writes, reads, ends = append(writes, arms.write...), append(reads, arms.read...), append(ends, arms.end)
		}
	}
	after := func() error {
		for _, p := range together {
			if p.after == nil {
				continue
			}
			stop := s.timing(p.rows[0])
			err := p.after(s, c)
			stop()
			if err != nil {
				return err
			}
		}
		return nil
	}
	err = s.rounds(everybody, writes, reads, after)
	if err != nil && !s.interrupted() {
		return err
	}
	if first {
		s.rawWrites, s.rawReads = c.writes, c.reads
		s.point("write", "raw", c.writes)
		s.point("read", "raw", c.reads)
		s.points(c.main...)
		rows := together[0].rows
		s.tell(rows[slices.IndexFunc(rows, s.wants)], pieceText(s.bytes, piecesOf(s.bytes)), c.main[0])
	}
	for i, p := range together {
		p.figures(s, c, own[i])
	}
	if err != nil {
		return err
	}
	for _, end := range ends {
		if err := end(); err != nil {
			return err
		}
	}
	return s.endActors(everybody...)
}

// mainCast is who takes part in all rounds.
func (s *session) mainCast() (*cast, rawFiles, error) {
	main, err := s.actors(actorOptions{backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes), row: mainRows})
	if err != nil {
		return nil, rawFiles{}, err
	}
	s.shape = main[0].shape
	s.noteShape(s.shape)
	defer s.timing(mainRows)()
	raw, err := s.raw.writtenFiles(s.bytes, s.shape)
	return &cast{main: main}, raw, err
}

// mainRows are the rows whose operations are those of the main actors.
const mainRows = "pause, resume, checks, cpu-seconds"

// points notes the operations of actors for the plot.
func (s *session) points(actors ...*actor) {
	for _, a := range actors {
		s.point("pause", a.lib.name, a.pauses)
		s.point("resume", a.lib.name, a.wakes)
	}
}

func (s *session) mainFigures(c *cast, _ []*actor) {
	for _, a := range c.main {
		s.add(
			ratio("pause", a.lib.name, "pause / raw write in place", a.pauses.rates("pause"), c.writes.rates("raw write")).atLeast(0.92),
			ratio("resume", a.lib.name, "resume / raw read", a.wakes.rates("resume"), c.reads.rates("raw read")).atLeast(0.92),
			value("cpu-seconds", a.lib.name, "pause, CPU seconds per GB", unitCPU, a.pauses.cpuPerGB("").values).atMost(0.5),
			value("cpu-seconds", a.lib.name, "resume, CPU seconds per GB", unitCPU, a.wakes.cpuPerGB("").values).atMost(0.5),
		)
	}
	s.add(c.main[0].movingRatios("pause", "resume", "", "raw write in place", "raw read", c.writes.rates("raw write"), c.reads.rates("raw read"))...)
	s.versus("pause", "pause", c.main, pausesOf)
	s.versus("resume", "resume", c.main, wakesOf)
	s.add(
		value("cpu-seconds", "raw", "raw write, CPU seconds per GB", unitCPU, c.writes.cpuPerGB("").values),
		value("cpu-seconds", "raw", "raw read, CPU seconds per GB", unitCPU, c.reads.cpuPerGB("").values),
		checkShare("pause", c.main[0].pauses), checkShare("resume", c.main[0].wakes),
		missing("checks", "ebb", "bytes hashed a second / bytes of a copy on the device", "test/gpu measures it"),
	)
}

// checkShare is the part of the time that went into checks, as ebb says.
func checkShare(verb string, of operations) Figure {
	what := "time in checks / time of the " + verb
	if slices.ContainsFunc(of, func(o operation) bool { return o.out.Checks == nil }) {
		return missing("checks", "ebb", what, "ebb_status does not tell check_seconds")
	}
	return ratio("checks", "ebb", what,
		of.series("checks", unitSeconds, func(o operation) float64 { return *o.out.Checks }),
		of.series(verb, unitSeconds, func(o operation) float64 { return o.out.Seconds })).atMost(0.02)
}

// The staging buffers that the row chunk compares, in MiB.
const smallChunk, largeChunk = 64, 256

// otherChunks are those that the main actor does not have.
func (s *session) otherChunks() []int {
	return slices.DeleteFunc([]int{smallChunk, largeChunk}, func(mb int) bool { return mb == s.o.ChunkMB })
}

func (s *session) startChunks() (own []*actor, err error) {
	for _, mb := range s.otherChunks() {
		a, err := s.warmActor(s.libs[0], actorOptions{
			backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes), row: "chunk",
			env: []string{fmt.Sprintf("TMS_DISK_BACKUP_CHUNK_MB=%d", mb)},
		})
		if err != nil {
			return own, err
		}
		own = append(own, a)
	}
	return own, nil
}

func (s *session) chunkFigures(c *cast, own []*actor) {
	with := func(mb int) *actor {
		if i := slices.Index(s.otherChunks(), mb); i >= 0 {
			return own[i]
		}
		return c.main[0]
	}
	small, large := with(smallChunk), with(largeChunk)
	note := fmt.Sprintf("pinned: %s, %s", sizeText(small.staging), sizeText(large.staging))
	s.add(
		ratio("chunk", "ebb", "pause, chunk of 64 MiB / of 256 MiB", small.pauses.rates("64 MiB"), large.pauses.rates("256 MiB")).atLeast(0.95).noting(note),
		ratio("chunk", "ebb", "resume, chunk of 64 MiB / of 256 MiB", small.wakes.rates("64 MiB"), large.wakes.rates("256 MiB")),
	)
}

// startHalf: half of the bytes in host memory and half on disk, moved at the same time.
func (s *session) startHalf() ([]*actor, error) {
	a, err := s.warmActor(s.libs[0], actorOptions{
		backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes), row: "host-half",
		env: []string{fmt.Sprintf("EBB_HOST_MB=%d", s.bytes/2/mib)},
	})
	return []*actor{a}, err
}

func (s *session) halfFigures(c *cast, own []*actor) {
	const what = "host budget for half the bytes: time / disk only"
	half, disk := own[0], c.main[0]
	s.tell("host-half", pieceText(s.bytes, piecesOf(s.bytes)), half)
	inHost := half.pauses.series("", "", func(o operation) float64 { return float64(o.out.HostBytes) / float64(o.bytes) })
	share := median(inHost.values)
	if share == 0 {
		s.add(missing("host-half", "ebb", what, "the library keeps nothing in host memory with EBB_HOST_MB"))
		return
	}
	note := fmt.Sprintf("%.0f %% of the bytes in host memory", 100*share)
	s.add(
		ratio("host-half", "ebb", "pause, "+what, half.pauses.times("half"), disk.pauses.times("disk")).atMost(0.55).noting(note),
		ratio("host-half", "ebb", "resume, "+what, half.wakes.times("half"), disk.wakes.times("disk")).atMost(0.55),
	)
}

// startAdamW: actors as training leaves them, whose gradients are zero.
func (s *session) startAdamW() ([]*actor, error) {
	return s.actors(actorOptions{backup: "disk", bytes: s.bytes, adamw: true, row: "adamw"})
}

func (s *session) adamwFigures(c *cast, own []*actor) {
	s.tell("adamw", "zeroed gradients", own[0])
	for _, a := range own {
		pause := ratio("adamw", a.lib.name, "AdamW actor, pause: logical GB/s / raw write", a.pauses.rates("pause"), c.writes.rates("raw write")).atLeast(1.15)
		resume := ratio("adamw", a.lib.name, "AdamW actor, resume: logical GB/s / raw read", a.wakes.rates("resume"), c.reads.rates("raw read")).atLeast(1.15)
		if a.lib.ebb && len(a.pauses) > 0 {
			first := a.pauses[0].out.SkippedZero
			if first == nil {
				why := "ebb_status does not tell skipped_zero_bytes: zero blocks are not skipped"
				pause, resume = missing(pause.Row, "ebb", pause.What, why), missing(resume.Row, "ebb", resume.What, why)
			} else {
				pause = pause.noting(fmt.Sprintf("zero: %.1f %% of the bytes, %.1f %% skipped; bound %s = %.3f",
					100*float64(a.zero)/float64(a.bytes), 100*float64(*first)/float64(a.bytes), "18/14", float64(a.bytes)/float64(a.bytes-a.zero)))
			}
		}
		s.add(pause, resume)
	}
	s.add(own[0].movingRatios("adamw", "adamw", "AdamW actor, ", "raw write", "raw read", c.writes.rates("raw write"), c.reads.rates("raw read"))...)
	s.versus("adamw", "AdamW actor, pause", own, pausesOf)
	s.versus("adamw", "AdamW actor, resume", own, wakesOf)
}

// startDead: an actor of AdamW and with it memory that its allocator holds and nobody uses, which pauses are told.
func (s *session) startDead() ([]*actor, error) {
	defer s.timing("dead")()
	a, err := s.actor(s.libs[0], actorOptions{backup: "disk", bytes: s.bytes, adamw: true, dead: true, row: "dead"})
	switch {
	case err != nil:
		return nil, err
	case a.rank.hello.values["except"] != "1": // of an older ebb, as deadFigures says
		return nil, s.endActors(a)
	}
	return []*actor{a}, s.warm(a)
}

func (s *session) deadFigures(c *cast, own []*actor) {
	const row = "dead"
	whats := []string{"AdamW actor with dead bytes, pause: logical GB/s / raw write", "the same, resume: logical GB/s / raw read"}
	why := ""
	switch {
	case len(own) == 0:
		why = "the library has no ebb_pause_except: it cannot be told which bytes are dead"
	case len(own[0].pauses) > 0 && own[0].pauses[0].out.SkippedUnused == nil:
		why = "ebb_status does not tell skipped_unused_bytes: dead bytes are not left behind"
	}
	if why != "" {
		for _, what := range whats {
			s.add(missing(row, "ebb", what, why))
		}
		return
	}
	a := own[0]
	s.tell(row, "and dead bytes", a)
	live := float64(a.bytes-a.dead) / float64(a.bytes)
	pause := ratio(row, "ebb", whats[0], a.pauses.rates("pause"), c.writes.rates("raw write")).atLeast(1.15 / live)
	if len(a.pauses) > 0 {
		pause = pause.noting(fmt.Sprintf("dead: %.1f %% of the bytes, %.1f %% left behind; zero: %.1f %%; bound %.3f", 100*(1-live),
			100*float64(*a.pauses[0].out.SkippedUnused)/float64(a.bytes), 100*float64(a.zero)/float64(a.bytes), float64(a.bytes)/float64(a.bytes-a.dead-a.zero)))
	}
	s.add(pause, ratio(row, "ebb", whats[1], a.wakes.rates("resume"), c.reads.rates("raw read")).atLeast(1.15/live))
}

// touchedEvery is how many chunks there are for each that a touch changes.
const touchedEvery = 10

// pauseAgain pauses the main actors with the same bytes once more, and with a tenth changed.
func (s *session) pauseAgain(c *cast) error {
	for _, a := range c.main {
		if err := a.cycleAgain(&a.again); err != nil {
			return err
		}
		s.seed++
		v, err := a.rank.measure(fmt.Sprintf("touch tag=all seed=%d every=%d", s.seed, touchedEvery), "bytes")
		if err != nil {
			return err
		}
		c.touched = v[0] / float64(a.bytes)
		if err := a.cycleAgain(&a.third); err != nil {
			return err
		}
	}
	return nil
}

// cycleAgain is a pause that is noted, and a resume that is not.
func (a *actor) cycleAgain(notes *operations) error {
	if err := a.timed("pause", notes); err != nil {
		return err
	}
	_, err := a.operate("resume")
	return err
}

func (s *session) unchangedFigures(c *cast, _ []*actor) {
	for _, a := range c.main {
		s.addUnchanged(a, c.touched)
	}
}

func (s *session) addUnchanged(a *actor, touched float64) {
	const row = "unchanged"
	again, third := "second pause, unchanged: time / first", fmt.Sprintf("third pause, %.0f %% changed: time / first", 100*touched)
	if a.lib.ebb && len(a.again) > 0 && a.again[0].out.SkippedSame == nil {
		why := "ebb_status does not tell skipped_same_bytes: unchanged blocks are written again"
		s.add(missing(row, "ebb", again, why), missing(row, "ebb", third, why))
		return
	}
	s.add(
		ratio(row, a.lib.name, again, a.again.times("second"), a.pauses.times("first")).atMost(0.05),
		ratio(row, a.lib.name, third, a.third.times("third"), a.pauses.times("first")),
	)
	if !a.lib.ebb {
		return
	}
	written := func(o operation) float64 { return float64(o.out.DiskBytes) }
	s.add(
		value(row, "ebb", "second pause, unchanged: bytes written", unitBytes, a.again.series("", "", written).values).atMost(0),
		value(row, "ebb", fmt.Sprintf("third pause, %.0f %% changed: bytes written", 100*touched), unitBytes, a.third.series("", "", written).values),
	)
}

const (
	smallPiece = 2 * mib
	smallCount = 10_000
	// smallRounds is how many rounds there are of 20 GiB beside other rows, so that a run of all rows ends within minutes.
	smallRounds = 3
)

// smallBytes is the size of the actor of the row small.
func (s *session) smallBytes() uint64 {
	if s.o.GiB == 0 && !s.o.soft() {
		return smallCount * smallPiece
	}
	return min(s.bytes/smallPiece, smallCount) * smallPiece
}

// startSmall: the same in many small allocations.
func (s *session) startSmall() ([]*actor, error) {
	size := s.smallBytes()
	actors, err := s.actors(actorOptions{backup: "disk", bytes: size, pieces: size / smallPiece, row: "small"})
	if size > s.bytes && !s.only("small") {
		for _, a := range actors {
			a.rounds = smallRounds
		}
	}
	return actors, err
}

// canOpen reports whether a raw process may hold so many files open, beside the few of any process.
func canOpen(files int) bool {
	var limit unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Max >= uint64(files)+64
}

// rawSmall is the disk's part in it: raw files of 2 MiB, as many, moved by as many workers.
func (s *session) rawSmall(c *cast, own []*actor) (rawArms, error) {
	const row = "small"
	sh := own[0].shape
	sh.files = int(s.smallBytes() / smallPiece)
	if !canOpen(sh.files) {
		return rawArms{end: func() error { return nil }}, nil
	}
	raw, err := s.rawRank(row, s.folders, s.smallBytes(), sh)
	if err != nil {
		return rawArms{}, err
	}
	rounds := own[0].rounds
	if rounds == 0 {
		rounds = s.o.Rounds
	}
	transfer := func(what string, notes *operations) []arm {
		one := raw.arm(row, what, notes)
		return []arm{{row, func() error {
			if len(*notes) == rounds {
				return nil // the actor takes part in no more rounds either
			}
			return one.do()
		}}}
	}
	return rawArms{transfer("write", &c.smallWrites), transfer("read", &c.smallReads), func() error { return s.end(raw.rank) }}, nil
}

func (s *session) smallFigures(c *cast, own []*actor) {
	large := pieceText(s.bytes, piecesOf(s.bytes))
	count := s.smallBytes() / smallPiece
	s.tell("small", pieceText(s.smallBytes(), count), own[0])
	name := fmt.Sprintf("%d x 2 MiB / %s, GB/s", count, large)
	files := fmt.Sprintf("raw %d files of 2 MiB", count)
	for i, many := range own {
		few := c.main[i]
		s.add(
			ratio("small", many.lib.name, "pause, "+name, many.pauses.rates("many small"), few.pauses.rates("few large")).atLeast(0.85),
			ratio("small", many.lib.name, "resume, "+name, many.wakes.rates("many small"), few.wakes.rates("few large")).atLeast(0.85),
		)
		if len(c.smallWrites) > 0 {
			s.add(
				ratio("small", many.lib.name, "pause, many small / "+files, many.pauses.rates("pause"), c.smallWrites.rates("raw write")),
				ratio("small", many.lib.name, "resume, many small / "+files, many.wakes.rates("resume"), c.smallReads.rates("raw read")),
			)
		}
	}
	if len(c.smallWrites) == 0 {
		s.add(missing("small", "raw", files, "the limit of open files is lower (ulimit -Hn)"))
		return
	}
	s.add(own[0].movingRatios("small", "small", "many small, ", files, files, c.smallWrites.rates("raw write"), c.smallReads.rates("raw read"))...)
	s.add(
		ratio("small", "raw", files+" / raw few large, write", c.smallWrites.rates("many small"), c.writes.rates("few large")),
		ratio("small", "raw", files+" / raw few large, read", c.smallReads.rates("many small"), c.reads.rates("few large")),
	)
}

// smallerSizes are the sizes of the row sizes beside that of the main actors.
func (s *session) smallerSizes() []uint64 {
	var sizes []uint64
	for _, part := range []uint64{8, 4, 2} {
		sizes = append(sizes, s.bytes/part/unit*unit)
	}
	return sizes
}

// startSizes: the same at several sizes, each in a process of its own.
func (s *session) startSizes() (own []*actor, err error) {
	for _, size := range s.smallerSizes() {
		of, err := s.actors(actorOptions{backup: "disk", bytes: size, pieces: piecesOf(size), row: "sizes"})
		if err != nil {
			return own, err
		}
		own = append(own, of...)
	}
	return own, nil
}

func (s *session) sizesFigures(c *cast, own []*actor) {
	s.points(own...)
	name := fmt.Sprintf("%s / %s, GB/s", sizeText(s.smallerSizes()[0]), sizeText(s.bytes))
	for i, large := range c.main {
		small := own[i]
		s.add(
			ratio("sizes", small.lib.name, "pause, "+name, small.pauses.rates("small"), large.pauses.rates("large")),
			ratio("sizes", small.lib.name, "resume, "+name, small.wakes.rates("small"), large.wakes.rates("large")),
		)
	}
}
