package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ebb-offload/ebb/internal/parked"
)

// A directory may have a long name; in the rows it stands only where there are several.
func TestARowOfVerifyFitsWhateverTheDirectory(t *testing.T) {
	ranks := []parked.Report{{Rank: "run-2796200-26170120-3cb71bfd/actor_cell0_rank0", Outcome: parked.Good, Files: 1000, Bytes: 140 << 30, Blocks: 35840, Zero: 12000}}
	long := verifiedIn{Dir: "/scratch/" + strings.Repeat("a-long-name/", 8), Known: true, Ranks: ranks}
	var text bytes.Buffer
	verifyResult{DiskDirs: []verifiedIn{long}}.print(&text)
	for line := range strings.Lines(text.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > textWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(text.String(), "\nrun-2796200-26170120-3cb71bfd/actor_cell0_rank0  ") {
		t.Error(text.String())
	}
	if strings.Count(text.String(), "\n") != 2 {
		t.Errorf("there is nothing more to say: %s", &text)
	}
	ranks[0].ProcessDead, ranks[0].PID, ranks[0].Outcome, ranks[0].Why = true, 7, parked.Unread, "/scratch/a-map: "+strings.Repeat("not what it should be ", 9)
	text.Reset()
	verifyResult{DiskDirs: []verifiedIn{long, {Dir: "/b", Known: true, Ranks: ranks}}}.print(&text)
	if !strings.Contains(text.String(), "\n/b/run-2796200") || !strings.Contains(text.String(), "actor_cell0_rank0: process 7 has ended; ebb gc removes its") {
		t.Error(text.String())
	}
	for line := range strings.Lines(text.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > textWidth && !strings.Contains(line, "/a-long-name/") { // a name is never broken
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
