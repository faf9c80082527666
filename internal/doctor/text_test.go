package doctor

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func page(r Result, coloured bool) string {
	var out strings.Builder
	r.WriteText(&out, coloured)
	return out.String()
}

func TestThePageOfPeople(t *testing.T) {
	r := Result{Seconds: 0.34, Facts: []Fact{{"kernel", "6.1"}}, Findings: []Finding{
		Finding{Theme: "disk /d", Check: "disk-dir"}.with(ok("yours alone")),
		Finding{Theme: "disk /d", Check: "disk-room"}.with(fail("make room", "it is full")),
		Finding{Theme: "host", Check: "numa"}.with(skip("not told")),
	}}
	const want = `disk /d
[OK]   disk-dir   yours alone
[FAIL] disk-room  it is full
                  → make room

host
[SKIP] numa       not told

1 ok, 1 failed, 1 not looked at, in 0.3 s

For a bug report (settings of ebb, CUDA and PyTorch; no other variables):
` + "```\nkernel: 6.1\nFAIL disk-room (disk /d): it is full\n```\n"
	if got := page(r, false); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if r.OK() || r.Count(OK) != 1 {
		t.Errorf("ok %v, %d rows OK", r.OK(), r.Count(OK))
	}
	if got := page(r, true); !strings.Contains(got, "\x1b[1;31m[FAIL]\x1b[0m") {
		t.Errorf("no colour:\n%s", got)
	}
}

func TestThePageIsNoWiderThanATerminal(t *testing.T) {
	long := strings.Repeat("müde Wörter ", 40) + strings.Repeat("/very/long/path", 30)
	r := Result{Facts: []Fact{{"env LD_PRELOAD", long}}, Findings: []Finding{
		Finding{Theme: "host", Check: "a-check-with-a-long-name"}.with(warn(long, "%s", long)),
	}}
	got := page(r, false)
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	if strings.Contains(got, "\x1b") {
		t.Error("colours where none are wanted")
	}
	flat := strings.Join(strings.Fields(got), "")
	if n := strings.Count(flat, strings.Join(strings.Fields(long), "")); n < 2 {
		t.Errorf("words were lost:\n%s", got)
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string]string{"": "", "a": "a", "a b c": "a b|c", "abcdef": "abc|def", "a bcdef": "a|bcd|ef", "äöü": "äöü"} {
		if got := strings.Join(wrap(text, 3), "|"); got != want {
			t.Errorf("wrap(%q, 3) = %q, want %q", text, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 bytes", 4096: "4 KiB (4.1 kB)", 512 << 20: "512 MiB (536.9 MB)", 80 << 30: "80 GiB (85.9 GB)", 3 << 40: "3 TiB (3.3 TB)"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
}
