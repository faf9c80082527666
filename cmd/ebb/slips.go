package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What was meant by a word that is none: slips of the keyboard, and words that were cut short.

// unknownCommand is said of a word where a command of parent should be.
func unknownCommand(parent *cobra.Command, word string) string {
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			names = append(names, c.Name())
		}
	}
	return fmt.Sprintf("unknown command %q: %s%s --help lists the commands", word, meant("", near(word, names), "? "), parent.CommandPath())
}

// meantFlag is what is added to the error about a command line that gives cmd a flag that it has not: flags of
// cmd that are like it, else commands that have it.
func meantFlag(cmd *cobra.Command, err error) string {
	var none *pflag.NotExistError
	if !errors.As(err, &none) || none.GetSpecifiedShortnames() != "" {
		return ""
	}
	name := string(dashes(nil, none.GetSpecifiedName()))
	var own []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			own = append(own, f.Name)
		}
	})
	if like := near(name, own); len(like) > 0 {
		return ": " + meant("--", like, "?")
	}
	var having []string
	for _, verb := range cmd.Root().Commands() {
		for _, c := range append(verb.Commands(), verb) {
			if c != cmd && !c.Hidden && c.Flags().Lookup(name) != nil {
				having = append(having, c.CommandPath())
			}
		}
	}
	switch {
	case len(having) == 0:
		return ""
	case len(having) > most:
		return fmt.Sprintf(": %s and %d more have it, behind their names", strings.Join(having[:most], ", "), len(having)-most)
	}
	return fmt.Sprintf(": %s has it", alternatives(having))
}

// meant asks about words that are like the one given; it is empty where none is.
func meant(before string, words []string, after string) string {
	if len(words) == 0 {
		return ""
	}
	var all []string
	for _, w := range words {
		all = append(all, before+w)
	}
	return "did you mean " + alternatives(all) + after
}

func alternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// most is how many words are offered in the place of one.
const most = 3

// near are the words that are like one, the most alike first: a slip or two from it, fewer in short words, or
// begun by it.
func near(word string, words []string) []string {
	allowed := 1
	if len(word) > 5 {
		allowed = 2
	}
	distances := map[string]int{}
	var like []string
	for _, w := range words {
		d := slipsBetween(word, w)
		begun := len(word) > 1 && strings.HasPrefix(w, word)
		if d <= allowed && d < len(word) || begun {
			distances[w] = d
			like = append(like, w)
		}
	}
	slices.SortStableFunc(like, func(a, b string) int { return cmp.Compare(distances[a], distances[b]) })
	return like[:min(len(like), most)]
}

// slipsBetween is how many letters must be added, left out, replaced, or exchanged with their neighbour to make one
// word of another.
func slipsBetween(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1) // the rows of the table above the one that is made
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
