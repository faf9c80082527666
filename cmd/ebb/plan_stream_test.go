package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// streamingPlan is a plan of 1e9 parameters on one rank with the disk's figures given.
func streamingPlan(s planStreaming) planOptions {
	o := newPlanOptions()
	o.params, o.hostMemory, o.diskSpace = 1e9, 64<<30, 100e9
	o.write, o.read = sizing.Range{Low: 2e9, Typical: 2e9, High: 2e9}, sizing.Range{Low: 3e9, Typical: 3e9, High: 3e9}
	o.target, o.streaming = launch.TargetDisk, s
	return o
}

func TestAPlanWithStreamedState(t *testing.T) {
	o := streamingPlan(planStreaming{toDisk: true, moment: launch.MomentBF16})
	r, err := o.plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	command := strings.Join(r.Command, " ")
	if !strings.Contains(command, "--stream-optimizer-state-to-disk --stream-optimizer-state-moment-dtype bf16 -- python") || !strings.Contains(command, "--offload-train-disk-dir") {
		t.Errorf("%s", command)
	}
	if s := r.Streaming; s == nil || !s.Fits || s.DiskBytes != 8e9 || s.DiskFree != 100e9 || s.Step.Low != 4 || s.From != "given" {
		t.Errorf("%+v", s)
	}
	if r.Largest.Total != 6e9 || r.Largest.Streamed != 8e9 {
		t.Errorf("%+v", r.Largest)
	}

	o.diskSpace = 7e9 // 6e9 would fit alone
	if r, err = o.plan(context.Background()); err != nil || r.Chosen != "" || r.Streaming.Fits {
		t.Errorf("%v, chosen %q, %+v", err, r.Chosen, r.Streaming)
	}
}

// The quota of the command holds in each directory: it has room for streamed state too, wherever that lies.
func TestTheQuotaOfAPlanHoldsStreamedState(t *testing.T) {
	target := sizing.Target{Name: launch.TargetDisk, DiskBytes: 9.5e9}
	streamed := &planStreamed{Streaming: sizing.Streaming{DiskBytes: 79.5e9}}
	for _, c := range []struct {
		name   string
		disks  []string
		stream planStreaming
		state  *planStreamed
		want   uint64
	}{
		{"nothing streamed", nil, planStreaming{}, nil, 11},
		{"nothing streamed, two directories", []string{"/a", "/b"}, planStreaming{}, nil, 6},
		{"in the disk directory", []string{"/a"}, planStreaming{toDisk: true}, streamed, 98},
		{"in a disk directory that is not named", nil, planStreaming{toDisk: true}, streamed, 98},
		{"in both disk directories", []string{"/a", "/b"}, planStreaming{toDisk: true}, streamed, 49},
		{"in one of its own", []string{"/a"}, planStreaming{dirs: []string{"/s"}}, streamed, 88},
		{"in one of its own and in that of the disk", []string{"/a"}, planStreaming{dirs: []string{"/s", "/a/"}}, streamed, 55},
	} {
		o := planOptions{dirs: c.disks, streaming: c.stream, perNode: 1, chunkMB: launch.DefaultChunkMB}
		if args, quota := o.command(target, c.state); quota != c.want || !strings.Contains(strings.Join(args, " "), fmt.Sprintf("--offload-train-disk-quota-gb %d ", c.want)) {
			t.Errorf("%s: %d, want %d: %q", c.name, quota, c.want, args)
		}
	}
}

// A directory of its own has room and rates of its own, which are measured.
func TestAPlanWithADirectoryForStreamedState(t *testing.T) {
	dir := workRoot(t)
	r, err := streamingPlan(planStreaming{dirs: []string{dir}}).plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Streaming; len(s.Dirs) != 1 || s.Dirs[0] != dir || !s.DiskKnown || !s.Step.Known() || s.From != "measured in "+dir {
		t.Errorf("%+v", s)
	}
	if command := strings.Join(r.Command, " "); !strings.Contains(command, "--optimizer-state-nvme-dir "+dir+" -- python") {
		t.Errorf("%s", command)
	}
}

// On the node where a job is planned its disk need not be there, when its room and rates are given.
func TestAPlanWithADirectoryThatIsNotThereYet(t *testing.T) {
	dir := t.TempDir() + "/later"
	o := streamingPlan(planStreaming{dirs: []string{dir}})
	r, err := o.plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Streaming; s.Dirs[0] != dir || s.DiskFree != 100e9 || s.From != "given" || !s.Step.Known() || !s.Fits {
		t.Errorf("%+v", s)
	}
	o.streaming, o.dirs = planStreaming{}, []string{dir}
	if r, err = o.plan(context.Background()); err != nil || r.Chosen != launch.TargetDisk || !strings.Contains(strings.Join(r.Command, " "), "--offload-train-disk-dir "+dir) {
		t.Errorf("%v, %q", err, r.Command)
	}
	o.diskSpace = 0
	if _, err = o.plan(context.Background()); err == nil || !strings.Contains(err.Error(), "give --disk-write, --disk-read and --disk-space") {
		t.Errorf("without its room: %v", err)
	}
}

// The command can be pasted: streamed state in the disk directory needs one, whatever the target is.
func TestTheCommandNamesTheDirectoryOfStreamedState(t *testing.T) {
	o := streamingPlan(planStreaming{toDisk: true})
	o.target = launch.TargetCPU
	r, err := o.plan(context.Background())
	if err != nil || r.Chosen != launch.TargetCPU || !strings.Contains(strings.Join(r.Command, " "), "--offload-train-disk-dir /scratch/$USER --stream") {
		t.Errorf("%v, %q", err, r.Command)
	}
}

func TestFlagsOfStreamingThatDoNotGoTogether(t *testing.T) {
	for said, change := range map[string]func(*planOptions){
		"--optimizer-state-nvme-dir": func(o *planOptions) { o.streaming = planStreaming{moment: launch.MomentBF16} },
		"--moments-dtype":            func(o *planOptions) { o.state.Moment = sizing.BF16 },
		"no moments to stream":       func(o *planOptions) { o.state.Optimizer = "sgd" },
		"a directory that is there": func(o *planOptions) {
			o.streaming.dirs, o.diskSpace = []string{"/missing/dir"}, 0
		},
	} {
		o := streamingPlan(planStreaming{toDisk: true})
		change(&o)
		_, err := o.plan(context.Background())
		var usage *launch.Error
		if !errors.As(err, &usage) || usage.Status != launch.StatusUsage || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v", said, err)
		}
	}
}
