package main

import (
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
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return v.kind }

func (v *value) Set(s string) error {
	if err := v.parse(s); err != nil {
		return err
	}
	v.text = s
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

// Annotations of flags.
const (
	pairedWith = "ebb-paired-with" // given on the command line, it overrides the other's variable
	notInside  = "ebb-not-inside"  // inside a rank of ebb, the variable tells about that rank
)

// launchFlags adds the flags that run, exec and env share.
func launchFlags(f *pflag.FlagSet, o *launch.Options) {
	*o = launch.NewOptions()
	on := &value{text: "false", kind: "bool", parse: into(&o.Offload, strconv.ParseBool)}
	f.Var(on, "offload-train", "park the ranks' GPU memory while they are paused")
	f.Var(&value{text: "false", kind: "bool", parse: func(s string) error {
		off, err := strconv.ParseBool(s)
		if err == nil {
			o.Offload = !off
		}
		return err
	}}, "no-offload-train", "do not (the default)")
	f.Lookup("offload-train").NoOptDefVal = "true"
	f.Lookup("no-offload-train").NoOptDefVal = "true"
	annotate(f, "offload-train", pairedWith, "no-offload-train")
	annotate(f, "no-offload-train", pairedWith, "offload-train")

	f.Var(&value{text: o.Target, kind: "cpu|disk", parse: into(&o.Target, word(launch.TargetCPU, launch.TargetDisk))},
		"offload-train-target", "where paused memory goes: host memory, or files in the disk directory")
	f.Var(&value{kind: "DIR", parse: into(&o.DiskDirs, launch.ParseDirs)},
		"offload-train-disk-dir", "directory on a local disk, used with the disk target\n(default $SCRATCH/miles_train_offload_<uid>, with /scratch where SCRATCH is unset)")
	f.Var(&value{text: strconv.Itoa(o.ChunkMB), kind: "MIB", parse: into(&o.ChunkMB, launch.ParseChunkMB)},
		"offload-train-disk-chunk-mb", "pinned host memory of each rank, through which its bytes go to disk")
	f.Var(&value{kind: "BYTES", parse: into(&o.MarginBytes, launch.ParseMargin)},
		"train-memory-margin-bytes", "GPU memory that allocations leave free\n(default 1 GiB; 0 on the software device)")
	f.Var(&value{text: o.Device, kind: "auto|cuda|soft", parse: into(&o.Device, word(launch.DeviceAuto, launch.DeviceCUDA, launch.DeviceSoft))},
		"device", "auto and cuda: the CUDA driver, which must work; soft: the software device")
	f.Var(&value{text: o.Role, kind: "NAME", parse: into(&o.Role, anything)},
		"role", "what the ranks do: actor, critic, ref …")
	f.Var(&value{text: "0", kind: "N", parse: into(&o.Cell, launch.ParseIndex)},
		"cell", "which group of ranks of that role")
	f.Var(&value{kind: "NAME", parse: into(&o.Job, anything)},
		"job", "name of the job (default: the outer launcher's, else a new one for each run)")
	annotate(f, "job", notInside)
	f.BoolVar(&o.AllowRAM, "allow-ram-backed-dir", false, "accept a disk directory that lies in memory (tmpfs, ramfs)")
}

// graceFlag adds the flag of the verbs that supervise.
func graceFlag(f *pflag.FlagSet, o *launch.Options) {
	f.Var(&value{text: o.Grace.String(), kind: "TIME", parse: into(&o.Grace, launch.ParseGrace)},
		"grace", "time from SIGTERM to SIGKILL for what still runs when a rank has failed")
}

// ranksFlag adds the number of ranks.
func ranksFlag(f *pflag.FlagSet, o *launch.Options) {
	f.Var(&value{text: strconv.Itoa(o.Ranks), kind: "N", parse: into(&o.Ranks, launch.ParseRanks)},
		"nproc-per-node", "number of ranks to start on this node")
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
		name := variable(f.Name)
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
	})
	return err
}

// variable is the name of a flag's variable.
func variable(flag string) string {
	return "EBB_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
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
func supervise(r launch.Request) error {
	r.Environ, r.Say = os.Environ(), say
	out, err := launch.Run(r)
	if err != nil {
		return err
	}
	if out.Status != 0 {
		return statusError(out.Status)
	}
	return nil
}
