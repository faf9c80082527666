// Package e2e tests whole processes under the libraries of dist/, over the software driver:
// what a training process and its children, its files and its host must see, and must not see.
//
// The victims are programs in testdata. Each gets a software GPU and a disk directory of its
// own. A victim that does not end is killed after a deadline that no working one comes near;
// nothing else here depends on time.
package e2e
