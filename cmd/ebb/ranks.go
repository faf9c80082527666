package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/slurm"
)

// What verbs that talk to running ranks end with beside success; statusNothing: no rank is running.
const (
	statusFailed = 1 // on some rank it failed
	statusLate   = 4 // some rank did not answer, or not by the deadline
)

// rankFlags are the flags of the verbs that talk to running ranks.
type rankFlags struct {
	selection   node.Selection
	runtimeDirs []string
	diskDirs    []string
	asJSON      bool
	slurm       slurm.ID // empty: the ranks of this node

	flags *pflag.FlagSet
	given map[string][]string // the texts that flags were given, by name
}

// repeatable are the flags that another command takes in the same sense.
var repeatable = []string{"role", "rank", "cell", "job", "pid", "runtime-dir", "disk-dir"}

// words are the flags of the command line that choose ranks, to repeat them in another command. Variables count
// for that one too.
func (r *rankFlags) words() (list []string) {
	for _, name := range repeatable {
		if !r.fromVariable(name) {
			for _, text := range r.given[name] {
				list = append(list, "--"+name, text)
			}
		}
	}
	return list
}

func (r *rankFlags) fromVariable(name string) bool {
	_, from := r.flags.Lookup(name).Annotations[fromVariable]
	return from
}

func (r *rankFlags) add(f *pflag.FlagSet) {
	r.flags, r.given = f, map[string][]string{}
	list := func(name, kind, usage string, take func(string) error) {
		f.Var(&value{kind: kind, parse: func(text string) error {
			for word := range strings.SplitSeq(text, ",") {
				if word == "" {
					return errors.New("must name one, or several with commas")
				}
				if err := take(word); err != nil {
					return err
				}
			}
			r.given[name] = append(r.given[name], text)
			return nil
		}}, name, usage)
		annotate(f, name, notInside)
	}
	words := func(to *[]string) func(string) error {
		return func(word string) error { *to = append(*to, word); return nil }
	}
	numbers := func(to *[]string) func(string) error {
		return func(word string) error {
			n, err := launch.ParseIndex(word)
			if err == nil {
				*to = append(*to, strconv.Itoa(n))
			}
			return err
		}
	}
	list("role", "NAME", "only ranks of this role, or of several with commas", words(&r.selection.Roles))
	list("rank", "R", "only this rank, or several with commas", numbers(&r.selection.Ranks))
	list("cell", "N", "only ranks of this cell, or of several with commas", numbers(&r.selection.Cells))
	list("job", "NAME", "only ranks of this job, or of several with commas", words(&r.selection.Jobs))
	list("pid", "PID", "only this process, or several with commas; their control sockets are looked for where their environments say", func(word string) error {
		pid, err := strconv.Atoi(word)
		if err != nil || pid < 1 {
			return errors.New("must be the number of a process")
		}
		r.selection.PIDs = append(r.selection.PIDs, pid)
		return nil
	})
	f.Var(&value{kind: "DIR", parse: r.dirs("runtime-dir", &r.runtimeDirs)}, "runtime-dir",
		"look for control sockets only there, or in several with commas (default XDG_RUNTIME_DIR/ebb, /run/user/<uid>/ebb and /tmp/ebb-<uid>, all of them)")
	f.Var(&value{kind: "DIR", parse: r.dirs("disk-dir", &r.diskDirs)}, "disk-dir",
		"disk directory of runs, whose ranks are found too, wherever their sockets are (default, without --runtime-dir: EBB_OFFLOAD_TRAIN_DISK_DIR, else that of ebb run)")
	onOffTo(f, &r.asJSON, "json", "print JSON")
}

func (r *rankFlags) dirs(name string, to *[]string) func(string) error {
	return func(text string) error {
		dirs, err := launch.ParseDirs(text)
		if err == nil {
			*to = append(*to, dirs...)
			r.given[name] = append(r.given[name], text)
		}
		return err
	}
}

// places are where ranks are looked for.
func (r *rankFlags) places() node.Places {
	places := node.Default(os.Getenv, os.Geteuid())
	switch {
	case len(r.runtimeDirs) > 0 && !r.unfit():
		places.RuntimeDirs = r.runtimeDirs
	case len(r.diskDirs) == 0:
		if dirs, err := defaultDirs(); err == nil { // else there is no default
			places.DiskDirs = dirs
		}
	}
	places.DiskDirs = append(places.DiskDirs, r.diskDirs...)
	places.PIDs = r.selection.PIDs
	return places
}

// unfit reports whether the only directory is that of the variable, and one in which ranks with the same
// variable have no sockets: a relative path, or one that is too long. They have them in the usual places then.
func (r *rankFlags) unfit() bool {
	dir := os.Getenv("EBB_RUNTIME_DIR")
	return slices.Equal(r.runtimeDirs, []string{dir}) && unfitDir(dir) != ""
}

// unfitDir says why no rank has a socket in a directory; it is empty where ranks can have one.
func unfitDir(dir string) string {
	self, err := rankdir.Self() // the name of its socket would be as long as theirs
	if err != nil {
		return ""
	}
	return control.Unfit(dir, control.SocketName(self))
}

// found are the ranks that are meant. Sockets of dead processes are in neither list.
type found struct {
	ranks  []node.Rank
	silent []node.Silent // did not answer, and are meant as far as can be known
}

// find looks for the ranks that are meant. Where none is running for certain, that is an error with statusNothing.
func (r *rankFlags) find(ctx context.Context) (found, error) {
	places := r.places()
	ranks, silent, err := node.Discover(ctx, places)
	if ctx.Err() != nil {
		return found{}, context.Cause(ctx)
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			say(line)
		}
	}
	var alive []node.Silent
	for _, s := range silent {
		if !s.Dead {
			alive = append(alive, s)
		}
	}
	switch {
	case len(ranks)+len(alive) > 0:
	case err != nil: // a controller must not take this for a node without ranks
		return found{}, &launch.Error{Status: launch.StatusInternal, Text: "whether a rank is running is not known: " +
			"not every place could be looked at, and there is none in the others", Err: err}
	default:
		return found{}, r.nobody(places)
	}
	var f found
	if f.ranks, f.silent, err = node.SelectBoth(ranks, alive, r.selection); err != nil {
		return found{}, launch.Usagef("%w: give one that is there, or none for all", err)
	}
	return f, nil
}

// nobody is the error where no rank is running.
func (r *rankFlags) nobody(places node.Places) error {
	if pids := r.selection.PIDs; len(pids) > 0 {
		return &launch.Error{Status: statusNothing, Text: fmt.Sprintf(
			"no control socket of process %s: it has ended, is another user's, has no GPU memory under ebb yet, or EBB_CONTROL=0 (ebb doctor --pid %d says which)",
			strings.Trim(strings.Join(strings.Fields(fmt.Sprint(pids)), ", "), "[]"), pids[0])}
	}
	text := "no rank is running: looked in " + strings.Join(places.RuntimeDirs, ", ")
	if len(r.diskDirs) > 0 {
		text += ", and for those of " + strings.Join(r.diskDirs, ", ")
	}
	given := r.runtimeDirs
	for _, dir := range append(slices.Clone(given), r.diskDirs...) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			text += fmt.Sprintf("; %s does not exist", dir)
		}
	}
	for _, dir := range given {
		if abs, err := filepath.Abs(dir); err == nil && unfitDir(abs) != "" {
			text += fmt.Sprintf("; no rank has its socket in %s, which %s: name a short directory, to the ranks too (EBB_RUNTIME_DIR)", dir, unfitDir(abs))
		}
	}
	text += "; a rank is there from its first managed allocation on (--runtime-dir, --disk-dir or --pid look elsewhere)"
	return &launch.Error{Status: statusNothing, Text: text}
}

// saySilent says who does not answer, each on a line.
func (f found) saySilent() {
	for _, s := range f.silent {
		say(fmt.Sprintf("%s does not answer: %s", node.FullName(s.Who), s.Why))
	}
}
