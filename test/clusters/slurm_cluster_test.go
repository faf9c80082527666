package clusters

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slurmCluster is a Slurm of the test's own: a controller and nodes, each in namespaces of its own, so that a node has an
// address, a /tmp, a /dev/shm and processes that no other has, and all of that ends with it. Everything is a child of
// the test and none of it is a daemon; nothing listens on the host.
type slurmCluster struct {
	t     *testing.T
	dir   string // of everything: configuration, state, logs, the disks of the nodes
	ctl   *daemon
	nodes []*slurmNode
}

// slurmNode is a node. Its disk is mounted at slurmCluster.local, on every node another directory.
type slurmNode struct {
	*daemon
	name, disk string
}

// A user who is not root owns the jobs.
const slurmUser = 65534

// subnet is one of the namespaces alone.
const subnet = "10.199.7."

// local is where each node has its own disk, and ebb a copy of dist/ that the user can read.
func (c *slurmCluster) local() string { return filepath.Join(c.dir, "local") }
func (c *slurmCluster) ebb() string   { return filepath.Join(c.dir, "dist/bin/ebb") }

// newSlurm starts a cluster, which is gone at the end of the test.
func newSlurm(t *testing.T, nodes int) *slurmCluster {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "start Slurm", errors.New("it takes root"))
	}
	debian(t, "slurm-wlm:slurmctld", "munge:munged", "iproute2:ip")
	if out, err := exec.Command("unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "--", "true").CombinedOutput(); err != nil {
		missing(t, "make namespaces for nodes", fmt.Errorf("%w: %s", err, out))
	}
	dir, err := os.MkdirTemp("/var/tmp", "ebb-slurm-") // short, for sockets, and not below /tmp, which nodes have their own
	if err != nil {
		t.Fatal(err)
	}
	c := &slurmCluster{t: t, dir: dir}
	t.Cleanup(c.end)
	c.install(nodes)
	munge := filepath.Join(dir, "munge")
	c.start("munged", "munged", "--foreground", "--force", "--key-file="+munge+"/key", "--socket="+munge+"/socket", "--pid-file="+munge+"/pid",
		"--log-file="+munge+"/log", "--seed-file="+munge+"/seed")
	c.await("munge's socket", func() bool { _, err := os.Stat(munge + "/socket"); return err == nil })
	c.ctl = c.start("slurmctld", "unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--", "bash", "-c",
		`hostname ctl && ip link set lo up && ip link add br0 type bridge && ip addr add `+subnet+`254/24 dev br0 && ip link set br0 up && mount --bind "$0/hosts" /etc/hosts && touch "$0/up" && exec slurmctld -D`, dir)
	c.await("the controller's network", func() bool { _, err := os.Stat(dir + "/up"); return err == nil })
	for i := range nodes {
		n := &slurmNode{name: fmt.Sprintf("node%d", i+1), disk: filepath.Join(dir, "disks", fmt.Sprintf("node%d", i+1))}
		c.nodes = append(c.nodes, n)
		c.boot(n)
	}
	c.idle(nodes)
	return c
}

// install writes all files of the cluster.
func (c *slurmCluster) install(nodes int) {
	c.t.Helper()
	must := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	write := func(name, text string, mode fs.FileMode) {
		c.t.Helper()
		path := filepath.Join(c.dir, name)
		must(os.WriteFile(path, []byte(text), mode))
		must(os.Chmod(path, mode))
	}
	must(os.Chmod(c.dir, 0o755))
	for _, d := range []string{"munge", "state", "spool", "log", "run", "local", "epilog.d", "disks"} {
		must(os.Mkdir(filepath.Join(c.dir, d), 0o755))
	}
	key := make([]byte, 128)
	_, err := rand.Read(key)
	must(err)
	write("munge/key", string(key), 0o600)

	hosts, lines := "127.0.0.1 localhost\n"+subnet+"254 ctl\n", ""
	for i := range nodes {
		name := fmt.Sprintf("node%d", i+1)
		hosts += fmt.Sprintf("%s%d %s\n", subnet, i+1, name)
		lines += fmt.Sprintf("NodeName=%s NodeAddr=%s%d CPUs=8 RealMemory=2000\n", name, subnet, i+1)
		disk := filepath.Join(c.dir, "disks", name)
		must(os.Mkdir(disk, 0o755))
		must(os.Chmod(disk, 0o1777))
	}
	write("hosts", hosts, 0o644)
	write("task-prolog.sh", "#!/bin/sh\necho export SLURM_TMPDIR="+c.local()+"\n", 0o755)
	for _, name := range []string{"ebb-epilog.sh", "ebb-epilog.conf"} {
		text, err := os.ReadFile(filepath.Join(root, "deploy/slurm", name))
		must(err)
		write("epilog.d/"+name, string(text), 0o755)
	}
	c.configureEpilog(c.local() + "/miles_train_offload_%U")
	write("slurm.conf", strings.ReplaceAll(`ClusterName=ebbtest
SlurmctldHost=ctl(`+subnet+`254)
AuthType=auth/munge
AuthInfo=socket=DIR/munge/socket
SlurmUser=root
StateSaveLocation=DIR/state
SlurmdSpoolDir=DIR/spool/%n
SlurmctldPidFile=DIR/run/slurmctld.pid
SlurmdPidFile=DIR/run/%n.pid
SlurmctldLogFile=DIR/log/slurmctld.log
SlurmdLogFile=DIR/log/%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=1
MessageTimeout=10
TCPTimeout=5
SchedulerParameters=bf_interval=1,sched_interval=2
SlurmdParameters=config_overrides
TaskProlog=DIR/task-prolog.sh
Epilog=DIR/epilog.d/*.sh
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`, "DIR", c.dir)+lines, 0o644)
	must(command("cp", "-r", filepath.Join(root, "dist"), filepath.Join(c.dir, "dist")))
	must(command("cp", filepath.Join(root, "examples/demo/corpus.txt"), c.dir))
	must(command("chmod", "-R", "a+rX", filepath.Join(c.dir, "dist"), filepath.Join(c.dir, "corpus.txt")))
}

// configureEpilog has ebb's epilog look in these disk directories.
func (c *slurmCluster) configureEpilog(dirs string) {
	c.t.Helper()
	text := fmt.Sprintf("ebb=%s\ndisk_dirs='%s'\nseconds=60\nlog=%s\n", c.ebb(), dirs, c.epilogLog())
	if err := os.WriteFile(filepath.Join(c.dir, "epilog.d/ebb-epilog.conf"), []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func (c *slurmCluster) epilogLog() string { return filepath.Join(c.dir, "log/epilog") }

// boot starts a node.
func (c *slurmCluster) boot(n *slurmNode) {
	c.t.Helper()
	ready, go1, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	defer ready.Close()
	number := strings.TrimPrefix(n.name, "node")
	n.daemon = c.startWith(n.name, ready, "unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "bash", "-c",
		`read -r _ && hostname "$1" && ip addr add `+subnet+number+`/24 dev eth0 && ip link set eth0 up && ip link set lo up &&
mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && mount --bind "$0/hosts" /etc/hosts && mount --bind "$0/disks/$1" "$0/local" &&
exec slurmd -D -N "$1" </dev/null`, c.dir, n.name)
	// The network of unshare's process is the node's once it is another one than ours.
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		c.t.Fatal(err)
	}
	c.await("the network of "+n.name, func() bool {
		net, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.pid()))
		return err == nil && net != own
	})
	// The kernel removes the link of a node that was killed some time after it.
	c.await("the end of the link that "+n.name+" had before", func() bool { return c.cmd(0, "ip", "link", "show", "v"+number).Run() != nil })
	c.inside("ip", "link", "add", "v"+number, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(n.pid()))
	c.inside("ip", "link", "set", "v"+number, "master", "br0", "up")
	if _, err := go1.WriteString("go\n"); err != nil {
		c.t.Fatal(err)
	}
	_ = go1.Close()
}

// kill kills a node: all its processes at once.
func (n *slurmNode) kill() { n.end(syscall.SIGKILL) }

// in is a path of the node's own file systems.
func (n *slurmNode) in(path string) string {
	init := ""
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", n.pid(), n.pid()))
	if f := strings.Fields(string(children)); len(f) > 0 {
		init = f[0]
	}
	return filepath.Join("/proc", init, "root", path)
}

// processes are those of the user that run on the node. (Those that have ended stay there as zombies: a slurmd that is
// the first process waits for nobody else's children.)
func (n *slurmNode) processes() (running []string) {
	entries, _ := filepath.Glob(n.in("/proc/[0-9]*"))
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(entry, "status"))
		if err == nil && strings.Contains(string(text), fmt.Sprintf("\nUid:\t%d\t", slurmUser)) && !strings.Contains(string(text), "\nState:\tZ") {
			name, _, _ := strings.Cut(string(text), "\n")
			running = append(running, name)
		}
	}
	return running
}

// end ends everything and removes the cluster's directory.
func (c *slurmCluster) end() {
	if c.t.Failed() {
		for _, name := range []string{"slurmctld.log", "node1.log", "epilog"} {
			text, _ := os.ReadFile(filepath.Join(c.dir, "log", name))
			c.t.Logf("the end of %s:\n%s", name, lastLines(string(text), 15))
		}
	}
	c.stopAll()
	if err := os.RemoveAll(c.dir); err != nil {
		c.t.Error(err)
	}
}

// daemon is a process that runs until it is ended.
type daemon struct {
	cmd  *exec.Cmd
	over chan struct{}
	out  *bytes.Buffer
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

func (d *daemon) end(sig syscall.Signal) {
	_ = d.cmd.Process.Signal(sig)
	<-d.over
}

var slurmDaemons = map[*slurmCluster][]*daemon{}

func (c *slurmCluster) start(name string, args ...string) *daemon {
	c.t.Helper()
	return c.startWith(name, nil, args...)
}

// startWith starts a daemon, which gets SIGKILL if this process is killed.
func (c *slurmCluster) startWith(name string, stdin io.Reader, args ...string) *daemon {
	c.t.Helper()
	d := &daemon{cmd: exec.Command(args[0], args[1:]...), over: make(chan struct{}), out: &bytes.Buffer{}}
	d.cmd.Env = c.environment()
	d.cmd.Stdin, d.cmd.Stdout, d.cmd.Stderr = stdin, d.out, d.out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the signal comes when the thread that started the process ends
		started <- d.cmd.Start()
		_ = d.cmd.Wait()
		close(d.over)
	}()
	if err := <-started; err != nil {
		c.t.Fatalf("start %s: %v", name, err)
	}
	slurmDaemons[c] = append(slurmDaemons[c], d)
	return d
}

// stopAll ends the daemons, the latest first. With the first process of its namespaces go all others of a node.
func (c *slurmCluster) stopAll() {
	list := slurmDaemons[c]
	for i := len(list) - 1; i >= 0; i-- {
		select {
		case <-list[i].over:
			if i >= 0 && c.t.Failed() {
				c.t.Logf("%v had ended: %s", list[i].cmd.Args[0], lastLines(list[i].out.String(), 5))
			}
		default:
			list[i].end(syscall.SIGKILL)
		}
	}
	delete(slurmDaemons, c)
}

func (c *slurmCluster) environment() []string {
	env := []string{"SLURM_CONF=" + filepath.Join(c.dir, "slurm.conf"), "HOME=/"}
	for _, name := range []string{"PATH", "LANG"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	return env
}

// cmd is a command in the controller's network, as this user.
func (c *slurmCluster) cmd(user int, args ...string) *exec.Cmd {
	words := []string{"--target", fmt.Sprint(c.controller()), "--net", "--uts", "--mount", "--wd=/", "--"}
	if user != 0 {
		words = append(words, "setpriv", fmt.Sprintf("--reuid=%d", user), fmt.Sprintf("--regid=%d", user), "--clear-groups", "--")
	}
	cmd := exec.Command("nsenter", append(words, args...)...)
	cmd.Env = c.environment()
	return cmd
}

// controller is a process in the controller's namespaces.
func (c *slurmCluster) controller() int { return c.ctl.pid() }

// inside runs a command as root in the controller's network.
func (c *slurmCluster) inside(args ...string) string {
	c.t.Helper()
	return c.output(c.cmd(0, args...))
}

// as runs a command of the user's.
func (c *slurmCluster) as(args ...string) string {
	c.t.Helper()
	return c.output(c.cmd(slurmUser, args...))
}

func (c *slurmCluster) output(cmd *exec.Cmd) string {
	c.t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// ran is what a command printed and how it ended.
type ran struct {
	stdout, stderr string
	status         int
}

// lastLine is the last line on standard error.
func (r ran) lastLine() string { return lastLines(r.stderr, 1) }

// verb runs a verb of ebb as a user.
func (c *slurmCluster) verb(user int, args ...string) ran {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := c.cmd(user, append([]string{c.ebb()}, args...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return ran{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// idle waits until so many nodes are idle: all jobs on them have ended, and their epilogs.
func (c *slurmCluster) idle(nodes int) {
	c.t.Helper()
	c.await(fmt.Sprintf("%d idle nodes", nodes), func() bool {
		cmd := c.cmd(0, "sinfo", "--noheader", "--states=idle", "--format=%D")
		out, err := cmd.Output()
		if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(nodes) {
			return false
		}
		jobs, err := c.cmd(0, "squeue", "--noheader").Output() // a job that is completing leaves its nodes idle, for sinfo
		return err == nil && len(bytes.TrimSpace(jobs)) == 0
	})
}

// await waits until something holds. It ends the test where that takes longer than any machine does.
func (c *slurmCluster) await(what string, holds func() bool) {
	c.t.Helper()
	const long = 6 * time.Minute
	for deadline := time.Now().Add(long); !holds(); {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: not after %v", what, long)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
