package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/client"
)

// Status is what a rank says of itself: those fields of docs/status.md that are used outside of it. Sizes are
// bytes, times seconds.
type Status struct {
	Device      string         `json:"device"`
	Driver      int            `json:"driver_version"`
	Allocations int            `json:"allocations"`
	Active      uint64         `json:"bytes_active"`
	Paused      uint64         `json:"bytes_paused"`
	Staging     uint64         `json:"staging_bytes"`
	Tags        []TagStatus    `json:"tags"`
	Pauses      uint64         `json:"pauses"`
	LastPause   *LastOperation `json:"last_pause"`
	LastResume  *LastOperation `json:"last_resume"`
	Disk        DiskStatus     `json:"disk"`
	HostBytes   uint64         `json:"host_bytes"`
	Host        HostStatus     `json:"host"`
	Quarantined Quarantine     `json:"quarantined"`
	Kept        []Kept         `json:"kept"`
	Unmanaged   Unmanaged      `json:"unmanaged"`
	States      []Streamed     `json:"states,omitempty"`
}

// TagStatus is one tag: bytes on the device, and paused ones by where they were to go (Host, Disk) and by
// where they are: in host memory, in files, or in neither, since they are all zero or nobody needs them.
type TagStatus struct {
	Tag         string `json:"tag"`
	Allocations int    `json:"allocations"`
	Active      uint64 `json:"active"`
	Host        uint64 `json:"host"`
	Disk        uint64 `json:"disk"`
	Discarded   uint64 `json:"discarded"`
	InHost      uint64 `json:"in_host"`
	InFiles     uint64 `json:"in_files"`
	Skipped     uint64 `json:"skipped"`
}

// Where is bytes by where they are.
type Where struct {
	Device, Host, Disk, Skipped uint64
}

// Add adds other bytes.
func (w *Where) Add(o Where) {
	w.Device += o.Device
	w.Host += o.Host
	w.Disk += o.Disk
	w.Skipped += o.Skipped
}

// Where says where the bytes of the tag are. What was given up is nowhere.
func (t TagStatus) Where() Where {
	return Where{Device: t.Active, Host: t.InHost, Disk: t.InFiles, Skipped: t.Skipped}
}

// Where says where the bytes of the rank are.
func (s Status) Where() (all Where) {
	for _, t := range s.Tags {
		all.Add(t.Where())
	}
	return all
}

// LastOperation is the latest pause or resume that had something to do.
type LastOperation struct {
	Allocations   uint64             `json:"allocations"`
	Bytes         uint64             `json:"bytes"`
	DeviceBytes   uint64             `json:"device_bytes"`
	HostBytes     uint64             `json:"host_bytes"`
	DiskBytes     uint64             `json:"disk_bytes"`
	SkippedZero   uint64             `json:"skipped_zero_bytes"`
	SkippedSame   uint64             `json:"skipped_same_bytes"`
	SkippedUnused uint64             `json:"skipped_unused_bytes"`
	Kept          uint64             `json:"kept_bytes"`
	Freed         uint64             `json:"freed_bytes"`
	Missing       uint64             `json:"missing_bytes"`
	Workers       int                `json:"workers"`
	Seconds       float64            `json:"seconds"`
	CheckSeconds  float64            `json:"check_seconds"`
	Phases        map[string]float64 `json:"phases"`
	GBPerS        float64            `json:"gb_per_s"`
	Error         string             `json:"error,omitempty"`
}

// Skipped is what did not have to be moved.
func (o *LastOperation) Skipped() uint64 { return o.SkippedZero + o.SkippedSame + o.SkippedUnused }

// DiskStatus is what the rank has in backup files.
type DiskStatus struct {
	Dir     string      `json:"dir"`
	Files   int         `json:"files"`
	Bytes   uint64      `json:"bytes"`
	Direct  bool        `json:"direct_io"`
	Quota   uint64      `json:"quota_bytes"`
	Written uint64      `json:"written_bytes"`
	Dirs    []DirStatus `json:"dirs"`
}

// DirStatus counts what one directory was given and gave back so far.
type DirStatus struct {
	Dir     string `json:"dir"`
	Written uint64 `json:"written_bytes"`
	Read    uint64 `json:"read_bytes"`
}

// HostStatus is the host memory of backups.
type HostStatus struct {
	Bytes     uint64 `json:"bytes"`
	Held      uint64 `json:"held_bytes"`
	Budget    uint64 `json:"budget_bytes"`
	BudgetWhy string `json:"budget_why"`
}

// Quarantine is file calls that had no answer.
type Quarantine struct {
	Threads int      `json:"threads"`
	Bytes   uint64   `json:"bytes"`
	Paths   []string `json:"paths"`
}

// Kept is what a pause leaves on the device.
type Kept struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	Bytes  uint64 `json:"bytes"`
}

// Unmanaged is device memory of the process that ebb does not manage. Measured: by NVML; else Total is what
// the classes come to.
type Unmanaged struct {
	Total    uint64  `json:"total"`
	Measured bool    `json:"measured"`
	Classes  []Class `json:"classes"`
}

// Class is unmanaged memory of one kind, or of one library.
type Class struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}

// Add adds that of another process. The classes stay in order, the largest first.
func (u *Unmanaged) Add(o Unmanaged) {
	u.Total += o.Total
	u.Measured = u.Measured && o.Measured
	for _, class := range o.Classes {
		i := slices.IndexFunc(u.Classes, func(c Class) bool { return c.Name == class.Name })
		if i < 0 {
			u.Classes = append(u.Classes, class)
		} else {
			u.Classes[i].Bytes += class.Bytes
		}
	}
	slices.SortStableFunc(u.Classes, func(a, b Class) int { return cmp.Compare(b.Bytes, a.Bytes) })
}

// RankStatus is a rank and what it said; Err where it did not.
type RankStatus struct {
	Rank
	Status  Status           `json:"-"`
	Raw     json.RawMessage  `json:"status,omitempty"` // Status with all its fields, as the rank said it
	Devices []control.Device `json:"devices,omitempty"`
	Err     string           `json:"error,omitempty"`
}

// Patience is how long a rank has for an answer that costs it nothing.
const Patience = time.Second

// StatusOf asks all ranks at once. Each has so long for its answer, Patience where that is 0.
func StatusOf(ctx context.Context, ranks []Rank, perRank time.Duration) []RankStatus {
	all := make([]RankStatus, len(ranks))
	onEach(ctx, ranks, perRank, func(ctx context.Context, i int, c *client.Conn) error {
		raw, err := c.Do(ctx, control.Request{Cmd: control.CmdStatus})
		if err != nil {
			return err
		}
		all[i].Raw = raw
		if err := json.Unmarshal(raw, &all[i].Status); err != nil {
			return fmt.Errorf("its status is not understood: %w", err)
		}
		return nil
	}, func(i int, err error) {
		all[i].Rank = ranks[i]
		if err != nil {
			all[i].Err = reason(err, ranks[i].PID)
		}
	})
	return all
}

// RankDevices is a rank and the devices that it has memory on.
type RankDevices struct {
	Rank
	Devices []control.Device `json:"devices"`
	Err     string           `json:"error,omitempty"`
}

// Devices asks all ranks at once for their devices, as StatusOf does.
func Devices(ctx context.Context, ranks []Rank, perRank time.Duration) []RankDevices {
	all := make([]RankDevices, len(ranks))
	onEach(ctx, ranks, perRank, func(ctx context.Context, i int, c *client.Conn) error {
		raw, err := c.Do(ctx, control.Request{Cmd: control.CmdDevices})
		if err != nil {
			return err
		}
		if err := json.Unmarshal(raw, &all[i].Devices); err != nil {
			return fmt.Errorf("its devices are not understood: %w", err)
		}
		return nil
	}, func(i int, err error) {
		all[i].Rank = ranks[i]
		if err != nil {
			all[i].Err = reason(err, ranks[i].PID)
		}
	})
	return all
}

// onEach dials every rank and lets ask ask it, all at once, each within its own time; then tell hears what
// came of it.
func onEach(ctx context.Context, ranks []Rank, perRank time.Duration, ask func(context.Context, int, *client.Conn) error, tell func(int, error)) {
	if perRank <= 0 {
		perRank = Patience
	}
	var all sync.WaitGroup
	for i := range ranks {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, perRank)
			defer cancel()
			c, err := client.Dial(ctx, ranks[i].Socket)
			if err == nil {
				defer c.Close()
				err = ask(ctx, i, c)
			}
			tell(i, err)
		})
	}
	all.Wait()
}
