package k8s

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// Kinds of jobs.
const (
	KindJob        = "job"
	KindJobSet     = "jobset"
	KindRayCluster = "raycluster"
)

// MaxNodes is what one cluster of Kubernetes is made for.
const MaxNodes = 5000

// Bounds of a pod's end. torchrun gives its ranks 30 s from SIGTERM to SIGKILL; before it the hooks run, and
// after it ebb serve comes to its end.
const (
	DefaultTermination = 2 * time.Minute
	minTermination     = time.Minute
	maxTermination     = 24 * time.Hour
	serveGrace         = 10 * time.Second
)

// Options is what is asked for. Sizes are bytes.
type Options struct {
	Kind      string
	Name      string
	Namespace string // empty: that of whoever applies the objects
	Nodes     int
	PerNode   int // GPUs and ranks of a node

	Image   string
	Command []string // none with a RayCluster, whose programs come later
	EBB     string   // ebb's command in the image
	Env     []Pair

	GPU          string // the resource that is a GPU
	CPU          string // that a node's container requests; empty: nothing
	NodeSelector []Pair
	User, Group  int64
	Port         int // at which the ranks meet

	Sizes        Sizes
	StorageClass string // of a volume that is made for each pod; empty: none
	ScratchPath  string // a directory of the nodes; empty: none. With neither it is an emptyDir

	Termination time.Duration // from the beginning of a pod's end to SIGKILL
	MaxRestarts int           // of a JobSet as a whole
	TTL         time.Duration // after which a finished job is removed; 0: never

	Serve *Serve // nil: nobody outside commands the ranks

	HeadMemory uint64 // of Ray's head
	RayVersion string
}

// Serve is ebb serve in each pod.
type Serve struct {
	Port                int
	TokenSecret         string // has the key token
	TLSSecret           string // has tls.crt and tls.key
	Controller          []Pair // labels of the pods that may ask
	ControllerNamespace string // where those are; empty: that of the job
}

// Sizes are those of a pod, as ebb plan adds them up for the fullest node.
type Sizes struct {
	Target  string
	HostMB  uint64 // of each rank, with the auto target
	ChunkMB int
	QuotaGB uint64 // of the disk directory; 0: no quota
	Stream  bool   // optimizer state lies there too
	Moment  string // the type of its moments; empty: ebb's default

	Host    uint64 // host memory that ebb takes
	Program uint64 // that everything else takes
	Memory  uint64 // request and limit of the container; at least both together
	Disk    uint64 // that files may take
	Tmp     uint64 // what else is written: /tmp, logs
}

// OptionError says what is wrong with options, and what to do.
type OptionError struct{ Text string }

func (e *OptionError) Error() string { return e.Text }

func wrongf(format string, args ...any) error {
	return &OptionError{Text: fmt.Errorf(format, args...).Error()}
}

// check refuses what no cluster would take, and what would fail there hours later.
func (o Options) check() error {
	if err := o.CheckShape(); err != nil {
		return err
	}
	return o.Sizes.check()
}

// CheckShape is that part of it for which sizes need not be known.
func (o Options) CheckShape() error {
	for _, part := range []func() error{o.checkNames, o.checkNumbers, o.checkProgram, o.checkScratch, o.checkServe} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

func (o Options) checkNames() error {
	if !slices.Contains([]string{KindJob, KindJobSet, KindRayCluster}, o.Kind) {
		return wrongf("--kind %q: must be job, jobset or raycluster", o.Kind)
	}
	if err := checkName("--name", o.Name, maxName); err != nil {
		return err
	}
	if o.Namespace != "" && (!dnsPart.MatchString(o.Namespace) || len(o.Namespace) > 63) {
		return wrongf("--namespace %q: must be a DNS label: small letters, digits and dashes, at most 63", o.Namespace)
	}
	return nil
}

func (o Options) checkNumbers() error {
	switch {
	case o.Nodes < 1 || o.Nodes > MaxNodes:
		return wrongf("--nodes %d: must be from 1 to %d", o.Nodes, MaxNodes)
	case o.PerNode < 1:
		return wrongf("--nproc-per-node %d: a node has at least one rank", o.PerNode)
	case o.User < 1 || o.Group < 1:
		return wrongf("--user %d:%d: ranks do not run as root; give the user that the image is made for", o.User, o.Group)
	case o.Port < 1024 || o.Port > 65535:
		return wrongf("--port %d: must be from 1024 to 65535: lower ones take privileges", o.Port)
	case o.Termination < minTermination || o.Termination > maxTermination:
		return wrongf("--termination %v: must be from %v to %v: torchrun alone gives its ranks 30s", o.Termination, minTermination, maxTermination)
	case o.MaxRestarts < 0 || o.MaxRestarts > 1000:
		return wrongf("--max-restarts %d: must be from 0 to 1000", o.MaxRestarts)
	case o.MaxRestarts > 0 && o.Kind != KindJobSet:
		return wrongf("--max-restarts %d: PyTorch starts again as a whole, which only a JobSet does: add --kind jobset, or leave it out", o.MaxRestarts)
	case o.TTL < 0 || o.TTL > 0 && o.Kind == KindRayCluster:
		return wrongf("--ttl %v: a Ray cluster does not finish by itself: leave it out, and delete the cluster", o.TTL)
	}
	return nil
}

func (o Options) checkProgram() error {
	switch {
	case o.Image == "":
		return wrongf("which image? --image REGISTRY/NAME:TAG, with ebb and the program in it")
	case !image.MatchString(o.Image) || len(o.Image) > 512:
		return wrongf("--image %q: is no name of an image, as registry/team/trainer:1", o.Image)
	case o.EBB == "" || strings.ContainsAny(o.EBB, "\n$ ") || !isText(o.EBB):
		return wrongf("--ebb %q: name ebb's command in the image, as ebb or /opt/ebb/bin/ebb", o.EBB)
	case len(o.Command) == 0 && o.Kind != KindRayCluster:
		return wrongf("which program? ebb k8s render [flags] -- python train.py")
	case len(o.Command) > 0 && o.Kind == KindRayCluster:
		return wrongf("a Ray cluster has no program of its own: leave %q out, and start it with ray job submit", strings.Join(o.Command, " "))
	case o.HeadMemory > 0 && o.Kind != KindRayCluster:
		return wrongf("--head-memory is that of Ray's head: add --kind raycluster, or leave it out")
	case o.RayVersion != "" && o.Kind != KindRayCluster:
		return wrongf("--ray-version %s: add --kind raycluster, or leave it out", o.RayVersion)
	case o.RayVersion != "" && !qualified.MatchString(o.RayVersion):
		return wrongf("--ray-version %q: is no version of Ray, as 2.52.0", o.RayVersion)
	}
	for _, word := range o.Command {
		if !isText(word) {
			return wrongf("the program's argument %q is no text: Kubernetes takes UTF-8 without zero bytes; have the program read such bytes from a file", word)
		}
	}
	seen := map[string]bool{}
	for _, e := range o.Env {
		switch {
		case seen[e.Name]:
			return wrongf("--env %s is given twice: leave one out", e.Name)
		case !isText(e.Value):
			return wrongf("--env %s=%q is no text: Kubernetes takes UTF-8 without zero bytes; have the program read such bytes from a file", e.Name, e.Value)
		case slices.Contains(identity, e.Name):
			return wrongf("--env %s: Kubernetes says what it is; leave it out", e.Name)
		case slices.Contains(rendered, e.Name):
			return wrongf("--env %s: the pod relies on what it is; leave it out, and give the flags of ebb k8s render", e.Name)
		}
		seen[e.Name] = true
	}
	return nil
}

// isText reports whether an object can hold a text as it is.
func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func (o Options) checkScratch() error {
	switch {
	case o.StorageClass != "" && o.ScratchPath != "":
		return wrongf("--storage-class and --scratch-path both say where the disk is: give one")
	case o.StorageClass != "":
		return checkSubdomain("--storage-class", o.StorageClass)
	case o.ScratchPath != "" && (!path.IsAbs(o.ScratchPath) || path.Clean(o.ScratchPath) != o.ScratchPath || o.ScratchPath == "/" || strings.ContainsAny(o.ScratchPath, ",:\n") || !isText(o.ScratchPath)):
		return wrongf("--scratch-path %q: must be the absolute path of a directory on the nodes' local disk, as /mnt/nvme, and not the root", o.ScratchPath)
	}
	return nil
}

// check refuses sizes that do not go together. What a pod may take of memory and of disk is always limited.
func (s Sizes) check() error {
	switch {
	case !slices.Contains([]string{launch.TargetCPU, launch.TargetAuto, launch.TargetDisk}, s.Target):
		return wrongf("--target %q: must be cpu, auto or disk", s.Target)
	case s.Program == 0 || s.Memory == 0:
		return wrongf("how much host memory does the program itself take in a pod, with its libraries and loaders? --host-reserve SIZE, as 64GiB")
	case s.Host+s.Program > s.Memory:
		return wrongf("a pod of %s has no room for %s of ebb (target %s) and %s of the program: raise --host-memory, lower --host-reserve, or use --target disk",
			sizing.Both(s.Memory), sizing.Both(s.Host), s.Target, sizing.Both(s.Program))
	case s.Tmp < 1<<30:
		return wrongf("--tmp-size %s: at least 1 GiB is needed for /tmp and logs", sizing.Both(s.Tmp))
	case s.onDisk() && s.Disk == 0:
		return wrongf("--target %s: how much the files take is not known; give --params or --from-config", s.Target)
	case max(s.Memory, s.Disk, s.Tmp) > 1<<60:
		return wrongf("sizes of a pod are more than any node has")
	}
	return nil
}

// onDisk reports whether a pod has files of ebb.
func (s Sizes) onDisk() bool { return s.Target != launch.TargetCPU || s.Stream }

func (o Options) checkServe() error {
	s := o.Serve
	if s == nil {
		return nil
	}
	switch {
	case s.Port < 1024 || s.Port >= 65535:
		return wrongf("--serve-port %d: must be from 1024 to 65534", s.Port)
	case s.Port == o.Port:
		return wrongf("--serve-port %d is the port at which the ranks meet (--port): give another", s.Port)
	case len(s.Controller) == 0:
		return wrongf("who may ask ebb serve? --controller app=trainer-controller")
	case s.ControllerNamespace != "" && (!dnsPart.MatchString(s.ControllerNamespace) || len(s.ControllerNamespace) > 63):
		return wrongf("--controller-namespace %q: must be a DNS label: small letters, digits and dashes, at most 63", s.ControllerNamespace)
	}
	if err := checkSubdomain("--serve-token-secret", s.TokenSecret); err != nil {
		return err
	}
	return checkSubdomain("--serve-tls-secret", s.TLSSecret)
}
