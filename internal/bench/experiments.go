package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// learn makes one actor, for the shape of ebb's transfers and the name of the device.
func (s *session) learn() error {
	s.o.Progress("finding out how ebb moves bytes here")
	o := actorOptions{backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes)}
	if len(s.folders) == 0 {
		o.backup = "cpu"
	}
	a, err := s.actor(s.libs[0], o)
	if err != nil {
		return err
	}
	if err := a.warmUp(); err != nil {
		return err
	}
	st, err := a.rank.status()
	if err != nil {
		return err
	}
	s.report.Machine.Device = st.Device
	s.noteShape(shapeOf(st))
	return s.endActors(a)
}

// learned is the shape of an actor of ebb that has not been paused yet.
func (s *session) learned(pieces uint64) shape {
	return shape{writers: s.report.Setup.Writers, readers: s.report.Setup.Readers, block: s.report.Setup.Block, files: int(pieces)}
}

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

// cycles: random bytes to disk and back, against raw transfers of files that were written before.
func (s *session) cycles() error {
	actors, err := s.actors(actorOptions{backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes)})
	if err != nil {
		return err
	}
	raw, err := s.raw.writtenFiles(s.bytes, actors[0].shape)
	if err != nil {
		return err
	}
	var writes, reads operations
	if err := s.rounds(actors, []arm{raw.arm("write", &writes)}, []arm{raw.arm("read", &reads)}); err != nil {
		return err
	}
	if err := errors.Join(raw.close(), s.finish(actors...)); err != nil {
		return err
	}
	s.point("write", "raw", writes)
	s.point("read", "raw", reads)
	for _, a := range actors {
		s.point("pause", a.lib.name, a.pauses)
		s.point("resume", a.lib.name, a.wakes)
		s.add(
			ratio("pause", a.lib.name, "pause / raw write in place", a.pauses.rates("pause"), writes.rates("raw write")),
			ratio("resume", a.lib.name, "resume / raw read", a.wakes.rates("resume"), reads.rates("raw read")),
			value("cpu-seconds", a.lib.name, "pause, CPU seconds", unitCPU, a.pauses.cpuPerGB("").values),
			value("cpu-seconds", a.lib.name, "resume, CPU seconds", unitCPU, a.wakes.cpuPerGB("").values),
		)
	}
	s.versus("pause", "pause", actors, pausesOf)
	s.versus("resume", "resume", actors, wakesOf)
	s.add(
		value("cpu-seconds", "raw", "raw write, CPU seconds", unitCPU, writes.cpuPerGB("").values),
		value("cpu-seconds", "raw", "raw read, CPU seconds", unitCPU, reads.cpuPerGB("").values),
		checkShare("pause", actors[0].pauses), checkShare("resume", actors[0].wakes),
	)
	return nil
}

// checkShare is the part of the time that went into checks, as ebb says.
func checkShare(verb string, of operations) Figure {
	what := "time in checks / time of the " + verb
	if slices.ContainsFunc(of, func(o operation) bool { return o.out.Checks == nil }) {
		return missing("checks", "ebb", what, "ebb_status does not tell check_seconds")
	}
	return ratio("checks", "ebb", what,
		of.series("checks", unitSeconds, func(o operation) float64 { return *o.out.Checks }),
		of.series(verb, unitSeconds, func(o operation) float64 { return o.out.Seconds }))
}

// firstPauses: the first pause of a process, for which everything must be made, against raw writes
// into new files.
func (s *session) firstPauses() error {
	var writes operations
	pauses := make([]operations, len(s.libs))
	pieces := piecesOf(s.bytes)
	for round := range s.o.Rounds {
		s.say(round)
		arms := []arm{func() error {
			raw, err := s.raw.openFiles(s.bytes, s.learned(pieces))
			if err == nil {
				err = raw.arm("fresh", &writes)()
			}
			return errors.Join(err, raw.close())
		}}
		for i, lib := range s.libs {
			arms = append(arms, func() error {
				return s.firstPause(lib, actorOptions{backup: "disk", bytes: s.bytes, pieces: pieces}, &pauses[i])
			})
		}
		if err := s.inTurn(round, arms...); err != nil {
			return err
		}
	}
	for i, lib := range s.libs {
		s.add(ratio("first-pause", lib.name, "first pause / raw write into fresh files", pauses[i].rates("first pause"), writes.rates("raw write")))
	}
	if len(s.libs) > 1 {
		s.add(ratio("first-pause", "ebb", "first pause, ebb / "+s.libs[1].name, pauses[0].rates("ebb"), pauses[1].rates(s.libs[1].name)))
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

// chunks: a small staging buffer against a large one.
func (s *session) chunks() error {
	var actors []*actor
	for _, size := range []int{64, 256} {
		a, err := s.actor(s.libs[0], actorOptions{
			backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes),
			env: []string{fmt.Sprintf("TMS_DISK_BACKUP_CHUNK_MB=%d", size)},
		})
		if err == nil {
			err = a.warmUp()
		}
		if err != nil {
			return err
		}
		actors = append(actors, a)
	}
	if err := s.rounds(actors, nil, nil); err != nil {
		return err
	}
	small, large := actors[0], actors[1]
	s.add(
		ratio("chunk", "ebb", "pause, chunk of 64 MiB / of 256 MiB", small.pauses.rates("64 MiB"), large.pauses.rates("256 MiB")),
		ratio("chunk", "ebb", "resume, chunk of 64 MiB / of 256 MiB", small.wakes.rates("64 MiB"), large.wakes.rates("256 MiB")),
	)
	return s.finish(actors...)
}

// firstHostPauses: the first pause of a process to host memory, which has to be made.
func (s *session) firstHostPauses() error {
	if err := s.raw.openCopies(s.bytes); err != nil {
		return err
	}
	var copies operations
	pauses := make([]operations, len(s.libs))
	for round := range s.o.Rounds {
		s.say(round)
		arms := []arm{s.raw.copyArm("host", s.bytes, &copies)}
		for i, lib := range s.libs {
			arms = append(arms, func() error {
				return s.firstPause(lib, actorOptions{backup: "cpu", bytes: s.bytes, pieces: piecesOf(s.bytes)}, &pauses[i])
			})
		}
		if err := s.inTurn(round, arms...); err != nil {
			return err
		}
	}
	for i, lib := range s.libs {
		rates := pauses[i].rates("first pause")
		s.add(
			ratio("cpu-first", lib.name, "first pause to host memory / pinned copy", rates, copies.rates("copy")),
			value("cpu-first", lib.name, "first pause to host memory", unitRate, rates.values),
		)
	}
	return s.raw.closeCopies()
}

// hostCycles: later pauses to host memory, which is kept, and resumes, against copies.
func (s *session) hostCycles() error {
	actors, err := s.actors(actorOptions{
		backup: "cpu", bytes: s.bytes, pieces: piecesOf(s.bytes), env: []string{"TMS_RETAIN_CPU_BACKUP=1"},
	})
	if err != nil {
		return err
	}
	if err := s.raw.openCopies(s.bytes); err != nil {
		return err
	}
	var out, in operations
	if err := s.rounds(actors, []arm{s.raw.copyArm("host", s.bytes, &out)}, []arm{s.raw.copyArm("device", s.bytes, &in)}); err != nil {
		return err
	}
	for _, a := range actors {
		s.add(
			ratio("cpu", a.lib.name, "pause to host memory / pinned copy", a.pauses.rates("pause"), out.rates("copy")),
			ratio("cpu", a.lib.name, "resume from host memory / pinned copy", a.wakes.rates("resume"), in.rates("copy")),
		)
	}
	s.versus("cpu", "pause to host memory", actors, pausesOf)
	s.versus("cpu", "resume from host memory", actors, wakesOf)
	return errors.Join(s.raw.closeCopies(), s.finish(actors...))
}

// hostHalf: half of the bytes in host memory and half on disk, moved at the same time.
func (s *session) hostHalf() error {
	const what = "half in host memory: time / all on disk"
	o := actorOptions{backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes)}
	disk, err := s.actor(s.libs[0], o)
	if err != nil {
		return err
	}
	o.env = []string{fmt.Sprintf("EBB_HOST_MB=%d", s.bytes/2/mib)}
	half, err := s.actor(s.libs[0], o)
	if err != nil {
		return err
	}
	for _, a := range []*actor{disk, half} {
		if err := a.warmUp(); err != nil {
			return err
		}
	}
	if err := half.fill(); err != nil {
		return err
	}
	for _, verb := range []string{"pause", "resume"} {
		one, err := half.operate(verb)
		if err != nil {
			return err
		}
		if one.out.HostBytes == 0 {
			s.add(missing("host-half", "ebb", what, "the library keeps nothing in host memory with EBB_HOST_MB"))
			return s.endActors(disk, half)
		}
	}
	if err := s.rounds([]*actor{disk, half}, nil, nil); err != nil {
		return err
	}
	inHost := half.pauses.series("", "", func(o operation) float64 { return float64(o.out.HostBytes) / float64(o.bytes) })
	note := fmt.Sprintf("%.0f %% of the bytes in host memory", 100*median(inHost.values))
	s.add(
		ratio("host-half", "ebb", "pause, "+what, half.pauses.times("half"), disk.pauses.times("disk")).noting(note),
		ratio("host-half", "ebb", "resume, "+what, half.wakes.times("half"), disk.wakes.times("disk")),
	)
	return s.finish(disk, half)
}

// adamw: an actor as training leaves it, whose gradients are zero.
func (s *session) adamw() error {
	actors, err := s.actors(actorOptions{backup: "disk", bytes: s.bytes, adamw: true})
	if err != nil {
		return err
	}
	raw, err := s.raw.writtenFiles(actors[0].bytes, actors[0].shape)
	if err != nil {
		return err
	}
	var writes, reads operations
	if err := s.rounds(actors, []arm{raw.arm("write", &writes)}, []arm{raw.arm("read", &reads)}); err != nil {
		return err
	}
	for _, a := range actors {
		pause := ratio("adamw", a.lib.name, "pause, AdamW actor / raw write", a.pauses.rates("pause"), writes.rates("raw write"))
		resume := ratio("adamw", a.lib.name, "resume, AdamW actor / raw read", a.wakes.rates("resume"), reads.rates("raw read"))
		if a.lib.ebb {
			first := a.pauses[0].out.SkippedZero
			if first == nil {
				why := "ebb_status does not tell skipped_zero_bytes: zero blocks are not skipped"
				pause, resume = missing(pause.Row, "ebb", pause.What, why), missing(resume.Row, "ebb", resume.What, why)
			} else {
				live := float64(a.bytes - a.zero)
				pause = pause.noting(fmt.Sprintf("zero blocks: %.1f %% of the bytes, %.1f %% skipped; bound %.3f",
					100*float64(a.zero)/float64(a.bytes), 100*float64(*first)/float64(a.bytes), float64(a.bytes)/live))
			}
		}
		s.add(pause, resume)
	}
	s.versus("adamw", "pause, AdamW actor", actors, pausesOf)
	s.versus("adamw", "resume, AdamW actor", actors, wakesOf)
	return errors.Join(raw.close(), s.finish(actors...))
}

// touchedEvery is how many chunks there are for each that a touch changes.
const touchedEvery = 10

// unchanged: a second pause of the same bytes, and a third after a tenth of them was written.
func (s *session) unchanged() error {
	actors, err := s.actors(actorOptions{backup: "disk", bytes: s.bytes, pieces: piecesOf(s.bytes)})
	if err != nil {
		return err
	}
	touched := 0.0
	for round := range s.o.Rounds {
		s.say(round)
		for _, a := range rotated(actors, round) {
			if touched, err = a.threePauses(); err != nil {
				return err
			}
		}
	}
	for _, a := range actors {
		s.addUnchanged(a, touched)
	}
	return s.finish(actors...)
}

// threePauses pauses an actor with new content, with the same again, and with a tenth changed. The
// result is the share that was changed.
func (a *actor) threePauses() (touched float64, err error) {
	if err := a.fill(); err != nil {
		return 0, err
	}
	for _, notes := range []*operations{&a.pauses, &a.again, &a.third} {
		if notes == &a.third {
			a.s.seed++
			v, err := a.rank.measure(fmt.Sprintf("touch tag=all seed=%d every=%d", a.s.seed, touchedEvery), "bytes")
			if err != nil {
				return 0, err
			}
			touched = v[0] / float64(a.bytes)
		}
		if err := a.timed("pause", notes); err != nil {
			return 0, err
		}
		if err := a.timed("resume", &a.wakes); err != nil {
			return 0, err
		}
	}
	return touched, nil
}

func (s *session) addUnchanged(a *actor, touched float64) {
	const row = "unchanged"
	again, third := "second pause, unchanged: time / first", fmt.Sprintf("third pause, %.0f %% changed: time / first", 100*touched)
	if !a.lib.ebb {
		s.add(
			ratio(row, a.lib.name, again, a.again.times("second"), a.pauses.times("first")),
			ratio(row, a.lib.name, third, a.third.times("third"), a.pauses.times("first")),
		)
		return
	}
	if a.again[0].out.SkippedSame == nil {
		why := "ebb_status does not tell skipped_same_bytes: unchanged blocks are written again"
		s.add(missing(row, "ebb", again, why), missing(row, "ebb", third, why))
		return
	}
	written := func(o operation) float64 { return float64(o.out.DiskBytes) }
	s.add(
		ratio(row, "ebb", again, a.again.times("second"), a.pauses.times("first")),
		ratio(row, "ebb", third, a.third.times("third"), a.pauses.times("first")),
		value(row, "ebb", "second pause, unchanged: written", unitBytes, a.again.series("", "", written).values),
		value(row, "ebb", fmt.Sprintf("third pause, %.0f %% changed: written", 100*touched), unitBytes, a.third.series("", "", written).values),
	)
}

const (
	smallBytes = 2 * mib
	smallCount = 10_000
)

// smallBytes is the size of the actors of the row small.
func (s *session) smallBytes() uint64 {
	if s.o.GiB == 0 && !s.o.soft() {
		return smallCount * smallBytes
	}
	return min(s.bytes/smallBytes, smallCount) * smallBytes
}

// small: many small allocations against a large one.
func (s *session) small() error {
	size := s.smallBytes()
	count := size / smallBytes
	for _, lib := range s.libs {
		var actors []*actor
		for _, pieces := range []uint64{count, 1} {
			a, err := s.actor(lib, actorOptions{backup: "disk", bytes: size, pieces: pieces})
			if err == nil {
				err = a.warmUp()
			}
			if err != nil {
				return err
			}
			actors = append(actors, a)
		}
		if err := s.rounds(actors, nil, nil); err != nil {
			return err
		}
		many, one := actors[0], actors[1]
		name := fmt.Sprintf("%d x 2 MiB / one of %s", count, sizeText(size))
		s.add(
			ratio("small", lib.name, "pause, "+name, many.pauses.rates("many"), one.pauses.rates("one")),
			ratio("small", lib.name, "resume, "+name, many.wakes.rates("many"), one.wakes.rates("one")),
		)
		if err := s.finish(actors...); err != nil {
			return err
		}
	}
	return nil
}

// growth is by how much the actor of the row pinned grows: to these multiples of an eighth.
var growth = []uint64{1, 2, 4, 8}

// pinned: the staging buffer while the actor grows.
func (s *session) pinned() error {
	eighth := s.bytes / 8 / unit * unit
	a, err := s.actor(s.libs[0], actorOptions{backup: "disk", bytes: eighth, pieces: 1})
	if err != nil {
		return err
	}
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
		if err := a.warmUp(); err != nil {
			return err
		}
		if err := a.fill(); err != nil {
			return err
		}
		one, err := a.operate("pause")
		if err != nil {
			return err
		}
		st, err := a.rank.status()
		if err != nil {
			return err
		}
		staging, host = append(staging, float64(st.StagingBytes)), append(host, float64(one.host))
		if _, err := a.operate("resume"); err != nil {
			return err
		}
	}
	last := len(growth) - 1
	what := fmt.Sprintf("pinned at %s / at %s", sizeText(growth[last]*eighth), sizeText(eighth))
	s.add(
		ratio("pinned", "ebb", what, series{"large", unitBytes, staging[last:]}, series{"small", unitBytes, staging[:1]}),
		value("pinned", "ebb", "pinned staging buffer", unitBytes, staging[last:]),
		value("pinned", "ebb", "growth of host memory meanwhile", unitBytes, []float64{host[last] - host[0]}),
	)
	return s.endActors(a)
}

// rankBytes is the size of each actor of the row ranks.
func (s *session) rankBytes() uint64 { return max(s.bytes/2/unit*unit, unit) }

// ranks: several actors at the same time, against as many raw processes.
func (s *session) ranks() error {
	size := s.rankBytes()
	var actors []*actor
	var raws []rawFiles
	for i := range s.o.Ranks {
		disk := s.folders[i%len(s.folders) : i%len(s.folders)+1]
		a, err := s.actor(s.libs[0], actorOptions{backup: "disk", bytes: size, pieces: piecesOf(size), disks: disk})
		if err == nil {
			err = a.warmUp()
		}
		if err != nil {
			return err
		}
		actors = append(actors, a)
		r, err := s.start(library{name: "raw"}, false, disk)
		if err != nil {
			return err
		}
		raw, err := r.writtenFiles(size, a.shape)
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
	for round := range s.o.Rounds {
		s.say(round)
		if err := fillAll(actors); err != nil {
			return err
		}
		for i := range verbs {
			err := s.inTurn(round,
				func() error {
					return together(actors, &sum[i], &spread[i], func(a *actor) (operation, error) { return a.operate(verbs[i]) })
				},
				func() error {
					return together(raws, &rawSum[i], &rawSpread[i], func(f rawFiles) (operation, error) { return f.move(transfers[i], 0) })
				})
			if err != nil {
				return err
			}
		}
	}
	for i, verb := range verbs {
		s.add(ratio("ranks", "ebb", fmt.Sprintf("%d ranks, %s: sum / raw sum", s.o.Ranks, verb), sum[i], rawSum[i]))
	}
	for i, verb := range verbs {
		s.add(value("ranks", "ebb", fmt.Sprintf("%d ranks, %s: slowest / fastest", s.o.Ranks, verb), unitRatio, spread[i].values).
			noting(fmt.Sprintf("raw %s: %.2f", transfers[i], median(rawSpread[i].values))))
	}
	for _, raw := range raws {
		if err := s.end(raw.rank); err != nil {
			return err
		}
	}
	return s.finish(actors...)
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

// sizesOf are the sizes of the row sizes.
func (s *session) sizesOf() []uint64 {
	var sizes []uint64
	for _, part := range []uint64{8, 4, 2, 1} {
		sizes = append(sizes, s.bytes/part/unit*unit)
	}
	return sizes
}

// sizes: the same at several sizes, each in a process of its own.
func (s *session) sizes() error {
	sizes := s.sizesOf()
	var actors [][]*actor // by size, then by library
	for _, size := range sizes {
		of, err := s.actors(actorOptions{backup: "disk", bytes: size, pieces: piecesOf(size)})
		if err != nil {
			return err
		}
		actors = append(actors, of)
	}
	largest := actors[len(actors)-1]
	raw, err := s.raw.writtenFiles(s.bytes, largest[0].shape)
	if err != nil {
		return err
	}
	var writes, reads operations
	of := func(what string, size uint64, notes *operations) arm {
		return func() error {
			o, err := raw.move(what, size)
			*notes = append(*notes, o)
			return err
		}
	}
	for round := range s.o.Rounds {
		s.say(round)
		for i, size := range sizes {
			if err := fillAll(actors[i]); err != nil {
				return err
			}
			if err := s.inTurn(round, append(pauseArms(actors[i]), of("write", size, &writes))...); err != nil {
				return err
			}
			if err := s.inTurn(round, append(resumeArms(actors[i]), of("read", size, &reads))...); err != nil {
				return err
			}
		}
	}
	s.point("write", "raw", writes)
	s.point("read", "raw", reads)
	for i, smallest := range actors[0] {
		for _, of := range actors {
			s.point("pause", of[i].lib.name, of[i].pauses)
			s.point("resume", of[i].lib.name, of[i].wakes)
		}
		name := fmt.Sprintf("%s / %s", sizeText(sizes[0]), sizeText(s.bytes))
		s.add(
			ratio("sizes", smallest.lib.name, "pause, "+name, smallest.pauses.rates("small"), largest[i].pauses.rates("large")),
			ratio("sizes", smallest.lib.name, "resume, "+name, smallest.wakes.rates("small"), largest[i].wakes.rates("large")),
		)
	}
	err = raw.close()
	for _, of := range actors {
		err = errors.Join(err, s.finish(of...))
	}
	return err
}

// rawLimits: what the disk and the link do by themselves. Half and twice as many workers as ebb uses
// show whether it uses the right number.
func (s *session) rawLimits() error {
	sh := s.learned(piecesOf(s.bytes))
	raw, err := s.raw.writtenFiles(s.bytes, sh)
	if err != nil {
		return err
	}
	if err := s.raw.openCopies(s.bytes); err != nil {
		return err
	}
	type limit struct {
		what string
		arm  func(*operations) arm
		of   operations
	}
	transfer := func(f rawFiles, what string) func(*operations) arm {
		return func(notes *operations) arm { return f.arm(what, notes) }
	}
	copying := func(to string) func(*operations) arm {
		return func(notes *operations) arm { return s.raw.copyArm(to, s.bytes, notes) }
	}
	limits := []*limit{
		{what: "raw write in place", arm: transfer(raw, "write")},
		{what: "raw write into fresh files", arm: transfer(raw, "fresh")},
		{what: "raw read", arm: transfer(raw, "read")},
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
	for round := range s.o.Rounds {
		s.say(round)
		var arms []arm
		for _, l := range limits {
			arms = append(arms, l.arm(&l.of))
		}
		if err := s.inTurn(round, arms...); err != nil {
			return err
		}
	}
	for _, l := range limits {
		s.add(value("raw", "raw", l.what, unitRate, l.of.rates("").values))
	}
	return errors.Join(raw.close(), s.raw.closeCopies())
}
