package doctor

import (
	"context"
	"os"
	"strings"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
)

// judgeNamespaces: by pid and start time ebb proves that a process is dead. What hides processes, or shifts
// their clock, leaves the files of dead processes without a launcher in place.
func judgeNamespaces(s system) Finding {
	proc := mountAt(s, "/proc")
	for _, option := range proc.options {
		if value, hides := strings.CutPrefix(option, "hidepid="); hides && value != "0" && value != "off" {
			return warn("nothing, where ranks run under ebb run or ebb exec; else mount /proc with hidepid=0",
				"/proc hides the processes of others (hidepid=%s): files of dead processes without a launcher are kept, since nobody can see that they are dead", value)
		}
	}
	// A time namespace of its own is one whose offset from the boot is not zero.
	offsets, err := s.read("/proc/self/timens_offsets")
	if err == nil {
		for line := range strings.Lines(offsets) {
			f := strings.Fields(line)
			if len(f) == 3 && (f[0] == "boottime" || f[0] == "7") && (f[1] != "0" || f[2] != "0") {
				return warn("nothing, where ranks run under ebb run or ebb exec in the same container",
					"this is a time namespace of its own (boot clock shifted by %s s): start times of processes are told by another clock outside, so ebb does not take a process for dead by them", f[1])
			}
		}
	}
	if depth := len(strings.Fields(s.field("/proc/self/status", "NSpid"))); depth > 1 {
		return ok("a pid namespace of its own, %d deep; ranks and ebb gc should be in the same one", depth)
	}
	return ok("processes and their start times are told as they are")
}

// judgeContainer says what of a container matters.
func judgeContainer(s system) Finding {
	kind := containerKind(s)
	filter := s.field("/proc/self/status", "Seccomp") == "2"
	unprivileged := s.field("/proc/self/status", "NoNewPrivs") == "1"
	var with []string
	if filter {
		with = append(with, "system calls are filtered (seccomp): ebb needs none that the default profiles refuse, and no io_uring")
	}
	if unprivileged {
		with = append(with, "no new privileges")
	}
	text := "no container"
	if kind != "" {
		text = "a container (" + kind + ")"
	}
	if len(with) > 0 {
		text += "; " + strings.Join(with, "; ")
	}
	f := ok("%s", text)
	if kind != "" && len(gpus(s)) > 0 && !s.exists("/dev/nvidiactl") {
		f = warn("start it with GPU access (docker --gpus all, Kubernetes resources.limits nvidia.com/gpu)",
			"%s; the node has GPUs, and the container has no /dev/nvidiactl", text)
	}
	return f.fact("container", "%s", text)
}

func containerKind(s system) string {
	environ, _ := s.read("/proc/1/environ")
	groups, _ := s.read("/proc/1/cgroup")
	switch {
	case s.exists("/run/.containerenv"):
		return "podman"
	case s.exists("/.singularity.d"):
		return "Apptainer"
	case s.exists("/var/run/secrets/kubernetes.io"):
		return "Kubernetes"
	case s.exists("/.dockerenv"):
		return "docker"
	case strings.Contains(groups, "/kubepods"):
		return "Kubernetes"
	case strings.Contains(groups, "/docker/"), strings.Contains(groups, "/docker-"):
		return "docker"
	}
	for entry := range strings.SplitSeq(environ, "\x00") {
		if kind, isKind := strings.CutPrefix(entry, "container="); isKind {
			return kind
		}
	}
	return ""
}

// staleSockets looks for control sockets of dead ranks.
func (x examination) staleSockets(context.Context) Finding {
	dead, err := control.RemoveDead(control.Dirs(x.getenv, os.Geteuid()), true)
	switch {
	case err != nil:
		return skip("%s", errorText(err))
	case len(dead) > 0:
		return warn("ebb gc", "dead ranks left %s, such as %s, in nobody's way", launch.Count(len(dead), "control socket"), dead[0])
	}
	return ok("no control sockets of dead ranks")
}
