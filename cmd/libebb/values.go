package main

// #include "exports.h"
import "C"

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/engine"
	"github.com/ebb-offload/ebb/internal/mem"
)

// This file makes Go values of C's, and refuses what the header does not allow.

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{engine.ErrInvalid}, args...)...)
}

func configOf(c *C.ebb_engine_config) (engine.Config, error) {
	if c == nil {
		return engine.Config{}, invalid("config is null")
	}
	if c.abi != C.EBB_ENGINE_ABI || c.struct_size != C.sizeof_ebb_engine_config {
		return engine.Config{}, invalid("libebb.so speaks version %d of the interface (config of %d bytes), this engine version %d (%d bytes): install both libraries from one build",
			c.abi, c.struct_size, C.EBB_ENGINE_ABI, C.sizeof_ebb_engine_config)
	}
	if c.log_fd >= 0 && c.log_fd <= 2 {
		return engine.Config{}, invalid("log descriptor %d belongs to the host process", c.log_fd)
	}
	config := engine.Config{
		LogFD:      int(c.log_fd),
		ChunkBytes: uint64(c.chunk_bytes),
		Driver:     C.GoString(c.driver),
		Lease:      C.GoString(c.lease),
		Identity:   C.GoString(c.identity),
		Discard:    c.discard != 0,
		HostBytes:  uint64(c.host_bytes),
		HostAuto:   c.host_bytes == C.EBB_HOST_AUTO,
		HostArena:  c.host_arena != 0,
		LocalRanks: int(max(c.local_ranks, 0)),
		DiskDirs:   pathsOf(c.disk_dirs),
		MoreLeases: pathsOf(c.leases),
		DiskQuota:  uint64(c.disk_quota),
		IOTimeout:  duration(float64(c.io_timeout_s)),
		FileFaults: C.GoString(c.file_faults),

		StateDirs:   pathsOf(c.state_dirs),
		StateLeases: pathsOf(c.state_leases),
		StateChunk:  uint64(c.state_chunk_bytes),

		Job:           C.GoString(c.job),
		RuntimeDir:    C.GoString(c.runtime_dir),
		XDGRuntimeDir: C.GoString(c.xdg_runtime_dir),
		EventLog:      C.GoString(c.event_log),
		LogJSON:       c.log_json != 0,
	}
	if c.calls != nil {
		config.Calls = calls{*c.calls}
	}
	if c.descriptors != nil {
		config.NoteDescriptor = noteIn(c.descriptors)
	}
	if len(config.MoreLeases) > 0 {
		if config.MoreLeases[0] != config.Lease {
			return engine.Config{}, invalid("the first of the leases %q is not the lease %q", config.MoreLeases, config.Lease)
		}
		config.MoreLeases = config.MoreLeases[1:]
	}
	return config, nil
}

// pathsOf is the paths of a list that is separated by colons.
func pathsOf(list *C.char) []string {
	text := C.GoString(list)
	if text == "" {
		return nil
	}
	return strings.Split(text, ":")
}

func regionOf(r *C.ebb_engine_region) (engine.Region, error) {
	if r == nil || r.tag == nil {
		return engine.Region{}, invalid("region or tag is null")
	}
	return engine.Region{Tag: C.GoString(r.tag), Backup: alloc.Backup(r.backup), Mmap: r.cpu_mmap != 0}, nil
}

// tagsOf copies the tags; none means all allocations.
func tagsOf(tags **C.char, n C.size_t) ([]string, error) {
	if n == 0 {
		return nil, nil
	}
	if tags == nil {
		return nil, invalid("tags is null")
	}
	names := make([]string, 0, n)
	for i, tag := range unsafe.Slice(tags, int(n)) {
		if tag == nil {
			return nil, invalid("tag %d is null", i)
		}
		names = append(names, C.GoString(tag))
	}
	return names, nil
}

func settingsOf(s *C.ebb_engine_settings) (engine.Settings, error) {
	if s == nil {
		return engine.Settings{}, invalid("settings is null")
	}
	unused, err := rangesOf(s.unused, s.nunused)
	if err != nil {
		return engine.Settings{}, err
	}
	classes, err := classesOf(s.classes, s.nclasses)
	if err != nil {
		return engine.Settings{}, err
	}
	return engine.Settings{
		DiskDir:       C.GoString(s.disk_dir),
		RetainCPU:     s.retain_cpu_backup != 0,
		CaptureActive: s.capture_active != 0,
		Unmanaged:     int64(s.unmanaged),
		ResumeWait:    duration(float64(s.resume_wait_s)),
		Unused:        unused,
		Classes:       classes,
		Ask:           uint64(s.ask),
	}, nil
}

// rangesOf copies ranges of device memory, as numbers. Their pointers are the caller's word: one that is none, or that
// by chance looks like one of Go's, must not be a pointer on a Go stack even for a moment, where
// the collector would find it.
func rangesOf(ranges *C.ebb_range, n C.size_t) ([]mem.Range, error) {
	if n == 0 {
		return nil, nil
	}
	if ranges == nil {
		return nil, invalid("unused is null")
	}
	list := make([]mem.Range, 0, n)
	all := unsafe.Slice(ranges, int(n))
	for i := range all {
		addr := *(*uintptr)(unsafe.Pointer(&all[i].ptr))
		list = append(list, mem.Range{Addr: mem.Addr(addr), Bytes: uint64(all[i].bytes)})
	}
	return list, nil
}

// classesOf copies what is known of memory that is not managed.
func classesOf(classes *C.ebb_engine_unmanaged, n C.size_t) ([]engine.Class, error) {
	if n == 0 {
		return nil, nil
	}
	if classes == nil {
		return nil, invalid("classes is null")
	}
	list := make([]engine.Class, 0, n)
	all := unsafe.Slice(classes, int(n))
	for i := range all {
		c := &all[i]
		if c.name == nil {
			return nil, invalid("class %d has no name", i)
		}
		list = append(list, engine.Class{Name: C.GoString(c.name), Bytes: uint64(c.bytes), Count: uint64(c.count)})
	}
	return list, nil
}

// timeoutOf is a time to wait in seconds; negative: no limit.
func timeoutOf(seconds float64) (time.Duration, error) {
	switch {
	case math.IsNaN(seconds):
		return 0, invalid("the time to wait is not a number")
	case seconds < 0:
		return -1, nil
	}
	return duration(seconds), nil
}

// duration is a time in seconds; what is negative or no number is 0, what is too long the longest.
func duration(seconds float64) time.Duration {
	switch {
	case !(seconds > 0):
		return 0
	case seconds >= math.MaxInt64/float64(time.Second):
		return math.MaxInt64
	}
	return time.Duration(seconds * float64(time.Second))
}

func putResult(out *C.ebb_result, r engine.Result) {
	out.allocations = C.uint64_t(r.Allocations)
	out.bytes = C.uint64_t(r.Bytes)
	out.device_bytes = C.uint64_t(r.DeviceBytes)
	out.host_bytes = C.uint64_t(r.HostBytes)
	out.disk_bytes = C.uint64_t(r.DiskBytes)
	out.nanoseconds = C.uint64_t(r.Duration.Nanoseconds())
	out.skipped_zero_bytes = C.uint64_t(r.SkippedZero)
	out.skipped_same_bytes = C.uint64_t(r.SkippedSame)
	out.skipped_unused_bytes = C.uint64_t(r.SkippedUnused)
	out.kept_bytes = C.uint64_t(r.Kept)
	out.check_nanoseconds = C.uint64_t(r.Checks.Nanoseconds())
	out.freed_bytes = C.uint64_t(r.Freed)
	out.missing_bytes = C.uint64_t(r.Missing)
}
