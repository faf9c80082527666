package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// pages are README.md and everything below docs/, by their paths from the root of the repository.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{"README.md", "CONTRIBUTING.md", "examples/demo/README.md", "softgpu/README.md"}
	err := filepath.WalkDir(filepath.Join(testutil.Root(t), "docs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".md") {
			path, err = filepath.Rel(testutil.Root(t), path)
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// fenced finds code blocks: their language and their text.
var fenced = regexp.MustCompile("(?ms)^```(\\w*)\\n(.*?)^```$")

// Every command line of ebb in the docs has a verb that exists and flags that the verb has. (Blocks of
// the language sh are also run, but for those that are marked: test/e2e.)
func TestCommandsInTheDocsExist(t *testing.T) {
	found := 0
	for _, page := range pages(t) {
		for _, line := range commandLinesOf(read(t, page)) {
			found++
			if wrong := wrongWith(line); wrong != "" {
				t.Errorf("%s: %s\n%s", page, wrong, line)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d command lines were found", found)
	}
}

func TestAWrongCommandLineIsSeen(t *testing.T) {
	for line, wrong := range map[string]string{
		"ebb run --nproc-per-node 2 -- python --no-flag-of-ebb":    "",
		"torchrun --no-python dist/bin/ebb exec --offload-train …": "",
		"ebb run --no-such-flag 2":                                 "--no-such-flag",
		"ebb rnu --nproc-per-node 2":                               "rnu",
		"`ebb plan --params=7B` and more":                          "",
		"`ebb plan --parms=7B`":                                    "--parms",
		"FOO=1 ebb env --rank 3 | sh; ebb gc --nothing":            "--nothing",
		"ebb k8s render --nodes 3":                                 "",
		"ebb k8s render --knots 3":                                 "--knots",
		"ebb k8s apply --nodes 3":                                  "apply",
	} {
		got := ""
		for _, one := range commandLinesOf("```\n" + line + "\n```\n" + line + "\n") {
			got += wrongWith(one)
		}
		if (got == "") != (wrong == "") || !strings.Contains(got, wrong) {
			t.Errorf("%s: %q, want %q", line, got, wrong)
		}
	}
}

var (
	inline = regexp.MustCompile("`((?:dist/bin/)?ebb [^`]+)`")
	breaks = regexp.MustCompile(`\\\n\s*`)
	// A command ends where the shell begins another one.
	stops = regexp.MustCompile(`[|;&<>#)"]|$|` + "`")
	ebbs  = regexp.MustCompile("(?:^|[\\s(\"'`=/])ebb +([a-z].*)")
)

// commandLinesOf are the calls of ebb in blocks and between backticks, from the verb on.
func commandLinesOf(text string) (lines []string) {
	var candidates []string
	for _, block := range fenced.FindAllStringSubmatch(text, -1) {
		if block[1] == "python" {
			continue
		}
		for line := range strings.Lines(breaks.ReplaceAllString(block[2], " ")) {
			candidates = append(candidates, strings.FieldsFunc(line, func(r rune) bool { return r == ';' || r == '|' })...)
		}
	}
	outputs := len(candidates)
	for _, span := range inline.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		candidates = append(candidates, strings.ReplaceAll(span[1], "\n", " "))
	}
	for i, candidate := range candidates {
		candidate = strings.TrimRight(candidate, "\n")
		candidate, _, _ = strings.Cut(candidate, " # ") // a comment
		call := ebbs.FindStringSubmatch(candidate)
		if call == nil || strings.Contains(candidate, "python3 -m ebb") || strings.HasPrefix(strings.TrimSpace(candidate), "ebb: ") {
			continue
		}
		line := call[1][:stops.FindStringIndex(call[1])[0]]
		if i < outputs && !strings.Contains(line, "--") && wrongWith(line) != "" {
			continue // something that was printed, with the word ebb in it
		}
		lines = append(lines, line)
	}
	return lines
}

// wrongWith says what is wrong with a command line that begins with the verb; "" if nothing is.
func wrongWith(line string) string {
	root := newRoot()
	words := strings.Fields(line)
	verb, _, err := root.Find(words[:1])
	if words[0] == "help" || words[0] == "completion" {
		return "" // cobra's own
	}
	if err != nil || verb == root {
		return "ebb has no verb " + words[0]
	}
	if len(words) > 1 && verb.HasSubCommands() {
		if verb, _, err = verb.Find(words[1:2]); err != nil || verb.HasSubCommands() {
			return "ebb " + words[0] + " has no verb " + words[1]
		}
	}
	verb.InitDefaultHelpFlag()
	for _, word := range words[1:] {
		if word == "--" {
			return ""
		}
		name, isFlag := strings.CutPrefix(strings.Trim(word, "[]"), "--")
		name, _, _ = strings.Cut(name, "=")
		if isFlag && flagOf(verb, name) == nil {
			return "ebb " + words[0] + " has no flag --" + name
		}
	}
	return ""
}

func flagOf(verb *cobra.Command, name string) *pflag.Flag {
	if f := verb.Flags().Lookup(name); f != nil {
		return f
	}
	return verb.InheritedFlags().Lookup(name)
}

// What a reader pastes has at least to be a program.
func TestBlocksOfTheDocsAreWellFormed(t *testing.T) {
	for _, page := range pages(t) {
		for _, block := range fenced.FindAllStringSubmatch(read(t, page), -1) {
			var check *exec.Cmd
			switch block[1] {
			case "python":
				check = exec.Command("python3", "-c", "import sys; compile(sys.stdin.read(), '"+page+"', 'exec')")
			case "sh", "bash": // the first are run as they are, the others by the tests of what they need
				check = exec.Command("bash", "-n")
			case "", "json", "text", "yaml", "html", "ini":
				continue
			default:
				t.Errorf("%s has a block of the language %q: name it python, sh or bash, the language of a file, or nothing", page, block[1])
				continue
			}
			check.Stdin = strings.NewReader(block[2])
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s\n%s", page, err, out, block[2])
			}
		}
	}
}

// spans are what must not be broken: code, and links.
var spans = regexp.MustCompile("`[^`]*`|\\[[^\\]]*\\]\\([^)]*\\)")

// tooWide are the lines of prose that are wider than the screen and could be broken: none of a table, a block of code
// or a formula.
func tooWide(text string) (lines []string) {
	for line := range strings.Lines(fenced.ReplaceAllString(text, "")) {
		line = strings.TrimRight(line, "\n")
		prose := strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "<!--") && !strings.Contains(line, "<su")
		if !prose || utf8.RuneCountInString(line) <= textWidth {
			continue
		}
		whole := []rune(spans.ReplaceAllStringFunc(strings.TrimLeft(line, " -"), func(span string) string { return strings.ReplaceAll(span, " ", "_") }))
		if strings.Contains(string(whole[:min(len(whole), textWidth)]), " ") {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestProseOfTheDocsFitsTheScreen(t *testing.T) {
	for _, page := range pages(t) {
		if page == "docs/fingerprints.md" { // formulas
			continue
		}
		for _, line := range tooWide(read(t, page)) {
			t.Errorf("%s: a line of %d columns: %s", page, utf8.RuneCountInString(line), line)
		}
	}
	long := strings.Repeat("x", textWidth)
	for line, wrong := range map[string]bool{
		"words and " + long: true, "- `" + long + " " + long + "`": false, "| " + long + " | b |": false, long + " words": false,
		"```\nwords and " + long + "\n```": false, "short": false,
	} {
		if got := len(tooWide(line+"\n")) > 0; got != wrong {
			t.Errorf("%q is too wide: %v", line, got)
		}
	}
}

var (
	links    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headings = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func TestLinksOfTheDocsLeadSomewhere(t *testing.T) {
	for _, page := range append(pages(t), "ARCHITECTURE.md", "PRINCIPLES.md") {
		text := fenced.ReplaceAllString(read(t, page), "")
		for _, link := range links.FindAllStringSubmatch(text, -1) {
			file, fragment, _ := strings.Cut(link[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			content, err := os.ReadFile(filepath.Join(testutil.Root(t), target))
			if err != nil {
				if info, e := os.Stat(filepath.Join(testutil.Root(t), target)); e != nil || !info.IsDir() {
					t.Errorf("%s: %s: %v", page, link[1], err)
				}
				continue
			}
			if fragment == "" {
				continue
			}
			there := false
			for _, heading := range headings.FindAllSubmatch(bytes.TrimSpace(content), -1) {
				there = there || anchor(string(heading[1])) == fragment
			}
			if !there {
				t.Errorf("%s: %s: %s has no such heading", page, link[1], target)
			}
		}
	}
}
