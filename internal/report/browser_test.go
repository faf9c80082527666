package report

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// browser is a real Chromium without a window, commanded over pipes (the DevTools protocol). It uses no
// network.
type browser struct {
	t       *testing.T
	in      io.WriteCloser
	out     *bufio.Reader
	id      int
	session string
	events  []message
}

type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct{ Message string }
}

// newBrowser starts one, or skips the test where there is none.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Skip("no Chromium here (Debian: apt-get install chromium)")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute) // then it hangs
	t.Cleanup(cancel)
	own := testutil.SocketDir(t) // it makes sockets in both
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
		"--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
		"--user-data-dir="+own, "about:blank")
	cmd.Env = append(os.Environ(), "TMPDIR="+own)
	ours, theirs := pipe(t)
	back, backTheirs := pipe(t)
	cmd.ExtraFiles = []*os.File{ours, backTheirs} // its descriptors 3 and 4
	// What it writes is taken from a pipe, at whose end all its processes have ended: none makes files in its directory any more.
	cmd.Stderr, cmd.WaitDelay = &bytes.Buffer{}, time.Minute
	if err := cmd.Start(); err != nil {
		t.Skipf("Chromium does not start here: %v", err)
	}
	ours.Close()
	backTheirs.Close()
	b := &browser{t: t, in: theirs, out: bufio.NewReader(back)}
	t.Cleanup(func() {
		_, _ = fmt.Fprintf(b.in, `{"id":999999,"method":"Browser.close"}`+"\x00")
		_ = b.in.Close()
		_ = cmd.Wait()
		back.Close()
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct {
		SessionID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Page.setLifecycleEventsEnabled", map[string]any{"enabled": true}, nil)
	return b
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// call sends a command and waits for its answer.
func (b *browser) call(method string, params any, result any) {
	b.t.Helper()
	b.id++
	command := map[string]any{"id": b.id, "method": method}
	if params != nil {
		command["params"] = params
	}
	if b.session != "" {
		command["sessionId"] = b.session
	}
	text, err := json.Marshal(command)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		m := b.next(method)
		switch {
		case m.Method != "":
			b.events = append(b.events, m)
		case m.ID == b.id && m.Error != nil:
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		case m.ID == b.id:
			if result != nil {
				if err := json.Unmarshal(m.Result, result); err != nil {
					b.t.Fatalf("%s: %v", method, err)
				}
			}
			return
		}
	}
}

func (b *browser) next(doing string) (m message) {
	b.t.Helper()
	text, err := b.out.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("%s: the browser is gone: %v", doing, err)
	}
	if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
		b.t.Fatal(err)
	}
	return m
}

// open shows a file on a screen and waits until it is loaded.
func (b *browser) open(file string, width, height int, dark, script bool) {
	b.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": !script}, nil)
	b.events = nil
	var page struct {
		LoaderID string `json:"loaderId"`
	}
	b.call("Page.navigate", map[string]any{"url": "file://" + file}, &page)
	for !b.loaded(page.LoaderID) {
		if m := b.next("load"); m.Method != "" {
			b.events = append(b.events, m)
		}
	}
}

// loaded reports whether a page is loaded: this one, and not the one before it, of which word may come late.
func (b *browser) loaded(loader string) bool {
	for _, e := range b.events {
		var told struct {
			LoaderID string `json:"loaderId"`
			Name     string `json:"name"`
		}
		if e.Method == "Page.lifecycleEvent" && json.Unmarshal(e.Params, &told) == nil && told.LoaderID == loader && told.Name == "load" {
			return true
		}
	}
	return false
}

// eval evaluates an expression in the page.
func (b *browser) eval(expression string, result any) {
	b.t.Helper()
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if out.Exception != nil {
		b.t.Fatalf("%s: %s", expression, out.Exception)
	}
	if err := json.Unmarshal(out.Result.Value, result); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

// screenshot takes a picture of the whole page. With EBB_TEST_SCREENSHOTS, a directory, it is kept.
func (b *browser) screenshot(name string) []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if dir := os.Getenv("EBB_TEST_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	return png
}

// complaints are errors and warnings of the page, and what it fetched but itself.
func (b *browser) complaints() (list []string) {
	for _, e := range b.events {
		switch e.Method {
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
			list = append(list, e.Method+": "+string(e.Params))
		case "Network.requestWillBeSent":
			var sent struct {
				Request struct{ URL string }
				Type    string
			}
			if json.Unmarshal(e.Params, &sent) != nil || sent.Type != "Document" {
				list = append(list, "fetches "+sent.Request.URL)
			}
		}
	}
	return list
}

// hostile are the texts of a log whose writer wants to run a script in the reader's browser.
const hostile = `</style></script><script>document.title='taken'</script><img src=x onerror="document.title='taken'">"'&`

func writePage(t testing.TB, r *Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.WritePage(&out); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The page is looked at by a real browser, as it is seen on a desk and on a phone, by day and by night.
func TestThePageInABrowser(t *testing.T) {
	b := newBrowser(t)
	dir := t.TempDir()
	sampleJob(t, dir, "nightly-7b", 16, 12)
	sampleSwap(t, dir, "nightly-7b", 16, 12)
	file := writePage(t, make0(t, Options{Version: "1.2.3", Raw: &Raw{Write: 2.6, Read: 1.75, From: "as given"}}, dir))

	colours := map[bool]string{}
	for _, screen := range []struct {
		name          string
		width, height int
		dark, script  bool
		long          bool // only with EBB_TEST_LONG
	}{
		{"desktop-light", 1280, 900, false, true, false},
		{"phone-dark", 390, 844, true, true, false},
		{"phone-without-script", 390, 844, false, false, false},
		{"desktop-dark", 1280, 900, true, true, true},
		{"phone-light", 390, 844, false, true, true},
		{"small-phone", 320, 568, false, true, true},
		{"tablet", 768, 1024, false, true, true},
	} {
		if screen.long && os.Getenv("EBB_TEST_LONG") != "1" {
			continue
		}
		b.open(file, screen.width, screen.height, screen.dark, screen.script)
		if list := b.complaints(); len(list) > 0 {
			t.Errorf("%s: %q", screen.name, list)
		}
		if png := b.screenshot(screen.name); len(png) < 10_000 {
			t.Errorf("%s: a picture of %d bytes", screen.name, len(png))
		}
		if !screen.script {
			continue
		}
		b.wantFits(screen.name, screen.width)
		var colour string
		b.eval(`getComputedStyle(document.body).backgroundColor`, &colour)
		colours[screen.dark] = colour

		// Texts stand out from what is behind them (WCAG AA: 4.5, or 3 for large ones).
		var faint []string
		b.eval(contrast, &faint)
		if len(faint) > 0 {
			t.Errorf("%s: too faint: %q", screen.name, faint)
		}
		// Two texts never lie upon each other.
		var upon []string
		b.eval(overlaps, &upon)
		if len(upon) > 0 {
			t.Errorf("%s: texts lie upon each other: %q", screen.name, upon)
		}
	}
	if colours[true] == colours[false] {
		t.Errorf("the page has the colour %s by day and by night", colours[true])
	}

	// The script tells what is under the pointer.
	b.open(file, 1280, 900, false, true)
	var before, after string
	b.eval(`document.getElementById("at").textContent`, &before)
	b.eval(`(() => { const svg = document.querySelectorAll(".lane svg.row")[2], r = svg.getBoundingClientRect(), mark = svg.querySelector("path.train") || svg;
		mark.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: r.left + r.width / 2, clientY: r.top + 7}));
		return document.getElementById("at").textContent })()`, &after)
	if after == before || !strings.Contains(after, "2026-03-14") {
		t.Errorf("under the pointer: %q", after)
	}
	if list := b.complaints(); len(list) > 0 {
		t.Errorf("with the pointer: %q", list)
	}

	neverRun(t, b)
}

// neverRun shows a page whose log holds scripts wherever a text can be.
func neverRun(t *testing.T, b *browser) {
	dir := t.TempDir()
	w := process0("job", "actor", 0, 7, hostile, begin)
	w.Job, w.Role, w.Cell, w.Rank = hostile, hostile, hostile, hostile
	w.start().pass(10)
	w.operation("pause", map[string]any{"bytes": 5, "seconds": 1.0, "error": hostile, "phases": map[string]float64{hostile: 1}}, hostile)
	w.pass(1).operation("pause", map[string]any{"bytes": 5, "disk_bytes": 5, "seconds": 1.0, "phases": map[string]float64{hostile: 1}}, hostile)
	w.pass(1).operation("resume", movedBytes(5, 1))
	w.Rank = "7"
	w.Job = "x"
	log := strings.Join(w.lines, "\n") + "\n"
	path := filepath.Join(dir, "log.jsonl")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	r := make0(t, Options{Version: hostile, Raw: &Raw{Write: 1, From: hostile}}, path)
	b.open(writePage(t, r), 390, 844, false, true)
	if list := b.complaints(); len(list) > 0 {
		t.Errorf("%q", list)
	}
	var title, told string
	var scripts, images int
	b.eval(`document.title`, &title)
	b.eval(`document.querySelectorAll("script").length`, &scripts)
	b.eval(`document.querySelectorAll("img").length`, &images)
	b.eval(`document.querySelector(".words").textContent`, &told)
	if title == "taken" || scripts != 1 || images != 0 {
		t.Errorf("title %q, %d scripts, %d images", title, scripts, images)
	}
	if told != hostile {
		t.Errorf("the failure says %q, want %q", told, hostile)
	}
	b.wantFits("a page of long words", 390)
}

// wantFits checks that nothing reaches beyond a screen of that width.
func (b *browser) wantFits(name string, width int) {
	b.t.Helper()
	var scroll int
	b.eval(`document.documentElement.scrollWidth`, &scroll)
	var wide []string
	b.eval(fmt.Sprintf(`[...document.querySelectorAll("body *")].filter(e => !e.closest("svg") || e.tagName == "svg")
		.filter(e => { const r = e.getBoundingClientRect(); return r.width && (r.right > %d + 0.5 || r.left < -0.5) })
		.map(e => e.tagName + "." + (e.getAttribute("class") || "") + ": " + e.textContent.trim().slice(0, 30))`, width), &wide)
	if scroll > width || len(wide) > 0 {
		b.t.Errorf("%s: %d pixels are scrolled through %d; too wide: %q", name, scroll, width, wide[:min(len(wide), 12)])
	}
}

// contrast lists texts whose contrast with the colour behind them is too low.
const contrast = `(() => {
	const lum = c => { const f = c.map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2] };
	const rgb = s => s.match(/[\d.]+/g).map(Number);
	const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] == 1) return c.slice(0, 3) } return [255, 255, 255] };
	const list = [];
	for (const e of document.querySelectorAll("body *")) {
		if (e.closest("svg, script") || ![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim())) continue;
		const style = getComputedStyle(e), a = lum(rgb(style.color).slice(0, 3)), b = lum(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), large = parseFloat(style.fontSize) >= 24;
		if (ratio < (large ? 3 : 4.5)) list.push(e.tagName + "." + e.className + " " + ratio.toFixed(2) + ": " + e.textContent.trim().slice(0, 30));
	}
	return list;
})()`

// overlaps lists pairs of texts that cover each other.
const overlaps = `(() => {
	const boxes = [], list = [];
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = walker.nextNode();) {
		if (!n.textContent.trim() || n.parentElement.closest("svg, script, style")) continue;
		const range = document.createRange();
		range.selectNodeContents(n);
		for (const r of range.getClientRects()) if (r.width > 1) boxes.push([r, n.textContent.trim().slice(0, 25), n.parentElement]);
	}
	boxes.sort((a, b) => a[0].top - b[0].top);
	for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length && boxes[j][0].top < boxes[i][0].bottom; j++) {
		const [a, b] = [boxes[i][0], boxes[j][0]];
		const w = Math.min(a.right, b.right) - Math.max(a.left, b.left), h = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
		if (w > 2 && h > 4 && boxes[i][2] != boxes[j][2]) list.push(boxes[i][1] + " | " + boxes[j][1]);
	}
	return list;
})()`
