package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/testutil"
)

func TestEveryRowIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testutil.Root(t), "docs/doctor.md"))
	if err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder // first cells of tables
	for line := range strings.Lines(string(text)) {
		if cell, _, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " | "); isRow {
			rows.WriteString(cell + "\n")
		}
	}
	x := here()
	kebab := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[string]bool{}
	for _, p := range []part{x.installation(), x.preload(), x.python(), x.driver("auto", true), x.disk("/d", true), x.rate("/d"), x.bare("/d"),
		x.host(), x.environment(), x.process(1), {checks: []check{{name: "room-for-devices"}}}} {
		for _, c := range p.checks {
			if !strings.Contains(rows.String(), "`"+c.name+"`") {
				t.Errorf("docs/doctor.md has no row %s", c.name)
			}
			if !kebab.MatchString(c.name) || seen[c.name] {
				t.Errorf("%s: names are in kebab case, each once", c.name)
			}
			seen[c.name] = true
		}
	}
}
