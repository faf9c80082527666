package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/k8s"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// renderRequest is what the flags of ebb k8s render say.
type renderRequest struct {
	options k8s.Options
	serve   k8s.Serve
	noServe bool
	user    string
	plan    planOptions // only those of its flags that planFlags names are there
	dpGiven bool
	asJSON  bool
	largest planLargest // the rank with the most
}

// planFlags are the flags of ebb plan that say what the pods of a job will park; what is left out measures this
// machine, or is of drives.
var planFlags = []string{
	"params", "from-config", "weights-dtype", "grads-dtype", "master-dtype", "moments-dtype", "optimizer", "shard",
	"tp", "pp", "cp", "dp", "ep", "etp", "other-memory", "zero-grads", "gpu-memory", "host-memory", "host-reserve", "chunk-mb", "target",
	"stream-optimizer-state-to-disk", "stream-optimizer-state-moment-dtype",
}

func newK8s() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "k8s",
		Short: "Write a training job for Kubernetes",
		Long: `Writes what Kubernetes needs to run a training job under ebb (docs/clusters/kubernetes.md). It
speaks to no cluster: kubectl does that.`,
		Example: `  ebb k8s render --name llama --nodes 4 --nproc-per-node 8 --image registry/trainer:1 \
      --params 8B --gpu-memory 80GiB --host-reserve 64GiB -- python train.py | kubectl apply -f -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newK8sRender())
	return cmd
}

func newK8sRender() *cobra.Command {
	q := renderRequest{
		options: k8s.Options{
			Kind: k8s.KindJob, EBB: "ebb", GPU: "nvidia.com/gpu", Port: 29500, Termination: k8s.DefaultTermination,
			Sizes: k8s.Sizes{Tmp: 10 << 30},
		},
		serve: k8s.Serve{Port: 7737}, user: "1000", plan: newPlanOptions(),
	}
	cmd := &cobra.Command{
		Use:   "render [flags] -- CMD ARG…",
		Short: "Write the objects of a job: an indexed Job, a JobSet or a RayCluster",
		Long: `Writes the objects of a training job of N nodes as one YAML stream, the same for the same flags: a
pod for each node, in which torchrun starts each rank with ebb exec; on the node's disk a volume as
large as what is parked; memory and ephemeral storage, requested and limited, as ebb plan adds them
up from the model; no privileges; hooks that reclaim; ebb serve beside the ranks, for the controller
that a NetworkPolicy names. It speaks to no cluster.

Needed are --name, --nodes, --nproc-per-node, --image, --params or --from-config, --host-reserve
and, but for a RayCluster, the program. Without --gpu-memory nothing is checked against a GPU.

--host-memory is that of a pod, request and limit. Without it, it is what the target takes and
--host-reserve, which is for the program: what PyTorch, its libraries and the loaders take.

The volume is an emptyDir, on the disk of the kubelet. --storage-class makes one for each pod from a
class of local disks; --scratch-path is a directory of the nodes, shared by their jobs.

Ends with 1 when the target does not hold what is to be parked, or a GPU of --gpu-memory does not
hold what a rank has in a step.`,
		Example: `  ebb k8s render --name llama --nodes 4 --nproc-per-node 8 --image registry/trainer:1 \
      --params 8B --gpu-memory 80GiB --host-reserve 64GiB -- python train.py
  ebb k8s render --name llama --kind jobset --max-restarts 3 --nodes 2 --nproc-per-node 8 \
      --image registry/trainer:1 --from-config config.json --tp 4 --storage-class local-nvme \
      --host-memory 512GiB --host-reserve 64GiB --target auto -- python train.py --steps 1000
  ebb k8s render --name rl --kind raycluster --nodes 2 --nproc-per-node 8 --image registry/ray:1 \
      --params 8B --host-reserve 64GiB --controller app=trainer-controller`,
		DisableFlagsInUseLine: true,
		PreRunE:               func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, args []string) error {
			q.dpGiven = cmd.Flags().Changed("dp")
			q.plan.hostReserveSet = cmd.Flags().Changed("host-reserve")
			q.options.Command = args
			if q.options.Name != "" {
				for _, name := range []string{"nodes", "nproc-per-node"} {
					if !cmd.Flags().Changed(name) {
						return launch.Usagef("how many? --%s N: %s", name, cmd.Flags().Lookup(name).Usage)
					}
				}
			}
			if name := givenOf(cmd.Flags(), "controller", "controller-namespace", "serve-port", "serve-token-secret", "serve-tls-secret"); q.noServe && name != "" {
				return launch.Usagef("--%s is of ebb serve, which --no-serve leaves out: leave one of them out", name)
			}
			return q.run(cmd.Context())
		},
	}
	q.add(cmd.Flags())
	return cmd
}

func (q *renderRequest) add(f *pflag.FlagSet) {
	o := &q.options
	f.SetInterspersed(false)
	text := func(name, kind, usage string, to *string) {
		f.Var(&value{text: *to, kind: kind, parse: into(to, anything)}, name, usage)
	}
	number := func(name, kind, usage string, to *int) {
		shown := ""
		if *to > 0 {
			shown = strconv.Itoa(*to)
		}
		f.Var(&value{text: shown, kind: kind, parse: into(to, parseWhole)}, name, usage)
	}
	text("kind", "job|jobset|raycluster", "indexed Job; JobSet, which starts again as a whole; or RayCluster, on which programs run later", &o.Kind)
	text("name", "NAME", "name of the job and of its objects", &o.Name)
	text("namespace", "NAME", "where the objects are made (default: that of whoever applies them)", &o.Namespace)
	number("nodes", "N", "nodes of the job, with a pod on each", &o.Nodes)
	number("nproc-per-node", "N", "GPUs of a node, with a rank on each", &o.PerNode)
	text("image", "IMAGE", "of all containers: with the program, torchrun (or Ray) and ebb", &o.Image)
	text("ebb", "CMD", "ebb's command in the image", &o.EBB)
	f.Var(&value{kind: "NAME=VALUE", parse: func(s string) error {
		pair, err := k8s.ParseVariable(s)
		o.Env = append(o.Env, pair)
		return err
	}}, "env", "variable of the ranks; may be given several times")
	f.Var(&value{text: o.GPU, kind: "NAME", parse: into(&o.GPU, k8s.ParseResource)}, "gpu-resource", "the resource that is a GPU")
	f.Var(&value{kind: "N", parse: into(&o.CPU, k8s.ParseCPU)}, "cpu", "processors that a node's container requests, as 32 or 500m")
	f.Var(&value{kind: "LABELS", parse: into(&o.NodeSelector, k8s.ParsePairs)}, "node-selector", "labels of the nodes, as pool=h200 or several with commas")
	text("user", "UID[:GID]", "the user, and the group, that everything runs as; never root", &q.user)
	number("port", "PORT", "where the ranks of all nodes meet, on the first", &o.Port)
	text("storage-class", "NAME", "class of local disks, of which each pod gets a volume", &o.StorageClass)
	text("scratch-path", "DIR", "directory on the nodes' local disk, that the user may write to", &o.ScratchPath)
	f.Var(&value{text: "10GiB", kind: "SIZE", parse: into(&o.Sizes.Tmp, sizing.ParseSize)}, "tmp-size", "room for /tmp and logs, half for each")
	f.Var(&value{text: o.Termination.String(), kind: "TIME", parse: into(&o.Termination, launch.ParseTime)}, "termination", "time that a pod has to end, hooks included")
	number("max-restarts", "N", "times that a JobSet is started again, as a whole", &o.MaxRestarts)
	f.Var(&value{kind: "TIME", parse: into(&o.TTL, parseTTL)}, "ttl", "remove the job so long after its end, and with it the volumes of --storage-class (default: never)")
	onOffTo(f, &q.noServe, "no-serve", "no ebb serve beside the ranks")
	number("serve-port", "PORT", "port of ebb serve", &q.serve.Port)
	text("serve-token-secret", "NAME", "Secret with the key token, which clients send (default NAME-serve-token)", &q.serve.TokenSecret)
	text("serve-tls-secret", "NAME", "Secret with tls.crt and tls.key (default NAME-serve-tls)", &q.serve.TLSSecret)
	f.Var(&value{kind: "LABELS", parse: into(&q.serve.Controller, k8s.ParsePairs)}, "controller", "labels of the pods that may ask ebb serve (default ebb-controller=NAME)")
	text("controller-namespace", "NAME", "namespace of the pods that may ask ebb serve (default: that of the job)", &q.serve.ControllerNamespace)
	f.Var(&value{kind: "SIZE", parse: into(&o.HeadMemory, sizing.ParseSize)}, "head-memory", "memory of Ray's head (default 8GiB)")
	text("ray-version", "VERSION", "version of Ray in the image, for KubeRay", &o.RayVersion)
	onOffTo(f, &q.asJSON, "json", "print one JSON list, which kubectl takes as well")

	var all pflag.FlagSet
	q.plan.add(&all)
	for _, name := range planFlags {
		f.AddFlag(all.Lookup(name))
	}
	f.Lookup("dp").DefValue = "" // it depends
	f.Lookup("dp").Usage = "data-parallel ranks (default: so many that all GPUs are used)"
	f.Lookup("host-memory").Usage = "memory of a pod, request and limit (default: what the target takes, and --host-reserve)"
	f.Lookup("host-reserve").Usage = "memory of a pod for the program: PyTorch, its libraries, loaders, /dev/shm"
	f.Lookup("target").Usage = "where paused memory goes (default: the first of cpu, auto and disk that fits --host-memory; without that, disk)"
}

// parseWhole leaves the bounds, which go with a name each, to package k8s.
func parseWhole(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, errors.New("must be a whole number")
	}
	return n, nil
}

func parseTTL(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Second || d > 365*24*time.Hour {
		return 0, errors.New("must be a time such as 30m or 24h, from 1s to a year")
	}
	return d, nil
}

func (q *renderRequest) run(ctx context.Context) error {
	if err := q.complete(); err != nil {
		return err
	}
	if err := q.size(ctx); err != nil {
		return err
	}
	objects, err := k8s.Render(q.options)
	if err != nil {
		return launch.Usagef("%w", err)
	}
	var text []byte
	if q.asJSON {
		text, err = k8s.JSON(objects)
	} else {
		text, err = k8s.YAML(q.head(), objects)
	}
	if err != nil {
		return &launch.Error{Status: launch.StatusInternal, Text: "writing the objects: " + oneLine(err), Err: err}
	}
	_, _ = stdout.Write(text) // it remembers what fails
	return nil
}

// complete makes of the flags what depends on several of them, and checks what must be known before sizes can be
// added up.
func (q *renderRequest) complete() error {
	o := &q.options
	uid, gid, both := strings.Cut(q.user, ":")
	if !both {
		gid = uid
	}
	for _, part := range []struct {
		text string
		to   *int64
	}{{uid, &o.User}, {gid, &o.Group}} {
		n, err := strconv.ParseInt(part.text, 10, 32)
		if err != nil || n < 1 {
			return launch.Usagef("--user %s: must be numbers of a user and a group above 0, as 1000 or 1000:100: ranks do not run as root", q.user)
		}
		*part.to = n
	}
	if !q.noServe {
		if len(q.serve.Controller) == 0 {
			q.serve.Controller = []k8s.Pair{{Name: "ebb-controller", Value: o.Name}}
		}
		for _, name := range []struct {
			to  *string
			end string
		}{{&q.serve.TokenSecret, "-serve-token"}, {&q.serve.TLSSecret, "-serve-tls"}} {
			if *name.to == "" {
				*name.to = o.Name + name.end
			}
		}
		o.Serve = &q.serve
	}
	if o.Kind == k8s.KindRayCluster && o.HeadMemory == 0 {
		o.HeadMemory = 8 << 30
	}
	if err := o.CheckShape(); err != nil {
		return launch.Usagef("%w", err)
	}
	return nil
}

// size asks ebb plan what a pod needs.
func (q *renderRequest) size(ctx context.Context) error {
	p, nodes, perNode := q.plan, uint64(q.options.Nodes), uint64(q.options.PerNode)
	if p.params == 0 && p.configFile == "" {
		return launch.Usagef("which model? --params 7B, or --from-config config.json: what a pod needs of memory and of disk follows from it")
	}
	if !p.hostReserveSet || p.hostReserve == 0 {
		return launch.Usagef("how much host memory does the program itself take in a pod, with its libraries and loaders? --host-reserve SIZE, as 64GiB")
	}
	if p.target == launch.TargetAuto && p.hostMemory == 0 {
		return launch.Usagef("--target auto takes the host memory that there is: add --host-memory, that of a pod")
	}
	if p.streaming.moment != "" && !p.streaming.toDisk {
		return launch.Usagef("--%s is of optimizer state that is streamed: add --%s, or leave it out (--moments-dtype is that of state on the GPU)", streamFlags[2], streamFlags[1])
	}
	world, rest := nodes*perNode, p.parallel.TP*p.parallel.PP*p.parallel.CP
	switch {
	case !q.dpGiven && world%rest != 0:
		return launch.Usagef("--nodes %d × --nproc-per-node %d are %d ranks, which tp %d × pp %d × cp %d does not divide: change one of them",
			nodes, perNode, world, p.parallel.TP, p.parallel.PP, p.parallel.CP)
	case !q.dpGiven:
		p.parallel.DP = world / rest
	case p.parallel.World() != world:
		return launch.Usagef("--nodes %d × --nproc-per-node %d are %d ranks, and tp %d × pp %d × cp %d × dp %d are %d: change one of them, or leave --dp out",
			nodes, perNode, world, p.parallel.TP, p.parallel.PP, p.parallel.CP, p.parallel.DP, p.parallel.World())
	}
	p.perNode = perNode
	given := p.hostMemory > 0
	switch {
	case given:
		p.hostReserve = max(p.hostReserve, sizing.HostReserve(p.hostMemory)) // in the pod, ebb leaves so much by itself
	default:
		p.hostMemory = noLimit
		if p.target == "" {
			p.target = launch.TargetDisk
		}
	}
	result, err := p.plan(ctx)
	if err != nil {
		return err
	}
	q.largest = result.Largest
	var chosen *sizing.Target
	for i, t := range result.Targets {
		if t.Name == result.Chosen {
			chosen = &result.Targets[i]
		}
	}
	if chosen == nil {
		return notPlanned(result, p.target)
	}
	if p.gpu == 0 {
		say("not checked against a GPU: " + result.Largest.needs() + "; give --gpu-memory, that of a GPU")
	}
	s := &q.options.Sizes
	s.Target, s.HostMB, s.ChunkMB = chosen.Name, chosen.HostMB, p.chunkMB
	s.Host, s.Program = chosen.HostBytes, p.hostReserve
	if s.Memory = p.hostMemory; !given {
		for s.Memory = s.Host + s.Program; s.Memory-sizing.HostReserve(s.Memory) < s.Host; s.Memory += 1 << 30 {
			s.Program += 1 << 30
		}
	}
	disk := chosen.DiskBytes
	if streamed := result.Streaming; streamed != nil {
		s.Stream, s.Moment = true, p.streaming.moment
		disk += streamed.DiskBytes
	}
	quota := uint64(math.Ceil(float64(disk) * quotaSlack / 1e9))
	s.Disk = quota * 1e9
	switch {
	case disk > 0 && q.options.ScratchPath == "": // there, other jobs' files would count too
		s.QuotaGB = quota
	case disk == 0 && chosen.Name == launch.TargetAuto: // all of it has room in host memory, but for a day on which it has not
		s.Disk = result.Node.Bytes
	}
	return nil
}

// noLimit is more memory than a node has: what is planned with it, takes what it needs.
const noLimit = 1 << 58

// notPlanned says why nothing fits.
func notPlanned(r planResult, target string) error {
	text := r.unfit(target)
	if !r.Largest.tooSmall() {
		text = "a pod does not hold what is to be parked: " + r.noTarget(target) + "; raise --host-memory, lower --host-reserve" + r.otherTarget(target)
	}
	return &launch.Error{Status: statusNoFit, Text: text}
}

// head is the comment at the top, for whoever reads the objects.
func (q *renderRequest) head() string {
	o, s := q.options, q.options.Sizes
	lines := []string{
		"Written by ebb k8s render: change its flags rather than this.",
		fmt.Sprintf("%s of %s; a pod parks to the target %s: %s of host memory, %s of disk at most.",
			launch.Count(o.Nodes, "node"), launch.Count(o.PerNode, "GPU"), s.Target, sizing.Both(s.Host), sizing.Both(s.Disk)),
	}
	checked := "not checked, give --gpu-memory."
	if q.largest.GPU > 0 {
		checked = "one of " + sizing.Both(q.largest.GPU) + " does."
	}
	lines = append(lines, fmt.Sprintf("A GPU must hold %s in a step, beside activations: %s", sizing.Both(q.largest.InStep()), checked))
	if o.Serve != nil {
		lines = append(lines, fmt.Sprintf("Must be there before: the Secrets %s (key token) and %s (tls.crt, tls.key).", o.Serve.TokenSecret, o.Serve.TLSSecret))
	}
	var text strings.Builder
	for _, line := range lines {
		printWrapped(&text, "# ", "#   ", line)
	}
	return text.String()
}
