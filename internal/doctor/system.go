package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// system is the kernel's files below a root, which is / but in tests.
type system struct{ root string }

func (s system) path(name string) string { return filepath.Join(s.root, name) }

// read is a file's text.
func (s system) read(name string) (string, error) {
	text, err := os.ReadFile(s.path(name))
	return string(text), err
}

// line is a file's text without blanks around it; empty where it cannot be read.
func (s system) line(name string) string {
	text, err := s.read(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

// number is a file of one whole number.
func (s system) number(name string) (n int, known bool) {
	n, err := strconv.Atoi(s.line(name))
	return n, err == nil
}

func (s system) exists(name string) bool {
	_, err := os.Lstat(s.path(name))
	return err == nil
}

// names is what is in a directory, sorted; nothing where it cannot be listed.
func (s system) names(dir string) (names []string) {
	entries, err := os.ReadDir(s.path(dir))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

// resolve is where a path leads, as seen from the root; empty where it leads nowhere.
func (s system) resolve(name string) string {
	full, err := filepath.EvalSymlinks(s.path(name))
	if err != nil {
		return ""
	}
	root, err := filepath.EvalSymlinks(s.root)
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(root, full)
	if err != nil || strings.HasPrefix(rel, "..") {
		return ""
	}
	return filepath.Join("/", rel)
}

// field is a line "name: value" of a file such as /proc/self/status.
func (s system) field(file, name string) string {
	text, err := s.read(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		if key, value, found := strings.Cut(line, ":"); found && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// chosen is the word in brackets of a file such as transparent_hugepage/enabled.
func (s system) chosen(file string) string {
	_, after, _ := strings.Cut(s.line(file), "[")
	word, _, found := strings.Cut(after, "]")
	if !found {
		return ""
	}
	return word
}
