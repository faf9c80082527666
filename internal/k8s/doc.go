// Package k8s writes the objects of a training job on Kubernetes: an indexed Job, a JobSet or a RayCluster of N
// nodes, with what ebb needs on each: a node-local volume, limits that fit what is parked, an end that reclaims, and
// ebb serve beside the ranks for a controller.
//
//	options.go     what is asked for, and what is refused
//	names.go       names of objects, labels and users
//	quantity.go    sizes as Kubernetes writes them
//	pod.go         the pod of a node: ranks, volumes, security
//	serve.go       ebb serve beside the ranks
//	job.go         the Job and the JobSet around it, raycluster.go the RayCluster
//	network.go     who reaches whom
//	tree.go        objects whose fields keep their order, as YAML and JSON
//
// The package is pure: the same options give the same bytes. It knows no cluster and none of its types; that what it
// writes is what an API server takes is tested in a module of its own (test/k8s), which has them.
package k8s

// Render writes the objects that options ask for, in the order in which they are to be made.
func Render(o Options) ([]Object, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	switch o.Kind {
	case KindJobSet:
		return []Object{o.networkPolicy(), o.jobSet()}, nil // it makes the service by itself
	case KindRayCluster:
		return []Object{o.networkPolicy(), o.rayCluster()}, nil // so does KubeRay
	default:
		return []Object{o.service(), o.networkPolicy(), o.job()}, nil
	}
}
