package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/diskspeed"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizes"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// statusNoFit is what ebb plan ends with when no target holds what is to be parked, or the step itself
// does not fit the GPU.
const statusNoFit = 1

// planOptions is what the flags of ebb plan say.
type planOptions struct {
	params     uint64 // 0: not given
	configFile string

	state          sizing.State
	gradients      string // "": fp32, none without an optimizer
	master         string // "": fp32, none beside fp32 weights
	parallel       sizing.Parallel
	etp            uint64 // 0: as tp
	other          uint64
	zeroGradients  bool
	perNode        uint64 // 0: all ranks, at most 8
	gpu            uint64
	hostMemory     uint64 // 0: that of this machine
	hostReserve    uint64
	hostReserveSet bool
	dirs           []string // --disk-dir
	streaming      planStreaming
	ranks          rankFlags // of --live
	live           bool
	linkGiven      bool
	diskSpace      uint64
	link           sizing.Range
	write, read    sizing.Range
	chunkMB        int
	target         string // "": the first that fits

	perDay, cycle         float64
	tbw, dwpd, driveYears float64
	driveSize, drives     uint64
}

func newPlanOptions() planOptions {
	return planOptions{
		state:    sizing.State{Optimizer: "adamw", Weights: sizing.BF16, Moment: sizing.FP32, Shard: sizing.ShardOptimizer},
		parallel: sizing.Parallel{TP: 1, PP: 1, CP: 1, DP: 1, EP: 1}, chunkMB: launch.DefaultChunkMB,
		driveYears: sizing.WarrantyYears, drives: 1, link: sizing.TypicalLink,
	}
}

func newPlan() *cobra.Command {
	o := newPlanOptions()
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say beforehand what will be parked, where it fits and how long it takes",
		Long: `Adds up what each rank of a training job holds, from the model's config.json or its number of
parameters, and says which target has room for it, in how many seconds it is parked and brought
back, what that does to the drive, and the command to use (docs/planning.md).

What is not given is measured here: host memory, and with --disk-dir the room and the rates of that
disk, which takes some seconds. Nothing is left behind.

With --live it asks the running ranks instead: what the next pause and resume of each will take, and
how far the same arithmetic is from the latest ones.

Ends with 0 when something fits, with 1 when nothing does; with --live with 3 when no rank is
running, and with 4 when one did not answer.`,
		Example: `  ebb plan --params 7B --dp 8 --disk-dir /scratch/$USER
  ebb plan --from-config config.json --tp 4 --dp 2 --ep 8 --etp 1 \
      --gpu-memory 139GiB --host-memory 1TiB --disk-write 20-26 --disk-read 40-48 \
      --disk-space 20TB
  ebb plan --params 8B --disk-write 2.7 --disk-read 1.8 --cycle-seconds 600 --drive-tbw 7000
  ebb plan --live --role actor`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.hostReserveSet, o.linkGiven = cmd.Flags().Changed("host-reserve"), cmd.Flags().Changed("link")
			o.dirs = o.ranks.diskDirs
			if o.live {
				if name := givenOf(cmd.Flags(), streamFlags...); name != "" {
					return launch.Usagef("--%s says how a job is to be started: leave it out with --live, which asks the ranks that are running", name)
				}
				return o.planLive(cmd.Context())
			}
			if name := onlyLive(cmd.Flags()); name != "" {
				return launch.Usagef("--%s chooses among running ranks: add --live, or leave it out", name)
			}
			return o.planAhead(cmd.Context())
		},
	}
	f := cmd.Flags()
	o.add(f)
	onOffTo(f, &o.live, "live", "predict the next pause and resume of the ranks that are running")
	o.ranks.add(f)
	f.Lookup("disk-dir").Usage = "the disk directory, or several as DIR,DIR: its room and its rates are measured where they are not given; with --live its ranks are found too"
	return cmd
}

// add adds the flags that say what is planned; other verbs that plan take some of them.
func (o *planOptions) add(f *pflag.FlagSet) {
	f.Var(&value{kind: "N", parse: into(&o.params, sizing.ParseCount)}, "params", "number of parameters, as 7B")
	f.Var(&value{kind: "FILE", parse: into(&o.configFile, anything)}, "from-config", "the model's config.json, as of Hugging Face")
	f.Var(&value{text: o.state.Weights.Name, kind: "TYPE", parse: into(&o.state.Weights, sizing.ParseDtype(sizing.BF16, sizing.FP16, sizing.FP32, sizing.FP8))},
		"weights-dtype", "type of the weights: bf16, fp16, fp32 or fp8")
	f.Var(&value{kind: "TYPE", parse: into(&o.gradients, word("fp32", "bf16", "fp16", "none"))},
		"grads-dtype", "type of the gradients that are there at a pause: fp32, bf16, fp16 or none (default fp32)")
	f.Var(&value{kind: "TYPE", parse: into(&o.master, word("fp32", "none"))},
		"master-dtype", "type of the master weights: fp32 or none (default fp32; none beside fp32 weights)")
	f.Var(&value{text: o.state.Moment.Name, kind: "TYPE", parse: into(&o.state.Moment, sizing.ParseDtype(sizing.FP32, sizing.BF16, sizing.FP16, sizing.FP8))},
		"moments-dtype", "type of the optimizer's moments: fp32, bf16, fp16 or fp8")
	f.Var(&value{text: o.state.Optimizer, kind: "NAME", parse: into(&o.state.Optimizer, sizing.ParseOptimizer)},
		"optimizer", "adamw, adam, sgd, sgd-momentum, or none: weights alone, as a reference model has")
	f.Var(&value{text: o.state.Shard.String(), kind: "WHAT", parse: into(&o.state.Shard, sizing.ParseShard)},
		"shard", "what data-parallel ranks share: none, optimizer (ZeRO 1, distributed optimizer), gradients (ZeRO 2) or parameters (ZeRO 3, FSDP)")
	for _, way := range []struct {
		name, text string
		to         *uint64
	}{
		{"tp", "tensor-parallel ranks", &o.parallel.TP}, {"pp", "pipeline stages", &o.parallel.PP},
		{"cp", "context-parallel ranks", &o.parallel.CP}, {"dp", "data-parallel ranks", &o.parallel.DP},
		{"ep", "expert-parallel ranks", &o.parallel.EP},
	} {
		f.Var(&value{text: "1", kind: "N", parse: into(way.to, sizing.ParseWays)}, way.name, way.text)
	}
	f.Var(&value{kind: "N", parse: into(&o.etp, sizing.ParseWays)}, "etp", "tensor-parallel ranks of an expert (default: as --tp)")
	f.Var(&value{text: "0", kind: "SIZE", parse: into(&o.other, sizing.ParseSize)},
		"other-memory", "what a rank has managed beside: caches of the allocator, activations that stay")
	onOffTo(f, &o.zeroGradients, "zero-grads", "gradients are zeroed before a pause, and so not moved")
	o.streaming.add(f)

	f.Var(&value{kind: "N", parse: into(&o.perNode, sizing.ParseWays)}, "ranks-per-node", "ranks of a node (default: all, at most 8)")
	f.Var(&value{kind: "SIZE", parse: into(&o.gpu, sizing.ParseSize)}, "gpu-memory", "memory of a GPU, as 80GiB")
	f.Var(&value{kind: "SIZE", parse: into(&o.hostMemory, sizing.ParseSize)}, "host-memory", "host memory of the node (default: what this machine and its memory cgroups leave now)")
	f.Var(&value{kind: "SIZE", parse: into(&o.hostReserve, sizing.ParseSize)},
		"host-reserve", "host memory left for everything else, as the rollout engine (default: a twentieth, at least 2 GiB, at most an eighth)")
	f.Var(&value{kind: "SIZE", parse: into(&o.diskSpace, sizing.ParseSize)}, "disk-space", "room on the disks of the node")
	f.Var(&value{kind: "GB/S", parse: into(&o.write, sizing.ParseRate)}, "disk-write", "what the disks of the node write, all ranks together: GB/s, or lowest and highest as 2.3-2.9")
	f.Var(&value{kind: "GB/S", parse: into(&o.read, sizing.ParseRate)}, "disk-read", "what the disks of the node read, all ranks together: GB/s, or lowest and highest")
	f.Var(&value{text: rateText(o.link), kind: "GB/S", parse: into(&o.link, sizing.ParseRate)}, "link", "copies between a GPU and pinned memory; the default is PCIe 5 x16 as measured")
	f.Var(&value{text: strconv.Itoa(o.chunkMB), kind: "MIB", parse: into(&o.chunkMB, launch.ParseChunkMB)}, "chunk-mb", "staging buffer of a rank, at most")

	f.Var(&value{kind: "cpu|auto|disk", parse: into(&o.target, word(launch.TargetCPU, launch.TargetAuto, launch.TargetDisk))}, "target", "the target to be used (default: the first of cpu, auto and disk that fits)")

	f.Var(&value{kind: "N", parse: into(&o.perDay, sizing.ParsePositive("pauses"))}, "steps-per-day", "pauses a day, for the wear of the drives")
	f.Var(&value{kind: "S", parse: into(&o.cycle, sizing.ParsePositive("seconds"))}, "cycle-seconds", "seconds from one pause to the next, in place of --steps-per-day")
	f.Var(&value{kind: "TB", parse: into(&o.tbw, sizing.ParsePositive("TB (10¹² bytes)"))}, "drive-tbw", "what a drive may be written in its life, in TB (10¹² bytes), as its maker rates it")
	f.Var(&value{kind: "N", parse: into(&o.dwpd, sizing.ParsePositive("drive writes a day"))}, "drive-dwpd", "a drive's rating in drive writes per day, with --drive-size, in place of --drive-tbw")
	f.Var(&value{kind: "SIZE", parse: into(&o.driveSize, sizing.ParseSize)}, "drive-size", "size of a drive, as 3.84TB")
	f.Var(&value{text: fmt.Sprint(o.driveYears), kind: "N", parse: into(&o.driveYears, sizing.ParsePositive("years"))}, "drive-years", "years that --drive-dwpd is rated for")
	f.Var(&value{text: "1", kind: "N", parse: into(&o.drives, sizing.ParseWays)}, "drives", "drives of the node that share what is written")
}

// onlyLive is a flag on the command line that only --live looks at.
func onlyLive(f *pflag.FlagSet) (name string) {
	return givenOf(f, "role", "rank", "cell", "job", "pid", "runtime-dir")
}

// givenOf is one of the flags that is on the command line.
func givenOf(f *pflag.FlagSet, names ...string) (name string) {
	for _, n := range names {
		flag := f.Lookup(n)
		if _, variable := flag.Annotations[fromVariable]; flag.Changed && !variable {
			name = n
		}
	}
	return name
}

// planResult is what ebb plan --json prints. Sizes are bytes, rates bytes a second, times seconds.
type planResult struct {
	MessageType string          `json:"message_type"`
	Model       planModel       `json:"model"`
	Parallel    sizing.Parallel `json:"parallel"`
	State       planState       `json:"state"`
	Ranks       uint64          `json:"ranks"`
	PerNode     uint64          `json:"ranks_per_node"`
	Nodes       uint64          `json:"nodes"`

	Largest planLargest `json:"largest_rank"`
	Node    planNode    `json:"fullest_node"`
	Rates   planRates   `json:"rates"`

	Streaming *planStreamed   `json:"streaming,omitempty"` // with the flags that ask for it
	Targets   []sizing.Target `json:"targets"`
	unfits    []string        // what does not fit, a line for each cause
	Chosen    string          `json:"chosen"`            // "": none
	Command   []string        `json:"command,omitempty"` // its arguments
	QuotaGB   uint64          `json:"quota_gb,omitempty"`
	Wear      []planWear      `json:"wear,omitempty"`
	Notes     []string        `json:"notes"`
}

type planModel struct {
	Name       string `json:"name"`
	Parameters uint64 `json:"parameters"`
	Layers     int    `json:"layers,omitempty"`
	Experts    uint64 `json:"experts,omitempty"`
}

type planState struct {
	Optimizer string `json:"optimizer"`
	Weights   string `json:"weights"`
	Gradients string `json:"gradients"`
	Master    string `json:"master"`
	Moments   string `json:"moments"`
	Shard     string `json:"shard"`
}

// planLargest is the rank that has the most.
type planLargest struct {
	Stage uint64 `json:"stage"`
	sizing.Kinds
	Total    uint64     `json:"bytes"`
	Moved    uint64     `json:"moved_bytes"` // by a pause
	GPU      uint64     `json:"gpu_bytes,omitempty"`
	StepFits sizing.Fit `json:"step_fits_gpu"`
}

// planNode is the node whose ranks have the most.
type planNode struct {
	Groups    sizing.Load `json:"groups"`
	Bytes     uint64      `json:"bytes"`
	HostLeft  uint64      `json:"host_memory_for_ranks"`
	HostWhy   string      `json:"host_memory_why"`
	DiskFree  uint64      `json:"disk_free_bytes,omitempty"`
	DiskKnown bool        `json:"disk_free_known"`
}

// planWear is what pauses to one target do to the drives.
type planWear struct {
	Target string `json:"target"`
	sizing.Wear
}

type planRates struct {
	Link  sizing.Range `json:"link"`
	Write sizing.Range `json:"disk_write"`
	Read  sizing.Range `json:"disk_read"`
	Fresh sizing.Range `json:"disk_first_write"`
	From  string       `json:"from"` // given, measured, or ""
}

func (o planOptions) planAhead(ctx context.Context) error {
	result, err := o.plan(ctx)
	if err != nil {
		return err
	}
	if o.ranks.asJSON {
		err = printJSON(result)
	} else {
		result.print(stdout, o)
	}
	if err == nil && result.Chosen == "" {
		err = &launch.Error{Status: statusNoFit, Text: "does not fit: " + result.unfit(o.target)}
	}
	return err
}

func (o planOptions) plan(ctx context.Context) (planResult, error) {
	r := planResult{MessageType: "plan", Notes: []string{}}
	if err := o.check(); err != nil {
		return r, err
	}
	model, err := o.model()
	if err != nil {
		return r, err
	}
	if err := o.streaming.fillIn(&o); err != nil {
		return r, err
	}
	stages, err := sizing.Stages(model, o.parallel, o.state, o.other)
	if err != nil {
		return r, &launch.Error{Status: launch.StatusUsage, Text: oneLine(err), Err: err}
	}
	if o.perNode > o.parallel.World() {
		return r, launch.Usagef("--ranks-per-node %d: there are %d ranks (tp %d × pp %d × cp %d × dp %d); correct one of them",
			o.perNode, o.parallel.World(), o.parallel.TP, o.parallel.PP, o.parallel.CP, o.parallel.DP)
	}
	load := sizing.FullestNode(stages, o.parallel, o.perNode)
	node, err := o.node(ctx, load.Sum(sizing.Kinds.Total), &r)
	if err != nil {
		return r, err
	}
	moved := sizing.All
	if o.zeroGradients {
		moved = sizing.ButZeroGradients
	}

	r.Model = planModel{Name: model.Name, Parameters: model.Parameters(), Layers: len(model.Layers), Experts: model.Experts()}
	r.Parallel = o.parallel
	r.State = planState{o.state.Optimizer, o.state.Weights.Name, o.state.Gradients.Name, o.state.Master.Name, o.state.Moment.Name, o.state.Shard.String()}
	r.Ranks, r.PerNode = o.parallel.World(), o.perNode
	r.Nodes = (r.Ranks-1)/r.PerNode + 1
	for i, k := range stages {
		if i == 0 || k.Total() > r.Largest.Total {
			r.Largest = planLargest{Stage: uint64(i), Kinds: k, Total: k.Total(), Moved: moved(k)}
		}
	}
	r.Largest.GPU, r.Largest.StepFits = o.gpu, node.StepFits(r.Largest.Kinds)
	r.Node.Groups, r.Node.Bytes = load, load.Sum(sizing.Kinds.Total)

	if o.state.Stream {
		if r.Streaming, err = o.streamed(ctx, load, &node); err != nil {
			return r, err
		}
	}
	r.Targets = node.Targets(load, moved)
	r.refuse()
	for _, t := range r.Targets {
		if t.Fits && r.Chosen == "" && (o.target == "" || o.target == t.Name) {
			r.Chosen = t.Name
			r.Command, r.QuotaGB = o.command(t, r.Streaming)
		}
	}
	r.Wear = o.wear(r.Targets)
	r.note(model, o)
	return r, nil
}

// check refuses flags that do not go together.
func (o planOptions) check() error {
	switch {
	case o.params == 0 && o.configFile == "" && !o.live:
		return launch.Usagef("which model? --params 7B, or --from-config config.json; or --live for the ranks that are running")
	case (o.params > 0 || o.configFile != "") && o.live:
		return launch.Usagef("--live plans with what the running ranks have: leave --params and --from-config out")
	case o.params > 0 && o.configFile != "":
		return launch.Usagef("--params and --from-config both say what the model is: give one")
	case o.perDay > 0 && o.cycle > 0:
		return launch.Usagef("--steps-per-day and --cycle-seconds say the same: give one")
	case o.tbw > 0 && o.dwpd > 0:
		return launch.Usagef("--drive-tbw and --drive-dwpd say the same: give one")
	case (o.dwpd > 0) != (o.driveSize > 0):
		return launch.Usagef("--drive-dwpd and --drive-size belong together: give both, or --drive-tbw")
	case (o.tbw > 0 || o.dwpd > 0) && o.perDay == 0 && o.cycle == 0:
		return launch.Usagef("a drive's rating needs how often a pause is: --cycle-seconds or --steps-per-day")
	case o.hostMemory > 0 && o.hostReserveSet && o.hostReserve >= o.hostMemory:
		return launch.Usagef("--host-memory %s leaves nothing to park in: --host-reserve is %s; give more of the one or less of the other",
			sizing.Both(o.hostMemory), sizing.Both(o.hostReserve))
	case o.write.Known() != o.read.Known() && o.live:
		return launch.Usagef("--disk-write and --disk-read belong together: give both")
	case o.write.Known() != o.read.Known() && len(o.dirs) == 0:
		return launch.Usagef("--disk-write and --disk-read belong together: give both, or --disk-dir to measure")
	}
	return nil
}

func (o planOptions) model() (sizing.Model, error) {
	if o.configFile == "" {
		return sizing.FromCount(o.params), nil
	}
	name := o.configFile
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		name = filepath.Join(name, "config.json")
	}
	file, err := os.Open(name)
	if err != nil {
		return sizing.Model{}, launch.Usagef("--from-config: %w; name the model's config.json or its directory", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, sizing.MaxConfig+1))
	if err != nil {
		return sizing.Model{}, launch.Usagef("--from-config: %w; name the model's config.json or its directory", err)
	}
	model, err := sizing.FromConfig(text)
	if err != nil {
		return sizing.Model{}, launch.Usagef("--from-config %s: %w", name, err)
	}
	return model, nil
}

// fillIn chooses what depends on other flags.
func (o *planOptions) fillIn() {
	if o.parallel.ETP = o.etp; o.etp == 0 {
		o.parallel.ETP = o.parallel.TP
	}
	if o.perNode == 0 {
		o.perNode = min(o.parallel.World(), 8)
	}
	types := map[string]sizing.Dtype{"none": sizing.None, "bf16": sizing.BF16, "fp16": sizing.FP16, "fp32": sizing.FP32}
	o.state.Gradients, o.state.Master = sizing.FP32, sizing.FP32
	if o.gradients != "" {
		o.state.Gradients = types[o.gradients]
	}
	switch {
	case o.master != "":
		o.state.Master = types[o.master]
	case o.state.Weights == sizing.FP32:
		o.state.Master = sizing.None
	}
	if o.state.Optimizer == "none" {
		o.state.Gradients, o.state.Master = sizing.None, sizing.None
	}
	if o.state.Moments() == 0 {
		o.state.Moment = sizing.None
	}
}

// node is what was given, and for the rest what is measured here.
func (o planOptions) node(ctx context.Context, parked uint64, r *planResult) (sizing.Node, error) {
	n := sizing.Node{
		GPU: o.gpu, Margin: launch.DefaultMargin, Chunk: uint64(o.chunkMB) << 20,
		Link: o.link, Write: o.write, Read: o.read, DiskFree: o.diskSpace, DiskKnown: o.diskSpace > 0,
	}
	n.Host, n.HostKnown, r.Node.HostWhy = o.host()
	r.Rates.From = "given"
	if len(o.dirs) > 0 {
		if err := o.look(ctx, parked, &n, r); err != nil {
			return n, err
		}
	} else if !n.Write.Known() {
		r.Rates.From = ""
	}
	r.Node.HostLeft, r.Node.DiskFree, r.Node.DiskKnown = n.Host, n.DiskFree, n.DiskKnown
	r.Rates.Link, r.Rates.Write, r.Rates.Read, r.Rates.Fresh = n.Link, n.Write, n.Read, n.Fresh
	return n, nil
}

// host is the host memory that the ranks of the node may take together, and why.
func (o planOptions) host() (bytes uint64, known bool, why string) {
	if o.hostMemory > 0 {
		reserve := sizing.HostReserve(o.hostMemory)
		if o.hostReserveSet {
			reserve = o.hostReserve
		}
		return o.hostMemory - min(reserve, o.hostMemory), true, fmt.Sprintf("%s given, %s reserve", sizing.Both(o.hostMemory), sizing.Both(reserve))
	}
	verdict, err := hostmem.Budget(1)
	if err != nil {
		return 0, false, "not known: " + oneLine(err)
	}
	bytes, reserve := verdict.Bytes, verdict.Reserve
	if o.hostReserveSet {
		bytes, reserve = verdict.Bytes+verdict.Reserve, o.hostReserve
		bytes -= min(reserve, bytes)
	}
	return bytes, true, fmt.Sprintf("this machine: %s, reserve %s", verdict.Limit, sizes.Binary(reserve))
}

// Measuring is short: rounds make the range.
const (
	planRounds = 3
	planMost   = 2 << 30                 // bytes of a round, and no more than the ranks would park
	planLeast  = 256 << 20               // but so many
	planTime   = 1500 * time.Millisecond // of each of the three parts
)

// look measures room and rates of the disk directories as far as they were not given. parked is what
// the ranks of a node have.
func (o planOptions) look(ctx context.Context, parked uint64, n *sizing.Node, r *planResult) error {
	if n.DiskKnown && n.Write.Known() && n.Read.Known() { // nothing is to be measured: it need not be there yet
		return absolute("--disk-dir", o.dirs)
	}
	free, err := freeIn("--disk-dir", o.dirs)
	if err != nil {
		return err
	}
	if !n.DiskKnown {
		n.DiskFree, n.DiskKnown = free, true
	}
	if n.Write.Known() && n.Read.Known() {
		return nil
	}
	write, read, fresh, err := o.measured(ctx, o.dirs, parked)
	if err != nil {
		return err
	}
	if !n.Write.Known() {
		n.Write, n.Fresh = write, fresh
	}
	if !n.Read.Known() {
		n.Read = read
	}
	r.Rates.From = "measured in " + strings.Join(o.dirs, ", ")
	return nil
}

// absolute makes directories that a flag names so.
func absolute(flag string, dirs []string) error {
	for i, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return launch.Usagef("%s %s: %w; name an absolute path", flag, dir, err)
		}
		dirs[i] = abs
	}
	return nil
}

// freeIn is the room in directories that a flag names, which are made absolute.
func freeIn(flag string, dirs []string) (free uint64, err error) {
	if err := absolute(flag, dirs); err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		if on, err := launch.FileSystemOf(dir); err == nil && on.InMemory {
			return 0, launch.Usagef("%s %s lies on %s, which is %s: bytes there stay in memory, and ebb run refuses it; name a directory on a local disk", flag, dir, on.Mount, on.Type)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return 0, launch.Usagef("%s %s: %w; name a directory that is there, or give --disk-write, --disk-read and --disk-space", flag, dir, err)
		}
		free += st.Bavail * uint64(st.Bsize)
	}
	return free, nil
}

// measured is what directories do together, in rounds of no more bytes than go there.
func (o planOptions) measured(ctx context.Context, dirs []string, bytes uint64) (write, read, fresh sizing.Range, err error) {
	showing := newProgress(os.Stderr)
	defer showing.end()
	ctx, stop := untilSignal(ctx)
	defer stop()
	var writes, reads, firsts []float64
	for round := range planRounds {
		showing.say(fmt.Sprintf("measuring the disk, round %d of %d", round+1, planRounds))
		rates, err := o.measure(ctx, dirs, min(max(bytes, planLeast), planMost))
		if err != nil {
			return write, read, fresh, planMeasureFailed(ctx, err)
		}
		writes, reads, firsts = append(writes, rates.WriteBytesPerS), append(reads, rates.ReadBytesPerS), append(firsts, rates.FreshBytesPerS)
	}
	return sizing.Of(writes...), sizing.Of(reads...), sizing.Of(firsts...), nil
}

// measure is one round: all directories at the same time, with as many threads as the ranks would have.
func (o planOptions) measure(ctx context.Context, dirs []string, bytes uint64) (total diskspeed.Rates, err error) {
	rates, errs := make([]diskspeed.Rates, len(dirs)), make([]error, len(dirs))
	var all sync.WaitGroup
	for i, dir := range dirs {
		all.Go(func() {
			rates[i], errs[i] = diskspeed.Measure(ctx, dir, diskspeed.Options{Bytes: int64(bytes), Workers: int(min(8*o.perNode, 32)), Time: planTime})
		})
	}
	all.Wait()
	for _, r := range rates {
		total.WriteBytesPerS += r.WriteBytesPerS
		total.ReadBytesPerS += r.ReadBytesPerS
		total.FreshBytesPerS += r.FreshBytesPerS
	}
	return total, errors.Join(errs...)
}

func planMeasureFailed(ctx context.Context, err error) error {
	var ended signalError
	if errors.As(context.Cause(ctx), &ended) {
		say(ended.Error())
		return statusError(128 + int(ended))
	}
	return launch.Usagef("measuring the disk: %w; or give the rates (--disk-write, --disk-read)", err)
}

// quotaSlack is what a suggested quota has beside what was added up: the allocator's caches come and go.
const quotaSlack = 1.1

// quota is what the directory that holds most of a node must hold at least, in GB: a quota holds in each one, of
// what is parked there and of streamed state that lies there.
func (o planOptions) quota(t sizing.Target, streamed *planStreamed) uint64 {
	parked := o.dirs
	if len(parked) == 0 {
		parked = []string{o.diskDir()}
	}
	held := map[string]float64{}
	for _, dir := range parked {
		held[filepath.Clean(dir)] += float64(t.DiskBytes) / float64(len(parked))
	}
	if streamed != nil {
		dirs := o.streaming.dirs
		if len(dirs) == 0 {
			dirs = parked
		}
		for _, dir := range dirs {
			held[filepath.Clean(dir)] += float64(streamed.DiskBytes) / float64(len(dirs))
		}
	}
	most := 0.0
	for _, bytes := range held {
		most = max(most, bytes)
	}
	return uint64(math.Ceil(most * quotaSlack / 1e9))
}

// command is the ebb run line for a target, and the quota in it.
func (o planOptions) command(t sizing.Target, streamed *planStreamed) (args []string, quota uint64) {
	args = []string{"ebb", "run", "--nproc-per-node", fmt.Sprint(o.perNode), "--offload-train", "--offload-train-target", t.Name}
	if t.Name == launch.TargetCPU {
		if o.streaming.toDisk {
			args = append(args, "--offload-train-disk-dir", o.diskDir())
		}
		return append(append(args, o.streaming.args()...), "--", "python", "train.py"), 0
	}
	if t.HostMB > 0 {
		args = append(args, "--offload-train-host-mb", fmt.Sprint(t.HostMB))
	}
	args = append(args, "--offload-train-disk-dir", o.diskDir())
	if o.chunkMB != launch.DefaultChunkMB {
		args = append(args, "--offload-train-disk-chunk-mb", fmt.Sprint(o.chunkMB))
	}
	if t.DiskBytes > 0 {
		quota = o.quota(t, streamed)
		args = append(args, "--offload-train-disk-quota-gb", fmt.Sprint(quota))
	}
	return append(append(args, o.streaming.args()...), "--", "python", "train.py"), quota
}

// diskDir is the disk directory of the command: an example, where none was named.
func (o planOptions) diskDir() string {
	if len(o.dirs) > 0 {
		return strings.Join(o.dirs, ",")
	}
	return "/scratch/$USER"
}

// wear is that of each target that fits and writes, where it was asked for.
func (o planOptions) wear(targets []sizing.Target) (all []planWear) {
	for _, t := range targets {
		if t.Fits {
			all = append(all, o.wearOf(t.Name, t.Written)...)
		}
	}
	return all
}

// wearOf is none where nothing is written, or nobody asked.
func (o planOptions) wearOf(target string, written uint64) []planWear {
	perDay := o.perDay
	if o.cycle > 0 {
		perDay = 86400 / o.cycle
	}
	if perDay == 0 || written == 0 {
		return nil
	}
	rating := sizing.OfTBW(o.tbw, o.drives)
	if o.dwpd > 0 {
		rating = sizing.OfDWPD(o.dwpd, o.driveSize, o.driveYears, o.drives)
	}
	return []planWear{{target, sizing.WearOf(written, perDay, rating)}}
}

// note says what the figures leave out.
func (r *planResult) note(m sizing.Model, o planOptions) {
	add := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	r.Notes = append(r.Notes, m.Notes...)
	switch r.Largest.StepFits {
	case sizing.FitStream:
		add("The state of a rank is larger than its GPU. It takes a step with the optimizer's state (%s of it) streamed from disk: with an optimizer of ebb.optim and ebb run --optimizer-state-nvme-dir DIR, which ebb plan takes too. "+
			"The fullest node then needs %s of disk for it, and each step reads and writes that much, which wears the drives. On the GPU are the buckets in flight only: bucket_elements says how large they are. "+
			"Otherwise %s.",
			sizing.Both(r.Largest.Optimizer()), sizing.Both(r.Node.Groups.Sum(sizing.Kinds.Optimizer)), divideMore)
	case sizing.FitNo:
		if r.Largest.bucketsTooLarge() {
			add("Of a rank's GPU %s are left beside what stays there: %s, or %s.", sizing.Both(r.Largest.room()-r.Largest.Total), smallerBuckets, divideMore)
		} else {
			add("What a rank holds in a step is larger than its GPU: %s.", divideMore)
		}
	case sizing.FitUnknown:
		add("Not checked against a GPU: %s. Give --gpu-memory.", r.Largest.needs())
	}
	if m.Even > 0 {
		add("Of the model only the number of parameters is known: they are divided evenly. With --from-config the largest stage is counted as it is.")
	}
	if o.other == 0 {
		add("Not counted: activations, and what PyTorch's allocator caches. Empty the cache before a pause, or give --other-memory.")
	}
	if o.state.Optimizer != "none" && o.state.Gradients.Bytes > 0 && !o.zeroGradients {
		add("Gradients are taken to be moved. Where they are zeroed before a pause, add --zero-grads: blocks of zeros are not moved.")
	}
	if r.Nodes > 1 && len(r.Command) > 0 {
		add("The command is that of one node. Where torchrun, Slurm or Ray starts the ranks, each is started with ebb exec and the same flags.")
	}
	if s := r.Streaming; s != nil {
		add("The GPU memory of streaming is that of %d buckets of %s elements, the defaults of ebb.optim (buckets_in_flight, bucket_elements). A step reads and writes all of the state once, "+
			"which wears the drives too; pauses have nothing to do with it.", sizing.StreamedBuckets, sizing.Count(sizing.BucketElements))
	}
	if !r.Rates.Write.Known() {
		add("The disk's rates are not known: give --disk-dir to measure them here, or --disk-write and --disk-read.")
	}
}
