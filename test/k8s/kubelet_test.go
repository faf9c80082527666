package k8s

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// This file does with a job's pods what kubelets do, as far as processes of this machine can: volumes are
// directories, the fields of the pod are put in the environment and the arguments, the containers are run as the
// user of the pod, and the hooks at their time. All pods share the network of this machine.

// node is one pod on a node of its own: of a job, or of a DaemonSet, which has no index.
type node struct {
	t       *testing.T
	pod     corev1.PodSpec
	name    string // of the job or set
	index   int
	volumes map[string]string // name to directory
	config  map[string]string // of the ConfigMap
	image   []string          // the environment of the image
}

// hang is when waiting counts as waiting for ever.
const hang = 3 * time.Minute

// schedule gives a pod its node.
func schedule(t *testing.T, pod corev1.PodSpec, name string, index int, image ...string) *node {
	t.Helper()
	n := &node{t: t, pod: pod, name: name, index: index, volumes: map[string]string{}, image: image}
	// Paths of sockets are short, and the scratch is no memory.
	short := temporary(t, "")
	disk := temporary(t, filepath.Join(root, "build"))
	for _, v := range n.pod.Volumes {
		parent := short
		if v.Name == "scratch" {
			parent = disk
		}
		dir := filepath.Join(parent, v.Name)
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil { // an emptyDir is so
			t.Fatal(err)
		}
		n.volumes[v.Name] = dir
	}
	return n
}

// temporary is a directory that every user may enter; it is gone after the test.
func temporary(t *testing.T, parent string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "k8s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// user is that of the pod, or this one where this is not root.
func (n *node) user() (uid, gid int) {
	if os.Geteuid() != 0 {
		return os.Geteuid(), os.Getegid()
	}
	return int(*n.pod.SecurityContext.RunAsUser), int(*n.pod.SecurityContext.RunAsGroup)
}

func (n *node) groups() (list []uint32) {
	if group := n.pod.SecurityContext.FSGroup; group != nil {
		list = append(list, uint32(*group))
	}
	return list
}

// secret puts a Secret's key in a volume, as the kubelet does: root's, for the pod's group to read.
func (n *node) secret(volume, key string, content []byte) {
	n.t.Helper()
	path := filepath.Join(n.volumes[volume], key)
	mode := os.FileMode(0)
	for _, v := range n.pod.Volumes {
		if v.Name == volume {
			mode = os.FileMode(*v.Secret.DefaultMode)
		}
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		n.t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if _, gid := n.user(); os.Chown(path, 0, gid) != nil {
			n.t.Fatal("chown " + path)
		}
	}
}

// command is a container's process, or one that is run in it.
func (n *node) command(c corev1.Container, words []string) *exec.Cmd {
	n.t.Helper()
	hostname := fmt.Sprintf("%s-%d", n.name, n.index)
	fields := map[string]string{
		"metadata.name": hostname + "-x7k2p", "metadata.namespace": "default", "spec.nodeName": fmt.Sprintf("node-%d", n.index),
		"metadata.labels['batch.kubernetes.io/job-name']":                  n.name,
		"metadata.annotations['batch.kubernetes.io/job-completion-index']": strconv.Itoa(n.index),
	}
	environ := append(slices.Clone(n.image), "PATH="+filepath.Dir(ebb)+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME="+hostname, "TMPDIR="+n.volumes["tmp"])
	values := map[string]string{}
	for name, value := range n.config {
		environ = append(environ, name+"="+n.here(c, value))
	}
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			var known bool
			if value, known = fields[e.ValueFrom.FieldRef.FieldPath]; !known {
				n.t.Fatalf("the field %s of a pod", e.ValueFrom.FieldRef.FieldPath)
			}
		}
		value = n.here(c, expansion.Expand(value, expansion.MappingFuncFor(values)))
		values[e.Name] = value
		environ = append(environ, e.Name+"="+value)
	}
	var argv []string
	for _, word := range words {
		argv = append(argv, n.here(c, expansion.Expand(word, expansion.MappingFuncFor(values))))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = environ, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		uid, gid := n.user()
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: n.groups()}
	}
	if path, err := lookPath(argv[0], environ); err == nil {
		cmd.Path, cmd.Err = path, nil
	}
	return cmd
}

func lookPath(name string, environ []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, e := range environ {
		if list, ok := strings.CutPrefix(e, "PATH="); ok {
			for dir := range strings.SplitSeq(list, ":") {
				if path := filepath.Join(dir, name); exec.Command("test", "-x", path).Run() == nil {
					return path, nil
				}
			}
		}
	}
	return "", exec.ErrNotFound
}

// here puts the directories of this machine in place of the paths of ebb's volumes, and this machine in place of
// node 0, whose name only a cluster knows.
func (n *node) here(c corev1.Container, text string) string {
	for _, m := range c.VolumeMounts {
		if strings.HasPrefix(m.MountPath, "/ebb/") {
			text = strings.ReplaceAll(text, m.MountPath, n.volumes[m.Name])
		}
	}
	return strings.ReplaceAll(text, fmt.Sprintf("--master_addr=%s-0.%s", n.name, n.pod.Subdomain), "--master_addr=127.0.0.1")
}

// process is a container that runs.
type process struct {
	name  string
	cmd   *exec.Cmd
	out   string // file with what it printed
	ended chan error
}

// start runs a container. At the end of the test it is killed, if it still runs.
func (n *node) start(c corev1.Container) *process {
	n.t.Helper()
	p := &process{name: fmt.Sprintf("%s of node %d", c.Name, n.index), cmd: n.command(c, slices.Concat(c.Command, c.Args)), ended: make(chan error, 1)}
	out, err := os.CreateTemp(n.volumes["tmp"], "out")
	if err != nil {
		n.t.Fatal(err)
	}
	defer out.Close()
	p.out, p.cmd.Stdout, p.cmd.Stderr = out.Name(), out, out
	if err := p.cmd.Start(); err != nil {
		n.t.Fatalf("%s: %v", p.name, err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	n.t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		if n.t.Failed() {
			n.t.Logf("%s:\n%s", p.name, p.said())
		}
	})
	return p
}

func (p *process) said() string {
	text, _ := os.ReadFile(p.out)
	return string(text)
}

// wait waits for a container's end.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
		return err
	case <-time.After(hang):
		t.Fatalf("%s does not end:\n%s", p.name, p.said())
		return nil
	}
}

// processes are those of a container that stayed in the group that it was started in.
func (p *process) processes(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if group, err := syscall.Getpgid(pid); err == nil && group == p.cmd.Process.Pid {
			pids = append(pids, pid)
		}
	}
	return pids
}

// kill kills a container with all that runs in it, which the variable of its node's device tells; another container
// of the node goes on.
func (n *node) kill(p, other *process) {
	n.t.Helper()
	mark := []byte(n.image[slices.IndexFunc(n.image, func(e string) bool { return strings.HasPrefix(e, "SOFTGPU_NODE=") })] + "\x00")
	spared := other.processes(n.t)
	for alive := true; alive; {
		alive = false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || slices.Contains(spared, pid) {
				continue
			}
			environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
			if err == nil && bytes.Contains(environ, mark) {
				alive = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	if err := p.wait(n.t); err == nil {
		n.t.Errorf("%s was killed, and has succeeded", p.name)
	}
}

// hooks runs the hooks of all containers, as the kubelet does at the beginning of a pod's end: at once, while
// everything in it lives.
func (n *node) hooks() {
	n.t.Helper()
	var running sync.WaitGroup
	for _, c := range slices.Concat(n.pod.InitContainers, n.pod.Containers) {
		if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
			continue
		}
		cmd := n.command(c, c.Lifecycle.PreStop.Exec.Command)
		running.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				n.t.Errorf("hook of %s: %v\n%s", c.Name, err, out)
			}
		})
	}
	running.Wait()
}

// until waits for something that is bound to happen, or for a container that ended before it.
func until(t *testing.T, what string, happened func() bool, containers ...*process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for !happened() {
		for _, p := range containers {
			select {
			case err := <-p.ended:
				p.ended <- err
				t.Fatalf("before %s, %s ended: %v\n%s", what, p.name, err, p.said())
			default:
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not in %v: %s", hang, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// given are the ports that freePorts gave, at which nobody may listen yet.
var given = map[int]bool{}

// freePorts is the first of neighbouring ports at which nobody listens, of those that the kernel gives nobody who does
// not ask for them: nobody else gets them by chance, and who connects before anybody listens is not connected to itself.
// Each is given once.
func freePorts(t *testing.T, count int) string {
	t.Helper()
	var low, high int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	from, to := 10_000, low-count
	if from >= to {
		from, to = high+1, 65_536-count
	}
	free := func(port int) bool {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err == nil {
			_ = l.Close()
		}
		return err == nil && !given[port]
	}
	for range 1000 {
		if from >= to {
			break
		}
		first, n := from+rand.IntN(to-from), 0
		for n < count && free(first+n) {
			n++
		}
		if n < count {
			continue
		}
		for i := range count {
			given[first+i] = true
		}
		return strconv.Itoa(first)
	}
	t.Fatalf("no %d ports are free beside those that the kernel gives, %d to %d", count, low, high)
	return ""
}

// files are the files and directories below a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != dir {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return nil // it may go while it is looked at
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
