// Package clusters tests ebb under the schedulers and launchers that its users have: Slurm, Ray, torchrun,
// accelerate, DeepSpeed and Open MPI, each the real one, over the software driver; and the fan-out to many nodes.
// What they need is installed by the test that needs it (install_test.go). Where that cannot be done, without
// root or without a network, the test is skipped and says which step and why; EBB_TEST_CLUSTERS=all makes it fail.
//
// They run with EBB_TEST_LONG only (make test-clusters, a part of make test-long).
package clusters
