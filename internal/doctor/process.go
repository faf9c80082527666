package doctor

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/client"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/version"
)

// program is a process that runs.
type program struct {
	x   examination
	pid int
	dir string // in /proc

	hidden string // why nothing more can be looked at
	getenv func(string) string
	files  []string // that it has mapped
}

func (x examination) process(pid int) part {
	p := &program{x: x, pid: pid, dir: fmt.Sprintf("/proc/%d", pid)}
	return part{theme: fmt.Sprintf("process %d", pid), hangs: "the kernel does not tell of the process", remedy: fmt.Sprintf("look at dmesg and /proc/%d/stack", pid), checks: []check{
		one("process", p.look),
		one("process-library", p.library),
		one("process-savers", p.savers),
		one("process-runtimes", p.runtimes),
		{"process-environment", p.environment},
		one("process-control", p.control),
	}}
}

// look reads what the kernel tells of the process.
func (p *program) look(context.Context) Finding {
	s := p.x.system
	environ, err1 := s.read(p.dir + "/environ")
	maps, err2 := s.read(p.dir + "/maps")
	if err := errors.Join(err1, err2); err != nil {
		p.hidden = "not looked at: see process"
		switch {
		case !s.exists(p.dir):
			return fail("name a process of this node and pid namespace", "there is no process %d", p.pid)
		case errors.Is(err, fs.ErrPermission):
			return skip("it may not be looked at: it is another user's, or /proc forbids it; run ebb doctor as its user or as root")
		}
		return skip("it cannot be looked at: %s", errorText(err))
	}
	p.getenv = launch.Lookup(strings.Split(environ, "\x00"))
	p.files = mappedFiles(maps)
	name, state := s.line(p.dir+"/comm"), s.field(p.dir+"/status", "State")
	uid, _, _ := strings.Cut(s.field(p.dir+"/status", "Uid"), "\t")
	text := fmt.Sprintf("%s, of user %s, %s", name, uid, stateWords(state))
	switch letter, _, _ := strings.Cut(state, " "); letter {
	case "D":
		return warn(fmt.Sprintf("cat /proc/%d/stack, and look at dmesg", p.pid), "%s: for a disk or a driver, as a rule", text)
	case "T", "t":
		return warn(fmt.Sprintf("kill -CONT %d lets it go on", p.pid), "%s", text)
	case "Z", "X":
		p.hidden = "not looked at: the process has ended"
		return fail("name a process that lives", "%s", text)
	}
	return ok("%s", text).fact("process", "%s", text)
}

func stateWords(state string) string {
	letter, _, _ := strings.Cut(state, " ")
	switch letter {
	case "R":
		return "running"
	case "S", "I":
		return "waiting for something"
	case "D":
		return "waiting in the kernel, where nothing can end it"
	case "T", "t":
		return "stopped"
	case "Z", "X":
		return "ended"
	}
	return "state " + state
}

// deleted is what the kernel writes behind the path of a mapped file that was removed or replaced.
const deleted = " (deleted)"

func named(files []string, is func(base string) bool) (found []string) {
	for _, file := range files {
		if is(filepath.Base(strings.TrimSuffix(file, deleted))) {
			found = append(found, file)
		}
	}
	return found
}

// library looks whether ebb is at work in the process.
func (p *program) library(context.Context) Finding {
	if p.hidden != "" {
		return skip("%s", p.hidden)
	}
	own, _ := filepath.EvalSymlinks(p.x.o.Libraries.Preload)
	return judgeLibrary(p.files, p.getenv("LD_PRELOAD"), own)
}

// judgeLibrary: own is the library of the ebb that looks; empty: it has none.
func judgeLibrary(files []string, preload, own string) Finding {
	shims := named(files, func(base string) bool { return base == "libebb.so" })
	engines := named(files, func(base string) bool { return base == "libebb-engine.so" })
	inPreload := slices.ContainsFunc(preloadEntries(preload), func(entry string) bool { return filepath.Base(entry) == "libebb.so" })
	switch {
	case len(shims) == 0 && inPreload:
		return fail("check that the file is there and may be mapped, and that the program is dynamically linked and not setuid",
			"LD_PRELOAD names libebb.so (%s), and it is not loaded: the dynamic loader passed over it", preload)
	case len(shims) == 0:
		return fail("start it under ebb run or ebb exec with --offload-train", "ebb's library is not loaded: nothing of this process is managed")
	case len(shims) > 1:
		return warn("preload one of them", "it has %d copies of libebb.so (%s): the first one is at work, the others manage nothing", len(shims), list(shims))
	case strings.HasSuffix(shims[0], deleted), len(engines) > 0 && strings.HasSuffix(engines[0], deleted):
		return warn("start the process again when it suits", "ebb was installed anew since the process started; it goes on with the old files")
	}
	text := shims[0]
	if own != "" && text != own {
		text += " (not the one of this ebb)"
	}
	if !inPreload {
		text += ", loaded by the program, not preloaded: only what is asked for through it is managed"
	}
	if len(engines) == 0 {
		return ok("%s; its engine is not loaded yet: no managed memory so far", text)
	}
	return ok("%s, with its engine", text)
}

// savers looks for another library that manages the same memory.
func (p *program) savers(context.Context) Finding {
	if p.hidden != "" {
		return skip("%s", p.hidden)
	}
	return judgeSavers(p.files, p.getenv("LD_PRELOAD"))
}

func judgeSavers(files []string, preload string) Finding {
	others := named(files, func(base string) bool {
		return strings.HasPrefix(base, "torch_memory_saver") && strings.Contains(base, ".so")
	})
	if len(others) > 0 {
		return fail("start it without that one, or run ebb adopt for its Python", "another memory saver is loaded, %s: each would undo the other's work", list(others))
	}
	var beside []string
	for _, entry := range preloadEntries(preload) {
		if filepath.Base(entry) != "libebb.so" {
			beside = append(beside, entry)
		}
	}
	if len(beside) > 0 {
		return ok("no other memory saver; preloaded as well: %s", list(beside))
	}
	return ok("no other memory saver")
}

// runtimes looks for what cannot live beside the engine.
func (p *program) runtimes(context.Context) Finding {
	if p.hidden != "" {
		return skip("%s", p.hidden)
	}
	return judgeRuntimes(p.files, func(file string) string { return p.x.system.path(p.dir + "/root" + file) })
}

// judgeRuntimes: at is where a file of the process can be opened.
func judgeRuntimes(files []string, at func(string) string) Finding {
	engines := named(files, func(base string) bool { return base == "libebb-engine.so" })
	if musl := named(files, func(base string) bool {
		return strings.HasPrefix(base, "ld-musl-") || strings.HasPrefix(base, "libc.musl-")
	}); len(musl) > 0 {
		return fail("use a program that is linked with glibc", "its C library is musl (%s): ebb's needs glibc", musl[0])
	}
	var other []string
	for _, file := range files {
		if !slices.Contains(engines, file) && isGo(at(file)) {
			other = append(other, file)
		}
	}
	switch {
	case len(engines) > 1:
		return fail("preload one libebb.so", "two engines are loaded, %s: a process can have one Go runtime", list(engines))
	case len(other) > 0:
		return warn("load the other library in a process of its own", "a second Go runtime is in the process, %s: two of them take one another's signals, and that goes wrong at times", list(other))
	}
	return ok("glibc, and no Go runtime but the engine's")
}

// isGo reports whether a file is a program or library of Go.
func isGo(file string) bool {
	f, err := elf.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return f.Section(".go.buildinfo") != nil || f.Section(".note.go.buildid") != nil
}

// environment looks at the variables with which the process was started.
func (p *program) environment(context.Context) []Finding {
	if p.hidden != "" {
		return []Finding{skip("%s", p.hidden)}
	}
	rows := judgeEnvironment(p.getenv, launch.DeviceAuto, func(path string) bool { return p.x.system.exists(p.dir + "/root" + path) })
	rows[0].Facts = append(rows[0].Facts, shown(p.getenv)...)
	return rows
}

// controlLimit is how long an engine may take to say hello, which it does beside whatever else it does.
const controlLimit = 2 * time.Second

// control asks the engine through its control socket.
func (p *program) control(ctx context.Context) Finding {
	switch {
	case p.hidden != "":
		return skip("%s", p.hidden)
	case p.getenv("EBB_CONTROL") == "0":
		return ok("switched off (EBB_CONTROL=0): ebb status, pause and resume do not reach it")
	}
	socket := p.socket()
	if socket == "" {
		if len(named(p.files, func(base string) bool { return base == "libebb-engine.so" })) == 0 {
			return ok("none yet: a rank makes its control socket with its first managed memory")
		}
		return warn("look at what it said when its engine started; set EBB_RUNTIME_DIR to a directory of its user's",
			"it has an engine, and no control socket is found: ebb status, pause and resume do not reach it")
	}
	ctx, cancel := context.WithTimeout(ctx, controlLimit)
	defer cancel()
	c, err := client.Dial(ctx, socket)
	const remedy = "ebb status says more; a process that is stopped or hangs does not answer"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fail(remedy, "no answer on %s in %v", socket, controlLimit)
	case err != nil:
		return fail(remedy, "no answer on %s: %s", socket, errorText(err))
	}
	defer c.Close()
	hello := c.Hello()
	if hello.EBB != version.Version {
		return warn("use the ebb of its version", "it answers, and its library is of version %s, this ebb of %s", hello.EBB, version.Version)
	}
	return ok("it answers on %s, of version %s", socket, hello.EBB)
}

// socket is the path of the process's control socket; empty: none is found.
func (p *program) socket() string {
	uid, _, _ := strings.Cut(p.x.system.field(p.dir+"/status", "Uid"), "\t")
	number, err := strconv.Atoi(uid)
	if err != nil {
		return ""
	}
	for _, dir := range control.Dirs(p.getenv, number) {
		for _, name := range p.x.system.names(dir) {
			if owner, is := control.ParseSocketName(name); is && owner.PID == p.pid && !control.Dead(name) {
				return filepath.Join(dir, name)
			}
		}
	}
	return ""
}
