package launch

import (
	"strings"
	"testing"
)

func TestVariablesThatFlagsOverrideAreSaid(t *testing.T) {
	o := NewOptions()
	o.Offload, o.Target = true, TargetDisk
	line := func(o Options, environ ...string) string {
		t.Helper()
		r := testRank
		if !o.Disk() {
			r.Dirs, r.Leases = nil, nil
		}
		settings, err := Settings(o, testLibraries, r, Lookup(environ))
		if err != nil {
			t.Fatal(err)
		}
		return overridden(settings, Lookup(environ))
	}
	got := line(o, "TMS_INIT_ENABLE=0", "TMS_INIT_ENABLE_CPU_BACKUP=1", "TMS_DISK_BACKUP_DIR=/old", "TMS_DISK_BACKUP_CHUNK_MB=8", "EBB_HOST_MB=7", "EBB_DISK_QUOTA_BYTES=5")
	for _, word := range []string{
		"TMS_INIT_ENABLE=0 (--offload-train)", "TMS_INIT_ENABLE_CPU_BACKUP=1 (--offload-train-target)", "TMS_DISK_BACKUP_DIR=/old (--offload-train-disk-dir)",
		"TMS_DISK_BACKUP_CHUNK_MB=8 (--offload-train-disk-chunk-mb)", "EBB_HOST_MB=7 (--offload-train-host-mb)", "EBB_DISK_QUOTA_BYTES=5 (--offload-train-disk-quota-gb)",
	} {
		if !strings.Contains(got, word) {
			t.Errorf("%q lacks %q", got, word)
		}
	}
	for _, same := range [][]string{
		nil,
		{"TMS_INIT_ENABLE=yes", "TMS_INIT_ENABLE_CPU_BACKUP=no", "TMS_DISK_BACKUP_CHUNK_MB=256", "EBB_HOST_ARENA=true"},
		{"EBB_RUN=1-2", "TMS_DISK_BACKUP_DIR=/outer", "EBB_HOST_MB=7"}, // of the rank around this run
	} {
		if got := line(o, same...); got != "" {
			t.Errorf("%q: %s", same, got)
		}
	}
	o.Target = TargetCPU
	if got := line(o, "TMS_DISK_BACKUP_DIR=/mine", "TMS_DISK_BACKUP_CHUNK_MB=8"); got != "" {
		t.Errorf("what the cpu target leaves alone: %s", got)
	}
	if got := line(NewOptions(), "TMS_INIT_ENABLE=0", "EBB_HOST_MB=7"); got != "" {
		t.Errorf("without offload: %s", got)
	}
}
