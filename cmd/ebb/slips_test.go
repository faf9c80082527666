package main

import (
	"slices"
	"strings"
	"testing"
)

func TestSlipsBetweenWords(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "run", 3}, {"run", "run", 0}, {"rn", "run", 1}, {"runn", "run", 1}, {"ran", "run", 1},
		{"urn", "run", 1}, {"staus", "status", 1}, {"swpa", "swap", 1}, {"gc", "run", 3}, {"trian", "train", 1},
	} {
		if got := slipsBetween(c.a, c.b); got != c.want || slipsBetween(c.b, c.a) != got {
			t.Errorf("%q, %q: %d and %d, want %d", c.a, c.b, got, slipsBetween(c.b, c.a), c.want)
		}
	}
}

func TestTheMostAlikeIsOfferedFirst(t *testing.T) {
	words := []string{"offload-train-target", "offload-train", "no-offload-train", "nproc-per-node", "offload-train-disk-dir", "offload-train-host-mb", "rank", "job"}
	for word, want := range map[string][]string{
		"offload-trian": {"offload-train"},
		"offload":       {"offload-train", "offload-train-target", "offload-train-host-mb"},
		"nproc":         {"nproc-per-node"},
		"chunk":         nil,
		"x":             nil,
		"r":             nil, // the beginning of too much
		"jb":            {"job"},
	} {
		if got := near(word, words); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

// Whatever is typed in the place of a verb, what is offered is a verb that --help lists.
func TestOnlyVerbsThatAreListedAreOffered(t *testing.T) {
	root := newRoot()
	for _, verb := range root.Commands() {
		text := unknownCommand(root, verb.Name()[:len(verb.Name())-1])
		if offered := strings.Contains(text, "did you mean "+verb.Name()) || strings.Contains(text, " or "+verb.Name()) || strings.Contains(text, " "+verb.Name()+","); offered == verb.Hidden && len(verb.Name()) > 2 {
			t.Errorf("%s, hidden: %v: %s", verb.Name(), verb.Hidden, text)
		}
	}
}
