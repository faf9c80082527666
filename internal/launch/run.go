package launch

import (
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// Request is a run of one command as one or more ranks.
type Request struct {
	Options
	Argv     []string
	Labelled bool     // output goes through ebb, with the rank in front of each line
	Exec     bool     // one rank under an outer launcher, instead of a world of ebb's own
	Rank     int      // with Exec: the rank if it was given, else -1
	Environ  []string // ebb's own environment
	Log      *slog.Logger
}

// Say tells the user in one line what need not stop anything.
func (req Request) Say(line string) { req.Log.Warn(line) }

// note is for what happened, and is as it should be.
func (req Request) note(line string) { req.Log.Info(line) }

// Run carries out a request: checks everything, starts the ranks, waits for them, and removes
// what they leave on disk, whatever happened. The error is ebb's own; how the command ended is
// in the outcome.
func Run(req Request) (out Outcome, err error) {
	getenv := Lookup(req.Environ)
	path, err := FindCommand(req.Argv[0], getenv("PATH"))
	if err != nil {
		return out, err
	}
	libs, err := FindLibraries("/proc/self/exe", getenv)
	if err != nil {
		return out, err
	}
	if err := req.checkFaults(getenv); err != nil {
		return out, err
	}
	ranks, err := req.ranks(getenv)
	if err != nil {
		return out, err
	}
	local := max(len(ranks), ranks[0].LocalWorld)
	if err := req.Validate(local, Memory()); err != nil {
		return out, err
	}
	mb, warning := req.capHost(local)
	if req.HostMB = mb; warning != "" {
		req.Say(warning)
	}
	for _, r := range ranks {
		if err := r.checkIdentity(); err != nil {
			return out, err
		}
	}
	if err := libs.Check(req.Options); err != nil {
		return out, err
	}
	disks := NewDisks(getenv)
	places, err := disks.places(req.Options, getenv, os.Getuid(), req.Say)
	if err != nil {
		return out, err
	}
	for _, base := range places.All {
		warning, err := disks.checkPlace(places, base, req.AllowRAM)
		if err != nil {
			return out, places.byFlag(base, err)
		}
		if warning != "" {
			req.Say(warning)
		}
	}

	if err := CheckEventLog(req.EventLog); err != nil {
		return out, err
	}

	// From here on something may have to be removed again.
	signals := CatchSignals()
	defer signals.Stop()
	settings, err := Settings(req.Options, libs, ranks[0], getenv)
	if err != nil {
		return out, err
	}
	if line := overridden(settings, getenv); line != "" {
		req.Say(line)
	}
	if err := probe(req.Options, libs, Apply(req.Environ, settings), signals); err != nil {
		return out, err
	}
	defer sweepSockets(getenv, req.note)
	if len(places.All) > 0 {
		for _, base := range places.All {
			if err := disks.Make(base); err != nil {
				return out, places.byFlag(base, err)
			}
		}
		claims, err := claimAll(disks, places, ranks, req.Options, req.note)
		if err != nil {
			return out, err
		}
		defer claims.sweep() // what runs inside this one left
		defer claims.reclaim()
	}
	if req.Offload && !req.Disk() {
		dir := BareDir(getenv)
		disks.sweepBare(dir, req.Discard, req.note)
		defer disks.sweepBare(dir, req.Discard, req.note) // regions with disk backup of ranks that were killed
	}
	if err := MakeEventLog(req.EventLog); err != nil {
		return out, err
	}
	if err := signals.Pending(); err != nil {
		return out, err
	}

	name, err := runName()
	if err != nil {
		return out, err
	}
	group := Group{Run: name, Environ: req.Environ, Labelled: req.Labelled, Grace: req.Grace, Signals: signals, Log: req.Log, Status: newAsker(ranks, getenv).line}
	for _, r := range ranks {
		settings, err := Settings(req.Options, libs, r, getenv)
		if err != nil {
			return out, err
		}
		settings = append(settings, Setting{Name: envRun, Value: name})
		rank := fmt.Sprintf("rank %d", max(r.Rank, 0))
		group.Processes = append(group.Processes, Process{
			Name: rank, Who: r.who(), Path: path, Args: req.Argv, Env: Apply(req.Environ, settings), Label: "[" + rank + "] ",
		})
	}
	return Supervise(group)
}

// checkFaults says when file calls of the ranks are to fail.
func (req Request) checkFaults(getenv func(string) string) error {
	const variable = "EBB_FAULT_FILES"
	faults := getenv(variable)
	if faults == "" || !req.Offload && !req.Stream() {
		return nil
	}
	if err := filesys.Check(faults); err != nil {
		return Usagef("%s: %w; correct it, or unset it", variable, err)
	}
	req.Say(fmt.Sprintf("%s=%s: file calls of the ranks fail on purpose", variable, faults))
	return nil
}

// ranks lists the ranks of the request, without their directories.
func (req Request) ranks(getenv func(string) string) ([]Rank, error) {
	given := -1
	if req.Exec {
		given = req.Rank
	}
	outer, err := DetectRank(getenv, given)
	if err != nil {
		return nil, err
	}
	job := req.Job
	if job == "" {
		if job, err = DefaultJob(outer, getenv); err != nil {
			return nil, err
		}
	}
	if req.Exec {
		if outer.Launcher == "" && req.Rank < 0 {
			if err := incomplete(getenv); err != nil {
				return nil, err
			}
			req.Say("no launcher's variables found: this is rank 0 of 1")
		}
		if line := contradiction(outer, getenv); line != "" && req.Rank < 0 {
			req.Say(line)
		}
		r, err := ExecRank(req.Options, outer, req.Rank, getenv)
		r.Job = job
		return []Rank{r}, err
	}

	if wider(outer, req.Ranks, getenv) {
		req.Say("run makes a world of its own on this node; for ranks of an outer launcher use ebb exec")
	}
	addr, port := getenv("MASTER_ADDR"), getenv("MASTER_PORT")
	if outer.Launcher != "" {
		addr, port = "", "" // they are of the world that this process is a rank of
	}
	if addr == "" {
		addr = "127.0.0.1"
	}
	if port == "" {
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	ranks := make([]Rank, req.Ranks)
	for i := range ranks {
		ranks[i] = Rank{
			Role: req.Role, Cell: req.Cell, Job: job,
			Rank: i, LocalRank: i, World: req.Ranks, LocalWorld: req.Ranks,
			MasterAddr: addr, MasterPort: port, OwnWorld: true,
		}
	}
	return ranks, nil
}

// ExecRank is the rank that this process is under an outer launcher; given, if not negative,
// says which. Without a launcher it is rank 0 of a world of one.
func ExecRank(o Options, outer Outer, given int, getenv func(string) string) (Rank, error) {
	r := Rank{
		Role: o.Role, Cell: o.Cell,
		Rank: outer.Rank, LocalRank: outer.LocalRank, World: outer.World, LocalWorld: outer.LocalWorld,
	}
	switch {
	case given >= 0:
		r.Rank = given
	case outer.Launcher == "":
		r.Rank, r.LocalRank, r.World, r.LocalWorld = 0, 0, 1, 1
		if r.MasterAddr = getenv("MASTER_ADDR"); r.MasterAddr == "" {
			r.MasterAddr = "127.0.0.1"
		}
		if r.MasterPort = getenv("MASTER_PORT"); r.MasterPort == "" {
			port, err := freePort()
			if err != nil {
				return r, err
			}
			r.MasterPort = port
		}
	}
	return r, nil
}

// freePort is a port of the loopback interface that nobody has now.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", failf(StatusInternal, "finding a free port: %w; set MASTER_PORT", err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", failf(StatusInternal, "finding a free port: %w; set MASTER_PORT", err)
	}
	return port, nil
}
