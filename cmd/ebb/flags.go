package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/launch"
)

// value is a flag's value with its own parser.
type value struct {
	parse func(string) error
	text  string // as given, or the default
	kind  string // for the help
	once  string // what is wrong with giving it twice; empty: the last one counts
	given bool
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return v.kind }

func (v *value) Set(s string) error {
	if v.given && v.once != "" {
		return errors.New(v.once)
	}
	if err := v.parse(s); err != nil {
		return err
	}
	v.text, v.given = s, true
	return nil
}

// into makes a parser that stores its result.
func into[T any](to *T, parse func(string) (T, error)) func(string) error {
	return func(s string) error {
		v, err := parse(s)
		if err == nil {
			*to = v
		}
		return err
	}
}

// word is a parser of one of several words.
func word(words ...string) func(string) (string, error) {
	return func(s string) (string, error) { return launch.ParseChoice(s, words...) }
}

func anything(s string) (string, error) { return s, nil }

// onOff adds a flag that is off unless it is given.
func onOff(f *pflag.FlagSet, name, usage string, parse func(string) error) {
	f.Var(&value{text: "false", kind: "bool", parse: parse}, name, usage)
	f.Lookup(name).NoOptDefVal = "true"
}

func onOffTo(f *pflag.FlagSet, to *bool, name, usage string) {
	onOff(f, name, usage, into(to, launch.ParseSwitch))
}

// Annotations of flags.
const (
	pairedWith   = "ebb-paired-with"   // given on the command line, it overrides the other's variable
	notInside    = "ebb-not-inside"    // inside a rank of ebb, the variable tells about that rank
	fromVariable = "ebb-from-variable" // it was not given on the command line
	ownVariable  = "ebb-own-variable"  // its variable, where EBB_ and its name is something else
)

// Flags that only the disk target looks at.
const (
	diskDirFlag = "offload-train-disk-dir"
	chunkFlag   = "offload-train-disk-chunk-mb"
	discardFlag = "discard"
	quotaFlag   = "offload-train-disk-quota-gb"
)

const eventLogFlag = "event-log"

// launchFlags adds the flags that run, exec and env share.
func launchFlags(f *pflag.FlagSet, o *launch.Options) {
	*o = launch.NewOptions()
	onOffTo(f, &o.Offload, "offload-train", "park the ranks' GPU memory while they are paused")
	onOff(f, "no-offload-train", "do not manage the ranks' GPU memory (the default)", func(s string) error {
		off, err := launch.ParseSwitch(s)
		if err == nil {
			o.Offload = !off
		}
		return err
	})
	annotate(f, "offload-train", pairedWith, "no-offload-train")
	annotate(f, "no-offload-train", pairedWith, "offload-train")

	f.Var(&value{text: o.Target, kind: "cpu|disk|auto", parse: into(&o.Target, word(launch.TargetCPU, launch.TargetDisk, launch.TargetAuto))},
		"offload-train-target", "where paused memory goes: host memory, files in the disk directory, or both at once: host memory up to a budget and the rest to disk")
	f.Var(&value{kind: "MIB", parse: into(&o.HostMB, launch.ParseHostMB)},
		"offload-train-host-mb", "host memory that a rank's backups use before the disk (default: none with the disk target; with auto an equal share of what node and memory cgroup leave, less a reserve)")
	f.Var(&value{kind: "DIR", parse: into(&o.DiskDirs, launch.ParseDirs), once: "given twice: name several as DIR,DIR"},
		diskDirFlag, "directory on a local disk, used with the disk and auto targets, or several as DIR,DIR, over which each rank spreads its blocks; it is made if it is missing, what it is in must be there (default miles_train_offload_<uid> in $SLURM_TMPDIR, else $SCRATCH, else /scratch)")
	f.Var(&value{text: strconv.Itoa(o.ChunkMB), kind: "MIB", parse: into(&o.ChunkMB, launch.ParseChunkMB)},
		chunkFlag, "upper limit of the host memory through which a rank's bytes go to disk: at most this much of it is pinned")
	f.Var(&value{kind: "GB", parse: into(&o.Quota, launch.ParseQuotaGB)},
		quotaFlag, "room (10⁹ bytes) that the files of all ranks and jobs together take in each disk directory; a pause that needs more is refused before it writes (default: as much as there is)")
	f.Var(&value{kind: "BYTES", parse: into(&o.MarginBytes, launch.ParseMargin)},
		"train-memory-margin-bytes", "GPU memory that allocations leave free: bytes, or a number with kB, MB, GB (powers of 1000) or KiB, MiB, GiB (powers of 1024) (default 1GiB; 0 on the software device)")
	f.Var(&value{text: o.Device, kind: "auto|cuda|soft", parse: into(&o.Device, word(launch.DeviceAuto, launch.DeviceCUDA, launch.DeviceSoft))},
		"device", "auto and cuda: the CUDA driver, which must work; soft: the software device")
	f.Var(&value{text: o.Role, kind: "NAME", parse: into(&o.Role, anything)},
		"role", "what the ranks do: actor, critic, ref …")
	f.Var(&value{text: "0", kind: "N", parse: into(&o.Cell, launch.ParseIndex)},
		"cell", "which group of ranks of that role")
	f.Var(&value{kind: "NAME", parse: into(&o.Job, anything)},
		"job", "name of the job (default: the outer launcher's, else a new one for each run)")
	annotate(f, "job", notInside)
	f.Var(&value{kind: "DIR", parse: into(&o.EventLog, launch.ParseEventLog), once: "given twice: the logs lie in one directory"},
		eventLogFlag, "directory in which each rank logs its pauses and resumes, as <job>__<role>_cell<C>_rank<R>.jsonl, for ebb report; it is made if it is missing, what it is in must be there (default: none)")
	annotate(f, eventLogFlag, notInside)
	f.Var(&value{text: o.LogFormat, kind: "text|json", parse: into(&o.LogFormat, word(launch.LogText, launch.LogJSON))},
		"log-format", "of the lines of ebb and its library on standard error: text, or one JSON object a line; what the ranks write themselves stays as it is")
	f.Var(&value{kind: "DIR", parse: into(&o.StateDirs, launch.ParseDirs), once: "given twice: name several as DIR,DIR"},
		"optimizer-state-nvme-dir", "optimizer state lies in this directory on a local disk, or several as DIR,DIR, and passes through the GPU bucket by bucket in each step; with or without --offload-train")
	onOffTo(f, &o.StreamState, "stream-optimizer-state-to-disk", "optimizer state lies in the disk directory (--offload-train-disk-dir), unless --optimizer-state-nvme-dir names another one, and passes through the GPU as with that")
	f.Var(&value{kind: "TYPE", parse: into(&o.MomentDtype, launch.ParseMoment)},
		"stream-optimizer-state-moment-dtype", "type in which the moments of streamed optimizer state are kept, fp32, bf16 or fp16; fp32 gives the same bits as state on the GPU (default fp32)")
	onOffTo(f, &o.AllowRAM, "allow-ram-backed-dir", "accept a disk directory that lies in memory (tmpfs, ramfs)")
	onOffTo(f, &o.Discard, discardFlag, "give the blocks of backup files back to file system and drive before the files are removed, where that can be done")
}

// graceFlag adds the flag of the verbs that supervise.
func graceFlag(f *pflag.FlagSet, o *launch.Options) {
	f.Var(&value{text: o.Grace.String(), kind: "TIME", parse: into(&o.Grace, launch.ParseTime)},
		"grace", "time from SIGTERM to SIGKILL for what still runs when a rank has failed: seconds, or a time such as 90s or 5m")
}

// ranksFlag adds the number of ranks; text is its default for the help.
func ranksFlag(f *pflag.FlagSet, o *launch.Options, text, usage string) {
	f.Var(&value{text: text, kind: "N", parse: into(&o.Ranks, launch.ParseRanks)}, "nproc-per-node", usage)
}

// rankFlag adds the number of one rank.
func rankFlag(f *pflag.FlagSet, rank *int) {
	*rank = -1
	f.Var(&value{kind: "R", parse: into(rank, launch.ParseIndex)}, "rank", "the rank (default: as the outer launcher says)")
	annotate(f, "rank", notInside)
}

func annotate(f *pflag.FlagSet, name, key string, values ...string) {
	flag := f.Lookup(name)
	if flag.Annotations == nil {
		flag.Annotations = map[string][]string{}
	}
	flag.Annotations[key] = values
}

// fromEnvironment sets each flag that the command line left out from its variable EBB_<FLAG>.
// An empty variable is as good as none.
func fromEnvironment(cmd *cobra.Command) error {
	inside := launch.Nested(os.Getenv)
	onCommandLine := map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) { onCommandLine[f.Name] = true })

	set := map[string]string{} // flag to variable
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := variableOf(f)
		text := os.Getenv(name)
		_, ofOuterRank := f.Annotations[notInside]
		if err != nil || text == "" || onCommandLine[f.Name] || f.Name == "help" || inside && ofOuterRank {
			return
		}
		for _, other := range f.Annotations[pairedWith] {
			if onCommandLine[other] {
				return
			}
			if rival := set[other]; rival != "" {
				err = launch.Usagef("%s and %s are both set: unset one", rival, name)
				return
			}
		}
		if e := cmd.Flags().Set(f.Name, text); e != nil {
			err = launch.Usagef("%s=%s: %w", name, text, reason(e))
			return
		}
		set[f.Name] = name
		annotate(cmd.Flags(), f.Name, fromVariable)
	})
	return err
}

// sayUnused says which flags of the command line nobody looks at. Variables may be set once for many
// runs: they are not worth a line.
func sayUnused(f *pflag.FlagSet, o launch.Options) {
	if o.Target != launch.TargetCPU || o.Stream() {
		return
	}
	var unused []string
	for _, name := range []string{diskDirFlag, chunkFlag, discardFlag} {
		flag := f.Lookup(name)
		if _, variable := flag.Annotations[fromVariable]; flag.Changed && !variable {
			unused = append(unused, "--"+name)
		}
	}
	if len(unused) == 0 {
		return
	}
	remedy := "--offload-train-target disk or auto"
	if !o.Offload {
		remedy = "--offload-train " + remedy
	}
	say(fmt.Sprintf("not used, the target is cpu: %s; for the disk add %s", strings.Join(unused, ", "), remedy))
}

// variable is the name of a flag's variable.
func variable(flag string) string {
	return "EBB_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variableOf is the name of a flag's variable, also of one that has another.
func variableOf(f *pflag.Flag) string {
	if own := f.Annotations[ownVariable]; len(own) > 0 {
		return own[0]
	}
	return variable(f.Name)
}

// reason is what the flag's own parser said, without pflag's words about the command line.
func reason(err error) error {
	if inner := unwrapAll(err); inner != nil {
		return inner
	}
	return err
}

func unwrapAll(err error) error {
	type wrapper interface{ Unwrap() error }
	for {
		w, ok := err.(wrapper)
		if !ok {
			return err
		}
		err = w.Unwrap()
	}
}

// launcher makes a command that runs another one: its flags end where that command begins.
func launcher(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().SetInterspersed(false)
	cmd.DisableFlagsInUseLine = true
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return launch.Usagef("no command to run: ebb %s [flags] -- CMD ARG…", cmd.Name())
		}
		return nil
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) }
	return cmd
}

// supervise runs a request and turns its outcome into ebb's own.
func supervise(cmd *cobra.Command, r launch.Request) error {
	log = launch.NewLog(os.Stderr, r.LogFormat)
	sayUnknown(cmd)
	sayUnused(cmd.Flags(), r.Options)
	r.Environ, r.Log = os.Environ(), log
	out, err := launch.Run(r)
	if err != nil {
		return err
	}
	if out.Status != 0 {
		return statusError(out.Status)
	}
	return nil
}
