package main

import (
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/launch"
)

// stdout is standard output. Everything that verbs print goes through it, so that half an answer, on a full
// disk, never looks like a whole one: ebb ends with a failure then.
var stdout = &outFile{file: os.Stdout}

// outFile is a file that remembers the first write that failed.
type outFile struct {
	file *os.File

	one    sync.Mutex // guards failed
	failed error
}

func (o *outFile) Write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if err != nil {
		o.one.Lock()
		defer o.one.Unlock()
		if o.failed == nil {
			o.failed = err
		}
	}
	return n, err //nolint:wrapcheck // a writer as the file is
}

// failure is what ebb ends with, if something could not be written.
func (o *outFile) failure() *launch.Error {
	o.one.Lock()
	defer o.one.Unlock()
	if o.failed == nil {
		return nil
	}
	return &launch.Error{
		Status: launch.StatusInternal,
		Text:   "the command came to its end, but its output could not be written: " + oneLine(o.failed),
		Err:    o.failed,
	}
}

// outliveReaders lets a verb come to its end though nobody reads any more what it prints: it moves memory, or
// serves others. Caught, the signal makes the write fail; nobody reads the channel.
func outliveReaders() {
	if !signal.Ignored(unix.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	}
}
