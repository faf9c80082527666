package rankdir

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Owner is one process, so precisely that no later one is mistaken for it.
type Owner struct {
	BootID       string `json:"boot_id"`       // of the running kernel; in file names its first 8 digits
	PIDNamespace uint64 `json:"pid_namespace"` // inode of the namespace in which PID counts
	PID          int    `json:"pid"`
	StartTime    uint64 `json:"start_time"` // of the process, in clock ticks since boot
	UID          int    `json:"uid"`        // effective; not in file names, there -1
}

// bootDigits is how much of the boot id is in file names.
const bootDigits = 8

// Self is the calling process.
func Self() (Owner, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Owner{}, fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(boot))
	if len(id) < bootDigits {
		return Owner{}, fmt.Errorf("boot id %q is too short", id)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return Owner{}, fmt.Errorf("find the pid namespace: %w", err)
	}
	self, err := readProcess("/proc/self")
	if err != nil {
		return Owner{}, fmt.Errorf("read the start time of this process: %w", err)
	}
	return Owner{BootID: id, PIDNamespace: st.Ino, PID: os.Getpid(), StartTime: self.start, UID: os.Geteuid()}, nil
}

// FilePrefix begins the names of the process's data files; it ends in a dash.
func (o Owner) FilePrefix() string {
	return fmt.Sprintf("ebb-%.*s-%x-%d-%d-", bootDigits, o.BootID, o.PIDNamespace, o.PID, o.StartTime)
}

// DataFile is the name of the process's data file number seq.
func (o Owner) DataFile(seq uint64) string {
	return o.FilePrefix() + strconv.FormatUint(seq, 10) + ".bak"
}

var dataFile = regexp.MustCompile(`^ebb-([0-9a-f]{8})-([0-9a-f]{1,16})-([0-9]{1,10})-([0-9]{1,20})-([0-9]{1,20})\.bak$`)

// ParseDataFile takes the name of a data file apart. ok is false for any name that DataFile
// would not make, letter for letter.
func ParseDataFile(name string) (owner Owner, seq uint64, ok bool) {
	m := dataFile.FindStringSubmatch(name)
	if m == nil {
		return Owner{}, 0, false
	}
	ns, err1 := strconv.ParseUint(m[2], 16, 64)
	pid, err2 := strconv.ParseInt(m[3], 10, 32)
	start, err3 := strconv.ParseUint(m[4], 10, 64)
	seq, err4 := strconv.ParseUint(m[5], 10, 64)
	if errors.Join(err1, err2, err3, err4) != nil {
		return Owner{}, 0, false
	}
	owner = Owner{BootID: m[1], PIDNamespace: ns, PID: int(pid), StartTime: start, UID: -1}
	if pid == 0 || owner.DataFile(seq) != name { // leading zeros
		return Owner{}, 0, false
	}
	return owner, seq, true
}

// IsDataFile reports whether name is the name of a data file.
func IsDataFile(name string) bool {
	_, _, ok := ParseDataFile(name)
	return ok
}

// life is what can be known about a process.
type life int

const (
	unknown life = iota // it is, or was, where this process cannot look
	taken               // its pid is in use, and perhaps by it
	alive
	leaving // it is alive, but its first thread has begun to end
	dead
)

// Alive reports whether the process is known to live: this boot, this pid namespace, its pid
// in use since its start time. Not alive does not mean dead.
func Alive(o Owner) bool {
	l := lifeOf(o)
	return l == alive || l == leaving
}

// Dead reports whether the process is known to be gone. local says that nothing but this
// node's kernel can have made what o is an owner of; without it another boot proves nothing.
func Dead(o Owner, local bool) bool {
	self, err := Self()
	if err != nil || len(o.BootID) < bootDigits {
		return false
	}
	if !sameBoot(o, self) {
		return local
	}
	return lifeOf(o) == dead
}

func sameBoot(o, self Owner) bool {
	return len(o.BootID) >= bootDigits && strings.HasPrefix(self.BootID, o.BootID)
}

// lifeOf judges a process. One of another boot is unknown.
func lifeOf(o Owner) life {
	self, err := Self()
	if err != nil || !sameBoot(o, self) || o.PIDNamespace != self.PIDNamespace {
		return unknown
	}
	// The kernel is asked, not /proc, which may hide processes (its option hidepid).
	if free(o.PID) {
		return dead
	}
	// A /proc of another pid namespace shows other processes under the same numbers.
	if link, err := os.Readlink("/proc/self"); err != nil || link != strconv.Itoa(os.Getpid()) {
		return taken
	}
	dir := "/proc/" + strconv.Itoa(o.PID)
	p, err := readProcess(dir)
	switch {
	case err != nil:
		if free(o.PID) { // it ended just now
			return dead
		}
		return taken
	case ended(dir, p):
		return dead // whether it was this process or a later one
	case p.start == o.StartTime && p.flags&exiting != 0:
		return leaving
	case p.start == o.StartTime:
		return alive
	case sameClock(dir):
		return dead // another process has its pid
	}
	return taken
}

// free reports that no process of this pid namespace has the pid.
func free(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// ended reports whether a process is dead and only not waited for. When the first thread alone
// has ended it looks the same, but for the other threads.
func ended(dir string, p process) bool {
	if p.state != 'Z' && p.state != 'X' {
		return false
	}
	tasks, err := os.ReadDir(dir + "/task")
	return err == nil && len(tasks) <= 1
}

// sameClock reports whether a process is known to be in this one's time namespace. A start time
// counts in that of its reader: what a process reads of itself is not what others read of it.
func sameClock(dir string) bool {
	var here, there unix.Stat_t
	if err := unix.Stat("/proc/self/ns/time", &here); err != nil {
		return errors.Is(err, unix.ENOENT) // a kernel without time namespaces
	}
	return unix.Stat(dir+"/ns/time", &there) == nil && idOf(&here) == idOf(&there)
}

// running reports whether the process may be alive and not on its way out. It is for who knows
// from the lease that it is gone: a killed process drops its locks before it leaves /proc, and
// then its threads go one by one.
func running(o Owner) bool {
	l := lifeOf(o)
	return l == taken || l == alive
}

const exiting = 0x4 // PF_EXITING in the kernel's flags of a process

type process struct {
	state byte
	flags uint64
	start uint64
}

// readProcess reads <dir>/stat (proc_pid_stat(5)).
func readProcess(dir string) (process, error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return process{}, err
	}
	p, err := parseStat(text)
	if err != nil {
		return process{}, fmt.Errorf("%s/stat: %w", dir, err)
	}
	return p, nil
}

func parseStat(text []byte) (process, error) {
	// The second field is the command in brackets and may hold anything; the state follows.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const state, flags, start = 0, 6, 19 // fields 3, 9 and 22 of the manual page
	if len(fields) <= start {
		return process{}, fmt.Errorf("too short: %q", text)
	}
	p := process{state: fields[state][0]}
	var err1, err2 error
	p.flags, err1 = strconv.ParseUint(string(fields[flags]), 10, 64)
	p.start, err2 = strconv.ParseUint(string(fields[start]), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return process{}, err
	}
	return p, nil
}
