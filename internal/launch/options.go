package launch

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/hostmem"
)

// Where paused memory goes.
const (
	TargetCPU  = "cpu"
	TargetDisk = "disk"
	TargetAuto = "auto" // host memory up to a budget, the rest on disk
)

// Types in which the moments of streamed optimizer state are kept.
const (
	MomentFP32 = "fp32"
	MomentBF16 = "bf16"
	MomentFP16 = "fp16"
)

// ParseMoment parses --stream-optimizer-state-moment-dtype.
func ParseMoment(s string) (string, error) {
	if strings.HasPrefix(s, "fp8") {
		return "", fmt.Errorf("must be one of fp32, bf16, fp16: the second moment spans more powers of two than 8 bits hold without a scale of its own for each block")
	}
	return ParseChoice(s, MomentFP32, MomentBF16, MomentFP16)
}

// Devices. Auto is a CUDA driver too: it only leaves out the check when nothing of ebb runs on
// the device.
const (
	DeviceAuto = "auto"
	DeviceCUDA = "cuda"
	DeviceSoft = "soft"
)

// Defaults of the flags.
const (
	DefaultChunkMB = 256
	DefaultMargin  = 1 << 30 // bytes; 0 on the software device
	DefaultRole    = "actor"
	DefaultGrace   = 30 * time.Second
)

// maxRanks is more than any node has devices; a larger number is a slip of the keyboard.
const maxRanks = 4096

// Options is what the flags of run, exec and env say.
type Options struct {
	Ranks  int // --nproc-per-node
	Device string

	Offload     bool
	Target      string
	DiskDirs    []string // empty: DefaultDiskDir
	ChunkMB     int
	HostMB      int   // host memory that a rank's disk backups use before the disk; 0: none, or with the auto target what the rank chooses
	MarginBytes int64 // negative: the default
	AllowRAM    bool
	Discard     bool   // give the blocks of backup files back before their names go
	Quota       uint64 // bytes that the files of all ranks take in each disk directory; 0: no limit

	StateDirs   []string // --optimizer-state-nvme-dir
	StreamState bool     // --stream-optimizer-state-to-disk
	MomentDtype string   // of streamed optimizer state; empty: fp32

	Role  string
	Cell  int
	Job   string // empty: see DefaultJob
	Grace time.Duration

	EventLog  string // directory of the ranks' event logs, absolute; empty: none
	LogFormat string // of ebb's own lines and the library's
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Ranks: 1, Device: DeviceAuto, Target: TargetCPU, ChunkMB: DefaultChunkMB, MarginBytes: -1,
		Role: DefaultRole, Grace: DefaultGrace, LogFormat: LogText,
	}
}

// Disk reports whether ranks use the disk directory.
func (o Options) Disk() bool { return o.Offload && o.Target != TargetCPU }

// Stream reports whether ranks keep optimizer state on disk, through which each step passes.
func (o Options) Stream() bool { return o.StreamState || len(o.StateDirs) > 0 }

// StateBases are the directories of streamed state: those that were named for it, else the disk directories.
func (o Options) StateBases(getenv func(string) string, uid int) ([]string, error) {
	dirs := o.StateDirs
	if len(dirs) == 0 {
		named, err := o.DiskBases(getenv, uid)
		if err != nil {
			return nil, err
		}
		dirs = named
	}
	var bases []string
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, Usagef("--optimizer-state-nvme-dir %s: %w; name an absolute path", dir, err)
		}
		if strings.Contains(abs, ":") {
			return nil, Usagef("the directory of streamed optimizer state, %s, has a colon in its path: name another one with --optimizer-state-nvme-dir", abs)
		}
		bases = append(bases, abs)
	}
	return bases, nil
}

// Margin is the device memory, in bytes, that allocations of a rank leave free.
func (o Options) Margin() int64 {
	switch {
	case o.MarginBytes >= 0:
		return o.MarginBytes
	case o.Device == DeviceSoft:
		return 0
	default:
		return DefaultMargin
	}
}

// Validate checks the options against each other and against the memory of the machine, in
// bytes. localRanks is the number of ranks that share it.
func (o Options) Validate(localRanks int, memory uint64) error {
	switch {
	case o.Target != TargetCPU && !o.Offload:
		return Usagef("--offload-train-target %s has no effect without --offload-train: add --offload-train, or leave the target out", o.Target)
	case o.HostMB > 0 && !o.Offload:
		return Usagef("--offload-train-host-mb has no effect without --offload-train: add --offload-train --offload-train-target auto, or leave it out")
	case o.Quota > 0 && !o.Disk() && !o.Stream():
		return Usagef("--offload-train-disk-quota-gb has no effect without a disk: add --offload-train --offload-train-target disk or auto, or leave it out")
	case o.MomentDtype != "" && !o.Stream():
		return Usagef("--stream-optimizer-state-moment-dtype has no effect where no optimizer state is streamed: add --optimizer-state-nvme-dir DIR or --stream-optimizer-state-to-disk, or leave it out")
	case o.EventLog != "" && !o.Offload && !o.Stream():
		return Usagef("--event-log has no effect without --offload-train, since ebb's library writes it: add --offload-train, or leave it out")
	case o.HostMB > 0 && o.Target == TargetCPU:
		return Usagef("--offload-train-host-mb %d: the cpu target keeps all of it in host memory; add --offload-train-target auto for the disk to take the rest, or leave it out", o.HostMB)
	}
	if !o.Disk() {
		return nil
	}
	chunk := uint64(o.ChunkMB) << 20
	if need := chunk * uint64(max(localRanks, 1)); memory > 0 && need > memory {
		return Usagef("--offload-train-disk-chunk-mb %d: %s would pin %s of the %s of memory here; choose a smaller chunk",
			o.ChunkMB, Count(max(localRanks, 1), "rank"), humanize.IBytes(need), humanize.IBytes(memory))
	}
	return nil
}

// CapHost is the host memory budget, in MiB, that fits into what a rank may take here. The warning,
// if not empty, is one line that says why it is less than what was asked for.
func (o Options) CapHost(capacity hostmem.Verdict) (mb int, warning string) {
	if uint64(o.HostMB)<<20 <= capacity.Bytes {
		return o.HostMB, ""
	}
	mb = int(capacity.Bytes >> 20)
	return mb, fmt.Sprintf("--offload-train-host-mb %d is more than the memory here: %d is used (%v)", o.HostMB, mb, capacity)
}

// DiskBases are the disk directories, absolute and clean.
func (o Options) DiskBases(getenv func(string) string, uid int) ([]string, error) {
	if len(o.DiskDirs) == 0 {
		dir, err := DefaultDiskDir(getenv, uid)
		return []string{dir}, err
	}
	var bases []string
	for _, dir := range o.DiskDirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, Usagef("--offload-train-disk-dir %s: %w; name an absolute path", dir, err)
		}
		if len(o.DiskDirs) > 1 && strings.Contains(abs, ":") {
			return nil, Usagef("--offload-train-disk-dir %s: of several directories none may have a colon in its path; name another", dir)
		}
		bases = append(bases, abs)
	}
	return bases, nil
}

// BasesOf are the disk directories in the order of a rank. All ranks use all of them; each begins
// with another, so that a small pause of one rank and the first files of all spread over the disks.
func BasesOf(bases []string, r Rank) []string {
	if len(bases) == 0 {
		return nil
	}
	n := r.LocalRank
	if n < 0 {
		n = max(r.Rank, 0)
	}
	n %= len(bases)
	return slices.Concat(bases[n:], bases[:n])
}

// The parsers below give the words after "invalid argument … for … flag:".

// ParseRanks parses --nproc-per-node.
func ParseRanks(s string) (int, error) {
	return parseInt(s, 1, maxRanks, "a number of ranks")
}

// ParseChunkMB parses --offload-train-disk-chunk-mb. The bound keeps sizes in bytes far from
// overflow; Validate compares with the memory of the machine.
func ParseChunkMB(s string) (int, error) {
	return parseInt(s, 1, 1<<20, "a whole number of MiB")
}

// ParseHostMB parses --offload-train-host-mb, within the same bound.
func ParseHostMB(s string) (int, error) {
	return parseInt(s, 1, 1<<30, "a whole number of MiB")
}

// ParseQuotaGB parses --offload-train-disk-quota-gb, in units of 10^9 bytes, into bytes.
func ParseQuotaGB(s string) (uint64, error) {
	gb, err := strconv.ParseFloat(s, 64)
	if err != nil || !(gb >= 0.001 && gb <= 1e9) {
		return 0, fmt.Errorf("must be a number of GB, at least 0.001")
	}
	return uint64(math.Round(gb * 1e9)), nil
}

// ParseIndex parses --cell and --rank.
func ParseIndex(s string) (int, error) {
	return parseInt(s, 0, 1<<20, "a whole number")
}

func parseInt(s string, low, high int, what string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("must be %s from %d to %d", what, low, high)
	}
	return n, nil
}

// ParseMargin parses --train-memory-margin-bytes: bytes, or a size such as 512MiB.
func ParseMargin(s string) (int64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil || strings.HasPrefix(s, "-") || n > 1<<60 {
		return 0, fmt.Errorf("must be a number of bytes, at least 0, or a size such as 512MiB or 1GB")
	}
	return int64(n), nil
}

// ParseTime parses a number of seconds, or a time with its unit, as --grace and --timeout take them.
func ParseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	const most = 7 * 24 * time.Hour
	if seconds, e := strconv.ParseFloat(s, 64); e == nil && seconds >= 0 && seconds <= most.Seconds() { // not NaN
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || d < 0 || d > most {
		return 0, fmt.Errorf("must be a number of seconds, or a time such as 90s or 5m, and at most a week")
	}
	return d, nil
}

// ParseChoice checks that s is one of the words.
func ParseChoice(s string, words ...string) (string, error) {
	if !slices.Contains(words, s) {
		return "", fmt.Errorf("must be one of %s", strings.Join(words, ", "))
	}
	return s, nil
}

// ParseSwitch parses a flag that is on or off.
func ParseSwitch(s string) (bool, error) {
	on, err := strconv.ParseBool(s)
	if err != nil {
		return false, fmt.Errorf("must be one of 1, t, true, 0, f, false")
	}
	return on, nil
}

// ParseDirs splits DIR[,DIR…].
func ParseDirs(s string) ([]string, error) {
	if strings.TrimSpace(s) == "" {
		return nil, fmt.Errorf("must name a directory")
	}
	dirs := strings.Split(s, ",")
	for i, d := range dirs {
		if strings.TrimSpace(d) == "" {
			return nil, fmt.Errorf("entry %d of the list is empty", i+1)
		}
		if strings.ContainsAny(d, "\n\x00") {
			return nil, fmt.Errorf("entry %d of the list holds a line break or a zero byte", i+1)
		}
	}
	return dirs, nil
}

// Count is a number of things: "1 file", "2 files", "3 directories".
func Count(n int, what string) string {
	if stem, found := strings.CutSuffix(what, "y"); found && n != 1 {
		what = stem + "ies"
	} else if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
