package k8s

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	psa "k8s.io/pod-security-admission/api"
)

// common are flags of every job here.
func common(more ...string) []string {
	return append([]string{"--name", "llama", "--nodes", "4", "--nproc-per-node", "8", "--image", "registry.example/team/trainer:1", "--params", "8B", "--host-reserve", "64GiB"}, more...)
}

// kinds are the flags of jobs that differ in all that can differ.
var kinds = map[string][]string{
	"job":                         common("--", "python", "train.py"),
	"job of one node":             {"--name", "a", "--nodes", "1", "--nproc-per-node", "1", "--image", "i", "--params", "1B", "--host-reserve", "1GiB", "--", "p"},
	"job of as many as there are": {"--name", strings.Repeat("a", 36), "--nodes", "5000", "--nproc-per-node", "8", "--image", "i", "--params", "1T", "--host-reserve", "64GiB", "--", "p"},
	"job with all flags": common("--namespace", "rl", "--env", "A=$(B) $$", "--env", "C=yes", "--cpu", "31.5", "--node-selector", "pool=h200,example.com/zone=a",
		"--user", "1001:100", "--port", "3000", "--storage-class", "local-nvme", "--tmp-size", "3GiB", "--termination", "10m", "--ttl", "1h",
		"--serve-port", "8443", "--serve-token-secret", "t", "--serve-tls-secret", "s", "--controller", "app=c,tier=x", "--controller-namespace", "ops",
		"--gpu-resource", "example.com/gpu", "--ebb", "/opt/ebb/bin/ebb", "--host-memory", "256GiB", "--target", "auto", "--chunk-mb", "128", "--", "sh", "-c", "echo $(hostname) $$"),
	"job in host memory":             common("--host-memory", "2TiB", "--", "p"),
	"job that needs no disk but may": common("--host-memory", "512GiB", "--target", "auto", "--", "p"),
	"job on a directory":             common("--scratch-path", "/mnt/nvme", "--", "p"),
	"job with streamed state":        common("--host-memory", "2TiB", "--stream-optimizer-state-to-disk", "--", "p"),
	"job without ebb serve":          common("--no-serve", "--", "p"),
	"jobset":                         common("--kind", "jobset", "--max-restarts", "3", "--", "p"),
	"jobset that is removed":         common("--kind", "jobset", "--ttl", "24h", "--storage-class", "local-nvme", "--", "p"),
	"raycluster":                     common("--kind", "raycluster"),
	"raycluster on a class":          common("--kind", "raycluster", "--storage-class", "local-nvme", "--ray-version", "2.52.0", "--head-memory", "16GiB"),
	"raycluster, host memory":        common("--kind", "raycluster", "--host-memory", "2TiB", "--no-serve"),
}

// A server takes every object as it is written, and no pod asks for a privilege.
func TestAServerTakesWhatIsRendered(t *testing.T) {
	for name, args := range kinds {
		t.Run(name, func(t *testing.T) {
			a := accept(t, render(t, args...))
			if len(a.pods) == 0 {
				t.Fatalf("no pod is in %v", a.kinds)
			}
			for _, p := range a.pods {
				checkPod(t, p)
				limited(t, p)
				level, why := standard(t, p.template)
				switch {
				case slices.Contains(args, "--scratch-path"):
					if len(why) == 0 || !slices.Equal(why, hostPathAlone(why)) {
						t.Errorf("%s: a directory of the node is all that may be wrong with it: %v", p.of, why)
					}
				case level != psa.LevelRestricted:
					t.Errorf("%s meets no more than %s: %v", p.of, level, why)
				}
			}
			a.wired(t)
		})
	}
}

// hostPathAlone are the reasons that speak of directories of the node.
func hostPathAlone(why []string) []string {
	return slices.DeleteFunc(slices.Clone(why), func(w string) bool { return !strings.Contains(w, "hostPath") })
}

// JSON is the same objects.
func TestJSONIsTheSame(t *testing.T) {
	for name, args := range kinds {
		t.Run(name, func(t *testing.T) {
			list := render(t, append([]string{"--json"}, args...)...)
			var items struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
				Items      []any  `json:"items"`
			}
			strictly(t, list, &items)
			var fromYAML []string
			for _, document := range documents(t, render(t, args...)) {
				var value any
				strictly(t, document, &value)
				fromYAML = append(fromYAML, asJSON(t, value))
			}
			var fromJSON []string
			for _, item := range items.Items {
				fromJSON = append(fromJSON, asJSON(t, item))
			}
			if items.Kind != "List" || items.APIVersion != "v1" || !slices.Equal(fromYAML, fromJSON) {
				t.Errorf("%s %s:\n%s\n%s", items.APIVersion, items.Kind, fromYAML, fromJSON)
			}
		})
	}
}

// limited checks that memory and ephemeral storage of every container are limited, and what is asked for is not
// more, and that nothing can be written but volumes with a size.
func limited(t *testing.T, p namedPod) {
	t.Helper()
	spec := p.template.Spec
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			limit, request := c.Resources.Limits[name], c.Resources.Requests[name]
			if limit.IsZero() || request.Cmp(limit) != 0 {
				t.Errorf("%s, container %s: %s of %v, asked for %v", p.of, c.Name, name, &limit, &request)
			}
		}
		if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
			t.Errorf("%s, container %s may write to its image", p.of, c.Name)
		}
	}
	for _, v := range spec.Volumes {
		if v.EmptyDir != nil && (v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.IsZero()) {
			t.Errorf("%s, volume %s has no limit", p.of, v.Name)
		}
		if v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault {
			limit := spec.Containers[0].Resources.Limits[corev1.ResourceEphemeralStorage]
			if v.EmptyDir.SizeLimit.Cmp(limit) > 0 {
				t.Errorf("%s, volume %s takes %v of %v", p.of, v.Name, v.EmptyDir.SizeLimit, &limit)
			}
		}
	}
}

// wired checks what a server does not: that the objects are about each other.
func (a *accepted) wired(t *testing.T) {
	t.Helper()
	var policy *networking.NetworkPolicy
	var service *core.Service
	for _, o := range a.rest {
		switch o := o.(type) {
		case *networking.NetworkPolicy:
			policy = o
		case *core.Service:
			service = o
		}
	}
	for _, p := range a.pods {
		if !labels.SelectorFromSet(policy.Spec.PodSelector.MatchLabels).Matches(labels.Set(p.template.Labels)) {
			t.Errorf("the NetworkPolicy is not about %s's pods", p.of)
		}
		if service != nil && !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(p.template.Labels)) {
			t.Errorf("the Service is not about %s's pods", p.of)
		}
	}
	for _, job := range a.jobs {
		pod := job.Spec.Template.Spec
		if service != nil && (pod.Subdomain != service.Name || service.Spec.ClusterIP != "None" || !service.Spec.PublishNotReadyAddresses) {
			t.Errorf("pods in %q have no names by the Service %s", pod.Subdomain, service.Name)
		}
		if first := fmt.Sprintf("--master_addr=%s-0.%s", job.Name, pod.Subdomain); !slices.Contains(pod.Containers[0].Args, first) {
			t.Errorf("the ranks do not meet at %s: %q", first, pod.Containers[0].Args)
		}
		if *job.Spec.Completions != *job.Spec.Parallelism {
			t.Errorf("%d nodes, and %d at a time", *job.Spec.Completions, *job.Spec.Parallelism)
		}
	}
	a.reachable(t, policy)
}

// reachable checks who reaches the port of ebb serve.
func (a *accepted) reachable(t *testing.T, policy *networking.NetworkPolicy) {
	t.Helper()
	serve := int32(0)
	for _, p := range a.pods {
		for _, c := range p.template.Spec.InitContainers {
			serve = c.Ports[0].ContainerPort
			if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
				t.Errorf("%s: ebb serve would have to end before the ranks begin", p.of)
			}
		}
	}
	own := policy.Spec.PodSelector.MatchLabels
	rules := 0
	for _, rule := range policy.Spec.Ingress {
		if len(rule.From) != 1 || rule.From[0].PodSelector == nil || len(rule.From[0].PodSelector.MatchLabels) == 0 {
			t.Errorf("from anywhere: %+v", rule)
			continue
		}
		ranks := labels.SelectorFromSet(rule.From[0].PodSelector.MatchLabels).Matches(labels.Set(own))
		opens := len(rule.Ports) == 0
		for _, port := range rule.Ports {
			last := port.Port.IntVal
			if port.EndPort != nil {
				last = *port.EndPort
			}
			opens = opens || *port.Protocol == core.ProtocolTCP && port.Port.IntVal <= serve && serve <= last
		}
		if ranks && opens && serve != 0 {
			t.Error("the pods themselves reach ebb serve")
		}
		if !ranks {
			rules++
			if !opens || len(rule.Ports) != 1 || rule.Ports[0].EndPort != nil {
				t.Errorf("the controller reaches %+v", rule.Ports)
			}
		}
	}
	if want := map[bool]int{true: 1, false: 0}[serve != 0]; rules != want {
		t.Errorf("%d rules for controllers, want %d", rules, want)
	}
}

// alone checks that the policy is about pods of its own, whom nobody reaches and who reach nobody.
func (a *accepted) alone(t *testing.T) {
	t.Helper()
	for _, o := range a.rest {
		if p, ok := o.(*networking.NetworkPolicy); ok && (len(p.Spec.Ingress)+len(p.Spec.Egress) > 0 || len(p.Spec.PolicyTypes) != 2 || len(p.Spec.PodSelector.MatchLabels) == 0) {
			t.Errorf("the NetworkPolicy: %+v", p.Spec)
		}
	}
}
