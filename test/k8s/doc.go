// Package k8s tests what ebb k8s render writes, and the base in deploy/k8s, against Kubernetes itself: each object
// is decoded strictly into the real types and goes through the checks of an API server (k8s.io/kubernetes) and of the
// pod security standards; and the containers of a job are run on this machine as the kubelet runs them, with the
// real torchrun over the software driver.
//
// It is a module of its own, so that ebb depends on none of that. make test-clusters runs it.
package k8s
