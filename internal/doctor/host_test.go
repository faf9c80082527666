package doctor

import (
	"testing"

	"github.com/ebb-offload/ebb/internal/hostmem"
)

func TestMemlock(t *testing.T) {
	rdma := node("two-sockets").names("/sys/class/infiniband")
	expect(t, judgeMemlock(unlimited, rdma), OK, "no limit")
	expect(t, judgeMemlock(8<<20, rdma), Warn, "8 MiB", "mlx5_0", "ulimit -l unlimited")
	expect(t, judgeMemlock(8<<20, nil), OK, "8 MiB", "no RDMA devices")
	expect(t, judgeMemlock(8<<30, rdma), OK, "8 GiB", "with the RDMA devices (mlx5_0")
}

func TestHostMemory(t *testing.T) {
	const gib = 1 << 30
	expect(t, judgeMemory(hostmem.Limits{Total: 2000 * gib, Available: 1900 * gib}), OK, "1.9 TiB")
	expect(t, judgeMemory(hostmem.Limits{Total: 16 * gib, Available: 2 * gib}), Warn, "no backups")
	expect(t, judgeMemory(hostmem.Limits{Total: 16 * gib, Available: gib / 2}), Fail, "does not fit")
}

func TestMemoryCgroups(t *testing.T) {
	const gib = 1 << 30
	for root, version := range map[string]string{"two-sockets": "v2", "workstation": "v1", "container": "v2"} {
		if got := cgroupVersion(node(root)); got != version {
			t.Errorf("%s: version %q, want %q", root, got, version)
		}
	}
	expect(t, judgeCgroup(nil, ""), OK, "no memory cgroup")
	expect(t, judgeCgroup(nil, "v2"), OK, "without a limit")
	groups := []hostmem.Group{{Path: "/pod/a", Limit: 100 * gib, Used: 10 * gib}, {Path: "/pod", Limit: 64 * gib, Used: 20 * gib}}
	expect(t, judgeCgroup(groups, "v2"), OK, "/pod allows 64 GiB", "20 GiB")
	groups[0].Used = 98 * gib
	expect(t, judgeCgroup(groups, "v1"), Warn, "cgroup v1 /pod/a", "raise the limit")
	groups[1].Used = 70 * gib // above a limit that was lowered
	expect(t, judgeCgroup(groups, "v2"), Fail, "/pod allows", "--memory")
}

func TestHugePages(t *testing.T) {
	expect(t, judgeHugePages(node("two-sockets")), OK, "madvise")
	expect(t, judgeHugePages(node("workstation")), Warn, "16 GiB", "52 %", "vm.nr_hugepages=0")
	never := map[string]string{"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n"}
	expect(t, judgeHugePages(changed(t, "two-sockets", never)), Warn, "off (never)", "echo madvise")
	expect(t, judgeHugePages(node("container")), Warn, "no transparent huge pages")
}

func TestNUMA(t *testing.T) {
	s := node("two-sockets")
	on0, on1 := drivesOf(s, "259:1", ""), drivesOf(s, "259:3", "")
	expect(t, judgeNUMA(s, on0), OK, "GPUs on NUMA node 0; nvme0n1 on node 0")
	expect(t, judgeNUMA(s, on1), Warn, "nvme1n1 on node 1 (distance 21 to node 0, 10 is the same one)", "GPUs' node")
	expect(t, judgeNUMA(s, nil), OK, "GPUs on NUMA node 0")
	bound := changed(t, "two-sockets", map[string]string{"proc/self/status": "Cpus_allowed_list:\t32-47,50\n"})
	expect(t, judgeNUMA(bound, on0), Warn, "may not run on the CPUs of node 0", "numactl")
	expect(t, judgeNUMA(node("workstation"), nil), OK, "one NUMA node")
	unknown := changed(t, "two-sockets", map[string]string{
		"sys/devices/pci0000:16/0000:18:00.0/numa_node": "-1\n", "sys/devices/pci0000:16/0000:2a:00.0/numa_node": "-1\n"})
	expect(t, judgeNUMA(unknown, on0), OK, "not told")
}

func TestNamespaces(t *testing.T) {
	expect(t, judgeNamespaces(node("two-sockets")), OK, "told as they are")
	expect(t, judgeNamespaces(node("container")), Warn, "hidepid=invisible")
	table := "701 700 0:91 / /proc rw,nosuid - proc proc rw\n"
	expect(t, judgeNamespaces(changed(t, "container", map[string]string{"proc/self/mountinfo": table})), Warn, "time namespace", "-86400 s")
	same := "monotonic 0 0\nboottime 0 0\n"
	expect(t, judgeNamespaces(changed(t, "container", map[string]string{"proc/self/mountinfo": table, "proc/self/timens_offsets": same})),
		OK, "pid namespace of its own, 2 deep")
}

func TestContainers(t *testing.T) {
	expect(t, judgeContainer(node("two-sockets")), OK, "no container")
	expect(t, judgeContainer(node("container")), Warn, "docker", "seccomp", "no io_uring", "/dev/nvidiactl", "--gpus all")
	given := changed(t, "container", map[string]string{"dev/nvidiactl": "\n"})
	expect(t, judgeContainer(given), OK, "a container (docker)", "no new privileges")
	for file, kind := range map[string]string{
		"run/.containerenv": "podman", ".singularity.d/x": "Apptainer", "var/run/secrets/kubernetes.io/x": "Kubernetes",
	} {
		if got := containerKind(changed(t, "workstation", map[string]string{file: "\n"})); got != kind {
			t.Errorf("%s: %q, want %q", file, got, kind)
		}
	}
	if got := containerKind(changed(t, "workstation", map[string]string{"proc/1/environ": "A=b\x00container=lxc\x00"})); got != "lxc" {
		t.Errorf("by the environment of the first process: %q", got)
	}
}

func TestDistribution(t *testing.T) {
	if got := distribution(node("two-sockets")); got != "Ubuntu 24.04.1 LTS" {
		t.Errorf("%q", got)
	}
}
