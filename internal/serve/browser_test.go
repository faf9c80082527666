package serve

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// In a real browser the page shows ranks and events, its policy refuses nothing of its own, and what a
// rank says of itself stays text.
func TestThePageInABrowser(t *testing.T) {
	if os.Getenv("EBB_TEST_LONG") != "1" {
		t.Skip("a browser takes seconds: EBB_TEST_LONG=1 has it")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no Chromium here (Debian: apt-get install chromium)")
	}
	f := newFake(3)
	parked(&f.ranks[0].Status, 1<<30, 3<<30)
	f.ranks[1].Status.LastPause = &node.LastOperation{Bytes: 1 << 30, Seconds: 2, Error: "disk full"}
	f.ranks[2].Role = "<img src=x onerror=document.title='taken'>"
	s := serving(t, f, nil)
	for range f.ranks {
		<-f.watched
	}
	f.emit(t, 0, control.Event{Kind: control.EventBegin, Operation: "resume", Total: 5 << 30, Time: time.Now()})
	f.emit(t, 0, control.Event{Kind: control.EventEnd, Operation: "resume", Error: "the disk is gone", Time: time.Now()})
	want := []string{
		"1 of 3 ranks parked", "actor/0/0", "3.00 GiB on disk", "resume begins: 5.00 GiB", "resume failed: the disk is gone",
		"its last pause failed: disk full", "&lt;img src=x onerror", `class="live"`,
	}
	var dom, errs strings.Builder
	// The browser may stop before the page has all it asked for: then it is started again.
	for deadline := time.Now().Add(3 * time.Minute); ; {
		dom.Reset()
		errs.Reset()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		own := testutil.SocketDir(t) // it makes sockets in both
		cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
			"--disable-background-networking", "--disable-component-update", "--user-data-dir="+own, "--enable-logging=stderr",
			"--timeout=3000", "--dump-dom", s.base+"/")
		cmd.Env = append(os.Environ(), "TMPDIR="+own)
		cmd.Stdout, cmd.Stderr = &dom, &errs
		err := cmd.Run()
		cancel()
		missing := ""
		for _, text := range want {
			if !strings.Contains(dom.String(), text) {
				missing = text
			}
		}
		if missing == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the page lacks %q (%v):\n%s\n%s", missing, err, &dom, &errs)
		}
	}
	for _, mark := range []string{"Content Security Policy", "Uncaught", "Refused to"} {
		if strings.Contains(errs.String(), mark) {
			t.Errorf("the browser says:\n%s", &errs)
			break
		}
	}
	if strings.Contains(dom.String(), "<title>taken") || strings.Contains(dom.String(), "<img src=\"x\"") {
		t.Error("what a rank says became part of the page")
	}
}
