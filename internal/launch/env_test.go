package launch

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var awkward = []Setting{
	{Name: "PLAIN", Value: "/a/b:c-d_e.f,g=1"},
	{Name: "BLANK", Value: "a b  c"},
	{Name: "QUOTES", Value: `it's "so" \ $HOME ` + "`id`"},
	{Name: "LINES", Value: "one\ntwo"},
	{Name: "GONE", Unset: true},
}

func written(t *testing.T, format string) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteSettings(&out, format, awkward); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestShellFormatMeansTheSameToAShell(t *testing.T) {
	script := "GONE=here\n" + written(t, FormatShell) +
		`printf '%s\0' "$PLAIN" "$BLANK" "$QUOTES" "$LINES" "${GONE-none}"; sh -c 'printf "%s\0" "$BLANK"'`
	out, err := exec.Command("sh", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{awkward[0].Value, awkward[1].Value, awkward[2].Value, awkward[3].Value, "none", awkward[1].Value, ""}, "\x00")
	if string(out) != want {
		t.Errorf("the shell got %q, want %q", out, want)
	}
}

func TestJSONFormatIsOneFlatObject(t *testing.T) {
	got := map[string]string{}
	if err := json.Unmarshal([]byte(written(t, FormatJSON)), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"GONE": ""}
	for _, s := range awkward {
		want[s.Name] = s.Value
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDotenvFormat(t *testing.T) {
	const want = `PLAIN=/a/b:c-d_e.f,g=1
BLANK="a b  c"
QUOTES="it's \"so\" \\ \$HOME ` + "`id`" + `"
LINES="one\ntwo"
GONE=
`
	if diff := cmp.Diff(want, written(t, FormatDotenv)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
