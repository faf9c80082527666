package k8s

import (
	"fmt"
	"math"
	"strconv"

	"github.com/ebb-offload/ebb/internal/launch"
)

// replicated is the name of the one job in a JobSet.
const replicated = "node"

// job is the indexed Job: one pod a node, whose index is the node's rank.
func (o Options) job() Object {
	return Object{
		{Name: "apiVersion", Value: "batch/v1"},
		{Name: "kind", Value: "Job"},
		{Name: "metadata", Value: o.metadata()},
		{Name: "spec", Value: o.jobSpec(fmt.Sprintf("%s-0.%s", o.Name, o.Name), o.Name)},
	}
}

// jobSet is a JobSet of one such Job: it starts again as a whole when a pod fails.
func (o Options) jobSet() Object {
	first := fmt.Sprintf("%s-%s-0-0.%s", o.Name, replicated, o.Name)
	spec := Object{
		{Name: "network", Value: Object{
			{Name: "enableDNSHostnames", Value: true},
			{Name: "subdomain", Value: o.Name},
			{Name: "publishNotReadyAddresses", Value: true},
		}},
		{Name: "failurePolicy", Value: Object{{Name: "maxRestarts", Value: int64(o.MaxRestarts)}}},
	}
	if o.TTL > 0 {
		spec = spec.with(o.ttl())
	}
	ttl := o.TTL
	o.TTL = 0 // the set's, not the job's in it
	spec = spec.with(Field{Name: "replicatedJobs", Value: list{Object{
		{Name: "name", Value: replicated},
		{Name: "replicas", Value: int64(1)},
		{Name: "template", Value: Object{{Name: "spec", Value: o.jobSpec(first, "")}}},
	}}})
	o.TTL = ttl
	return Object{
		{Name: "apiVersion", Value: "jobset.x-k8s.io/v1alpha2"},
		{Name: "kind", Value: "JobSet"},
		{Name: "metadata", Value: o.metadata()},
		{Name: "spec", Value: spec},
	}
}

func (o Options) ttl() Field {
	return Field{Name: "ttlSecondsAfterFinished", Value: int64(math.Ceil(o.TTL.Seconds()))}
}

// jobSpec is that of the Job. first is the address of node 0; subdomain is that of the pods, empty where the
// controller sets it.
func (o Options) jobSpec(first, subdomain string) Object {
	spec := Object{
		{Name: "completionMode", Value: "Indexed"},
		{Name: "completions", Value: int64(o.Nodes)},
		{Name: "parallelism", Value: int64(o.Nodes)},
		{Name: "backoffLimit", Value: int64(0), Why: "PyTorch starts again as a whole: one pod that fails, fails the job"},
		{Name: "podReplacementPolicy", Value: "Failed", Why: "never two pods of an index"},
	}
	if o.TTL > 0 {
		spec = spec.with(o.ttl())
	}
	pod := Object{{Name: "restartPolicy", Value: "Never"}}
	if subdomain != "" {
		pod = append(Object{{Name: "subdomain", Value: subdomain}}, pod...)
	}
	return spec.with(Field{Name: "template", Value: o.podTemplate(o.trainer(first), pod...)})
}

// trainer is the container of a node's ranks: torchrun makes one world of all nodes, and starts each rank with
// ebb exec, which gives it a directory, watches it, and reclaims.
func (o Options) trainer(first string) Object {
	args := texts(
		fmt.Sprintf("--nnodes=%d", o.Nodes),
		fmt.Sprintf("--nproc_per_node=%d", o.PerNode),
		"--node_rank=$(JOB_COMPLETION_INDEX)",
		"--master_addr="+first,
		fmt.Sprintf("--master_port=%d", o.Port),
		"--no_python",
		o.EBB, "exec",
		"--job=$(POD_NAMESPACE)."+o.Name,
		"--offload-train",
		"--offload-train-target="+o.Sizes.Target,
	)
	if o.onDisk() {
		args = append(args, "--offload-train-disk-dir="+o.diskDir())
		if o.Sizes.ChunkMB != launch.DefaultChunkMB {
			args = append(args, "--offload-train-disk-chunk-mb="+strconv.Itoa(o.Sizes.ChunkMB))
		}
		if o.Sizes.HostMB > 0 {
			args = append(args, fmt.Sprintf("--offload-train-host-mb=%d", o.Sizes.HostMB))
		}
		if o.Sizes.QuotaGB > 0 {
			args = append(args, fmt.Sprintf("--offload-train-disk-quota-gb=%d", o.Sizes.QuotaGB))
		}
		if o.Sizes.Stream {
			args = append(args, "--stream-optimizer-state-to-disk")
			if o.Sizes.Moment != "" {
				args = append(args, "--stream-optimizer-state-moment-dtype="+o.Sizes.Moment)
			}
		}
	}
	args = append(args, "--")
	for _, word := range o.Command {
		args = append(args, verbatim(word))
	}
	c := Object{
		{Name: "name", Value: trainer},
		{Name: "image", Value: o.Image},
		{Name: "command", Value: texts("torchrun")},
		{Name: "args", Value: args},
		{Name: "env", Value: o.env(true)},
		{Name: "ports", Value: list{Object{{Name: "name", Value: "rendezvous"}, {Name: "containerPort", Value: int64(o.Port)}}}},
	}
	if o.onDisk() {
		c = c.with(Field{Name: "lifecycle", Value: o.reclaim(), Why: "what dead ranks left; files of live ones go with them, at SIGTERM"})
	}
	return c.with(
		Field{Name: "resources", Value: o.resources()},
		Field{Name: "securityContext", Value: security()},
		Field{Name: "volumeMounts", Value: o.mounts()},
	)
}
