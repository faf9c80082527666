package serve

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"
)

// Whatever a body holds, it is refused or means what it says within its limits; what it means is the same
// however it is written.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"tags":["a","b","a"],"timeout_s":1.5}`, `{"pids":[3,1,2]}`, `{"ranks":["0"]} {}`,
		`{"timeout_s":1e308}`, `{"to":"rollout","roles":["actor"]}`, "{\"tags\":[\"\xff\"]}", `{"TAGS":["x"]}`, `{"tags":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var c swapRequest
		refused := decode(bytes.NewReader(body), &c)
		if refused == nil {
			refused = c.check()
		}
		if refused != nil {
			if refused.Message == "" || len(refused.Message) > 1000 || refused.status < 400 {
				t.Fatalf("refused with status %d: %q", refused.status, refused.Message)
			}
			return
		}
		for _, list := range [][]string{c.Tags, c.Roles, c.Ranks, c.Cells, c.Jobs} {
			if len(list) > maxList || !slices.IsSorted(list) || slices.ContainsFunc(list, func(n string) bool { return n == "" || len(n) > maxName }) {
				t.Fatalf("%q became %q", body, list)
			}
		}
		if d, refused := timeout(c.Timeout, time.Second); refused != nil || d <= 0 || d > maxTimeout {
			t.Fatalf("%q: a time of %v (%v)", body, d, refused)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var again swapRequest
		if refused := decode(bytes.NewReader(text), &again); refused != nil {
			t.Fatalf("%q became %s, which is refused: %v", body, text, refused)
		}
		if refused := again.check(); refused != nil {
			t.Fatalf("%s is refused: %v", text, refused)
		}
		c.Timeout, again.Timeout = nil, nil
		if identity("swap", c) != identity("swap", again) {
			t.Fatalf("%q and %s are not the same request", body, text)
		}
	})
}

func FuzzListen(f *testing.F) {
	for _, seed := range []string{"", "127.0.0.1:0", "unix:/x", "/x", "[::1]:80", "localhost:1", "0.0.0.0:0", ":0", "[::ffff:127.0.0.1]:1", "127.0.0.1.:1", "[fe80::1%lo]:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePlace(text)
		if err != nil {
			return
		}
		if (p.unix == "") == (p.addr == "") || p.unix != "" && !p.loop {
			t.Fatalf("%q is %+v", text, p)
		}
	})
}
