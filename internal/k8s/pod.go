package k8s

import (
	"fmt"
	"math"
	"strconv"
)

// Paths in a pod. Each is a volume of its own; ebb makes the directories below them, for it keeps its own private.
const (
	scratchDir = "/ebb/scratch"
	runDir     = "/ebb/run"
	tokenDir   = "/ebb/token"
	tlsDir     = "/ebb/tls"
	runtimeDir = runDir + "/ebb"
)

// Names of containers and volumes.
const (
	trainer    = "trainer"
	scratchVol = "scratch"
	runVol     = "run"
	tmpVol     = "tmp"
	shmVol     = "shm"
)

// Labels: of everything that belongs to a job, and of what a pod of it is.
const (
	labelJob  = "ebb-job"
	labelPart = "ebb-part"
)

// identity are the variables by which a pod tells who and where it is.
var identity = []string{"POD_NAME", "POD_NAMESPACE", "NODE_NAME", "JOB_NAME", "JOB_COMPLETION_INDEX"}

// rendered are variables that follow from the flags, or that torchrun and Ray set for each rank: where ebb serve and
// the ranks meet, where the ranks are parked, and which rank is which.
var rendered = []string{
	"EBB_RUNTIME_DIR", "EBB_JOB",
	"EBB_OFFLOAD_TRAIN", "EBB_OFFLOAD_TRAIN_TARGET", "EBB_OFFLOAD_TRAIN_DISK_DIR", "EBB_OFFLOAD_TRAIN_DISK_CHUNK_MB",
	"EBB_OFFLOAD_TRAIN_HOST_MB", "EBB_OFFLOAD_TRAIN_DISK_QUOTA_GB",
	"EBB_OPTIMIZER_STATE_NVME_DIR", "EBB_STREAM_OPTIMIZER_STATE_TO_DISK", "EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE",
	"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
}

// diskDir is ebb's disk directory in a pod. On a directory of the node it is one for each user, whose jobs share it.
func (o Options) diskDir() string { return fmt.Sprintf("%s/ebb-%d", scratchDir, o.User) }

// metadata is that of an object.
func (o Options) metadata() Object {
	m := Object{{Name: "name", Value: o.Name}}
	if o.Namespace != "" {
		m = m.with(Field{Name: "namespace", Value: o.Namespace})
	}
	return m.with(Field{Name: "labels", Value: o.labels()})
}

func (o Options) labels() Object { return Object{{Name: labelJob, Value: o.Name}} }

// partLabels are those of the pods that are a part of the job: a node of it, or Ray's head.
func (o Options) partLabels(part string) Object {
	return o.labels().with(Field{Name: labelPart, Value: part})
}

// podTemplate is the pod of a node with this container of ranks.
func (o Options) podTemplate(ranks Object, more ...Field) Object {
	spec := Object{}.with(more...)
	spec = spec.with(
		Field{Name: "terminationGracePeriodSeconds", Value: int64(math.Ceil(o.Termination.Seconds())),
			Why: "for hooks, ranks (torchrun gives them 30 s), the removal of their files, and ebb serve"},
		Field{Name: "automountServiceAccountToken", Value: false},
		Field{Name: "enableServiceLinks", Value: false},
		Field{Name: "shareProcessNamespace", Value: true,
			Why: "ebb serve and ebb gc judge by their pids which ranks live"},
		Field{Name: "securityContext", Value: o.podSecurity()},
	)
	if len(o.NodeSelector) > 0 {
		spec = spec.with(Field{Name: "nodeSelector", Value: object(o.NodeSelector)})
	}
	spec = spec.with(
		Field{Name: "tolerations", Value: list{Object{
			{Name: "key", Value: o.GPU}, {Name: "operator", Value: "Exists"}, {Name: "effect", Value: "NoSchedule"},
		}}},
		Field{Name: "affinity", Value: o.apart(), Why: "one pod of the job on a node, which has its disk and its memory"},
	)
	if o.Serve != nil {
		spec = spec.with(Field{Name: "initContainers", Value: list{o.serveContainer()}})
	}
	spec = spec.with(
		Field{Name: "containers", Value: list{ranks}},
		Field{Name: "volumes", Value: o.volumes()},
	)
	return Object{
		{Name: "metadata", Value: Object{{Name: "labels", Value: o.partLabels(replicated)}}},
		{Name: "spec", Value: spec},
	}
}

func (o Options) podSecurity() Object {
	return Object{
		{Name: "runAsNonRoot", Value: true},
		{Name: "runAsUser", Value: o.User},
		{Name: "runAsGroup", Value: o.Group},
		{Name: "fsGroup", Value: o.Group},
		{Name: "fsGroupChangePolicy", Value: "OnRootMismatch"},
		{Name: "seccompProfile", Value: Object{{Name: "type", Value: "RuntimeDefault"}},
			Why: "ebb needs nothing that it refuses (no io_uring)"},
	}
}

// security is that of a container: nothing is granted, and its image cannot be written to.
func security() Object {
	return Object{
		{Name: "allowPrivilegeEscalation", Value: false},
		{Name: "readOnlyRootFilesystem", Value: true},
		{Name: "capabilities", Value: Object{{Name: "drop", Value: texts("ALL")}}},
	}
}

// apart keeps pods of the job off each other's nodes.
func (o Options) apart() Object {
	return Object{{Name: "podAntiAffinity", Value: Object{
		{Name: "requiredDuringSchedulingIgnoredDuringExecution", Value: list{Object{
			{Name: "labelSelector", Value: Object{{Name: "matchLabels", Value: o.partLabels(replicated)}}},
			{Name: "topologyKey", Value: "kubernetes.io/hostname"},
		}}},
	}}}
}

// fromPod is a variable with a field of the pod.
func fromPod(name, field string) Object {
	return Object{
		{Name: "name", Value: name},
		{Name: "valueFrom", Value: Object{{Name: "fieldRef", Value: Object{{Name: "fieldPath", Value: field}}}}},
	}
}

func variable(name, value string) Object {
	return Object{{Name: "name", Value: name}, {Name: "value", Value: value}}
}

// env is the environment of the ranks' container. What the user gives comes last and wins, but for the identity.
func (o Options) env(indexed bool) list {
	l := list{
		fromPod("POD_NAME", "metadata.name"),
		fromPod("POD_NAMESPACE", "metadata.namespace"),
		fromPod("NODE_NAME", "spec.nodeName"),
	}
	if indexed {
		l = append(l,
			fromPod("JOB_NAME", "metadata.labels['batch.kubernetes.io/job-name']"),
			fromPod("JOB_COMPLETION_INDEX", "metadata.annotations['batch.kubernetes.io/job-completion-index']"))
	}
	own := []Pair{
		{"EBB_RUNTIME_DIR", runtimeDir},
		{"HOME", "/tmp"}, // the image's may not be written to
		{"USER", trainer},
	}
	if !indexed {
		own = append(own, o.offload()...)
	}
	given := map[string]bool{}
	for _, e := range o.Env {
		given[e.Name] = true
	}
	for _, e := range own {
		if !given[e.Name] {
			l = append(l, variable(e.Name, e.Value))
		}
	}
	for _, e := range o.Env {
		l = append(l, variable(e.Name, verbatim(e.Value)))
	}
	return l
}

// offload are the settings of ebb exec as variables: those of Ray's actors, which ebb does not start.
func (o Options) offload() []Pair {
	pairs := []Pair{{"EBB_OFFLOAD_TRAIN", "1"}, {"EBB_OFFLOAD_TRAIN_TARGET", o.Sizes.Target}}
	add := func(name, value string) { pairs = append(pairs, Pair{name, value}) }
	if !o.onDisk() {
		return pairs
	}
	add("EBB_OFFLOAD_TRAIN_DISK_DIR", o.diskDir())
	add("EBB_OFFLOAD_TRAIN_DISK_CHUNK_MB", strconv.Itoa(o.Sizes.ChunkMB))
	if o.Sizes.HostMB > 0 {
		add("EBB_OFFLOAD_TRAIN_HOST_MB", strconv.FormatUint(o.Sizes.HostMB, 10))
	}
	if o.Sizes.QuotaGB > 0 {
		add("EBB_OFFLOAD_TRAIN_DISK_QUOTA_GB", strconv.FormatUint(o.Sizes.QuotaGB, 10))
	}
	if o.Sizes.Stream {
		add("EBB_STREAM_OPTIMIZER_STATE_TO_DISK", "1")
		if o.Sizes.Moment != "" {
			add("EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE", o.Sizes.Moment)
		}
	}
	return pairs
}

// resources are request and limit at once: a pod that may take more than it asked for is the first to be evicted.
func (o Options) resources() Object {
	ephemeral := o.Sizes.Tmp
	why := "/tmp and logs; the scratch is a volume of its own"
	if o.onKubelet() {
		ephemeral += o.volumeSize()
		why = "/tmp, logs, and the scratch, which is an emptyDir"
	}
	sizes := Object{
		{Name: "memory", Value: quantity(o.Sizes.Memory), Why: fmt.Sprintf("%s of ebb (target %s), the rest is the program's", quantity(o.Sizes.Host), o.Sizes.Target)},
		{Name: "ephemeral-storage", Value: quantity(ephemeral), Why: why},
		{Name: o.GPU, Value: int64(o.PerNode)},
	}
	requests := Object{}
	if o.CPU != "" {
		requests = requests.with(Field{Name: "cpu", Value: o.CPU})
	}
	return Object{
		{Name: "requests", Value: requests.with(bare(sizes)...)},
		{Name: "limits", Value: sizes},
	}
}

// bare is an object without comments.
func bare(o Object) Object {
	out := make(Object, len(o))
	for i, f := range o {
		f.Why = ""
		out[i] = f
	}
	return out
}

// onDisk reports whether the pod has a scratch volume at all.
func (o Options) onDisk() bool { return o.Sizes.onDisk() }

// onKubelet reports whether the scratch counts as ephemeral storage of the pod.
func (o Options) onKubelet() bool { return o.onDisk() && o.StorageClass == "" && o.ScratchPath == "" }

// volumeSlack is what a volume has beside what files may take: the file system's own.
const volumeSlack = 1.1

func (o Options) volumeSize() uint64 {
	if !o.onDisk() {
		return 0
	}
	return wholeGiB(uint64(float64(o.Sizes.Disk) * volumeSlack))
}

func mount(volume, path string, readOnly bool) Object {
	m := Object{{Name: "name", Value: volume}, {Name: "mountPath", Value: path}}
	if readOnly {
		m = m.with(Field{Name: "readOnly", Value: true})
	}
	return m
}

// mounts are those of the ranks' container.
func (o Options) mounts() list {
	l := list{}
	if o.onDisk() {
		l = append(l, mount(scratchVol, scratchDir, false))
	}
	return append(l, mount(runVol, runDir, false), mount(tmpVol, "/tmp", false), mount(shmVol, "/dev/shm", false))
}

func emptyDir(name string, size uint64, memory bool, why string) Object {
	e := Object{}
	if memory {
		e = e.with(Field{Name: "medium", Value: "Memory"})
	}
	return Object{
		{Name: "name", Value: name},
		{Name: "emptyDir", Value: e.with(Field{Name: "sizeLimit", Value: quantity(size)}), Why: why},
	}
}

// volumes are those of a pod.
func (o Options) volumes() list {
	l := list{}
	if o.onDisk() {
		l = append(l, o.scratch())
	}
	l = append(l,
		emptyDir(runVol, 16<<20, true, "control sockets of the ranks"),
		emptyDir(tmpVol, o.Sizes.Tmp/2, false, "the other half is for logs"),
		emptyDir(shmVol, o.Sizes.Program, true, "counts as memory of the program"))
	if o.Serve != nil {
		l = append(l, o.serveVolumes()...)
	}
	return l
}

// scratch is the volume on the node's disk.
func (o Options) scratch() Object {
	size := o.volumeSize()
	switch {
	case o.StorageClass != "":
		return Object{
			{Name: "name", Value: scratchVol},
			{Name: "ephemeral", Why: "made with the pod and deleted with it; the class must be one of local disks",
				Value: Object{{Name: "volumeClaimTemplate", Value: Object{
					{Name: "metadata", Value: Object{{Name: "labels", Value: o.labels()}}},
					{Name: "spec", Value: Object{
						{Name: "accessModes", Value: texts("ReadWriteOnce")},
						{Name: "storageClassName", Value: o.StorageClass},
						{Name: "resources", Value: Object{{Name: "requests", Value: Object{{Name: "storage", Value: quantity(size)}}}}},
					}},
				}}}},
		}
	case o.ScratchPath != "":
		return Object{
			{Name: "name", Value: scratchVol},
			{Name: "hostPath", Why: "shared by all jobs of the node, and not limited by Kubernetes; what killed pods leave, ebb gc removes (deploy/k8s)",
				Value: Object{{Name: "path", Value: o.ScratchPath}, {Name: "type", Value: "Directory"}}},
		}
	}
	return emptyDir(scratchVol, size, false, "on the disk of the kubelet, which must be the fast one; gone with the pod")
}

// reclaim removes what dead ranks of the pod left.
func (o Options) reclaim() Object {
	return Object{{Name: "preStop", Value: Object{{Name: "exec", Value: Object{
		{Name: "command", Value: texts(o.EBB, "gc", "--disk-dir", o.diskDir())},
	}}}}}
}
