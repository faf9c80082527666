package rollout

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// What a server says in an error ends up in one plain line, whatever it is.
func FuzzWhatAServerSays(f *testing.F) {
	for _, body := range []string{`{"error":{"message":"no"}}`, `{"detail":"Not Found"}`, `{"error":"a\nb"}`, "<html>", "\x00\x1b[31m", `{"error":{}}`, "[", strings.Repeat("é", 400)} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		line := oneLine(message(body), mostShown)
		if len(line) > mostShown+len("…") || strings.ContainsFunc(line, unicode.IsControl) {
			t.Errorf("%q becomes %q", body, line)
		}
		if utf8.Valid(body) && !utf8.ValidString(line) {
			t.Errorf("%q becomes %q, which is cut within a character", body, line)
		}
	})
}

// An address is refused, or is one without secrets, queries and a slash at its end.
func FuzzParseURL(f *testing.F) {
	for _, text := range []string{"http://127.0.0.1:8000", "https://host/a/b/", "http://u:p@h", "http://[::1]:1", "http://h?q", "//h", "http://h/%2f/"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ParseURL(text)
		if err != nil {
			return
		}
		if u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Hostname() == "" || strings.HasSuffix(u.Path, "/") {
			t.Errorf("%q becomes %q", text, u)
		}
		again, err := ParseURL(u.String())
		if err != nil || again.String() != u.String() {
			t.Errorf("%q becomes %q, which becomes %v (%v)", text, u, again, err)
		}
	})
}
