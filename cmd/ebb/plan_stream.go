package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// streamFlags are the flags of ebb run that stream optimizer state. ebb plan takes them too.
var streamFlags = []string{"optimizer-state-nvme-dir", "stream-optimizer-state-to-disk", "stream-optimizer-state-moment-dtype"}

// planStreaming is what they say.
type planStreaming struct {
	dirs   []string
	toDisk bool
	moment string // "": fp32
}

// planStreamed is what is planned of streamed state.
type planStreamed struct {
	Dirs      []string `json:"dirs,omitempty"` // none: the disk directory, where none is named
	DiskFree  uint64   `json:"disk_free_bytes,omitempty"`
	DiskKnown bool     `json:"disk_free_known"`
	From      string   `json:"rates_from"` // given, measured, or ""
	sizing.Streaming
}

func (s *planStreaming) add(f *pflag.FlagSet) {
	f.Var(&value{kind: "DIR", parse: into(&s.dirs, launch.ParseDirs), once: "given twice: name several as DIR,DIR"},
		streamFlags[0], "the optimizer's state is streamed: it lies in this directory, or several as DIR,DIR, whose room and rates are measured")
	onOffTo(f, &s.toDisk, streamFlags[1], "the optimizer's state is streamed: it lies in the disk directory, beside what is parked there")
	f.Var(&value{kind: "TYPE", parse: into(&s.moment, launch.ParseMoment)},
		streamFlags[2], "type of the moments of streamed state: fp32, bf16 or fp16 (default fp32)")
}

func (s planStreaming) on() bool { return s.toDisk || len(s.dirs) > 0 }

// fillIn chooses what depends on other flags, of which these are.
func (s planStreaming) fillIn(o *planOptions) error {
	switch {
	case !s.on() && s.moment != "":
		return launch.Usagef("--%s is of optimizer state that is streamed: add --%s DIR or --%s, or leave it out (--moments-dtype is that of state on the GPU)", streamFlags[2], streamFlags[0], streamFlags[1])
	case s.on() && o.state.Moment != sizing.FP32:
		return launch.Usagef("--moments-dtype is that of state on the GPU: give the type of streamed moments with --%s", streamFlags[2])
	}
	if s.on() {
		o.state.Stream = true
		switch s.moment {
		case launch.MomentBF16:
			o.state.Moment = sizing.BF16
		case launch.MomentFP16:
			o.state.Moment = sizing.FP16
		}
	}
	o.fillIn()
	if s.on() && o.state.Moments() == 0 {
		return launch.Usagef("--optimizer %s has no moments to stream: leave the flags of streaming out", o.state.Optimizer)
	}
	return nil
}

// streamed plans the streaming of a node's ranks. What it takes of the disk that ranks are parked on is noted in the
// node.
func (o planOptions) streamed(ctx context.Context, load sizing.Load, n *sizing.Node) (*planStreamed, error) {
	p := &planStreamed{Dirs: o.dirs}
	disk, own := *n, o.streaming.dirs
	bytes := load.Sum(sizing.Kinds.OnDisk)
	p.DiskFree, p.DiskKnown, p.From = n.DiskFree, n.DiskKnown, "given"
	if !n.Write.Known() {
		p.From = ""
	} else if !o.write.Known() || !o.read.Known() {
		p.From = "measured in " + strings.Join(o.dirs, ", ")
	}
	if len(own) > 0 && o.given() && !allThere(own) { // a directory to be: that of the figures that were given
		if err := absolute("--"+streamFlags[0], own); err != nil {
			return nil, err
		}
		p.Dirs = own
	} else if len(own) > 0 {
		free, err := freeIn("--"+streamFlags[0], own)
		if err != nil {
			return nil, err
		}
		p.Dirs = own
		if !slices.Equal(own, o.dirs) {
			if sameDevice(own, o.dirs) {
				n.DiskTaken = bytes
			}
			p.DiskFree, p.DiskKnown = free, true
			if disk.Write, disk.Read, _, err = o.measured(ctx, own, bytes); err != nil {
				return nil, err
			}
			p.From = "measured in " + strings.Join(own, ", ")
			p.Streaming = disk.Stream(load, p.DiskFree, true)
			return p, nil
		}
	}
	n.DiskTaken = bytes
	p.Streaming = disk.Stream(load, p.DiskFree, p.DiskKnown)
	return p, nil
}

// given reports whether room and rates of the disk were.
func (o planOptions) given() bool { return o.write.Known() && o.read.Known() && o.diskSpace > 0 }

func allThere(dirs []string) bool {
	for _, dir := range dirs {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// sameDevice reports whether directories share a file system with others: they share its room.
func sameDevice(some, others []string) bool {
	devices := map[uint64]bool{}
	for i, dir := range slices.Concat(some, others) {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			continue
		}
		if i < len(some) {
			devices[st.Dev] = true
		} else if devices[st.Dev] {
			return true
		}
	}
	return false
}

// args are the flags of ebb run.
func (s planStreaming) args() (args []string) {
	switch {
	case len(s.dirs) > 0:
		args = []string{"--" + streamFlags[0], strings.Join(s.dirs, ",")}
	case s.toDisk:
		args = []string{"--" + streamFlags[1]}
	}
	if s.on() && s.moment != "" && s.moment != launch.MomentFP32 {
		args = append(args, "--"+streamFlags[2], s.moment)
	}
	return args
}
