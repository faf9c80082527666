package k8s

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

// ebb is the command under test, built from this tree.
var ebb, root string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "ebb-k8s-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		defer func() { // softgpu removes the account of a node when the same user starts one after it
			left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/softgpu-*-k8s-%d-*", os.Getpid()))
			for _, file := range left {
				_ = os.Remove(file)
			}
		}()
		if err := os.Chmod(dir, 0o755); err != nil { // it is run as other users too
			panic(err)
		}
		if root, err = filepath.Abs("../.."); err != nil {
			panic(err)
		}
		ebb = filepath.Join(dir, "ebb")
		build := exec.Command("go", "build", "-o", ebb, "./cmd/ebb")
		build.Dir, build.Stderr = root, os.Stderr
		if err := build.Run(); err != nil {
			panic("building ebb: " + err.Error())
		}
		return m.Run()
	}())
}

// render is what ebb k8s render prints.
func render(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(ebb, append([]string{"k8s", "render"}, args...)...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out
}

// documents takes a stream of YAML apart.
func documents(t *testing.T, stream []byte) (all [][]byte) {
	t.Helper()
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(bytes.TrimSpace(onlyContent(document))) > 0 {
			all = append(all, document)
		}
	}
}

// onlyContent is a document without lines of comment.
func onlyContent(document []byte) (content []byte) {
	for line := range bytes.Lines(document) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			content = append(content, line...)
		}
	}
	return content
}

// firstJob is the Job that the JobSet controller makes first of one in a set.
func firstJob(set jobset.JobSet, r jobset.ReplicatedJob) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: *r.Template.ObjectMeta.DeepCopy(), Spec: *r.Template.Spec.DeepCopy()}
	job.Name = set.Name + "-" + r.Name + "-0"
	job.Spec.Template.Spec.Subdomain = set.Spec.Network.Subdomain
	return job
}

// accepted is what an API server with its defaults makes of a stream of objects: every object is decoded strictly and
// checked. Of kinds that are none of its own, what is in them is.
type accepted struct {
	kinds []string
	jobs  []*batchv1.Job
	pods  []namedPod
	rest  []runtime.Object // internal types
}

// namedPod is a pod as some controller makes it.
type namedPod struct {
	of       string
	template corev1.PodTemplateSpec
}

func accept(t *testing.T, stream []byte) (a accepted) {
	t.Helper()
	for _, document := range documents(t, stream) {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(document, &meta); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		a.kinds = append(a.kinds, meta.Kind)
		switch meta.Kind {
		case "JobSet":
			var set jobset.JobSet
			strictly(t, document, &set)
			if set.APIVersion != jobset.SchemeGroupVersion.String() || len(set.Spec.ReplicatedJobs) != 1 {
				t.Errorf("JobSet %s with %d jobs", set.APIVersion, len(set.Spec.ReplicatedJobs))
			}
			for _, r := range set.Spec.ReplicatedJobs {
				job := firstJob(set, r)
				a.jobs = append(a.jobs, job)
				checkJob(t, job.DeepCopy())
				a.pods = append(a.pods, namedPod{"JobSet", r.Template.Spec.Template})
			}
		case "RayCluster":
			var cluster rayv1.RayCluster
			strictly(t, document, &cluster)
			a.rayPods(t, cluster)
		default:
			a.native(t, document)
		}
	}
	return a
}

func strictly(t *testing.T, document []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(document, into); err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
}

var strict = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)

// native decodes an object of Kubernetes itself and checks it.
func (a *accepted) native(t *testing.T, document []byte) {
	t.Helper()
	object, err := runtime.Decode(strict.UniversalDeserializer(), document)
	if err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	switch o := object.(type) {
	case *batchv1.Job:
		a.jobs = append(a.jobs, o)
		a.pods = append(a.pods, namedPod{"Job", o.Spec.Template})
		checkJob(t, o.DeepCopy())
		return
	}
	a.rest = append(a.rest, checked(t, object))
}

// internal gives an object its defaults, and makes it what the checks want.
func internal(t *testing.T, object runtime.Object) runtime.Object {
	t.Helper()
	object = object.DeepCopyObject()
	legacyscheme.Scheme.Default(object)
	to, err := legacyscheme.Scheme.ConvertToVersion(object, runtime.InternalGroupVersioner)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func checked(t *testing.T, object runtime.Object) runtime.Object {
	t.Helper()
	to := internal(t, object)
	if meta, ok := to.(metav1.ObjectMetaAccessor); ok && meta.GetObjectMeta().GetNamespace() == "" {
		meta.GetObjectMeta().SetNamespace("default")
	}
	switch o := to.(type) {
	case *core.Service:
		o.Spec.ClusterIPs = []string{o.Spec.ClusterIP} // as the server does
		none(t, "Service", corevalidation.ValidateServiceCreate(o))
	case *networking.NetworkPolicy:
		none(t, "NetworkPolicy", networkingvalidation.ValidateNetworkPolicy(o, networkingvalidation.NetworkPolicyValidationOptions{}))
	case *apps.DaemonSet:
		none(t, "DaemonSet", appsvalidation.ValidateDaemonSet(o, corevalidation.PodValidationOptions{}))
	case *core.ServiceAccount:
		none(t, "ServiceAccount", corevalidation.ValidateServiceAccount(o))
	case *core.Namespace:
		o.Namespace = ""
		none(t, "Namespace", corevalidation.ValidateNamespace(o))
	case *core.ConfigMap:
		none(t, "ConfigMap", corevalidation.ValidateConfigMap(o))
	default:
		t.Errorf("nothing checks %T", o)
	}
	return to
}

// checkJob checks a Job with the selector that the server gives it.
func checkJob(t *testing.T, job *batchv1.Job) {
	t.Helper()
	if job.Namespace == "" {
		job.Namespace = "default"
	}
	job.UID = "6f1c2ad4-0000-4000-8000-000000000000"
	for label, value := range map[string]string{
		batchv1.ControllerUidLabel: string(job.UID), "controller-uid": string(job.UID),
		batchv1.JobNameLabel: job.Name, "job-name": job.Name,
	} {
		job.Spec.Template.Labels[label] = value
	}
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{batchv1.ControllerUidLabel: string(job.UID)}}
	to, ok := internal(t, job).(*batch.Job)
	if !ok {
		t.Fatalf("a Job is %T", to)
	}
	none(t, "Job", batchvalidation.ValidateJobCreate(to, batchvalidation.JobValidationOptions{RequirePrefixedLabels: true}))
}

func none(t *testing.T, what string, errs field.ErrorList) {
	t.Helper()
	if err := errs.ToAggregate(); err != nil {
		t.Errorf("a server refuses the %s: %v", what, err)
	}
}

// checkPod checks a pod of a template, as the server does when a controller makes it.
func checkPod(t *testing.T, p namedPod) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: *p.template.ObjectMeta.DeepCopy(), Spec: *p.template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = "a", "default"
	to, ok := internal(t, pod).(*core.Pod)
	if !ok {
		t.Fatalf("a Pod is %T", to)
	}
	to.Spec.ServiceAccountName, to.Spec.DeprecatedServiceAccount = "default", "default" //nolint:staticcheck // the old field too, as admission does
	none(t, p.of+"'s pod", corevalidation.ValidatePodCreate(to, corevalidation.PodValidationOptions{ResourceIsPod: true}))
}

// standard is the strictest of the pod security standards that a pod meets.
func standard(t *testing.T, template corev1.PodTemplateSpec) (level psa.Level, why []string) {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level = psa.LevelPrivileged
	for _, l := range []psa.Level{psa.LevelBaseline, psa.LevelRestricted} {
		version := psa.LevelVersion{Level: l, Version: psa.LatestVersion()}
		broken := false
		for _, result := range evaluator.EvaluatePod(version, &template.ObjectMeta, &template.Spec) {
			if !result.Allowed {
				broken = true
				why = append(why, result.ForbiddenReason+": "+result.ForbiddenDetail)
			}
		}
		if broken {
			return level, why
		}
		level = l
	}
	return level, why
}

func (a *accepted) rayPods(t *testing.T, c rayv1.RayCluster) {
	t.Helper()
	a.pods = append(a.pods, namedPod{"RayCluster's head", c.Spec.HeadGroupSpec.Template})
	for _, g := range c.Spec.WorkerGroupSpecs {
		a.pods = append(a.pods, namedPod{"RayCluster's worker", g.Template})
		if g.Replicas == nil || g.MinReplicas == nil || g.MaxReplicas == nil || *g.Replicas < *g.MinReplicas || *g.Replicas > *g.MaxReplicas {
			t.Errorf("group %s: replicas %v of %v to %v", g.GroupName, g.Replicas, g.MinReplicas, g.MaxReplicas)
		}
	}
	// What KubeRay's operator refuses.
	if len(c.Name) > 50 || len(c.Spec.HeadGroupSpec.Template.Spec.Containers) == 0 || c.Spec.HeadGroupSpec.RayStartParams == nil {
		t.Errorf("KubeRay refuses %s", c.Name)
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
