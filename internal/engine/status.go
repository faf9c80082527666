package engine

import (
	"encoding/json"
	"os"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/version"
)

// Status is the JSON of ebb_status. Sizes are bytes, times seconds.
type Status struct {
	Version       string       `json:"version"`
	PID           int          `json:"pid"`
	Job           string       `json:"job,omitempty"` // this and the next three: who this is, as the launcher says
	Role          string       `json:"role,omitempty"`
	Cell          string       `json:"cell,omitempty"`
	Rank          string       `json:"rank,omitempty"`
	Device        string       `json:"device"`
	DriverVersion int          `json:"driver_version"`
	Allocations   int          `json:"allocations"`
	BytesActive   uint64       `json:"bytes_active"`
	BytesPaused   uint64       `json:"bytes_paused"`
	StagingBytes  uint64       `json:"staging_bytes"`
	Workers       int          `json:"workers"` // at most
	BlockBytes    uint64       `json:"block_bytes"`
	Probes        []tuning     `json:"probes"` // how many workers serve which directories
	Tags          []TagStatus  `json:"tags"`
	Pauses        uint64       `json:"pauses"` // that had something to do, so far
	LastPause     *outcome     `json:"last_pause"`
	LastResume    *outcome     `json:"last_resume"`
	Disk          DiskStatus   `json:"disk"`
	HostBytes     uint64       `json:"host_bytes"`
	Host          HostStatus   `json:"host"`
	Quarantined   Quarantine   `json:"quarantined"`
	Objects       ObjectStatus `json:"objects"`
	Kept          []alloc.Kept `json:"kept"` // what a pause of everything leaves on the device, by reason
	Unmanaged     unmanaged    `json:"unmanaged"`

	States            []StateStatus `json:"states"`              // streamed state, the oldest first
	StateStagingBytes uint64        `json:"state_staging_bytes"` // pinned memory that it passes through
}

// ObjectStatus is memory that its owner maps. What is mapped nowhere may have been forgotten by its
// owner.
type ObjectStatus struct {
	Count         int    `json:"count"`
	Unmapped      int    `json:"unmapped"`
	UnmappedBytes uint64 `json:"unmapped_bytes"`
}

// TagStatus sums up one tag: bytes on the device, paused bytes by their backup, and those that have one by where
// they are.
type TagStatus struct {
	Tag         string `json:"tag"`
	Allocations int    `json:"allocations"`
	Active      uint64 `json:"active"`
	Host        uint64 `json:"host"`
	Disk        uint64 `json:"disk"`
	Discarded   uint64 `json:"discarded"`
	InHost      uint64 `json:"in_host"`
	InFiles     uint64 `json:"in_files"`
	Skipped     uint64 `json:"skipped"` // in neither: all zero, or not needed
}

// DiskStatus is what the process has in backup files.
type DiskStatus struct {
	Dir    string `json:"dir"`
	Files  int    `json:"files"`
	Bytes  uint64 `json:"bytes"`
	Direct bool   `json:"direct_io"`   // false after the file system refused O_DIRECT
	Quota  uint64 `json:"quota_bytes"` // of all ranks together, in each directory; 0: none

	Written uint64 `json:"written_bytes"` // by this process so far

	Dirs []DirStatus `json:"dirs"` // all that were used
}

// DirStatus counts what one directory was given and gave back so far.
type DirStatus struct {
	Dir     string `json:"dir"`
	Written uint64 `json:"written_bytes"`
	Read    uint64 `json:"read_bytes"`
}

// outcome is what the latest pause or resume did.
type outcome struct {
	Allocations uint64  `json:"allocations"`
	Bytes       uint64  `json:"bytes"`
	DeviceBytes uint64  `json:"device_bytes"`
	HostBytes   uint64  `json:"host_bytes"`
	DiskBytes   uint64  `json:"disk_bytes"`
	SkippedZero uint64  `json:"skipped_zero_bytes"`
	SkippedSame uint64  `json:"skipped_same_bytes"`
	Unused      uint64  `json:"skipped_unused_bytes"`
	Kept        uint64  `json:"kept_bytes"`
	Freed       uint64  `json:"freed_bytes"`
	Missing     uint64  `json:"missing_bytes"`
	Workers     int     `json:"workers"` // that moved them
	Seconds     float64 `json:"seconds"`
	Checks      float64 `json:"check_seconds"`
	Phases      Phases  `json:"phases"`   // seconds of its parts
	GBPerS      float64 `json:"gb_per_s"` // 1e9 logical bytes a second
	Error       string  `json:"error,omitempty"`
}

func newOutcome(r Result, err error) *outcome {
	o := &outcome{
		Allocations: r.Allocations, Bytes: r.Bytes, DeviceBytes: r.DeviceBytes,
		HostBytes: r.HostBytes, DiskBytes: r.DiskBytes,
		SkippedZero: r.SkippedZero, SkippedSame: r.SkippedSame, Unused: r.SkippedUnused, Kept: r.Kept, Freed: r.Freed, Missing: r.Missing,
		Workers: r.Workers, Phases: r.Phases,
		Seconds: r.Duration.Seconds(), Checks: r.Checks.Seconds(),
	}
	if o.Seconds > 0 {
		o.GBPerS = float64(r.Bytes) / 1e9 / o.Seconds
	}
	if err != nil {
		o.Error = err.Error()
	}
	return o
}

// PauseCount is how many pauses took memory with a tag so far. It never waits for one under way.
func (e *Engine) PauseCount(tag string) uint64 { return e.table.Taken(tag) }

func (e *Engine) recordPause(r Result, err error) *outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pauses++
	e.lastPause = newOutcome(r, err)
	return e.lastPause
}

func (e *Engine) recordResume(r Result, err error) *outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastResume = newOutcome(r, err)
	return e.lastResume
}

// Status describes the process's managed memory as one JSON object. It never waits for a pause
// or resume under way. classes is what the hooks saw pass unmanaged.
func (e *Engine) Status(classes []Class) []byte {
	s := Status{Version: version.Version, PID: os.Getpid(), Workers: e.workers, BlockBytes: e.block, Tags: []TagStatus{}}
	who := e.events.who
	s.Job, s.Role, s.Cell, s.Rank = who.Job, who.Role, who.Cell, who.Rank
	s.DriverVersion, _ = e.drv.Version()
	s.Device, _ = e.drv.DeviceName(e.anyDevice())
	where := e.placedByTag()
	for _, t := range e.table.Summary() {
		at := where[t.Tag]
		ts := TagStatus{
			Tag: t.Tag, Allocations: t.Allocations, Active: t.Active,
			Host: t.Paused[alloc.BackupCPU], Disk: t.Paused[alloc.BackupDisk], Discarded: t.Paused[alloc.BackupNone],
			InHost: at.host, InFiles: at.files, Skipped: at.skipped,
		}
		s.Allocations += t.Allocations
		s.BytesActive += ts.Active
		s.BytesPaused += ts.Host + ts.Disk + ts.Discarded
		s.Tags = append(s.Tags, ts)
	}
	u := e.table.Usage()
	s.Objects = ObjectStatus{Count: u.Objects, Unmapped: u.Unmapped, UnmappedBytes: u.Loose}
	s.Kept = e.table.KeptOf(nil)
	s.Unmanaged = e.unmanaged(classes)
	files := e.backings.files.Usage()
	s.Disk = DiskStatus{Quota: e.config.DiskQuota, Files: files.Files, Bytes: files.DiskBytes, Direct: !files.Buffered, Dirs: []DirStatus{}}
	for _, d := range files.Dirs {
		s.Disk.Written += d.WriteBytes
		s.Disk.Dirs = append(s.Disk.Dirs, DirStatus{Dir: d.Dir, Written: d.WriteBytes, Read: d.ReadBytes})
	}
	s.Quarantined = quarantine(append(files.Hung, e.states.store.Usage().Hung...))
	s.States, s.StateStagingBytes = e.stateStatus()
	s.Host = e.hostStatus()
	s.HostBytes = s.Host.Bytes
	e.mu.Lock()
	s.Disk.Dir, s.StagingBytes = e.diskDir, e.stagingSize
	s.Pauses, s.LastPause, s.LastResume = e.pauses, e.lastPause, e.lastResume
	s.Probes = append([]tuning{}, e.tunings...)
	e.mu.Unlock()
	out, err := json.Marshal(s)
	if err != nil { // no value above can fail to marshal
		return []byte(`{}`)
	}
	return out
}
