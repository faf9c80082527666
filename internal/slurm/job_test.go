package slurm

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/control"
)

func TestNamesOfJobs(t *testing.T) {
	for _, good := range []string{"1", "1234", "1234_5", "1234+1", "4294967295"} {
		if id, err := ParseID(good); err != nil || string(id) != good {
			t.Errorf("%q: %q, %v", good, id, err)
		}
	}
	for _, bad := range []string{
		"", " ", "1 ", " 1", "1 2", "1;id", "1/2", "../1", "1.0", "-1", "+1", "_1", "1_", "1+", "1_2_3", "1,2", "$(id)", "`id`", "1\n", "1\x00", "--help", "job", "١",
		strings.Repeat("1", 11), "1_" + strings.Repeat("1", 11),
	} {
		if id, err := ParseID(bad); err == nil {
			t.Errorf("%q is taken as %q", bad, id)
		}
	}
}

func TestWhatSqueueSays(t *testing.T) {
	const (
		plain = "77|77|RUNNING|1000|node[1-3]\n"
		array = "78|77_0|RUNNING|1000|node1\n79|77_1|PENDING|1000|\n"
		het   = "80|80+0|RUNNING|1000|node1\n81|80+1|RUNNING|1000|node[2-3]\n"
	)
	for _, c := range []struct {
		id, text string
		uid      int
		want     string // the numbers of the parts, or words of the error
		kind     Kind
	}{
		{"77", plain, 1000, "77", 0},
		{"77_0", array, 1000, "78", 0},
		{"80", het, 1000, "80 81", 0},
		{"80+1", het, 1000, "81", 0},
		{"77", "78|77_0|RUNNING|1000|node1\n", 1000, "78", 0},
		{"77", array, 1000, "is an array: name one of its jobs, such as 77_0", Wrong},
		{"77_1", array, 1000, "77_1 is pending", NotRunning},
		{"77", plain, 1001, "of user 1000, not yours", Wrong},
		{"77", plain, 0, "run the command as that user", Wrong},
		{"77", "77|77|SUSPENDED|1000|node1", 1000, "scontrol resume 77", NotRunning},
		{"77", "77|77|COMPLETING|1000|node1", 1000, "is completing", NotRunning},
		{"77", "77|77|RUNNING|1000|", 1000, "has no node", NotRunning},
		{"80", "80|80+0|RUNNING|1000|node1\n81|80+1|FAILED|1000|\n", 1000, "80+1 is failed", NotRunning},
		{"77", "", 1000, "no job 77", Wrong},
	} {
		parts, err := parseParts(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		parts, err = choose(ID(c.id), parts, c.uid)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(e.Text, c.want) {
				t.Errorf("%s of %q: %v; want %q", c.id, c.text, err, c.want)
			}
			continue
		}
		var numbers []string
		for _, p := range parts {
			numbers = append(numbers, p.Number)
		}
		if got := strings.Join(numbers, " "); got != c.want {
			t.Errorf("%s of %q: %s; want %s", c.id, c.text, got, c.want)
		}
	}
	for _, bad := range []string{"77", "77|77|RUNNING|root|node1", "x|77|RUNNING|0|node1", "77|77|RUNNING|0|node1|more", "77|77|RUNNING|-1|node1"} {
		if parts, err := parseParts(bad); err == nil {
			t.Errorf("%q is understood as %+v", bad, parts)
		}
	}
}

func TestNumbersOfAHeterogeneousJob(t *testing.T) {
	parts := []Part{{Number: "81", Name: "80+1"}}
	if got := Numbers(parts); !slices.Equal(got, []string{"80", "81"}) {
		t.Errorf("%q: all its processes have the number of the whole job", got)
	}
}

func TestNamesOfNodes(t *testing.T) {
	if names, err := parseNames("node1\nn-2.cluster\n"); err != nil || !slices.Equal(names, []string{"node1", "n-2.cluster"}) {
		t.Errorf("%q, %v", names, err)
	}
	for _, bad := range []string{"", "\n", "node[1-3]", "node1,node2", "-w", "a;b", "a/b", strings.Repeat("n", 256)} {
		if names, err := parseNames(bad); err == nil {
			t.Errorf("%q is taken as %q", bad, names)
		}
	}
}

func TestSlurmsCommandsDoNotSeeTheJobAroundThem(t *testing.T) {
	got := environ([]string{"PATH=/bin", "SLURM_NTASKS=8", "SLURM_CONF=/etc/slurm.conf", "SLURMD_NODENAME=n", "SRUN_CPUS_PER_TASK=4", "EBB_LOG_FORMAT=json", "SLURM_TMPDIR=/x",
		"SLURM_JWT=token", "SQUEUE_PARTITION=debug", "SQUEUE_FORMAT=%i", "SCONTROL_FEDERATION=1"})
	if want := []string{"PATH=/bin", "SLURM_CONF=/etc/slurm.conf", "EBB_LOG_FORMAT=json", "SLURM_JWT=token"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWhoIsOfAJob(t *testing.T) {
	for environ, want := range map[string]string{
		"PATH=/bin\x00SLURM_JOB_ID=77\x00":          "77",
		"SLURM_JOB_ID=":                             "",
		"XSLURM_JOB_ID=77\x00":                      "",
		"SLURM_JOB_ID=77;rm\x00SLURM_JOB_ID=78":     "78",
		"SLURM_JOB_ID=77\x00SLURM_JOB_ID=78\x00":    "77",
		"EBB_JOB=slurm-77.0\x00SLURM_STEP_ID=1\x00": "",
	} {
		if got, ok := jobOf([]byte(environ)); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v; want %q", environ, got, ok, want)
		}
	}
	// Where the process cannot be looked at ebb's name of the job tells, if it is Slurm's.
	const elsewhere = "/tmp/ebb-0/01234567-f000022a-1-1.sock"
	for job, want := range map[string]Membership{
		"slurm-77.0": Member, "slurm-77": Member, "slurm-77-12-34-abcdef01": Member, "slurm-7.77": Other, "slurm-770.0": Other,
		"": NotKnown, "exp7": NotKnown, "slurm-": NotKnown, "slurm-x": NotKnown,
	} {
		if got := MemberOf([]string{"77", "80"}, elsewhere, control.Who{Job: job}); got != want {
			t.Errorf("%q: %v, want %v", job, got, want)
		}
	}
}

func FuzzWhatSqueueSays(f *testing.F) {
	f.Add("77", "77|77|RUNNING|1000|node[1-3]\n")
	f.Add("77", "78|77_0|RUNNING|1000|node1\n79|77_1|PENDING|1000|\n")
	f.Add("80+1", "80|80+0|RUNNING|1000|node1\n81|80+1|RUNNING|1000|node[2-3]\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		id, err := ParseID(name)
		if err != nil {
			return
		}
		parts, err := parseParts(text)
		if err != nil {
			return
		}
		chosen, err := choose(id, slices.Clone(parts), 1000)
		if (err == nil) != (len(chosen) > 0) {
			t.Fatalf("%d parts, %v", len(chosen), err)
		}
		for _, p := range chosen {
			if p.State != "RUNNING" || p.UID != 1000 || p.List == "" {
				t.Fatalf("%+v is chosen", p)
			}
		}
	})
}
