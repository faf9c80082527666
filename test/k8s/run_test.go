package k8s

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	corev1 "k8s.io/api/core/v1"
)

// needs skips a test for want of a program or of what make build makes.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("EBB_TEST_CLUSTERS") == "all" {
				t.Fatal(err)
			}
			t.Skipf("skipped: %v", err)
		}
	}
}

// image is the environment that an image would have: the software device of a node. Debian's torchrun needs to be
// told what its defaults are, since with its Python it cannot read them.
func image(node int) []string {
	return []string{"PET_REDIRECTS=1", "PET_TEE=1", fmt.Sprintf("SOFTGPU_NODE=k8s-%d-%d", os.Getpid(), node), "SOFTGPU_MEM_MB=256", "SOFTGPU_DEVICES=1", "EBB_LIB_DIR=" + filepath.Join(root, "dist/lib")}
}

// The ranks of all pods are one world to PyTorch, through torchrun and ebb exec as they were rendered.
func TestPyTorchMeetsAcrossPods(t *testing.T) {
	needs(t, "torchrun", filepath.Join(root, "dist/lib/libebb.so"))
	const program = `
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "has", int(x.item()), os.environ["EBB_JOB"], os.environ["NODE_NAME"], os.environ["EBB_RANK"], flush=True)
`
	a := accept(t, render(t, "--name", "meet", "--nodes", "2", "--nproc-per-node", "2", "--image", "i", "--params", "1M", "--host-reserve", "1GiB",
		"--no-serve", "--port", freePorts(t, 1), "--ebb", ebb, "--env", "EBB_DEVICE=soft", "--", "/usr/bin/python3", "-c", program))
	var pods []*process
	var nodes []*node
	for i := range 2 {
		n := schedule(t, a.jobs[0].Spec.Template.Spec, a.jobs[0].Name, i, image(i)...)
		nodes = append(nodes, n)
		pods = append(pods, n.start(n.pod.Containers[0]))
	}
	said := ""
	for _, p := range pods {
		if err := p.wait(t); err != nil {
			t.Fatalf("%s: %v\n%s", p.name, err, p.said())
		}
		said += p.said()
	}
	for rank := range 4 {
		want := fmt.Sprintf("rank %d of 4 has 10 default.meet node-%d %d\n", rank, rank/2, rank)
		if !strings.Contains(said, want) {
			t.Errorf("no line %q in\n%s", want, said)
		}
	}
	for _, n := range nodes {
		n.empty()
	}
}

// An actor of Ray, of which the program says no more than who it is, parks where its worker's pod has room: the
// worker's process begins as ebb.ray has Ray start it, in the environment of a rendered RayCluster.
func TestActorsOfRayParkWhereTheirPodHasRoom(t *testing.T) {
	needs(t, "bash", filepath.Join(root, "dist/lib/libebb.so"))
	const worker = `
import os, shlex, subprocess, sys
import ebb.ray
env = ebb.ray.runtime_env(rank=3, world_size=8, job="rl", device="soft")
actor = "import os, sys; print(*(os.environ.get(name, '-') for name in sys.argv[1:]))"
asked = ["TMS_INIT_ENABLE_DISK_BACKUP", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_DISK_BACKUP_DIR", "TMS_DISK_BACKUP_CHUNK_MB", "EBB_HOST_MB", "EBB_DISK_QUOTA_BYTES"]
line = env["py_executable"] + " " + shlex.join(["-c", actor, *asked])
sys.exit(subprocess.run(["bash", "-c", line], env={**os.environ, **env["env_vars"]}).returncode)
`
	for target, c := range map[string]struct {
		flags []string
		want  func(scratch string) string
	}{
		"disk": {nil, func(scratch string) string {
			return "1 0 " + scratch + "/ebb-1000/rl/actor_cell0_rank3 64 - 449000000000\n"
		}},
		"cpu": {[]string{"--host-memory", "2TiB"}, func(string) string { return "0 1 - - - -\n" }},
	} {
		t.Run(target, func(t *testing.T) {
			var cluster rayv1.RayCluster
			for _, document := range documents(t, render(t, append([]string{"--kind", "raycluster", "--name", "rl", "--nodes", "4", "--nproc-per-node", "8", "--image", "i",
				"--params", "8B", "--host-reserve", "64GiB", "--chunk-mb", "64"}, c.flags...)...)) {
				if bytes.Contains(document, []byte("\nkind: RayCluster\n")) {
					strictly(t, document, &cluster)
				}
			}
			n := schedule(t, cluster.Spec.WorkerGroupSpecs[0].Template.Spec, "rl", 0, append(image(0), "PYTHONPATH="+filepath.Join(root, "python"))...)
			container := n.pod.Containers[0]
			container.Command, container.Args = []string{"/usr/bin/python3", "-c", worker}, nil // KubeRay's is ray start
			p := n.start(container)
			if err := p.wait(t); err != nil {
				t.Fatalf("%v\n%s", err, p.said())
			}
			if want := c.want(n.volumes["scratch"]); !strings.HasSuffix(p.said(), want) {
				t.Errorf("the actor has\n%s\nwant\n%s", p.said(), want)
			}
		})
	}
}

// backups are the files and directories of ranks.
func backups(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return strings.Count(name, "/") == 0 || strings.HasSuffix(name, "/.ebb") || strings.HasSuffix(name, ".ebb/usage")
	})
}

// A controller pauses and resumes the ranks of two pods through ebb serve beside them, and nothing is left, neither
// when they end nor when a pod is killed.
func TestAControllerCommandsTheRanksOfPods(t *testing.T) {
	needs(t, "torchrun", filepath.Join(root, "dist/bin/demo-train"))
	dir := temporary(t, filepath.Join(root, "build"))
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "rollouts")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	demo := []string{
		filepath.Join(root, "dist/bin/demo-train"), "--corpus", filepath.Join(root, "examples/demo/corpus.txt"),
		"--kernels", filepath.Join(root, "dist/lib/softgpu/demo_kernels.so"), "--weights", filepath.Join(dir, "weights"),
		"--rollouts", fifo, "--cycles", "2", "--steps", "2", "--megabytes", "4",
	}
	// torchrun's own store has the port that it names, and the demo opens the next one by itself.
	program := append([]string{"sh", "-c", `MASTER_PORT=$((MASTER_PORT + 1)) exec "$@"`, "demo"}, demo...)
	a := accept(t, render(t, append([]string{"--name", "demo", "--nodes", "2", "--nproc-per-node", "2", "--image", "i", "--params", "1M", "--host-reserve", "1GiB",
		"--port", freePorts(t, 2), "--ebb", ebb, "--env", "EBB_DEVICE=soft", "--chunk-mb", "2", "--"}, program...)...))

	certificate, key, trusted := selfSigned(t)
	const token = "0123456789abcdef0123456789abcdef"
	var nodes []*node
	var trainers, servers []*process
	var urls []string
	for i := range 2 {
		n := schedule(t, a.jobs[0].Spec.Template.Spec, a.jobs[0].Name, i, image(i)...)
		n.secret("serve-token", "token", []byte(token+"\n"))
		n.secret("serve-tls", "tls.crt", certificate)
		n.secret("serve-tls", "tls.key", key)
		serve := n.pod.InitContainers[0]
		port := freePorts(t, 1) // for the pods share an address here
		serve.Args = slices.Clone(serve.Args)
		for j, arg := range serve.Args {
			serve.Args[j] = strings.ReplaceAll(arg, ":7737", ":"+port)
		}
		nodes = append(nodes, n)
		servers = append(servers, n.start(serve))
		urls = append(urls, "https://127.0.0.1:"+port)
	}
	controller := http.Client{Timeout: hang, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true}}
	for i, url := range urls {
		until(t, "ebb serve answers the probe", func() bool {
			reply, err := controller.Get(url + nodes[i].pod.InitContainers[0].ReadinessProbe.HTTPGet.Path)
			if err == nil {
				_ = reply.Body.Close()
			}
			return err == nil && reply.StatusCode == http.StatusOK
		}, servers[i])
	}
	for _, n := range nodes {
		trainers = append(trainers, n.start(n.pod.Containers[0]))
	}
	// ask sends a request to a pod, and returns its status and the number of ranks that did it.
	ask := func(i int, path, shown string) (status, done int) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, urls[i]+path, strings.NewReader(`{"timeout_s":60}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", "Bearer "+shown)
		reply, err := controller.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		text, _ := io.ReadAll(reply.Body)
		var said struct {
			Ranks struct{ Total, Done int }
		}
		_ = json.Unmarshal(text, &said)
		return reply.StatusCode, said.Ranks.Done
	}
	rollouts, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rollouts.Close()
	if status, _ := ask(0, "/v1/pause", "a wrong token of 32 characters..."); status != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d", status)
	}
	both := func(path string) {
		t.Helper()
		for i := range urls {
			until(t, path+" on both ranks of node "+fmt.Sprint(i), func() bool {
				status, done := ask(i, path, token)
				return status == http.StatusOK && done == 2
			}, trainers...)
		}
	}
	both("/v1/pause")
	for _, n := range nodes {
		if parked := backups(files(t, n.volumes["scratch"])); !slices.ContainsFunc(parked, func(name string) bool { return strings.HasSuffix(name, ".bak") }) {
			t.Errorf("nothing is parked on node %d: %v", n.index, parked)
		}
	}
	both("/v1/resume")
	fmt.Fprintln(rollouts, "1")
	both("/v1/pause")

	// Node 1 is deleted while it is paused: its ranks end at SIGTERM. So is node 0, whose ranks are killed, as they are
	// when they do not end in time, or for their memory: then none of its ebb exec removes anything.
	for i, n := range nodes {
		n.hooks()
		if left := backups(files(t, n.volumes["scratch"])); len(left) == 0 {
			t.Errorf("the hooks of node %d took the files of ranks that live", i)
		}
	}
	if err := syscall.Kill(trainers[1].cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := trainers[1].wait(t); err == nil {
		t.Error("a pod that was deleted has succeeded")
	}
	nodes[1].empty()
	nodes[0].kill(trainers[0], servers[0])
	if left := backups(files(t, nodes[0].volumes["scratch"])); len(left) == 0 {
		t.Error("ranks that were killed have left nothing for ebb serve's container")
	}
	for i, n := range nodes {
		withinLimit(t, servers[i], n.pod.InitContainers[0])
		if err := syscall.Kill(servers[i].cmd.Process.Pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := servers[i].wait(t); err != nil {
			t.Errorf("ebb serve ended with %v\n%s", err, servers[i].said())
		}
		n.empty()
	}
}

// empty checks that nothing of a rank is on the node's disk.
func (n *node) empty() {
	n.t.Helper()
	if left := backups(files(n.t, n.volumes["scratch"])); len(left) > 0 {
		n.t.Errorf("left on node %d: %v", n.index, left)
	}
}

// withinLimit checks that the processes of a container have never had more memory than half of its limit.
func withinLimit(t *testing.T, p *process, c corev1.Container) {
	t.Helper()
	total := int64(0)
	for _, pid := range p.processes(t) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(status), "VmHWM:")
		var kib int64
		if _, err := fmt.Sscan(after, &kib); err != nil {
			t.Fatal(err)
		}
		total += kib
	}
	t.Logf("%s had %d MiB", p.name, total>>10)
	if limit := c.Resources.Limits.Memory().Value(); total == 0 || total<<10 > limit/2 {
		t.Errorf("%s had %d KiB, of %d bytes", p.name, total, limit)
	}
}

// selfSigned is a certificate of this machine with its key, and who trusts it.
func selfSigned(t *testing.T) (certificate, key []byte, trusted *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	var c, k bytes.Buffer
	_ = pem.Encode(&c, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	_ = pem.Encode(&k, &pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	trusted = x509.NewCertPool()
	trusted.AppendCertsFromPEM(c.Bytes())
	return c.Bytes(), k.Bytes(), trusted
}
