package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestProgramsWithoutGPURunAsWithoutEbb(t *testing.T) {
	n := newNode(t, 64)
	for _, args := range [][]string{
		{"bash", "-c", "true"},
		{"bash", "-c", "(true); x=$(true); true | true"},
		{"git", "--version"},
		{"python3", "-c", "pass"},
		{"python3", "-c", "import os, threading; os.getpid()"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			report := filepath.Join(work, "probe-"+n.name)
			cmd := n.process(t, args[0], args[1:]...)
			cmd.Env = append(cmd.Env, "TMS_INIT_ENABLE=1", "TMS_INIT_ENABLE_DISK_BACKUP=1",
				"LD_PRELOAD="+lib("torch_memory_saver/libebb.so")+":"+probe, "E2E_PROBE="+report)
			o := run(t, cmd)
			if o.status != 0 || o.stderr != "" {
				t.Fatal(o)
			}
			seen, err := os.ReadFile(report)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.TrimSpace(string(seen)), "threads=1 shim=1 engine=0"; got != want {
				t.Errorf("at its end the process has %s, want %s", got, want)
			}
		})
	}
}

// The probe of the test above sees an engine where there is one.
func TestProcessWithManagedMemoryHasTheEngine(t *testing.T) {
	n := newNode(t, 64)
	report := filepath.Join(work, "probe-"+n.name)
	cmd := n.victim(t, "cycles.py", "normal")
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+lib("torch_memory_saver/libebb.so")+":"+probe, "E2E_PROBE="+report)
	succeed(t, cmd)
	seen, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(strings.TrimSpace(string(seen)), "shim=1 engine=1") {
		t.Errorf("got %s", seen)
	}
}

func TestChildrenOfATrainingProcess(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"exit", "call", "pools", "loader", "subprocess", "during", "stay"} {
		for _, when := range []string{"active", "paused"} {
			t.Run(kind+" "+when, func(t *testing.T) {
				n := newNode(t, 64)
				succeed(t, n.victim(t, "fork.py", kind, when))
				wantNoFiles(t, n.disk)
			})
		}
	}
}

func TestOpenFileLimitsStayAsTheyWere(t *testing.T) {
	n := newNode(t, 64)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
	succeed(t, n.victim(t, "descriptors.py"))
	wantNoFiles(t, n.disk)
}

func TestClosedStreamsNeverEndTheProcess(t *testing.T) {
	for _, closed := range []string{"", "0", "1", "2", "1 2", "0 1 2"} {
		t.Run("closed "+closed, func(t *testing.T) {
			n := newNode(t, 64)
			report := filepath.Join(n.disk, "report")
			o := run(t, n.victim(t, "streams.py", append([]string{report}, strings.Fields(closed)...)...))
			wantDone(t, o, report)
			wantNoFiles(t, n.disk)
			if closed == "" && len(lines(o.stderr, "ebb: pause FAILED, memory not freed: ")) != 3 {
				t.Errorf("three tms_pause failed: %v", o)
			}
		})
	}
}

func TestBrokenPipesNeverEndTheProcess(t *testing.T) {
	for _, action := range []string{"ignored", "default"} {
		for _, streams := range []string{"stderr", "stdout and stderr"} {
			t.Run(fmt.Sprintf("SIGPIPE %s, %s", action, streams), func(t *testing.T) {
				n := newNode(t, 64)
				n.env = []string{"E2E_SIGPIPE=" + action}
				report := filepath.Join(n.disk, "report")
				cmd := n.victim(t, "streams.py", report)
				reader, writer, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				reader.Close()
				defer writer.Close()
				cmd.Stderr = writer
				if streams != "stderr" {
					cmd.Stdout = writer
				}
				wantDone(t, run(t, cmd), report)
				wantNoFiles(t, n.disk)
			})
		}
	}
}

// Buffered, a backup file behind a standard descriptor would take what is written to that.
func TestClosedStreamsWhereDirectIOIsRefused(t *testing.T) {
	n := newNode(t, 64)
	report := filepath.Join(n.disk, "report")
	cmd := n.victim(t, "streams.py", report, "0", "1", "2")
	cmd.Args = append([]string{refuse}, cmd.Args...)
	cmd.Path = refuse
	wantDone(t, run(t, cmd), report)
	wantNoFiles(t, n.disk)
}

func TestHostThatClosesDescriptorsItDidNotOpen(t *testing.T) {
	n := newNode(t, 64)
	succeed(t, n.victim(t, "closing.py"))
	wantNoFiles(t, n.disk)
	wantLastLines(t, n.disk)
}

// A rank that closed its lease is still its supervisor's.
func TestRankThatClosesDescriptorsItDidNotOpen(t *testing.T) {
	n := newNode(t, 64)
	succeed(t, n.ebbRun(t, []string{"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", n.disk}, "closing.py"))
	wantNoFiles(t, n.disk)
	wantLastLines(t, n.disk)
}

// wantLastLines checks the victim's own files: whole, and theirs alone.
func wantLastLines(t *testing.T, dir string) {
	t.Helper()
	own, err := filepath.Glob(filepath.Join(dir, "own*"))
	if err != nil || len(own) < 10 {
		t.Fatalf("the victim left %q, %v", own, err)
	}
	for _, path := range own {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(string(text), "the last line\n") || strings.Contains(string(text), "ebb") {
			t.Errorf("%s ends with %.200q", path, text[max(0, len(text)-200):])
		}
	}
}

// What the engine is doing fails then, or not; the status is the process's own all the same.
func TestExitWhileTheEngineIsAtWork(t *testing.T) {
	t.Parallel()
	rng, rounds := random(t), 3
	if long() {
		rounds = 40
	}
	for kind, status := range map[string]int{"thread": 3, "signal": 14} {
		t.Run(kind, func(t *testing.T) {
			for range rounds {
				n := newNode(t, 64)
				n.env = []string{"SOFTGPU_LINK_GBPS=0.05", "EBB_ON_PAUSE_ERROR=exit"}
				cmd := n.ebbRun(t, []string{"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", n.disk}, "exiting.py", kind, rng.Text())
				if o := run(t, cmd); o.status != status || len(lines(o.stderr, "FAILED")) > 0 {
					t.Errorf("want status %d and no failure told, got %v", status, o)
				}
				wantNoFiles(t, n.disk)
			}
		})
	}
}

func wantDone(t *testing.T, o outcome, report string) {
	t.Helper()
	done, err := os.ReadFile(report)
	if err != nil || string(done) != "done" || o.status != 0 {
		t.Errorf("the victim did not reach its end: %v\n%v", err, o)
	}
}

func TestSignalsDoWhatTheyDoWithoutEbb(t *testing.T) {
	for _, kind := range []string{"interrupt", "interrupt-uncaught", "alarm", "alarm-during", "term", "pipe", "segv-before", "segv-after", "segv-thread", "segv-plain", "abort"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, 64)
			with := run(t, n.victim(t, "signals.py", kind))
			without := run(t, n.process(t, "python3", filepath.Join(testdir, "signals.py"), kind))
			if with.status != without.status || with.stdout != without.stdout {
				t.Errorf("with ebb: %v\nwithout: %v", with, without)
			}
			if strings.HasPrefix(kind, "segv") && kind != "segv-plain" {
				for _, o := range []outcome{with, without} {
					if o.status != 128+int(syscall.SIGSEGV) || !strings.Contains(o.stderr, "Fatal Python error: Segmentation fault") {
						t.Errorf("want faulthandler's report and death by SIGSEGV, got %v", o)
					}
				}
			}
		})
	}
}
