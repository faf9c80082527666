package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/server"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// rankStatus64 is what a rank of many says, in the size of a real status.
const rankStatus64 = `{"version":"0.1.0","pid":%d,"job":"train","role":"actor","cell":"0","rank":"%d","device":"NVIDIA H200","driver_version":13000,
"allocations":61,"bytes_active":0,"bytes_paused":40050000000,"staging_bytes":134217728,"workers":8,"block_bytes":4194304,"probes":[],
"tags":[{"tag":"default","allocations":61,"active":0,"host":0,"disk":40050000000,"discarded":0,"in_host":1200000000,"in_files":38100000000,"skipped":750000000}],
"last_pause":{"allocations":61,"bytes":40050000000,"device_bytes":40100000000,"freed_bytes":40100000000,"host_bytes":1200000000,"disk_bytes":38100000000,"skipped_zero_bytes":750000000,
"seconds":14.21,"phases":{"hash":0.01,"move":14.1},"gb_per_s":2.82},
"last_resume":{"allocations":61,"bytes":40050000000,"seconds":21.3,"gb_per_s":1.88},
"disk":{"dir":"%s","files":61,"bytes":38100000000,"direct_io":true,"dirs":[]},"host_bytes":1200000000,"kept":[],"unmanaged":{"total":900000000,"measured":true,"classes":[{"name":"context","bytes":500000000,"count":0},{"name":"nccl","bytes":400000000,"count":7}]}}`

// standIns are ranks without engines: the real server on real sockets, all in this process.
func standIns(t testing.TB, n int) (runtime string) {
	t.Helper()
	runtime = testutil.SocketDir(t)
	self, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	disk := testutil.SocketDir(t) // short: a name is never broken
	for i := range n {
		owner := self
		owner.StartTime += uint64(i) + 1
		s, err := server.Start(server.Options{
			Socket: filepath.Join(runtime, control.SocketName(owner)),
			Hello: control.Hello{V: control.Version, EBB: "0.1.0", Started: time.Now(),
				Who: control.Who{Job: "train", Role: "actor", Cell: "0", Rank: fmt.Sprint(i), PID: 100000 + i}},
			Handle: func(a *server.Ask) server.Answer {
				if a.Cmd == control.CmdDevices {
					return server.Answer{Result: []control.Device{{Ordinal: i % 8, Name: "NVIDIA H200", UUID: fmt.Sprintf("GPU-%08x", i%8), Total: 150e9, Free: 140e9}}}
				}
				return server.Answer{Result: json.RawMessage(fmt.Sprintf(rankStatus64, 100000+i, i, disk))}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
	}
	return runtime
}

// hungRank is a socket of a live process that takes callers and says nothing, as that of a stopped one.
func hungRank(t testing.TB, runtime string) {
	t.Helper()
	self, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(runtime, control.SocketName(self)), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

// statusOf runs ebb status, which must end with that status.
func statusOfRanks(t testing.TB, command, runtime string, want int) (stdout string) {
	t.Helper()
	cmd := exec.Command(command, "status", "--runtime-dir", runtime)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); statusOf(err) != want {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	return out.String()
}

func ebbCommand(t testing.TB) string { return filepath.Join(testutil.Root(t), "dist", "bin", "ebb") }

func TestOneHungRankAmong64IsNamedAndTheOthersAreShown(t *testing.T) {
	runtime := standIns(t, 63)
	hungRank(t, runtime)
	var out string
	for range 3 { // a rank has one second for its answer: of 63 in one process one may come late once, beside other tests
		if out = statusOfRanks(t, ebbCommand(t), runtime, statusLate); strings.Contains(out, "\n63 of 64 ranks on ") {
			break
		}
	}
	for i := range 63 {
		if !strings.Contains(out, fmt.Sprintf("\nactor/0/%d ", i)) {
			t.Errorf("rank %d is missing", i)
		}
	}
	if !strings.Contains(out, fmt.Sprintf("pid %d does not answer: no answer in time: ", os.Getpid())) {
		t.Error("the hung rank is not named")
	}
	if !strings.Contains(out, "\n63 of 64 ranks on NVIDIA H200") {
		t.Error("it is not said that the sums lack a rank")
	}
	if rows := strings.Count(out, " paused "); rows != 63 {
		t.Errorf("%d rows", rows)
	}
	if !strings.Contains(out, "all ranks: 56.70 GB (52.81 GiB) on the GPU not managed; in GB: context 31.50, nccl 25.20") {
		t.Error("unmanaged memory is not named by class")
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > textWidth {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	if t.Failed() {
		t.Log("\n" + out)
	}
}

// The socket of a process that has ended is nobody's, and is removed.
func TestTheSocketOfADeadRankIsRemoved(t *testing.T) {
	runtime := standIns(t, 0)
	self, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	self.StartTime++ // another process with this one's number, before or after
	path := filepath.Join(runtime, control.SocketName(self))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	statusOfRanks(t, ebbCommand(t), runtime, statusNothing)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// A rank of another ebb is named with both versions of the protocol.
func TestARankOfAnotherVersionIsNamed(t *testing.T) {
	runtime := standIns(t, 1)
	self, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(runtime, control.SocketName(self)), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(conn, `{"v":2,"ebb":"9.0.0"}`)
			_ = conn.Close()
		}
	}()
	out := strings.Join(strings.Fields(statusOfRanks(t, ebbCommand(t), runtime, statusLate)), " ")
	_ = l.Close()
	<-over
	if want := "the rank (ebb 9.0.0) speaks version 2 of the control protocol, this ebb version 1: use the ebb that the rank was started with"; !strings.Contains(out, want) ||
		!strings.Contains(out, "actor/0/0 100000 0 paused") {
		t.Error(out)
	}
}

// BenchmarkStatusOf64Ranks is the whole command, from its start to its end.
func BenchmarkStatusOf64Ranks(b *testing.B) {
	runtime, command := standIns(b, 64), ebbCommand(b)
	for b.Loop() {
		statusOfRanks(b, command, runtime, 0)
	}
}

func TestTheTableFitsAnyRanks(t *testing.T) {
	long := control.Who{Role: "reference-policy-of-the-second-stage", Cell: "12", Rank: "1023", PID: 4194303}
	big := node.LastOperation{Bytes: 1e15, Seconds: 98765, GBPerS: 123.4}
	r := statusResult{Ranks: []node.RankStatus{
		{Rank: node.Rank{Who: long, Version: "0.1.0"}, Status: node.Status{
			Device: "NVIDIA H200", Allocations: 1, Active: 9e14, Paused: 1e14, LastPause: &big, LastResume: &big,
			Tags: []node.TagStatus{{Tag: strings.Repeat("t", 255), Allocations: 1, Active: 9e14, InFiles: 1e14}},
			Kept: []node.Kept{{Reason: "exported", Count: 1, Bytes: 1 << 30}},
		}, Devices: []control.Device{{UUID: "GPU-11111111-2"}}},
		{Rank: node.Rank{Who: control.Who{PID: 7}}, Devices: []control.Device{{UUID: "GPU-22222222-2"}}},
		{Rank: node.Rank{Who: control.Who{PID: 8}}, Err: "no answer in time: the process waits in the kernel"},
		{Rank: node.Rank{Who: control.Who{PID: 9}}, Status: node.Status{LastPause: &node.LastOperation{Error: "no space left in /nvme"}}},
	}}
	var out bytes.Buffer
	r.print(&out, true)
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > textWidth {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	for _, want := range []string{
		"partly", "empty", "silent", "failed", "1000000", "pid 8 does not answer: no answer in time: ", "pid 9: its last pause failed: no space left in /nvme",
		"900000.00 GB (838190.32 GiB) on the GPU", "a pause leaves 1.07 GB (1.00 GiB) on the GPU that others use too (exported)",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// What ebb does not manage stays on the GPU during a pause: the text names it by class, of each rank where tags
// are shown, else of all together.
func TestUnmanagedMemoryIsNamedByClass(t *testing.T) {
	rank := func(pid int, u node.Unmanaged) node.RankStatus {
		return node.RankStatus{Rank: node.Rank{Who: control.Who{PID: pid}}, Status: node.Status{Device: "NVIDIA H200", Unmanaged: u}}
	}
	r := statusResult{Ranks: []node.RankStatus{
		rank(1, node.Unmanaged{Total: 1200e6, Measured: true, Classes: []node.Class{{Name: "context", Bytes: 800e6}, {Name: "nccl", Bytes: 400e6}}}),
		rank(2, node.Unmanaged{Total: 700e6, Classes: []node.Class{{Name: "nccl", Bytes: 600e6}, {Name: "libother.so", Bytes: 100e6}}}),
		rank(3, node.Unmanaged{Measured: true}),
	}}
	for _, test := range []struct {
		name  string
		tags  bool
		wants []string
	}{
		{"each rank", true, []string{
			"pid 1: 1.20 GB (1.12 GiB) on the GPU not managed; in GB: context 0.80, nccl 0.40",
			"pid 2: 700.0 MB (667.6 MiB) on the GPU not managed (NVML says nothing: there may be more); in MB: nccl 600.0, libother.so 100.0",
		}},
		{"all together", false, []string{
			"all ranks: 1.90 GB (1.77 GiB) on the GPU not managed (NVML says nothing: there may be more); in GB: nccl 1.00, context 0.80, libother.so 0.10",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			r.print(&out, test.tags)
			text := strings.Join(strings.Fields(out.String()), " ")
			for _, want := range test.wants {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
			if n := strings.Count(text, "not managed"); n != len(test.wants) {
				t.Errorf("%d lines about unmanaged memory\n%s", n, &out)
			}
		})
	}
}

// Where it is not known whether memory that a pause released is free, nothing says that it is.
func TestWhatIsNotKnownToBeFreeIsTold(t *testing.T) {
	for _, test := range []struct {
		what           string
		freed, missing uint64
		status, pause  string
	}{
		{"all of it is", 64 << 20, 0, "", "off the GPU, as the driver says"},
		{"some is missing", 40 << 20, 24 << 20, "of which 25.2 MB (24.0 MiB) did not become free", "off the GPU, as the driver says"},
		{"nobody knows", 40 << 20, 0, "24 MiB (25165824 bytes) did not show as free", "it is not known whether all of it is free"},
	} {
		t.Run(test.what, func(t *testing.T) {
			rank := node.Rank{Who: control.Who{PID: 7}}
			last := &node.LastOperation{DeviceBytes: 64 << 20, Freed: test.freed, Missing: test.missing}
			told := strings.Join(statusResult{Ranks: []node.RankStatus{{Rank: rank, Status: node.Status{LastPause: last}}}}.remarks(), "\n")
			if !strings.Contains(told, test.status) || test.status == "" && strings.Contains(told, "its last pause") {
				t.Errorf("status: %s", told)
			}
			var out bytes.Buffer
			printReport(&out, node.Report{Operation: control.CmdPause, Outcomes: []node.Outcome{{
				Rank: rank, State: node.Done, Done: &control.Done{Bytes: 64 << 20}, Note: node.Unclear(last.DeviceBytes, last.Freed, last.Missing),
			}}})
			if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, test.pause) {
				t.Errorf("pause: %s", text)
			}
		})
	}
}
