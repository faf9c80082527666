package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/version"
)

// session is a run under way.
type session struct {
	ctx      context.Context
	o        Options
	bytes    uint64 // of an actor
	libs     []library
	runtimes []string
	disks    []Disk
	folders  []*folder
	program  string
	own      map[*rank][]rankFolder // the folders of each rank that is alive
	raw      *rank                  // on the device, without a library
	seed     uint64                 // of the latest content
	report   Report
	now      string // what is being measured, for Progress

	freeDevice, freeHost uint64 // before the run; freeHost 0: not known

	shape shape // of ebb's transfers to disk; block 0: not known yet

	rawWrites, rawReads, rawFresh operations // of rows that are done, for the row raw
}

// rankFolder is a process's folder in one of the run's.
type rankFolder struct {
	of   *folder
	name string
}

// Run measures. It leaves no file and no process behind, whatever happens; ctx ends it. With an error
// the report has what was measured until then: rows that were finished, and where ctx ended the run
// also the rounds that were.
func Run(ctx context.Context, o Options) (report Report, err error) {
	begin := time.Now()
	s, err := newSession(ctx, o)
	if err != nil {
		return Report{}, err
	}
	defer func() {
		if e := s.close(); err == nil {
			err = e
		}
		if ctx.Err() != nil { // what fails then fails because of it
			err = context.Cause(ctx)
		}
		report = s.report
		report.sort()
		report.Seconds = time.Since(begin).Seconds()
		if err != nil {
			report.Ended = err.Error()
		}
	}()
	if err := s.open(); err != nil {
		return Report{}, err
	}
	for _, e := range s.experiments() {
		s.now = e.name
		if err := e.run(s); err != nil {
			return Report{}, err
		}
	}
	return Report{}, nil
}

// interrupted reports whether the run is to end. What was measured until then counts.
func (s *session) interrupted() bool { return s.ctx.Err() != nil }

// timing counts the time until the result is called as that of some rows.
func (s *session) timing(rows string) (stop func()) {
	begin := time.Now()
	return func() {
		seconds := time.Since(begin).Seconds()
		i := slices.IndexFunc(s.report.Took, func(t Took) bool { return t.What == rows })
		if i < 0 {
			i, s.report.Took = len(s.report.Took), append(s.report.Took, Took{What: rows})
		}
		s.report.Took[i].Seconds += seconds
	}
}

// newSession checks what can be checked without starting or making anything.
func newSession(ctx context.Context, o Options) (*session, error) {
	s := &session{ctx: ctx, o: o, bytes: o.bytes(), own: map[*rank][]rankFolder{}, freeHost: hostmem.Left()}
	if o.Progress == nil {
		s.o.Progress = func(string) {}
	}
	if o.Warn == nil {
		s.o.Warn = func(string) {}
	}
	s.libs = []library{{name: "ebb", path: o.Libraries.Preload, ebb: true}}
	linked := ""
	if o.Against != "" {
		lib, name, err := openAgainst(o.Against)
		if err != nil {
			return nil, err
		}
		s.libs, linked = append(s.libs, lib), name
	}
	s.program = filepath.Join(o.Libraries.Dir, "..", "libexec", "ebb", "ebb-bench-rank")
	for _, file := range []string{s.program, o.Libraries.Preload, o.Libraries.Engine} {
		if _, err := os.Stat(file); err != nil {
			return nil, &launch.Error{
				Status: launch.StatusInstall, Err: err,
				Text: fmt.Sprintf("ebb's installation is incomplete: %v; build or install it again, or set %s", err, launch.EnvLibDir),
			}
		}
	}
	s.runtimes = cudaRuntimes(ctx, o, linked)
	for _, dir := range o.DiskDirs {
		disk, err := checkDirectory(dir)
		if err != nil {
			return nil, err
		}
		s.disks = append(s.disks, disk)
	}
	if len(s.disks) == 0 && s.need().disk > 0 {
		return nil, launch.Usagef("which disk? Name a directory on it with --disk-dir, or choose rows that need none with --rows (--rows list)")
	}
	if a, b, same := sameDisk(o.DiskDirs); same {
		s.o.Warn(fmt.Sprintf("%s and %s are on one device: naming both gains nothing", a, b))
	}
	return s, nil
}

// open makes the folders, starts the raw process and checks that there is room for the run.
func (s *session) open() error {
	for _, disk := range s.disks {
		f, err := makeFolder(disk.Dir, s.o.Warn)
		if err != nil {
			return launch.Usagef("disk directory %s: %w; name another with --disk-dir", disk.Dir, err)
		}
		s.folders = append(s.folders, f)
	}
	var err error
	s.o.Progress("starting")
	s.raw, err = s.start(library{name: "raw"}, true, nil)
	if err != nil {
		return deviceError(err)
	}
	free, err := s.raw.hello.numbers("free")
	if err != nil {
		return err
	}
	s.freeDevice = uint64(free[0])
	if err := s.fits(s.need()); err != nil {
		return err
	}
	s.report = Report{
		MessageType: "bench", Version: version.Version,
		Machine: s.machine(),
		Setup:   Setup{Bytes: s.bytes, Rounds: s.o.Rounds, Ranks: s.o.Ranks, ChunkMB: s.o.ChunkMB, Against: s.o.Against},
		Points:  []Point{}, Spans: []Spans{},
	}
	return nil
}

// deviceError is the error of a run whose first process does not work.
func deviceError(err error) error {
	var r *RankError
	if !errors.As(err, &r) {
		return err
	}
	return &launch.Error{
		Status: launch.StatusDevice, Err: err,
		Text: fmt.Sprintf("the device cannot be used: %v; add the folder of libcudart.so.13 or .12 to LD_LIBRARY_PATH if no CUDA runtime is found, or measure on the software device with --device soft", err),
	}
}

func (s *session) machine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Memory: memory("MemTotal"), Disks: s.disks}
	if driver, err := s.raw.hello.numbers("driver"); err == nil {
		m.Driver = int(driver[0])
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = string(bytes.TrimRight(name.Release[:], "\x00"))
	}
	return m
}

// close ends all processes and removes all folders.
func (s *session) close() error {
	var errs []error
	for r := range s.own {
		errs = append(errs, s.end(r))
	}
	for _, f := range s.folders {
		why, err := f.close()
		if err != nil {
			errs = append(errs, fmt.Errorf("remove the files of this run: %w", err))
		}
		if why != "" {
			s.o.Warn(f.stays(why))
		}
	}
	return errors.Join(errs...)
}

// start starts a process with a folder in each of the given disks (nil: in all) and a library
// preloaded, if it has a path. Its backup files go into these folders, and so do raw files.
func (s *session) start(lib library, device bool, disks []*folder, more ...string) (*rank, error) {
	if disks == nil {
		disks = s.folders
	}
	var args, dirs []string
	var own []rankFolder
	if device {
		args = append(args, "--device", fmt.Sprint(s.o.device()))
		for _, path := range s.runtimes {
			args = append(args, "--runtime", path)
		}
	}
	for _, disk := range disks {
		name, err := disk.forRank()
		if err != nil {
			return nil, errors.Join(err, removeAll(own))
		}
		own = append(own, rankFolder{disk, name})
		dirs = append(dirs, filepath.Join(disk.path, name))
		args = append(args, "--dir", filepath.Join(disk.path, name))
	}
	if lib.path != "" {
		more = append(s.settings(lib, dirs), more...) // the last of a name holds
	}
	r, err := startRank(s.ctx, "the process of "+lib.name, s.program, args, environment(s.o, s.runtimes, lib, more...))
	if err != nil {
		return nil, errors.Join(err, removeAll(own))
	}
	s.own[r] = own
	if lib.path != "" && r.hello.values["saver"] != "1" {
		text := "the library cannot be preloaded, or lacks torch_memory_saver's functions"
		if last := r.output.last(); last != "" {
			text = last
		}
		return nil, errors.Join(&RankError{Who: r.who, Command: "preload " + lib.path, Text: text}, s.end(r))
	}
	return r, nil
}

// settings are the variables of a library.
func (s *session) settings(lib library, dirs []string) []string {
	env := []string{fmt.Sprintf("TMS_DISK_BACKUP_CHUNK_MB=%d", s.o.ChunkMB)}
	if lib.ebb { // as ebb run sets it
		env = append(env, "EBB_HOST_ARENA=1")
	}
	if len(dirs) > 0 { // torch_memory_saver knows one directory
		env = append(env, "TMS_DISK_BACKUP_DIR="+dirs[0])
	}
	if lib.ebb && len(dirs) > 1 {
		env = append(env, "EBB_DISK_DIRS="+strings.Join(dirs, ":"))
	}
	return env
}

// end ends a process and removes its folders.
func (s *session) end(r *rank) error {
	r.end()
	own := s.own[r]
	delete(s.own, r)
	return removeAll(own)
}

// removeAll removes the folders of a process that has ended. What is not of a run stays; the line
// about that is written when the run's folder is to go.
func removeAll(folders []rankFolder) error {
	var errs []error
	for _, one := range folders {
		_, err := one.of.removeRank(one.name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// say tells which round is under way.
func (s *session) say(round int) {
	s.o.Progress(fmt.Sprintf("%s: round %d of %d", s.now, round+1, s.o.Rounds))
}

// add takes the figures whose rows were asked for, and of which anything was measured.
func (s *session) add(figures ...Figure) {
	for _, f := range figures {
		if !s.wants(f.Row) || len(f.Values) == 0 && f.Missing == "" {
			continue
		}
		if s.o.soft() || f.Library != "ebb" { // goals are ebb's, on a GPU
			f.AtLeast, f.AtMost = nil, nil
		}
		s.report.Figures = append(s.report.Figures, f)
	}
}

func (s *session) wants(row string) bool { return len(s.o.Rows) == 0 || slices.Contains(s.o.Rows, row) }

// only reports whether no other row was asked for.
func (s *session) only(row string) bool { return slices.Equal(s.o.Rows, []string{row}) }

// experiments are those that give the rows asked for.
func (s *session) experiments() []experiment {
	var list []experiment
	for _, e := range experiments {
		if slices.ContainsFunc(e.rows, s.wants) {
			list = append(list, e)
		}
	}
	return list
}
