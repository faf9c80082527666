package launch

import (
	"cmp"
	"strconv"
	"strings"
)

// Setting is one variable of a rank's environment.
type Setting struct {
	Name  string
	Value string
	Unset bool // the variable is removed; Value is empty
}

// Rank is one rank to compose an environment for. Numbers are -1 and texts empty where they are
// not known: the variable stays as it is.
type Rank struct {
	Role string
	Cell int
	Job  string

	Rank       int
	LocalRank  int
	World      int
	LocalWorld int
	MasterAddr string
	MasterPort string
	OwnWorld   bool // ebb made this world of ranks, not the launcher around it

	Dirs   []string // rank directories, in the rank's order; none with the cpu target
	Leases []string // their lease files; none when nobody supervises the rank

	StateDirs, StateLeases []string // the same of streamed state
}

// Variables by which torchrun tells its ranks about their agent. In a world of ebb's own, left
// in place, they make a rank wait at the outer agent's store.
var torchrunOnly = []string{
	"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
	"TORCHELASTIC_MAX_RESTARTS", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE",
}

// Variables that an outer run of ebb set for its own rank's memory.
var outerMemory = []string{
	"TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP",
	"TMS_DISK_BACKUP_DIR", "TMS_DISK_BACKUP_CHUNK_MB", "EBB_TRAIN_MEMORY_MARGIN_BYTES", "EBB_LEASE",
	"EBB_DISK_DIRS", "EBB_DISK_LEASES", "EBB_HOST_MB", "EBB_HOST_ARENA", "EBB_DISCARD", "EBB_DISK_QUOTA_BYTES",
	"EBB_EVENT_LOG", "EBB_STATE_DIRS", "EBB_STATE_LEASES",
	"EBB_OPTIMIZER_STATE_NVME_DIR", "EBB_STREAM_OPTIMIZER_STATE_TO_DISK", "EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE",
}

// Settings composes what is set for a rank on top of the environment that getenv reads. It
// touches nothing.
func Settings(o Options, libs Libraries, r Rank, getenv func(string) string) ([]Setting, error) {
	var s settings
	s.number("RANK", r.Rank)
	s.number("LOCAL_RANK", r.LocalRank)
	s.number("WORLD_SIZE", r.World)
	s.number("LOCAL_WORLD_SIZE", r.LocalWorld)
	s.text("MASTER_ADDR", r.MasterAddr)
	s.text("MASTER_PORT", r.MasterPort)
	if r.OwnWorld {
		s.unset(getenv, torchrunOnly...)
	}

	s.text("EBB_ROLE", r.Role)
	s.number("EBB_CELL", r.Cell)
	s.number("EBB_RANK", r.Rank)
	s.text("EBB_JOB", r.Job)

	if o.Device == DeviceSoft {
		s.text("LD_LIBRARY_PATH", prepend(libs.Soft, getenv("LD_LIBRARY_PATH")))
	}
	if !o.Offload && Nested(getenv) {
		s.unset(getenv, outerMemory...)
	}
	if !o.Offload && !o.Stream() {
		return s, nil
	}

	preload, err := preloadList(libs.Preload, getenv("LD_PRELOAD"))
	if err != nil {
		return nil, err
	}
	s.text("LD_PRELOAD", preload)
	s.stream(o, r, getenv)
	if !o.Offload {
		s.limits(o, getenv)
		s.log(o, r, getenv)
		return s, nil
	}
	s.text("TMS_INIT_ENABLE", "1")
	s.text("TMS_INIT_ENABLE_CPU_BACKUP", zeroOne(!o.Disk()))
	s.text("TMS_INIT_ENABLE_DISK_BACKUP", zeroOne(o.Disk()))
	s.text("EBB_HOST_ARENA", "1")
	if o.Disk() || Nested(getenv) { // else it is the user's, for regions with disk backup: see bareDir
		s.setOrUnset(getenv, "TMS_DISK_BACKUP_DIR", first(r.Dirs))
	}
	s.setOrUnset(getenv, "EBB_LEASE", first(r.Leases))
	s.setOrUnset(getenv, "EBB_DISK_DIRS", several(r.Dirs))
	s.setOrUnset(getenv, "EBB_DISK_LEASES", several(r.Leases))
	s.setOrUnset(getenv, "EBB_HOST_MB", o.hostMB())
	s.limits(o, getenv)
	if o.Disk() {
		s.text("TMS_DISK_BACKUP_CHUNK_MB", strconv.Itoa(o.ChunkMB))
	} else if Nested(getenv) {
		s.unset(getenv, "TMS_DISK_BACKUP_CHUNK_MB")
	}
	s.log(o, r, getenv)
	s.text("EBB_TRAIN_MEMORY_MARGIN_BYTES", strconv.FormatInt(o.Margin(), 10))
	return s, nil
}

// limits and log are what parking and streamed state share.
func (s *settings) limits(o Options, getenv func(string) string) {
	s.setOrUnset(getenv, "EBB_DISCARD", o.discard())
	s.setOrUnset(getenv, "EBB_DISK_QUOTA_BYTES", o.quota())
}

func (s *settings) log(o Options, r Rank, getenv func(string) string) {
	s.setOrUnset(getenv, "EBB_EVENT_LOG", r.eventLogPath(o.EventLog))
	if o.LogFormat != LogText || getenv("EBB_LOG_FORMAT") != "" {
		s.text("EBB_LOG_FORMAT", o.LogFormat)
	}
}

// stream is what tells a rank of streamed optimizer state: the library where, the Python package that and how.
func (s *settings) stream(o Options, r Rank, getenv func(string) string) {
	var to, dtype string
	if o.Stream() {
		to, dtype = "1", cmp.Or(o.MomentDtype, MomentFP32)
	}
	s.setOrUnset(getenv, "EBB_STATE_DIRS", strings.Join(r.StateDirs, ":"))
	s.setOrUnset(getenv, "EBB_STATE_LEASES", strings.Join(r.StateLeases, ":"))
	s.setOrUnset(getenv, "EBB_STREAM_OPTIMIZER_STATE_TO_DISK", to)
	s.setOrUnset(getenv, "EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE", dtype)
	s.setOrUnset(getenv, "EBB_OPTIMIZER_STATE_NVME_DIR", strings.Join(o.StateDirs, ","))
}

// hostMB is the value of EBB_HOST_MB; empty: disk backups use no host memory.
func (o Options) hostMB() string {
	switch {
	case o.Disk() && o.HostMB > 0:
		return strconv.Itoa(o.HostMB)
	case o.Disk() && o.Target == TargetAuto:
		return "auto"
	default:
		return ""
	}
}

// discard is the value of EBB_DISCARD; empty: the blocks of removed files are left to the file system.
func (o Options) discard() string {
	if (o.Disk() || o.Stream()) && o.Discard {
		return "1"
	}
	return ""
}

// quota is the value of EBB_DISK_QUOTA_BYTES; empty: no limit.
func (o Options) quota() string {
	if (o.Disk() || o.Stream()) && o.Quota > 0 {
		return strconv.FormatUint(o.Quota, 10)
	}
	return ""
}

// first is the first of a list, and several the list when it has more, as PATH is one.
func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func several(list []string) string {
	if len(list) < 2 {
		return ""
	}
	return strings.Join(list, ":")
}

// settings is a list under construction.
type settings []Setting

func (s *settings) text(name, value string) {
	if value != "" {
		*s = append(*s, Setting{Name: name, Value: value})
	}
}

func (s *settings) number(name string, n int) {
	if n >= 0 {
		s.text(name, strconv.Itoa(n))
	}
}

// setOrUnset sets a variable, or with an empty value removes it.
func (s *settings) setOrUnset(getenv func(string) string, name, value string) {
	if value == "" {
		s.unset(getenv, name)
	}
	s.text(name, value)
}

// unset removes those of the variables that are there.
func (s *settings) unset(getenv func(string) string, names ...string) {
	for _, name := range names {
		if getenv(name) != "" {
			*s = append(*s, Setting{Name: name, Unset: true})
		}
	}
}

func zeroOne(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// prepend puts an entry in front of a list of the dynamic loader, once.
func prepend(entry, list string) string {
	if list == "" {
		return entry
	}
	if first, _, _ := strings.Cut(list, ":"); first == entry {
		return list
	}
	return entry + ":" + list
}

// preloadList puts ebb's library in front of what is preloaded already. A second library that
// manages the same memory is refused: each would undo the other's work.
func preloadList(library, list string) (string, error) {
	entries := strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(": \t\n", r) })
	for _, entry := range entries {
		if entry == library {
			return list, nil
		}
		if strings.Contains(entry, "torch_memory_saver") {
			return "", Usagef("LD_PRELOAD holds another memory saver, %s: start without it, ebb brings its own", entry)
		}
	}
	if len(entries) == 0 {
		return library, nil
	}
	return library + ":" + list, nil
}

// Apply puts settings on an environment ("NAME=value" entries): each variable once, the rest as
// it was and in its order.
func Apply(environ []string, settings []Setting) []string {
	change := make(map[string]bool, len(settings))
	for _, s := range settings {
		change[s.Name] = true
	}
	out := make([]string, 0, len(environ)+len(settings))
	for _, entry := range environ {
		if name, _, ok := strings.Cut(entry, "="); ok && change[name] {
			continue
		}
		out = append(out, entry)
	}
	for _, s := range settings {
		if !s.Unset {
			out = append(out, s.Name+"="+s.Value)
		}
	}
	return out
}

// Lookup returns a function that reads an environment as the C library does: the first entry of
// a name counts.
func Lookup(environ []string) func(string) string {
	values := make(map[string]string, len(environ))
	for _, entry := range environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			if _, seen := values[name]; !seen {
				values[name] = value
			}
		}
	}
	return func(name string) string { return values[name] }
}
