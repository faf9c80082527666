package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/parked"
)

// verifyResult is what ebb verify --json prints.
type verifyResult struct {
	MessageType string       `json:"message_type"`
	DiskDirs    []verifiedIn `json:"disk_dirs"`
	Bad         int          `json:"bad"`     // blocks
	Checked     bool         `json:"checked"` // something could be compared
	Errors      []string     `json:"errors"`  // of directories that could not be looked at

	unread bool // a map could not be used
	silent bool // a disk gave no answer
}

// statusNothing says that there was nothing to check.
const statusNothing = 3

// verifiedIn is one disk directory.
type verifiedIn struct {
	Dir   string          `json:"dir"`
	Known bool            `json:"maps_kept"` // false: a directory that processes were merely given
	Ranks []parked.Report `json:"ranks"`
}

func newVerify() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify [flags] DIR…",
		Short: "Check the files of paused ranks",
		Long: `Reads what the paused ranks of a disk directory have parked there, and compares each block with
the fingerprint that its rank noted when it wrote it. Nothing is changed, and no rank is asked: it
may be stuck, or stopped. Ranks that resume meanwhile are told and are no error. Bytes that lie in
host memory are the rank's alone to check, which it does when it resumes.

Ends with 0 when every block is right, with 1 when one is not, and with 3 when there was nothing to
check. A rank whose process has ended is checked too and called dead: nobody will resume it.`,
		Example:               `  ebb verify /scratch/$USER`,
		DisableFlagsInUseLine: true,
		PreRunE:               func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return launch.Usagef("which disk directory? ebb verify DIR")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			result := verifyAll(args)
			if asJSON {
				if err := printJSON(result); err != nil {
					return err
				}
			} else {
				result.print(stdout)
			}
			for _, line := range result.Errors {
				say(line)
			}
			switch {
			case result.Bad > 0:
				return statusError(1)
			case result.unread, result.silent:
				return statusError(launch.StatusDirectory)
			case len(result.Errors) > 0:
				return statusError(launch.StatusUsage)
			case !result.Checked:
				say("nothing was checked")
				return statusError(statusNothing)
			}
			return nil
		},
	}
	onOffTo(cmd.Flags(), &asJSON, "json", "print JSON")
	return cmd
}

// verifyAll checks all directories; what is wrong with one does not keep the others from it.
func verifyAll(dirs []string) verifyResult {
	result := verifyResult{MessageType: "verify", DiskDirs: []verifiedIn{}, Errors: []string{}}
	disks := launch.NewDisks(os.Getenv)
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			result.Errors = append(result.Errors, fmt.Sprintf("%s: %v; name an absolute path", dir, err))
			continue
		}
		in, err := launch.InDirectory(disks, "check", abs, func(moved func()) (verifiedIn, error) {
			reports, known, err := parked.Verify(abs, moved)
			return verifiedIn{Dir: abs, Known: known, Ranks: reports}, err
		}, nil)
		if errors.Is(err, filesys.ErrHang) {
			result.silent = true
			result.Errors = append(result.Errors, oneLine(err))
			continue
		}
		if err != nil {
			result.Errors = append(result.Errors, fmt.Sprintf("%s: name the disk directory of the runs", oneLine(err)))
			continue
		}
		if in.Ranks == nil {
			in.Ranks = []parked.Report{}
		}
		result.DiskDirs = append(result.DiskDirs, in)
		for _, r := range in.Ranks {
			result.Bad += r.Bad()
			result.unread = result.unread || r.Outcome == parked.Unread
			result.Checked = result.Checked || r.Checked()
		}
	}
	return result
}

// print tells a person: a row for each rank, then what there is to say of it, then what is wrong.
func (r verifyResult) print(w io.Writer) {
	t := &table{left: []bool{true, false, false, false, false, false, true}}
	t.row("RANK", "FILES", "READ", "BLOCKS", "ZERO", "BAD", "RESULT")
	var remarks []string
	for _, dir := range r.DiskDirs {
		for _, rank := range dir.Ranks {
			name := rank.Rank
			if len(r.DiskDirs) > 1 { // else it is the directory that was named
				name = filepath.Join(dir.Dir, name)
			}
			t.row(name, strconv.Itoa(rank.Files), humanize.IBytes(rank.Bytes), strconv.Itoa(rank.Blocks), strconv.Itoa(rank.Zero), strconv.Itoa(rank.Bad()), string(rank.Outcome))
			if text := remark(rank); text != "" {
				remarks = append(remarks, name+": "+text)
			}
		}
	}
	if len(t.rows) > 1 {
		t.shortenNames()
		t.print(w)
	}
	for _, line := range remarks {
		printWrapped(w, "", "    ", line)
	}
	for _, dir := range r.DiskDirs {
		for _, rank := range dir.Ranks {
			for _, b := range rank.BadBlocks {
				if b.Blocks > 1 {
					printWrapped(w, "bad: ", "    ", fmt.Sprintf("all %d blocks (%s) of the allocation at %s (tag %q) in %s: %s",
						b.Blocks, humanize.IBytes(b.Bytes), b.Address, b.Tag, b.File, b.Why))
					continue
				}
				printWrapped(w, "bad: ", "    ", fmt.Sprintf("%d bytes at offset %d of the allocation at %s (tag %q) in %s (offset %d): %s",
					b.Bytes, b.Offset, b.Address, b.Tag, b.File, b.At, b.Why))
			}
		}
		switch {
		case !dir.Known:
			printWrapped(w, "", "    ", dir.Dir+": nothing to check with: only ranks under ebb run or ebb exec leave maps of what they parked")
		case len(dir.Ranks) == 0:
			fmt.Fprintf(w, "%s: nothing is parked here\n", dir.Dir)
		}
	}
}

// remark is what there is to say of a rank beside its outcome.
func remark(r parked.Report) string {
	var and []string
	if r.ProcessDead {
		and = append(and, fmt.Sprintf("process %d has ended; ebb gc removes its files", r.PID))
	}
	if r.Host > 0 {
		and = append(and, humanize.IBytes(r.Host)+" in host memory not checked")
	}
	if r.Unknown > 0 {
		and = append(and, launch.Count(r.Unknown, "block")+" without a fingerprint")
	}
	if r.Why != "" {
		and = append(and, r.Why)
	}
	return strings.Join(and, "; ")
}
