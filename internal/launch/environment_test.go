package launch

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var testLibraries = Libraries{
	Dir: "/opt/ebb/lib", Preload: "/opt/ebb/lib/torch_memory_saver/libebb.so",
	Engine: "/opt/ebb/lib/libebb-engine.so", Soft: "/opt/ebb/lib/softgpu",
}

var testRank = Rank{
	Role: "critic", Cell: 2, Job: "exp", Rank: 3, LocalRank: 3, World: 4, LocalWorld: 4,
	MasterAddr: "127.0.0.1", MasterPort: "4242", OwnWorld: true,
	Dirs: []string{"/disk/exp/critic_cell2_rank3"}, Leases: []string{"/disk/.ebb/exp__critic_cell2_rank3.lease"},
}

// result is the whole environment of a rank, as a map; a variable set twice fails the test.
func result(t *testing.T, o Options, r Rank, environ ...string) map[string]string {
	t.Helper()
	settings, err := Settings(o, testLibraries, r, Lookup(environ))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, entry := range Apply(environ, settings) {
		name, value, _ := strings.Cut(entry, "=")
		if _, twice := env[name]; twice {
			t.Errorf("%s is set twice", name)
		}
		env[name] = value
	}
	return env
}

// placed is what every rank of testRank gets.
func placed(more map[string]string) map[string]string {
	env := map[string]string{
		"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4",
		"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4242",
		"EBB_ROLE": "critic", "EBB_CELL": "2", "EBB_RANK": "3", "EBB_JOB": "exp",
	}
	for name, value := range more {
		env[name] = value
	}
	return env
}

func want(t *testing.T, got, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestWithoutOffloadOnlyThePlaceIsSet(t *testing.T) {
	got := result(t, NewOptions(), testRank, "PATH=/bin", "CUDA_VISIBLE_DEVICES=3,1", "LD_PRELOAD=libx.so", "TMS_INIT_ENABLE=1")
	want(t, got, placed(map[string]string{
		"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3,1", "LD_PRELOAD": "libx.so",
		"TMS_INIT_ENABLE": "1", // not ebb's: somebody uses another memory saver
	}))
}

func TestOffloadToHostMemory(t *testing.T) {
	o := NewOptions()
	o.Offload = true
	r := testRank
	r.Dirs, r.Leases = nil, nil
	got := result(t, o, r, "TMS_INIT_ENABLE_DISK_BACKUP=1", "TMS_DISK_BACKUP_DIR=/old")
	want(t, got, placed(map[string]string{
		"LD_PRELOAD":      "/opt/ebb/lib/torch_memory_saver/libebb.so",
		"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1", "TMS_INIT_ENABLE_DISK_BACKUP": "0",
		"EBB_HOST_ARENA": "1", "EBB_TRAIN_MEMORY_MARGIN_BYTES": "1073741824",
		"TMS_DISK_BACKUP_DIR": "/old", // the user's, for regions with disk backup
	}))
}

func TestOffloadToDisk(t *testing.T) {
	o := NewOptions()
	o.Offload, o.Target, o.ChunkMB, o.Device, o.MarginBytes = true, TargetDisk, 64, DeviceSoft, 4096
	got := result(t, o, testRank, "LD_LIBRARY_PATH=/usr/local/cuda/lib64", "LD_PRELOAD=libx.so liby.so", "TMS_INIT_ENABLE_CPU_BACKUP=1")
	want(t, got, placed(map[string]string{
		"LD_PRELOAD":      "/opt/ebb/lib/torch_memory_saver/libebb.so:libx.so liby.so",
		"LD_LIBRARY_PATH": "/opt/ebb/lib/softgpu:/usr/local/cuda/lib64",
		"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "0", "TMS_INIT_ENABLE_DISK_BACKUP": "1",
		"TMS_DISK_BACKUP_DIR": testRank.Dirs[0], "TMS_DISK_BACKUP_CHUNK_MB": "64", "EBB_LEASE": testRank.Leases[0],
		"EBB_HOST_ARENA": "1", "EBB_TRAIN_MEMORY_MARGIN_BYTES": "4096",
	}))
}

func TestOffloadToHostMemoryAndDisks(t *testing.T) {
	o := NewOptions()
	o.Offload, o.Target = true, TargetAuto
	r := testRank
	r.Dirs, r.Leases = []string{"/b/r", "/a/r"}, []string{"/b/l", "/a/l"}
	auto := map[string]string{
		"LD_PRELOAD":      "/opt/ebb/lib/torch_memory_saver/libebb.so",
		"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "0", "TMS_INIT_ENABLE_DISK_BACKUP": "1",
		"TMS_DISK_BACKUP_DIR": "/b/r", "TMS_DISK_BACKUP_CHUNK_MB": "256", "EBB_LEASE": "/b/l",
		"EBB_DISK_DIRS": "/b/r:/a/r", "EBB_DISK_LEASES": "/b/l:/a/l",
		"EBB_HOST_MB": "auto", "EBB_HOST_ARENA": "1", "EBB_TRAIN_MEMORY_MARGIN_BYTES": "1073741824",
	}
	want(t, result(t, o, r, "EBB_HOST_MB=7"), placed(auto))
	o.HostMB = 4096
	auto["EBB_HOST_MB"] = "4096"
	want(t, result(t, o, r), placed(auto))
	o.Target = TargetDisk
	want(t, result(t, o, r), placed(auto))
	o.Quota = 2_500_000_000
	auto["EBB_DISK_QUOTA_BYTES"] = "2500000000"
	want(t, result(t, o, r), placed(auto))
	o.HostMB, o.Quota = 0, 0
	delete(auto, "EBB_HOST_MB")
	delete(auto, "EBB_DISK_QUOTA_BYTES")
	want(t, result(t, o, r, "EBB_HOST_MB=auto", "EBB_DISK_QUOTA_BYTES=5"), placed(auto))
}

func TestWhatIsNotKnownStaysAsItIs(t *testing.T) {
	r := Rank{Role: "actor", Job: "j", Rank: 1, LocalRank: -1, World: -1, LocalWorld: -1}
	got := result(t, NewOptions(), r, "LOCAL_RANK=7", "MASTER_PORT=9", "TORCHELASTIC_USE_AGENT_STORE=True")
	want(t, got, map[string]string{
		"RANK": "1", "LOCAL_RANK": "7", "MASTER_PORT": "9", "TORCHELASTIC_USE_AGENT_STORE": "True",
		"EBB_ROLE": "actor", "EBB_CELL": "0", "EBB_RANK": "1", "EBB_JOB": "j",
	})
}

func TestAWorldOfItsOwnForgetsTorchrunsAgent(t *testing.T) {
	got := result(t, NewOptions(), testRank, "RANK=9", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=x", "GROUP_RANK=0", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1")
	want(t, got, placed(map[string]string{"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}))
}

// The outer rank's directory and lease would otherwise be used by the inner ranks too.
func TestARunInsideARunForgetsTheOuterRanksMemory(t *testing.T) {
	outer := NewOptions()
	outer.Offload, outer.Target = true, TargetAuto
	r := testRank
	r.Dirs, r.Leases = append(r.Dirs, "/other"), append(r.Leases, "/lease")
	settings, err := Settings(outer, testLibraries, r, Lookup(nil))
	if err != nil {
		t.Fatal(err)
	}
	inside := append(Apply([]string{"PATH=/bin"}, settings), "EBB_RUN=1")

	plain := result(t, NewOptions(), testRank, inside...)
	ofMemory := []string{"EBB_LEASE", "TMS_DISK_BACKUP_DIR", "TMS_DISK_BACKUP_CHUNK_MB", "EBB_DISK_DIRS", "EBB_DISK_LEASES", "EBB_HOST_MB"}
	for _, name := range append([]string{"TMS_INIT_ENABLE", "TMS_INIT_ENABLE_DISK_BACKUP", "EBB_HOST_ARENA"}, ofMemory...) {
		if v, set := plain[name]; set {
			t.Errorf("without offload: %s=%s is left", name, v)
		}
	}
	cpu := NewOptions()
	cpu.Offload = true
	r.Dirs, r.Leases = nil, nil
	memory := result(t, cpu, r, inside...)
	for _, name := range ofMemory {
		if v, set := memory[name]; set {
			t.Errorf("with the cpu target: %s=%s is left", name, v)
		}
	}
	if memory["TMS_INIT_ENABLE_DISK_BACKUP"] != "0" {
		t.Errorf("with the cpu target: %v", memory)
	}
	if got, want := memory["LD_PRELOAD"], testLibraries.Preload; got != want {
		t.Errorf("LD_PRELOAD=%s, want the library once", got)
	}
}

func TestPreloadKeepsWhatIsThere(t *testing.T) {
	const lib = "/e/torch_memory_saver/libebb.so"
	for list, want := range map[string]string{
		"":                        lib,
		" : ":                     lib,
		"liba.so":                 lib + ":liba.so",
		"liba.so:/x/libb.so":      lib + ":liba.so:/x/libb.so",
		"liba.so /x/libb.so":      lib + ":liba.so /x/libb.so",
		lib:                       lib,
		lib + ":liba.so":          lib + ":liba.so",
		"libasan.so:" + lib:       "libasan.so:" + lib,
		"libasan.so " + lib + " ": "libasan.so " + lib + " ",
	} {
		got, err := preloadList(lib, list)
		if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", list, got, err, want)
		}
	}
	_, err := preloadList(lib, "liba.so:/site-packages/torch_memory_saver_hook_mode_preload.abi3.so")
	refusal(t, err, "/site-packages/torch_memory_saver_hook_mode_preload.abi3.so", "LD_PRELOAD")
}

func TestApplyKeepsOrderAndStrangers(t *testing.T) {
	got := Apply([]string{"B=1", "=odd", "A=2", "A=3", "C=", "malformed"}, []Setting{{Name: "A", Value: "x"}, {Name: "C", Unset: true}, {Name: "D", Value: "y=z"}})
	if want := []string{"B=1", "=odd", "malformed", "A=x", "D=y=z"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLookupTakesTheFirstAsTheCLibraryDoes(t *testing.T) {
	env := Lookup([]string{"A=1", "A=2", "E=", "X"})
	if env("A") != "1" || env("E") != "" || env("X") != "" || env("nothing") != "" {
		t.Error(env("A"), env("E"), env("X"))
	}
}

// EBB_EVENT_LOG is a directory for the launcher and a file for the rank, whose name no other has.
func TestARankGetsAnEventLogOfItsOwn(t *testing.T) {
	o := NewOptions()
	o.Offload, o.EventLog = true, "/logs"
	const name = "EBB_EVENT_LOG"
	if got := result(t, o, testRank)[name]; got != "/logs/exp__critic_cell2_rank3.jsonl" {
		t.Errorf("%s=%s", name, got)
	}
	unknown := testRank
	unknown.Rank = -1
	if got := result(t, o, unknown)[name]; got != "/logs/exp__critic_cell2_rank0.jsonl" {
		t.Errorf("without a rank: %s=%s", name, got)
	}
	o.EventLog = ""
	if got, set := result(t, o, testRank, name+"=/logs/outer.jsonl", "EBB_RUN=1-2")[name]; set {
		t.Errorf("inside a rank with a log: %s=%s", name, got)
	}
	o.Offload = false
	if got, set := result(t, o, testRank, name+"=/logs/outer.jsonl", "EBB_RUN=1-2")[name]; set {
		t.Errorf("inside a rank with a log, without the library: %s=%s", name, got)
	}
}

func TestTheFormatOfLinesIsThatOfTheFlag(t *testing.T) {
	o := NewOptions()
	o.Offload = true
	const name = "EBB_LOG_FORMAT"
	if got, set := result(t, o, testRank)[name]; set {
		t.Errorf("text is the default, and set: %q", got)
	}
	if got := result(t, o, testRank, name+"=json")[name]; got != "text" {
		t.Errorf("--log-format text against the variable: %q", got)
	}
	o.LogFormat = LogJSON
	if got := result(t, o, testRank)[name]; got != "json" {
		t.Errorf("--log-format json: %q", got)
	}
}
