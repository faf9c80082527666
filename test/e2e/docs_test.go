package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// docBlock is a block of a page, with the comments above it. Readers do not see these; they say
//
//	<!-- not run: WHY -->     the commands need what is not here, as a GPU
//	<!-- background -->       they run beside those of the next blocks, and must have ended well at the end
//	<!-- until: COMMAND -->   the next block begins when this succeeds: what a reader sees for himself
//	<!-- file: NAME -->       the block is to be saved under this name
var docBlock = regexp.MustCompile("(?ms)((?:^<!-- [^\n]* -->\n)*)^```(\\w*)\n(.*?)^```$")

var docMark = regexp.MustCompile(`(?m)^<!-- ([a-z ]+?)(?:: (.*))? -->$`)

// Blocks of the language sh on all pages are commands that a reader pastes one after the other, in an
// empty home directory, with ebb in the PATH and the software device.
func TestTheCommandsOfTheDocsRun(t *testing.T) {
	var found int
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		blocks := docBlock.FindAllStringSubmatch(string(text), -1)
		for _, block := range blocks {
			if block[2] == "sh" {
				found++
			}
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			t.Parallel()
			reader := newReader(t)
			for _, block := range blocks {
				reader.follow(t, block[1], block[2], block[3])
			}
			reader.finish(t)
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 10 {
		t.Errorf("only %d blocks were found", found)
	}
}

// reader does what a page says.
type reader struct {
	home       string
	env        []string
	background *exec.Cmd
	said       bytes.Buffer // by it
}

func newReader(t *testing.T) *reader {
	t.Helper()
	node := newNode(t, 1024)
	home, err := os.MkdirTemp(work, "reader-")
	if err != nil {
		t.Fatal(err)
	}
	sockets := testutil.SocketDir(t)
	r := &reader{home: home, env: []string{
		"PATH=" + filepath.Join(root, "dist/bin") + ":" + os.Getenv("PATH"), "HOME=" + home, "LC_ALL=C.UTF-8",
		"PYTHONPATH=" + filepath.Join(root, "python"), "PYTHONDONTWRITEBYTECODE=1",
		"EBB_RUNTIME_DIR=" + sockets, "SOFTGPU_NODE=" + node.name, "SOFTGPU_MEM_MB=1024",
	}}
	t.Cleanup(func() {
		if r.background != nil {
			_ = syscall.Kill(-r.background.Process.Pid, syscall.SIGKILL)
		}
	})
	return r
}

// elsewhere keeps the verbs that look for ranks away from those of other tests: without the flag they
// look into the directory in /tmp too.
const elsewhere = `ebb() {
	case "$1 ${2-}" in
	"status "* | "pause "* | "resume "* | "plan --live") command ebb "$@" --runtime-dir "$EBB_RUNTIME_DIR" ;;
	*) command ebb "$@" ;;
	esac
}
`

func (r *reader) shell(commands string) *exec.Cmd {
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", elsewhere+commands)
	cmd.Dir, cmd.Env = r.home, r.env
	return cmd
}

// follow does one block.
func (r *reader) follow(t *testing.T, comments, language, text string) {
	t.Helper()
	marks := map[string]string{}
	for _, mark := range docMark.FindAllStringSubmatch(comments, -1) {
		marks[mark[1]] = mark[2]
	}
	_, notRun := marks["not run"]
	_, beside := marks["background"]
	if name, save := marks["file"]; save {
		if err := os.WriteFile(filepath.Join(r.home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if notRun || language != "sh" {
		return
	}
	if condition, wait := marks["until"]; wait {
		deadline := time.Now().Add(hangs)
		for r.shell(condition).Run() != nil {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not seen; %s", condition, &r.said)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	cmd := r.shell(text)
	if beside {
		cmd.Stdout, cmd.Stderr = &r.said, &r.said
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r.background = cmd
		return
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s%s", err, text, out)
	}
}

// finish waits for what runs beside.
func (r *reader) finish(t *testing.T) {
	t.Helper()
	if r.background == nil {
		return
	}
	giveUp := time.AfterFunc(hangs, func() { _ = syscall.Kill(-r.background.Process.Pid, syscall.SIGKILL) })
	defer giveUp.Stop()
	if err := r.background.Wait(); err != nil {
		t.Fatal(fmt.Errorf("what ran beside the other commands: %w\n%s", err, &r.said))
	}
	r.background = nil
}
