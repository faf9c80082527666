package k8s

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// rewrite makes the tests write what they would compare with: EBB_TEST_REWRITE=1 go test ./internal/k8s
var rewrite = os.Getenv("EBB_TEST_REWRITE") != ""

// sample is a job with everything that every kind has.
func sample() Options {
	return Options{
		Kind: KindJob, Name: "llama", Nodes: 4, PerNode: 8, Image: "registry.example/trainer:1", EBB: "ebb",
		Command: []string{"python", "train.py"}, GPU: "nvidia.com/gpu", User: 1000, Group: 1000, Port: 29500,
		Termination: DefaultTermination,
		Sizes: Sizes{
			Target: "disk", ChunkMB: 256, QuotaGB: 449, Host: 2 << 30, Program: 64 << 30, Memory: 66 << 30, Disk: 449e9, Tmp: 10 << 30,
		},
		Serve: &Serve{Port: 7737, TokenSecret: "llama-serve-token", TLSSecret: "llama-serve-tls", Controller: []Pair{{"app", "controller"}}},
	}
}

func TestWhatIsRendered(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"job": func(*Options) {},
		"jobset-with-volumes-of-a-class": func(o *Options) {
			o.Kind, o.MaxRestarts, o.TTL, o.Namespace = KindJobSet, 3, 24*time.Hour, "rl"
			o.StorageClass, o.CPU = "local-nvme", "32"
			o.NodeSelector = []Pair{{"pool", "h200"}, {"zone", "a"}}
			o.Env = []Pair{{"HOME", "/home/me"}, {"NCCL_DEBUG", "WARN"}}
			o.Command = []string{"sh", "-c", "echo $(hostname) $$ && exec python train.py --name 'a b'"}
			o.Serve.ControllerNamespace = "control"
			o.Sizes.Target, o.Sizes.HostMB, o.Sizes.ChunkMB = "auto", 16384, 128
			o.Sizes.Host, o.Sizes.Memory = 130<<30, 200<<30
		},
		"job-on-a-directory-of-the-nodes": func(o *Options) {
			o.ScratchPath, o.Serve, o.Nodes, o.Sizes.QuotaGB = "/mnt/nvme", nil, 1, 0
			o.EBB, o.User, o.Group = "/opt/ebb/bin/ebb", 1234, 100
		},
		"job-in-host-memory": func(o *Options) {
			o.Sizes = Sizes{Target: "cpu", ChunkMB: 256, Host: 400 << 30, Program: 64 << 30, Memory: 500 << 30, Tmp: 10 << 30}
		},
		"job-with-streamed-state": func(o *Options) {
			o.Sizes = Sizes{Target: "cpu", ChunkMB: 256, QuotaGB: 120, Stream: true, Moment: "bf16", Host: 300 << 30, Program: 64 << 30, Memory: 400 << 30, Disk: 120e9, Tmp: 10 << 30}
		},
		"raycluster": func(o *Options) {
			o.Kind, o.Command, o.HeadMemory, o.RayVersion = KindRayCluster, nil, 8<<30, "2.52.0"
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := sample()
			change(&o)
			objects, err := Render(o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := YAML("# a comment\n", objects)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := Render(o)
			if other, _ := YAML("# a comment\n", again); !bytes.Equal(got, other) {
				t.Error("twice the same, and not the same bytes")
			}
			sameAsFile(t, name+".yaml", got)
			sameInJSON(t, got, objects)
		})
	}
}

func sameAsFile(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if rewrite {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("not %s any more (-want +got); EBB_TEST_REWRITE=1 writes it anew:\n%s", path, diff)
	}
}

// sameInJSON checks that the list in JSON has the objects of the YAML.
func sameInJSON(t *testing.T, stream []byte, objects []Object) {
	t.Helper()
	text, err := JSON(objects)
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Kind  string `json:"kind"`
		Items []any  `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil || list.Kind != "List" {
		t.Fatalf("%v\n%s", err, text)
	}
	var documents []any
	for d := yaml.NewDecoder(bytes.NewReader(stream)); ; {
		var document any
		if err := d.Decode(&document); err != nil {
			break
		}
		plain, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(plain, &value); err != nil {
			t.Fatal(err)
		}
		documents = append(documents, value)
	}
	if diff := cmp.Diff(documents, list.Items); diff != "" {
		t.Errorf("JSON is not the YAML (-YAML +JSON):\n%s", diff)
	}
}

// Whatever the program's arguments are, they are texts when they are read, and Kubernetes puts no variable in them.
func TestArgumentsArriveAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.OneOf(
			rapid.StringMatching(`[$()a-z{} ]{0,12}`),
			rapid.SampledFrom([]string{"yes", "on", "null", "~", "1:20", "0440", "1e3", "- a", "# b", "a: b", "", " ", "\n", "\t\n", "\n a", "é", "true", "0x1f", "=", "!!str"}),
			rapid.StringOf(rapid.RuneFrom([]rune("ab\t\n\"'\\:#-&*?|>%@`"))),
		), 1, 5).Draw(t, "words")
		o := sample()
		o.Command = words
		objects, err := Render(o)
		if err != nil {
			t.Fatal(err)
		}
		text, err := YAML("", objects[len(objects)-1:])
		if err != nil {
			t.Fatal(err)
		}
		var job struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args []any `yaml:"args"`
						} `yaml:"containers"`
					} `yaml:"spec"`
				} `yaml:"template"`
			} `yaml:"spec"`
		}
		if err := yaml.Unmarshal(text, &job); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		args := job.Spec.Template.Spec.Containers[0].Args
		var got []string
		for _, a := range args[len(args)-len(words):] {
			s, ok := a.(string)
			if !ok {
				t.Fatalf("%#v is no text any more", a)
			}
			got = append(got, expanded(s))
		}
		if diff := cmp.Diff(words, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

// expanded is what the kubelet makes of an argument, where every variable is set.
func expanded(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '$' || i+1 == len(s):
			out.WriteByte(s[i])
		case s[i+1] == '$':
			out.WriteByte('$')
			i++
		case s[i+1] == '(' && strings.Contains(s[i:], ")"):
			out.WriteString("A VARIABLE")
			i += strings.IndexByte(s[i:], ')')
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

func TestWhatIsRefused(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Options)
	}{
		{"--nodes 0: must be from 1", func(o *Options) { o.Nodes = 0 }},
		{"--nodes -3", func(o *Options) { o.Nodes = -3 }},
		{"--nodes 5001: must be from 1 to 5000", func(o *Options) { o.Nodes = 5001 }},
		{"--nproc-per-node 0", func(o *Options) { o.PerNode = 0 }},
		{"which image?", func(o *Options) { o.Image = "" }},
		{"is no name of an image", func(o *Options) { o.Image = "a b" }},
		{"name ebb's command", func(o *Options) { o.EBB = "$(EBB)" }},
		{"which program?", func(o *Options) { o.Command = nil }},
		{"which name?", func(o *Options) { o.Name = "" }},
		{"must be a DNS label", func(o *Options) { o.Name = "Llama" }},
		{"must be a DNS label", func(o *Options) { o.Name = "7b" }},
		{"must be a DNS label", func(o *Options) { o.Name = "a_b" }},
		{"must be a DNS label", func(o *Options) { o.Name = "a-" }},
		{"at most 36", func(o *Options) { o.Name = strings.Repeat("a", 37) }},
		{"--namespace", func(o *Options) { o.Namespace = "my.team" }},
		{"--kind", func(o *Options) { o.Kind = "pod" }},
		{"do not run as root", func(o *Options) { o.User = 0 }},
		{"lower ones take privileges", func(o *Options) { o.Port = 22 }},
		{"gives its ranks 30s", func(o *Options) { o.Termination = 30 * time.Second }},
		{"add --kind jobset", func(o *Options) { o.MaxRestarts = 1 }},
		{"give one", func(o *Options) { o.StorageClass, o.ScratchPath = "a", "/b" }},
		{"absolute path", func(o *Options) { o.ScratchPath = "mnt" }},
		{"absolute path", func(o *Options) { o.ScratchPath = "/" }},
		{"absolute path", func(o *Options) { o.ScratchPath = "/mnt/../etc" }},
		{"--storage-class", func(o *Options) { o.StorageClass = "Fast Disks" }},
		{"ray job submit", func(o *Options) { o.Kind = KindRayCluster }},
		{"--kind raycluster", func(o *Options) { o.HeadMemory = 1 }},
		{"twice", func(o *Options) { o.Env = []Pair{{"A", "1"}, {"A", "2"}} }},
		{"leave it out", func(o *Options) { o.Env = []Pair{{"JOB_COMPLETION_INDEX", "1"}} }},
		{"--env EBB_RUNTIME_DIR: the pod relies on", func(o *Options) { o.Env = []Pair{{"EBB_RUNTIME_DIR", "/x"}} }},
		{"--env EBB_OFFLOAD_TRAIN_TARGET: the pod relies on", func(o *Options) { o.Env = []Pair{{"EBB_OFFLOAD_TRAIN_TARGET", "cpu"}} }},
		{"--env RANK: the pod relies on", func(o *Options) { o.Env = []Pair{{"A", "1"}, {"RANK", "3"}} }},
		{`--env A="\xff" is no text`, func(o *Options) { o.Env = []Pair{{"A", "\xff"}} }},
		{`--env A="\x00" is no text`, func(o *Options) { o.Env = []Pair{{"A", "\x00"}} }},
		{`argument "caf\xe9" is no text`, func(o *Options) { o.Command = []string{"python", "caf\xe9"} }},
		{"name ebb's command", func(o *Options) { o.EBB = "/opt/\xff/ebb" }},
		{"absolute path", func(o *Options) { o.ScratchPath = "/mnt/\xff" }},
		{"is no version of Ray", func(o *Options) { o.Kind, o.Command, o.RayVersion = KindRayCluster, nil, "\xff" }},
		{"--serve-port 29500", func(o *Options) { o.Serve.Port = 29500 }},
		{"who may ask", func(o *Options) { o.Serve.Controller = nil }},
		{"--serve-token-secret", func(o *Options) { o.Serve.TokenSecret = "A" }},
		{"raise --host-memory", func(o *Options) { o.Sizes.Host = 3 << 30 }},
		{"--host-reserve SIZE", func(o *Options) { o.Sizes.Program = 0 }},
		{"at least 1 GiB", func(o *Options) { o.Sizes.Tmp = 0 }},
		{"is not known", func(o *Options) { o.Sizes.Disk = 0 }},
		{"--target", func(o *Options) { o.Sizes.Target = "tape" }},
	} {
		o := sample()
		serve := *o.Serve
		o.Serve = &serve
		c.change(&o)
		objects, err := Render(o)
		var wrong *OptionError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%d objects and the error %v; want one line with %q", len(objects), err, c.want)
		}
	}
}

// Every container that is written has limits of memory and of ephemeral storage, whatever was asked for.
func TestNoPodWithoutLimits(t *testing.T) {
	for _, kind := range []string{KindJob, KindJobSet, KindRayCluster} {
		for _, target := range []string{"cpu", "auto", "disk"} {
			for _, scratch := range []string{"", "class", "/path"} {
				o := sample()
				o.Kind, o.Sizes.Target = kind, target
				if kind == KindRayCluster {
					o.Command, o.HeadMemory = nil, 8<<30
				}
				if strings.HasPrefix(scratch, "/") {
					o.ScratchPath = scratch
				} else {
					o.StorageClass = scratch
				}
				objects, err := Render(o)
				if err != nil {
					t.Fatal(err)
				}
				found := 0
				for _, object := range objects {
					containers(object, func(c Object) {
						found++
						limits, _ := field(inside(c, "resources"), "limits").(Object)
						for _, name := range []string{"memory", "ephemeral-storage"} {
							if field(limits, name) == nil {
								t.Errorf("%s, target %s, scratch %q: container %v has no limit of %s", kind, target, scratch, field(c, "name"), name)
							}
						}
					})
				}
				if found < 2 {
					t.Errorf("%s: %d containers were found", kind, found)
				}
			}
		}
	}
}

func field(o Object, name string) any {
	for _, f := range o {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

func inside(o Object, name string) Object {
	inner, _ := field(o, name).(Object)
	return inner
}

// containers calls for each container below a value.
func containers(value any, each func(Object)) {
	switch v := value.(type) {
	case Object:
		for _, f := range v {
			if l, ok := f.Value.(list); ok && (f.Name == "containers" || f.Name == "initContainers") {
				for _, c := range l {
					each(c.(Object))
				}
			}
			containers(f.Value, each)
		}
	case list:
		for _, item := range v {
			containers(item, each)
		}
	}
}

func TestFlagsOfNames(t *testing.T) {
	for _, bad := range []string{"", "a", "=b", "a=b,a=c", "a b=c", "a=b c", "x/y/z=1", "a=" + strings.Repeat("b", 64)} {
		if got, err := ParsePairs(bad); err == nil {
			t.Errorf("labels %q are %v", bad, got)
		}
	}
	if got, err := ParsePairs("app=a,example.com/x=Y_1,empty="); err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "A", "1A=b", "A B=c", "=x"} {
		if _, err := ParseVariable(bad); err == nil {
			t.Errorf("the variable %q is taken", bad)
		}
	}
	if got, err := ParseVariable("A=b=c"); err != nil || got != (Pair{"A", "b=c"}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "0", "-1", "1e3", "4 ", "0.0", "m", "1.2345"} {
		if _, err := ParseCPU(bad); err == nil {
			t.Errorf("%q processors are taken", bad)
		}
	}
	for _, good := range []string{"1", "16", "0.5", ".25", "500m", "1.5"} {
		if _, err := ParseCPU(good); err != nil {
			t.Errorf("%q processors: %v", good, err)
		}
	}
	for _, bad := range []string{"gpu", "", "nvidia.com/", "/gpu", "Nvidia.com/gpu"} {
		if _, err := ParseResource(bad); err == nil {
			t.Errorf("the resource %q is taken", bad)
		}
	}
}
