package bench

import (
	"errors"
	"fmt"
	"math"
	"sync"
)

// learn makes one actor for the shape of ebb's transfers, unless it is known by now.
func (s *session) learn() error {
	if s.shape.block > 0 {
		return nil
	}
	const what = "finding out how ebb moves bytes here"
	s.o.Progress(what)
	a, err := s.warmActor(s.libs[0], actorOptions{backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes), row: what})
	if err != nil {
		return err
	}
	s.shape = a.shape
	s.noteShape(a.shape)
	return s.endActors(a)
}

// learned is the shape with other files.
func (s *session) learned(pieces uint64) shape {
	sh := s.shape
	sh.files = int(pieces)
	return sh
}

// noteShape says in the head of the report how bytes are moved.
func (s *session) noteShape(sh shape) {
	s.report.Setup.Writers, s.report.Setup.Readers, s.report.Setup.Block = sh.writers, sh.readers, sh.block
}

// versus adds the ratios of ebb's rates to those of the other library, if there is one.
func (s *session) versus(row, what string, actors []*actor, of func(*actor) operations) {
	for _, other := range actors[1:] {
		s.add(ratio(row, "ebb", fmt.Sprintf("%s, ebb / %s", what, other.lib.name),
			of(actors[0]).rates("ebb"), of(other).rates(other.lib.name)))
	}
}

func pausesOf(a *actor) operations { return a.pauses }
func wakesOf(a *actor) operations  { return a.wakes }

func (s *session) point(operation, library string, of operations) {
	for _, o := range of {
		s.report.Points = append(s.report.Points, Point{Operation: operation, Library: library, Bytes: o.bytes, Seconds: o.seconds()})
	}
}

// firstPauses: the first pause of a process, for which everything must be made, against raw writes
// into new files.
func (s *session) firstPauses() error {
	const row = "first-pause"
	if err := s.learn(); err != nil {
		return err
	}
	pauses := make([]operations, len(s.libs))
	pieces := piecesOf(s.bytes)
	err := s.firstRounds(actorOptions{backup: "disk", bytes: s.bytes, pieces: pieces, row: row}, pauses, arm{row, func() error {
		raw, err := s.raw.openFiles(s.bytes, s.learned(pieces))
		if err == nil {
			err = raw.arm(row, "fresh", &s.rawFresh).do()
		}
		return errors.Join(err, raw.close())
	}})
	if err != nil && !s.interrupted() {
		return err
	}
	for i, lib := range s.libs {
		s.add(ratio(row, lib.name, "first pause / raw write into fresh extents", pauses[i].rates("first pause"), s.rawFresh.rates("raw write")).atLeast(0.90))
	}
	if len(s.libs) > 1 {
		s.add(ratio(row, "ebb", "first pause, ebb / "+s.libs[1].name, pauses[0].rates("ebb"), pauses[1].rates(s.libs[1].name)))
	}
	return err
}

// firstRounds carries out the first pauses of new processes, in turn with a raw arm.
func (s *session) firstRounds(o actorOptions, pauses []operations, raw arm) error {
	for round := range s.o.Rounds {
		s.say(round)
		all := []arm{raw}
		for i, lib := range s.libs {
			all = append(all, arm{o.row, func() error { return s.firstPause(lib, o, &pauses[i]) }})
		}
		if err := s.inTurn(round, all...); err != nil {
			return err
		}
	}
	return nil
}

// firstPause is the first pause of a process of its own.
func (s *session) firstPause(lib library, o actorOptions, notes *operations) error {
	a, err := s.actor(lib, o)
	if err == nil {
		err = a.fill()
	}
	if err == nil {
		err = a.timed("pause", notes)
	}
	if err != nil {
		return err
	}
	return s.endActors(a)
}

// asUnderRun is said of figures of host memory.
const asUnderRun = "EBB_HOST_ARENA=1, as ebb run sets it"

// firstHostPauses: the first pause of a process to host memory, which has to be made.
func (s *session) firstHostPauses() error {
	const row = "cpu-first"
	if err := s.raw.openCopies(s.bytes); err != nil {
		return err
	}
	var copies operations
	pauses := make([]operations, len(s.libs))
	err := s.firstRounds(actorOptions{backup: "cpu", bytes: s.bytes, pieces: piecesOf(s.bytes), row: row}, pauses,
		s.raw.copyArm(row, "host", s.bytes, &copies))
	if err != nil && !s.interrupted() {
		return err
	}
	for i, lib := range s.libs {
		rates := pauses[i].rates("first pause")
		first := value(row, lib.name, "host memory, first pause, making it included", unitRate, rates.values).atLeast(10)
		if lib.ebb {
			first = first.noting(asUnderRun)
		}
		s.add(ratio(row, lib.name, "host memory, first pause / pinned copy", rates, copies.rates("copy")), first)
	}
	return errors.Join(err, s.raw.closeCopies())
}

// hostCycles: later pauses to host memory, which is kept, and resumes, against copies. An actor of
// ebb beside them pins memory for each allocation, as torch_memory_saver does by itself.
func (s *session) hostCycles() error {
	const row = "cpu"
	var kept []*actor
	o := actorOptions{backup: "cpu", bytes: s.bytes, pieces: piecesOf(s.bytes), row: row}
	for _, lib := range s.libs {
		if !lib.ebb {
			o.env = []string{"TMS_RETAIN_CPU_BACKUP=1"}
		}
		a, err := s.warmActor(lib, o)
		if err != nil {
			return err
		}
		kept = append(kept, a)
	}
	o.env = []string{"EBB_HOST_ARENA=0"}
	plain, err := s.warmActor(s.libs[0], o)
	if err != nil {
		return err
	}
	if err := s.raw.openCopies(s.bytes); err != nil {
		return err
	}
	var out, in operations
	actors := append(kept, plain)
	err = s.rounds(actors, []arm{s.raw.copyArm(row, "host", s.bytes, &out)}, []arm{s.raw.copyArm(row, "device", s.bytes, &in)}, nil)
	if err != nil && !s.interrupted() {
		return err
	}
	s.tell(row, pieceText(s.bytes, piecesOf(s.bytes)), kept[0])
	for _, a := range kept {
		pause := ratio(row, a.lib.name, "host memory, later pause / pinned copy", a.pauses.rates("pause"), out.rates("copy")).atLeast(0.92)
		if a.lib.ebb {
			pause = pause.noting(asUnderRun)
		}
		s.add(pause, ratio(row, a.lib.name, "host memory, later resume / pinned copy", a.wakes.rates("resume"), in.rates("copy")).atLeast(0.92))
	}
	s.add(kept[0].movingRatios(row, row, "host memory, later ", "pinned copy", "pinned copy", out.rates("copy"), in.rates("copy"))...)
	const note = "EBB_HOST_ARENA=0, as the library by itself: memory is pinned for each allocation at each pause"
	s.add(
		value(row, "ebb", "host memory not kept, pause", unitRate, plain.pauses.rates("").values).noting(note),
		value(row, "ebb", "host memory not kept, resume", unitRate, plain.wakes.rates("").values),
	)
	s.versus(row, "host memory, later pause", kept, pausesOf)
	s.versus(row, "host memory, later resume", kept, wakesOf)
	if err != nil {
		return err
	}
	return errors.Join(s.raw.closeCopies(), s.endActors(actors...))
}

// growth is by how much the actor of the row pinned grows: to these multiples of an eighth.
var growth = []uint64{1, 2, 4, 8}

// pinned: the staging buffer while the actor grows.
func (s *session) pinned() error {
	const row = "pinned"
	eighth := s.bytes / 8 / unit * unit
	a, err := s.warmActor(s.libs[0], actorOptions{backup: "disk", bytes: eighth, pieces: 1, row: row})
	if err != nil {
		return err
	}
	defer s.timing(row)()
	var staging, host []float64
	for i, times := range growth {
		s.o.Progress(fmt.Sprintf("%s: %d times", s.now, times))
		if more := times*eighth - a.bytes; more > 0 {
			tag := fmt.Sprintf("more%d", i)
			if _, err := a.rank.call("alloc tag=%s backup=disk bytes=%d pieces=1", tag, more); err != nil {
				return err
			}
			s.seed++
			if _, err := a.rank.call("fill tag=%s seed=%d", tag, s.seed); err != nil {
				return err
			}
			a.bytes = times * eighth
		}
		if err := errors.Join(a.fill(), a.remember()); err != nil {
			return err
		}
		one, err := a.operate("pause")
		if err != nil {
			return err
		}
		staging, host = append(staging, float64(a.staging)), append(host, float64(one.host))
		if _, err := a.operate("resume"); err != nil {
			return err
		}
		if err := a.compare(); err != nil {
			return err
		}
	}
	last := len(growth) - 1
	note := fmt.Sprintf("%s at %s, %s at %s; a chunk is %d MiB",
		sizeText(uint64(staging[0])), sizeText(eighth), sizeText(uint64(staging[last])), sizeText(growth[last]*eighth), s.o.ChunkMB)
	s.add(
		ratio(row, "ebb", "pinned bytes while the actor grows 8 times", series{"after", unitBytes, staging[last:]}, series{"before", unitBytes, staging[:1]}).atMost(1).noting(note),
		value(row, "ebb", "pinned bytes after it grew 8 times", unitBytes, staging[last:]).atMost(float64(s.o.ChunkMB)*mib),
		value(row, "ebb", "growth of host memory meanwhile", unitBytes, []float64{host[last] - host[0]}),
	)
	return s.endActors(a)
}

// rankBytes is the size of each actor of the row ranks.
func (s *session) rankBytes() uint64 { return max(s.bytes/2/unit*unit, unit) }

// ranks: several actors at the same time, against as many raw processes.
func (s *session) ranks() error {
	const row = "ranks"
	size := s.rankBytes()
	var actors []*actor
	var raws []rawFiles
	for i := range s.o.Ranks {
		disk := s.folders[i%len(s.folders) : i%len(s.folders)+1]
		a, err := s.warmActor(s.libs[0], actorOptions{backup: "disk", bytes: size, pieces: piecesOf(size), disks: disk, row: row})
		if err != nil {
			return err
		}
		actors = append(actors, a)
		raw, err := s.rawRank(row, disk, size, a.shape)
		if err != nil {
			return err
		}
		raws = append(raws, raw)
	}
	var sum, rawSum, spread, rawSpread [2]series // pause and write, resume and read
	verbs, transfers := []string{"pause", "resume"}, []string{"write", "read"}
	for i := range verbs {
		sum[i], rawSum[i] = series{what: verbs[i], unit: unitRate}, series{what: "raw " + transfers[i], unit: unitRate}
		spread[i], rawSpread[i] = series{what: verbs[i]}, series{what: transfers[i]}
	}
	both := func(i int) []arm {
		return []arm{
			{row, func() error {
				return together(actors, &sum[i], &spread[i], func(a *actor) (operation, error) { return a.operate(verbs[i]) })
			}},
			{row, func() error {
				return together(raws, &rawSum[i], &rawSpread[i], func(f rawFiles) (operation, error) { return f.move(transfers[i]) })
			}},
		}
	}
	err := s.ranksRounds(actors, both)
	if err != nil && !s.interrupted() {
		return err
	}
	name := fmt.Sprintf("%d ranks x %s", s.o.Ranks, sizeText(size))
	for i, verb := range verbs {
		s.add(ratio(row, "ebb", fmt.Sprintf("%s, %s: sum / raw", name, verb), sum[i], rawSum[i]).atLeast(0.9))
	}
	for i, verb := range verbs {
		s.add(value(row, "ebb", fmt.Sprintf("%s, %s: slowest / fastest", name, verb), unitRatio, spread[i].values).
			atMost(1.25).noting(fmt.Sprintf("raw %s: %.2f", transfers[i], median(rawSpread[i].values))))
	}
	if err != nil {
		return err
	}
	for _, raw := range raws {
		if err := s.end(raw.rank); err != nil {
			return err
		}
	}
	return s.endActors(actors...)
}

func (s *session) ranksRounds(actors []*actor, both func(int) []arm) error {
	for round := range s.o.Rounds {
		s.say(round)
		err := each(actors, (*actor).fill)
		last := round == s.o.Rounds-1
		if err == nil && last {
			err = each(actors, (*actor).remember)
		}
		for i := range 2 {
			if err == nil {
				err = s.inTurn(round, both(i)...)
			}
		}
		if err == nil && last {
			err = each(actors, (*actor).compare)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rawRank is a raw process with files that have been written.
func (s *session) rawRank(row string, disk []*folder, size uint64, sh shape) (rawFiles, error) {
	defer s.timing(row)()
	r, err := s.start(library{name: "raw"}, false, disk)
	if err != nil {
		return rawFiles{}, err
	}
	return r.writtenFiles(size, sh)
}

// together carries out an operation of several processes at the same time. It notes the rate of all
// from the first begin to the last end, and the slowest's seconds by the fastest's.
func together[T any](list []T, sum, spread *series, do func(T) (operation, error)) error {
	done, errs := make([]operation, len(list)), make([]error, len(list))
	var all sync.WaitGroup
	for i, one := range list {
		all.Go(func() { done[i], errs[i] = do(one) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	begin, end, fastest, slowest, bytes := math.Inf(1), math.Inf(-1), math.Inf(1), 0.0, uint64(0)
	for _, o := range done {
		begin, end = min(begin, o.begin), max(end, o.end)
		fastest, slowest = min(fastest, o.seconds()), max(slowest, o.seconds())
		bytes += o.bytes
	}
	sum.values = append(sum.values, float64(bytes)/1e9/(end-begin))
	spread.values = append(spread.values, slowest/fastest)
	return nil
}

// limit is one of the raw limits.
type limit struct {
	what string
	arm  func(*operations) arm // nil: measured before, for another row
	of   operations
}

// rawLimits: what the disk and the link do by themselves. What other rows of the run have measured
// is not measured again. Half and twice as many workers as ebb uses show whether it uses the right
// number. Transfers are of half the size.
func (s *session) rawLimits() error {
	const row = "raw"
	if err := s.learn(); err != nil {
		return err
	}
	bytes := s.bytes / 2
	sh := s.learned(piecesOf(bytes))
	stop := s.timing(row)
	raw, err := s.raw.writtenFiles(bytes, sh)
	if err == nil {
		err = s.raw.openCopies(bytes)
	}
	stop()
	if err != nil {
		return err
	}
	transfer := func(f rawFiles, what string) func(*operations) arm {
		return func(notes *operations) arm { return f.arm(row, what, notes) }
	}
	copying := func(to string) func(*operations) arm {
		return func(notes *operations) arm { return s.raw.copyArm(row, to, bytes, notes) }
	}
	limits := []*limit{
		{what: "raw write in place", arm: transfer(raw, "write"), of: s.rawWrites},
		{what: "raw write into fresh extents", arm: transfer(raw, "fresh"), of: s.rawFresh},
		{what: "raw read", arm: transfer(raw, "read"), of: s.rawReads},
		{what: "raw, half written while half is read", arm: transfer(raw, "mixed")},
		{what: "copy from the device, pinned", arm: copying("host")},
		{what: "copy to the device, pinned", arm: copying("device")},
	}
	for _, other := range []shape{{writers: sh.writers / 2, readers: sh.readers / 2}, {writers: 2 * sh.writers, readers: 2 * sh.readers}} {
		if min(other.writers, other.readers) < 1 || max(other.writers, other.readers) > mostWorkers {
			continue
		}
		f := rawFiles{raw.rank, other}
		limits = append(limits,
			&limit{what: fmt.Sprintf("raw write in place, %d workers", other.writers), arm: transfer(f, "write")},
			&limit{what: fmt.Sprintf("raw read, %d workers", other.readers), arm: transfer(f, "read")})
	}
	err = s.limitRounds(limits)
	if err != nil && !s.interrupted() {
		return err
	}
	for _, l := range limits {
		s.add(value(row, "raw", l.what, unitRate, l.of.rates("").values))
	}
	if err != nil {
		return err
	}
	return errors.Join(raw.close(), s.raw.closeCopies())
}

func (s *session) limitRounds(limits []*limit) error {
	var all []arm
	for _, l := range limits {
		if len(l.of) == 0 {
			all = append(all, l.arm(&l.of))
		}
	}
	for round := range s.o.Rounds {
		s.say(round)
		if err := s.inTurn(round, all...); err != nil {
			return err
		}
	}
	return nil
}
