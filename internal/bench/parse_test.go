package bench

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/launch"
)

func TestAnswersOfARank(t *testing.T) {
	a, err := parseAnswer("ok begin=1.5 end=2.25 sum=00ff\n")
	if err != nil {
		t.Fatal(err)
	}
	v, err := a.numbers("end", "begin")
	if err != nil || !slices.Equal(v, []float64{2.25, 1.5}) || a.values["sum"] != "00ff" {
		t.Errorf("%v %v, sum %q", v, err, a.values["sum"])
	}
	if _, err := a.numbers("begin", "cpu"); err == nil || !strings.Contains(err.Error(), "no number cpu") {
		t.Errorf("a missing number: %v", err)
	}
	if a, err := parseAnswer(`ok {"workers":8}` + "\n"); err != nil || a.json != `{"workers":8}` {
		t.Errorf("JSON: %+v %v", a, err)
	}
	if _, err := parseAnswer("error the disk is full\n"); err == nil || err.Error() != "the disk is full" {
		t.Errorf("an error: %v", err)
	}
	for _, line := range []string{"", "\n", "okay\n", "ok begin\n"} {
		if a, err := parseAnswer(line); err == nil {
			t.Errorf("%q is taken as %+v", line, a)
		}
	}
}

func TestOptionsAreParsed(t *testing.T) {
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for _, s := range []string{"auto", "soft", "0", "7"} {
		if got, err := ParseDevice(s); err != nil || got != s {
			t.Errorf("device %q: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "cuda:0", "-1", "1.5"} {
		_, err := ParseDevice(s)
		refused(err, "must be auto, soft, or the number of a device")
	}
	if got, err := ParseGiB("0.125"); err != nil || got != 0.125 {
		t.Errorf("0.125 GiB: %v, %v", got, err)
	}
	for _, s := range []string{"0", "-4", "NaN", "Inf", "4GiB", "0.001", "1e300"} {
		_, err := ParseGiB(s)
		refused(err, "must be a number of GiB")
	}
	_, err := ParseRounds("0")
	refused(err, "must be a number of rounds from 1")
	_, err = ParseRanks("1")
	refused(err, "must be a number of ranks from 2")
	if rows, err := ParseRows("resume, pause"); err != nil || !slices.Equal(rows, []string{"resume", "pause"}) {
		t.Errorf("rows %q, %v", rows, err)
	}
	if rows, err := ParseRows("all"); err != nil || rows != nil {
		t.Errorf("all rows are %q, %v", rows, err)
	}
	_, err = ParseRows("pause,speed")
	refused(err, `there is no row "speed": --rows list prints them`)
}

func TestSizesAreWholeUnits(t *testing.T) {
	o := NewOptions()
	if got := o.bytes(); got != DefaultGiB*gib {
		t.Errorf("default %d", got)
	}
	o.Device = launch.DeviceSoft
	if got := o.bytes(); got != gib/4 {
		t.Errorf("default on the software device %d", got)
	}
	o.GiB = 0.1
	if got := o.bytes(); got%unit != 0 || got > gib/10 || got < gib/10-unit {
		t.Errorf("0.1 GiB are %d bytes", got)
	}
}

func TestShapeOfTransfersIsWhatEbbUsed(t *testing.T) {
	st := status{Workers: 16, BlockBytes: 4 * mib}
	st.Disk.Files = 3
	if got, want := shapeOf(st), (shape{16, 16, 4 * mib, 3}); got != want {
		t.Errorf("without probes %+v", got)
	}
	st.Probes = append(st.Probes, way{Operation: "resume", Workers: 8})
	if got, want := shapeOf(st), (shape{16, 8, 4 * mib, 3}); got != want {
		t.Errorf("with a probe of resumes %+v", got)
	}
	st.LastPause = &outcome{Workers: 4}
	if got, want := shapeOf(st), (shape{4, 8, 4 * mib, 3}); got != want {
		t.Errorf("with the number that the latest pause used %+v", got)
	}
}

func TestEveryRowHasOneExperiment(t *testing.T) {
	count := map[string]int{}
	for _, e := range experiments {
		for _, row := range e.rows {
			count[row]++
		}
	}
	for _, row := range Rows {
		if count[row.Name] != 1 {
			t.Errorf("row %s is measured by %d experiments", row.Name, count[row.Name])
		}
		delete(count, row.Name)
	}
	if len(count) > 0 {
		t.Errorf("experiments give rows that are not listed: %v", count)
	}
}

func TestEnvironmentOfARank(t *testing.T) {
	o := NewOptions()
	o.Libraries.Soft = "/ebb/lib/softgpu"
	o.Environ = []string{"PATH=/bin", "TMS_RETAIN_CPU_BACKUP=1", "EBB_HOST_MB=7", "LD_PRELOAD=/x.so", "LD_LIBRARY_PATH=/mine", "SOFTGPU_NODE=n"}
	got := environment(o, []string{"libcudart.so.13", "/cuda/lib/libcudart.so.13", "/cuda/lib/libcudart.so.12"}, library{path: "/ebb.so"}, "MORE=1")
	want := []string{"PATH=/bin", "SOFTGPU_NODE=n", "LD_LIBRARY_PATH=/cuda/lib:/mine", "LD_PRELOAD=/ebb.so", "MORE=1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	o.Device = launch.DeviceSoft
	got = environment(o, []string{"/ebb/lib/softgpu/libcudart.so.13"}, library{})
	want = []string{"PATH=/bin", "SOFTGPU_NODE=n", "LD_LIBRARY_PATH=/ebb/lib/softgpu:/mine"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("software device (-want +got):\n%s", diff)
	}
}

func TestRuntimesAreTriedByNameThenByPath(t *testing.T) {
	there := map[string]bool{"/a/libcudart.so.12": true, "/b/libcudart.so.13": true}
	got := candidates([]string{"libcudart.so.13", "libcudart.so.12"}, []string{"/a", "/b", "/a"}, func(p string) bool { return there[p] })
	want := []string{"libcudart.so.13", "/b/libcudart.so.13", "libcudart.so.12", "/a/libcudart.so.12"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMemoryOfTheMachine(t *testing.T) {
	const meminfo = "MemTotal:       25165824 kB\nMemFree:  1 kB\nMemAvailable:   20971520 kB\nHugePages_Total:       0\n"
	if got := memoryIn([]byte(meminfo), "MemAvailable"); got != 20*gib {
		t.Errorf("available %d", got)
	}
	if got := memoryIn([]byte(meminfo), "SwapTotal"); got != 0 {
		t.Errorf("a line that is not there: %d", got)
	}
}

func TestNamesOfLibrariesAreShort(t *testing.T) {
	for path, want := range map[string]string{
		"/x/torch_memory_saver_hook_mode_preload_cu13.abi3.so": "tms",
		"/x/libsomething.so.1":                                 "something",
		"/x/libebb.so":                                         "other",
		"/x/libaverylongnameofalibrary.so":                     "averylongnam",
	} {
		if got := againstName(path); got != want {
			t.Errorf("%s is called %q, want %q", path, got, want)
		}
	}
}
