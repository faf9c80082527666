package k8s

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// kustomize is what kubectl makes of a directory below deploy/k8s: it has the same library in it.
func kustomize(t *testing.T, dir string) []byte {
	t.Helper()
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, "deploy/k8s", dir))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := objects.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// daemonSet is the one in a stream, with its settings.
func daemonSet(t *testing.T, stream []byte) (set appsv1.DaemonSet, config corev1.ConfigMap) {
	t.Helper()
	for _, document := range documents(t, stream) {
		switch {
		case regexp.MustCompile(`(?m)^kind: DaemonSet$`).Match(document):
			strictly(t, document, &set)
		case regexp.MustCompile(`(?m)^kind: ConfigMap$`).Match(document):
			strictly(t, document, &config)
		}
	}
	if set.Name == "" || config.Name == "" {
		t.Fatalf("no DaemonSet, or no ConfigMap, in\n%s", stream)
	}
	return set, config
}

func TestAServerTakesTheNodePart(t *testing.T) {
	for dir, want := range map[string][]string{
		"base":    {"ConfigMap", "DaemonSet", "NetworkPolicy"},
		"example": {"ConfigMap", "DaemonSet", "Namespace", "NetworkPolicy"},
	} {
		t.Run(dir, func(t *testing.T) {
			stream := kustomize(t, dir)
			a := accept(t, stream)
			slices.Sort(a.kinds)
			if !slices.Equal(a.kinds, want) {
				t.Errorf("objects: %v, want %v", a.kinds, want)
			}
			set, config := daemonSet(t, stream)
			pod := namedPod{"DaemonSet", set.Spec.Template}
			checkPod(t, pod)
			if _, why := standard(t, set.Spec.Template); len(why) == 0 || !slices.Equal(why, hostPathAlone(why)) {
				t.Errorf("a directory of the node is all that may be wrong with its pods: %v", why)
			}
			for _, c := range set.Spec.Template.Spec.Containers {
				if c.Resources.Limits.StorageEphemeral().IsZero() || c.Resources.Requests.Memory().IsZero() || c.EnvFrom[0].ConfigMapRef.Name != config.Name {
					t.Errorf("container %s: %+v, settings of %s", c.Name, c.Resources, c.EnvFrom[0].ConfigMapRef.Name)
				}
			}
			a.alone(t)
		})
	}
}

// The containers do what they are for, as their user.
func TestTheNodePartReclaimsAndLooks(t *testing.T) {
	needs(t, filepath.Join(root, "dist/lib/libebb.so"))
	set, config := daemonSet(t, kustomize(t, "base"))
	n := schedule(t, set.Spec.Template.Spec, set.Name, 0, image(0)...)
	n.config = config.Data

	// A run that was killed leaves the directory of its rank.
	disk := filepath.Join(n.volumes["scratch"], "ebb-1000")
	killed := set.Spec.Template.Spec.Containers[0]
	killed.Name, killed.Command = "killed", []string{
		ebb, "exec", "--device", "soft", "--rank", "0", "--job", "gone", "--offload-train", "--offload-train-target", "disk",
		"--offload-train-disk-dir", disk, "--", "sh", "-c", "kill -9 $PPID; sleep 600",
	}
	killed.Args = nil
	if err := n.start(killed).wait(t); err == nil {
		t.Fatal("a run that was killed has succeeded")
	}
	if left := files(t, disk); !slices.Contains(left, "gone/actor_cell0_rank0") {
		t.Fatalf("a killed run leaves %v", left)
	}

	var running []*process
	for _, c := range set.Spec.Template.Spec.Containers {
		running = append(running, n.start(c))
	}
	until(t, "ebb gc has removed it", func() bool {
		return len(backups(files(t, disk))) == 0 && strings.Contains(running[0].said(), "removed")
	}, running...)
	doctor := set.Spec.Template.Spec.Containers[1]
	until(t, "ebb doctor finds the node fit", func() bool {
		probe := doctor.ReadinessProbe.Exec.Command
		return n.command(doctor, probe).Run() == nil
	}, running...)
	for _, p := range running {
		if err := syscall.Kill(p.cmd.Process.Pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := p.wait(t); err != nil {
			t.Errorf("%s ended with %v\n%s", p.name, err, p.said())
		}
	}
	if _, err := os.Stat(disk); err != nil {
		t.Error(err)
	}
}
