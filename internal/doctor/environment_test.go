package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/launch"
)

func judged(device string, set ...string) []Finding {
	return judgeEnvironment(launch.Lookup(set), device, func(path string) bool { return !strings.Contains(path, "missing") })
}

func TestVariablesThatAreInTheWay(t *testing.T) {
	for _, c := range []struct {
		set    []string
		status Status
		words  string
	}{
		{[]string{"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,backend:cudaMallocAsync"}, Fail, "take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"},
		{[]string{"PYTORCH_ALLOC_CONF=backend: cudaMallocAsync"}, Fail, "PYTORCH_ALLOC_CONF"},
		{[]string{"PYTORCH_ALLOC_CONF=expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"}, Warn, "differ"},
		{[]string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}, Warn, "allocation of its own"},
		{[]string{"TMS_INIT_ENABLE=1"}, Warn, "content of the memory up"},
		{[]string{"TMS_INIT_ENABLE=yes", "TMS_INIT_ENABLE_CPU_BACKUP=true", "TMS_INIT_ENABLE_DISK_BACKUP=1"}, Fail, "exclude one another"},
		{[]string{"TMS_DISK_BACKUP_DIR=/a", "EBB_OFFLOAD_TRAIN_DISK_DIR=/b"}, Warn, "unset TMS_DISK_BACKUP_DIR"},
		{[]string{"EBB_HOST_MB=4096"}, Warn, "--offload-train-host-mb"},
		{[]string{"CUDA_LAUNCH_BLOCKING=1"}, Warn, "waits for each kernel"},
		{[]string{"NCCL_GRAPH_REGISTER=1"}, Warn, "NCCL_GRAPH_REGISTER=0"},
		{[]string{"EBB_FAULT_FILES=pwrite:3:EIO"}, Warn, "for tests"},
		{[]string{"EBB_IO_TIMEOUT=0"}, Warn, "for ever"},
		{[]string{"CUDA_VISIBLE_DEVICES=-1"}, Fail, "hides all devices"},
		{[]string{"LD_PRELOAD=/x/missing.so:libfoo.so"}, Warn, "/x/missing.so"},
		{[]string{"LD_PRELOAD=/p/site-packages/torch_memory_saver_hook_mode_preload_cu12.abi3.so"}, Fail, "another memory saver"},
	} {
		t.Run(strings.Join(c.set, " "), func(t *testing.T) {
			rows := judged(launch.DeviceAuto, c.set...)
			if len(rows) != 1 {
				t.Fatalf("%d rows: %+v", len(rows), rows)
			}
			expect(t, rows[0], c.status, c.words)
		})
	}
}

func TestVariablesThatAreNot(t *testing.T) {
	for _, set := range [][]string{
		nil,
		{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "CUDA_LAUNCH_BLOCKING=0", "NCCL_GRAPH_REGISTER=0", "CUDA_VISIBLE_DEVICES=0,1"},
		{"PYTORCH_ALLOC_CONF=a:1", "PYTORCH_CUDA_ALLOC_CONF=a:1"},
		{"TMS_INIT_ENABLE=1", "TMS_INIT_ENABLE_DISK_BACKUP=1", "EBB_RUN=1-2", "EBB_HOST_MB=1", "TMS_DISK_BACKUP_DIR=/a", "EBB_OFFLOAD_TRAIN_DISK_DIR=/b"}, // a rank
		{"LD_PRELOAD=/opt/ebb/lib/torch_memory_saver/libebb.so"},
	} {
		rows := judged(launch.DeviceAuto, set...)
		if len(rows) != 1 || rows[0].Status != OK {
			t.Errorf("%v: %+v", set, rows)
		}
	}
	if rows := judged(launch.DeviceSoft, "CUDA_VISIBLE_DEVICES=-1"); rows[0].Status != OK {
		t.Errorf("the software device heeds no such variable: %+v", rows)
	}
	if rows := judged(launch.DeviceAuto, "CUDA_LAUNCH_BLOCKING=1", "EBB_IO_TIMEOUT=0"); len(rows) != 2 {
		t.Errorf("%d rows for two variables", len(rows))
	}
}

// An adopted package has links to ebb's library under the names of its own.
func TestAnAdoptedLibraryIsNoOtherSaver(t *testing.T) {
	dir := t.TempDir()
	ours, link := filepath.Join(dir, "libebb.so"), filepath.Join(dir, "torch_memory_saver_hook_mode_preload.abi3.so")
	if err := os.WriteFile(ours, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(ours, link); err != nil {
		t.Fatal(err)
	}
	if isOtherSaver(link) {
		t.Error("it was taken for one")
	}
}

// What is not a setting of ebb, CUDA or PyTorch never comes into a bug report.
func TestOnlySettingsAreShown(t *testing.T) {
	environ := []string{"HF_TOKEN=hf_secret", "AWS_SECRET_ACCESS_KEY=secret", "EBB_SECRET=secret", "WANDB_API_KEY=secret", "PATH=/secret",
		"CUDA_VISIBLE_DEVICES=3", "LD_LIBRARY_PATH=" + strings.Repeat("/very/long", 100)}
	facts := shown(launch.Lookup(environ))
	var names []string
	for _, f := range facts {
		names = append(names, f.Name)
		if strings.Contains(f.Value, "secret") {
			t.Errorf("shown: %+v", f)
		}
		if len(f.Value) > longestValue+30 {
			t.Errorf("%s is shown with %d bytes", f.Name, len(f.Value))
		}
	}
	if !slices.Equal(names, []string{"env CUDA_VISIBLE_DEVICES", "env LD_LIBRARY_PATH"}) {
		t.Errorf("shown: %v", names)
	}
}
