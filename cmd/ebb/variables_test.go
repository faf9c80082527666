package main

import (
	"regexp"
	"slices"
	"testing"
)

func TestAVariableThatNobodyReadsIsSaid(t *testing.T) {
	known := map[string]bool{"EBB_NPROC_PER_NODE": true, "EBB_JOB": true}
	got := unknown([]string{"PATH=/bin", "EBB_JOB=j", "EBB_NPROC_PERNODE=8", "EBB_TEST_LONG=1", "EBB_SHINE=1", "EBB_NPORC_PER_NODE=8"}, known)
	if want := []string{
		"EBB_NPROC_PERNODE is not used: ebb has no such variable, but EBB_NPROC_PER_NODE",
		"EBB_SHINE is not used: ebb has no such variable",
		"EBB_NPORC_PER_NODE is not used: ebb has no such variable, but EBB_NPROC_PER_NODE",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What the library reads must not be called unknown, and is documented.
func TestVariablesOfTheLibraryAreKnown(t *testing.T) {
	doc := read(t, "docs/environment.md")
	flags := []string{"EBB_CELL", "EBB_DISCARD", "EBB_EVENT_LOG", "EBB_JOB", "EBB_LOG_FORMAT", "EBB_RANK", "EBB_ROLE", "EBB_RUNTIME_DIR", "EBB_TRAIN_MEMORY_MARGIN_BYTES"}
	names := regexp.MustCompile(`"(EBB_[A-Z_]+)"`).FindAllStringSubmatch(read(t, "shim/settings.c")+read(t, "shim/engine.c"), -1)
	if len(names) < 10 {
		t.Fatalf("only %d variables found", len(names))
	}
	for _, n := range names {
		if !slices.Contains(libraryVariables, n[1]) && !slices.Contains(flags, n[1]) {
			t.Errorf("%s is called unknown", n[1])
		}
		if !regexp.MustCompile("`" + n[1] + "`").MatchString(doc) {
			t.Errorf("docs/environment.md has no %s", n[1])
		}
	}
}
