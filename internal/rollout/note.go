package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// note is what ebb did to an engine that does not tell its state, for the next ebb.
type note struct {
	V        int      `json:"v"`
	Engine   string   `json:"engine"`
	Instance string   `json:"instance"` // which start of the server it is about
	Known    bool     `json:"known"`    // false: ebb has done nothing to it
	All      bool     `json:"all"`      // everything is released
	Released []string `json:"released"` // else: these tags
	Paused   bool     `json:"paused"`   // its generation is paused
	Asked    string   `json:"asked"`    // a call that had no answer: release, resume
}

// notes keeps the note of one engine in a file of a directory of this user's.
type notes struct{ dir, engine string }

func (n notes) path() string {
	sum := sha256.Sum256([]byte(n.engine))
	return filepath.Join(n.dir, "engine-"+hex.EncodeToString(sum[:8])+".json")
}

// mostNote is more than any note has.
const mostNote = 64 << 10

// read is the note about this instance of the engine. One about an earlier start is void.
func (n notes) read(instance string) (note, error) {
	fresh := note{V: 1, Engine: n.engine, Instance: instance}
	switch err := n.private(); {
	case errors.Is(err, fs.ErrNotExist):
		return fresh, nil
	case err != nil:
		return fresh, err
	}
	fd, err := unix.Open(n.path(), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return fresh, nil
	}
	if err != nil {
		return fresh, fmt.Errorf("open %s: %w", n.path(), err)
	}
	file := os.NewFile(uintptr(fd), n.path())
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, mostNote))
	if err != nil {
		return fresh, fmt.Errorf("read %s: %w", n.path(), err)
	}
	var kept note
	if err := json.Unmarshal(text, &kept); err != nil || kept.V != 1 {
		return fresh, fmt.Errorf("%s is not a note of this version of ebb: remove it, and say --engine-state", n.path())
	}
	if kept.Engine != n.engine || kept.Instance != instance {
		return fresh, nil
	}
	return kept, nil
}

// write replaces the note.
func (n notes) write(to note) error {
	if err := n.ready(); err != nil {
		return err
	}
	text, err := json.Marshal(to)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(n.dir, "engine-*.new")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), n.path())
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// lock is held while something is done to the engine, and ends with its holder's process.
func (n notes) lock(ctx context.Context) (unlock func(), err error) {
	if err := n.ready(); err != nil {
		return nil, err
	}
	path := strings.TrimSuffix(n.path(), ".json") + ".lock"
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = unix.Close(fd) }, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), unix.Close(fd))
		}
		if stopped(ctx, pollEvery) {
			return nil, errors.Join(ctx.Err(), unix.Close(fd))
		}
	}
}

// ready makes the directory, which must be this user's and nobody else's to write in.
func (n notes) ready() error {
	if err := os.Mkdir(n.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return n.private()
}

// private checks that nobody else can put a note there.
func (n notes) private() error {
	var st unix.Stat_t
	if err := unix.Lstat(n.dir, &st); err != nil {
		return fmt.Errorf("look at %s: %w", n.dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is not a directory of this user alone: set EBB_RUNTIME_DIR to one", n.dir)
	}
	return nil
}

// sglangTags are what SGLang releases when no tags are named.
var sglangTags = []string{"cuda_graph", "kv_cache", "weights"}

// sleeping are those of the tags that are released; none named means all.
func (n note) sleeping(tags []string) []string {
	released := n.Released
	if n.All {
		released = sglangTags
		if len(tags) > 0 {
			released = tags
		}
	}
	if len(tags) == 0 {
		return released
	}
	return slices.DeleteFunc(slices.Clone(tags), func(tag string) bool { return !slices.Contains(released, tag) })
}

// awake are those of the tags that are not released; none named means all that SGLang has.
func (n note) awake(tags []string) []string {
	if n.All {
		return nil
	}
	if len(tags) == 0 {
		tags = sglangTags
	}
	return slices.DeleteFunc(slices.Clone(tags), func(tag string) bool { return slices.Contains(n.Released, tag) })
}

// add notes that tags, or everything, were released.
func (n *note) add(tags []string) {
	n.Known = true
	if len(tags) == 0 {
		n.All, n.Released = true, nil
		return
	}
	for _, tag := range tags {
		if !n.All && !slices.Contains(n.Released, tag) {
			n.Released = append(n.Released, tag)
		}
	}
}

// remove notes that tags, or everything, are back.
func (n *note) remove(tags []string) {
	n.Known = true
	if len(tags) == 0 {
		n.All, n.Released = false, nil
		return
	}
	if n.All {
		n.All, n.Released = false, slices.Clone(sglangTags)
	}
	n.Released = slices.DeleteFunc(n.Released, func(tag string) bool { return slices.Contains(tags, tag) })
}
