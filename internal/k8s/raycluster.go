package k8s

import "strconv"

// rayCluster is a cluster of Ray with a head that has no GPU, and a worker on each node. What runs on it, and as which
// ranks, the program says when it comes (ebb.ray).
func (o Options) rayCluster() Object {
	spec := Object{}
	if o.RayVersion != "" {
		spec = spec.with(Field{Name: "rayVersion", Value: o.RayVersion})
	}
	return Object{
		{Name: "apiVersion", Value: "ray.io/v1"},
		{Name: "kind", Value: "RayCluster"},
		{Name: "metadata", Value: o.metadata()},
		{Name: "spec", Value: spec.with(
			Field{Name: "headGroupSpec", Value: Object{
				{Name: "rayStartParams", Value: Object{{Name: "num-cpus", Value: "0", Why: "nothing of the program is placed here"}}},
				{Name: "template", Value: o.head()},
			}},
			Field{Name: "workerGroupSpecs", Value: list{Object{
				{Name: "groupName", Value: replicated},
				{Name: "replicas", Value: int64(o.Nodes)},
				{Name: "minReplicas", Value: int64(o.Nodes)},
				{Name: "maxReplicas", Value: int64(o.Nodes)},
				{Name: "rayStartParams", Value: Object{
					{Name: "object-store-memory", Value: strconv.FormatUint(o.Sizes.Program/2, 10), Why: "half of the program's memory"},
				}},
				{Name: "template", Value: o.podTemplate(o.worker())},
			}}},
		)},
	}
}

// worker is the container of a node; KubeRay gives it its command.
func (o Options) worker() Object {
	c := Object{
		{Name: "name", Value: "ray-worker"},
		{Name: "image", Value: o.Image},
		{Name: "env", Value: o.env(false)},
	}
	if o.onDisk() {
		c = c.with(Field{Name: "lifecycle", Value: o.reclaim(), Why: "what dead actors left"})
	}
	return c.with(
		Field{Name: "resources", Value: o.resources()},
		Field{Name: "securityContext", Value: security()},
		Field{Name: "volumeMounts", Value: o.mounts()},
	)
}

// head is the pod of Ray's head. The program's driver runs there, with the settings of the workers.
func (o Options) head() Object {
	sizes := Object{
		{Name: "memory", Value: quantity(o.HeadMemory)},
		{Name: "ephemeral-storage", Value: quantity(o.Sizes.Tmp)},
	}
	container := Object{
		{Name: "name", Value: "ray-head"},
		{Name: "image", Value: o.Image},
		{Name: "env", Value: o.env(false)},
		{Name: "ports", Value: list{
			Object{{Name: "name", Value: "gcs"}, {Name: "containerPort", Value: int64(6379)}},
			Object{{Name: "name", Value: "dashboard"}, {Name: "containerPort", Value: int64(8265)}},
			Object{{Name: "name", Value: "client"}, {Name: "containerPort", Value: int64(10001)}},
		}},
		{Name: "resources", Value: Object{
			{Name: "requests", Value: append(Object{{Name: "cpu", Value: "2"}}, sizes...)},
			{Name: "limits", Value: sizes},
		}},
		{Name: "securityContext", Value: security()},
		{Name: "volumeMounts", Value: list{mount(tmpVol, "/tmp", false), mount(shmVol, "/dev/shm", false)}},
	}
	return Object{
		{Name: "metadata", Value: Object{{Name: "labels", Value: o.partLabels("head")}}},
		{Name: "spec", Value: Object{
			{Name: "automountServiceAccountToken", Value: false},
			{Name: "enableServiceLinks", Value: false},
			{Name: "securityContext", Value: o.podSecurity()},
			{Name: "containers", Value: list{container}},
			{Name: "volumes", Value: list{
				emptyDir(tmpVol, o.Sizes.Tmp/2, false, ""),
				emptyDir(shmVol, o.HeadMemory/2, true, "counts as memory"),
			}},
		}},
	}
}
