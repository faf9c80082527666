package report

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// longJob writes the logs of a job that ran for long, line by line as ranks write them, and returns the files and
// their bytes. Each rank has a file, as under the launcher, or all have one together.
func longJob(t testing.TB, dir string, ranks, cycles, progress int, together bool) (files []string, size int64) {
	t.Helper()
	for rank := range ranks {
		name := filepath.Join(dir, fmt.Sprintf("long__actor_cell0_rank%d.jsonl", rank))
		if together {
			name = filepath.Join(dir, "all.jsonl")
		}
		f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if rank == 0 || !together {
			files = append(files, name)
		}
		out := bufio.NewWriter(f)
		writeLongRank(out, rank, cycles, progress)
		if err := out.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return files, size
}

func writeLongRank(out *bufio.Writer, rank, cycles, progress int) {
	const total = 5 << 30
	now, seq := begin.Add(time.Duration(rank)*time.Millisecond), 0
	line := func(kind, rest string, args ...any) {
		seq++
		now = now.Add(7 * time.Millisecond)
		fmt.Fprintf(out, `{"v":1,"time":"%s","seq":%d,"job":"long","role":"actor","cell":"0","rank":"%d","pid":%d,"host":"node-%d","event":"%s"`,
			now.Format(time.RFC3339Nano), seq, rank, 4000+rank, rank/8, kind)
		fmt.Fprintf(out, rest, args...)
		_, _ = out.WriteString("}\n") // the flush tells what went wrong
	}
	line("start", "")
	for cycle := range cycles {
		for _, o := range []struct {
			name   string
			phases []string
		}{
			{"pause", []string{"wait", "room", "hash", "move", "check", "commit", "unmap"}},
			{"resume", []string{"create", "move", "map", "check"}},
		} {
			head := fmt.Sprintf(`,"operation":"%s","by":"program"`, o.name)
			line("begin", head+`,"total_bytes":%d`, total)
			took := ""
			for i, phase := range o.phases {
				if phase == "move" {
					for p := range progress {
						line("progress", head+`,"bytes":%d,"total_bytes":%d`, total/progress*p, total)
					}
				}
				line("phase", head+`,"phase":"%s","bytes":%d,"seconds":%g`, phase, total, 0.001*float64(i+cycle%7+1))
				took += fmt.Sprintf(`"%s":%g,`, phase, 0.001*float64(i+cycle%7+1))
			}
			line("end", head+`,"bytes":%d,"seconds":%g,"outcome":{"allocations":412,"bytes":%[1]d,"device_bytes":%[1]d,"host_bytes":0,"disk_bytes":%[1]d,`+
				`"skipped_zero_bytes":0,"skipped_same_bytes":0,"skipped_unused_bytes":0,"kept_bytes":0,"freed_bytes":%[1]d,"missing_bytes":0,"workers":8,`+
				`"seconds":%[2]g,"check_seconds":0.1,"phases":{%[3]s"rest":0.000744658},"gb_per_s":2.026716226898702414}`, total, 2.5+0.01*float64(cycle%9), took)
		}
	}
	line("exit", "")
}

// peak is the most memory that the process had since the last call, in bytes.
func peak(t testing.TB) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := bytes.Cut(text, []byte("VmHWM:"))
	kib, err := strconv.ParseInt(string(bytes.Fields(after)[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// processorTime is what the process has had of it.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkALongJob reads the logs of 64 ranks: `EBB_REPORT_CYCLES=500 go test -bench ALongJob ./internal/report` those
// of docs/benchmarks.md.
func BenchmarkALongJob(b *testing.B) {
	cycles := 20
	if text := os.Getenv("EBB_REPORT_CYCLES"); text != "" {
		var err error
		if cycles, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for _, together := range []bool{false, true} {
		b.Run(fmt.Sprintf("together=%v", together), func(b *testing.B) {
			files, size := longJob(b, b.TempDir(), 64, cycles, 10, together)
			b.SetBytes(size)
			var most int64
			peak(b)
			used := processorTime(b)
			for b.Loop() {
				r, err := Make(files, Options{})
				if err != nil {
					b.Fatal(err)
				}
				if r.Pause.Done != 64*cycles || r.Left != (Left{}) {
					b.Fatalf("%d pauses, left out %+v", r.Pause.Done, r.Left)
				}
				most = max(most, peak(b))
			}
			b.ReportMetric((processorTime(b)-used).Seconds()/float64(b.N), "processor-s/op")
			b.ReportMetric(float64(most)/1e6, "MB-resident")
			b.ReportMetric(float64(size)/1e6, "MB-log")
		})
	}
}
