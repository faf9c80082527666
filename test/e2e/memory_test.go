package e2e

import (
	"strings"
	"testing"
)

func TestHostMemoryIsTheChunkWhateverIsParked(t *testing.T) {
	n := newNode(t, 1536)
	out := succeed(t, n.victim(t, "bounded.py", "1024", "16", "64"))
	t.Log(strings.TrimSpace(out))
	if !strings.Contains(out, "direct_io=true") {
		t.Skip("this file system refuses O_DIRECT: the page cache was dropped instead")
	}
	wantNoFiles(t, n.disk)
}

func TestWhereDirectIOIsRefusedThePageCacheIsDroppedAsItFills(t *testing.T) {
	n := newNode(t, 512)
	cmd := n.victim(t, "bounded.py", "256", "16", "64")
	cmd.Args = append([]string{refuse}, cmd.Args...)
	cmd.Path = refuse
	o := run(t, cmd)
	if o.status != 0 || !strings.Contains(o.stdout, "direct_io=false") {
		t.Fatal(o)
	}
	if said := lines(o.stderr, "O_DIRECT"); len(said) != 1 {
		t.Errorf("want one line that says so, got %q\n%v", said, o)
	}
	wantNoFiles(t, n.disk)
}
