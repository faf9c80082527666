package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// With the same variable the command looks where the ranks have their sockets.
func TestTheRuntimeDirectoryIsTheOnlyPlaceWhereItCanHoldSockets(t *testing.T) {
	short, long := "/run/ebb-test", "/run/"+strings.Repeat("d", 100)
	usual := fmt.Sprintf("/tmp/ebb-%d", os.Geteuid())
	for _, c := range []struct {
		variable, flag string
		usual          bool
	}{
		{short, short, false},
		{long, long, true},
		{"relative", "relative", true},
		{long, short, false},
		{short, "relative", false}, // it was said on the command line, from where it means a directory
	} {
		t.Setenv("EBB_RUNTIME_DIR", c.variable)
		r := rankFlags{runtimeDirs: []string{c.flag}}
		dirs := r.places().RuntimeDirs
		if !slices.Contains(dirs, c.flag) || slices.Contains(dirs, usual) != c.usual || !c.usual && len(dirs) != 1 {
			t.Errorf("EBB_RUNTIME_DIR=%s --runtime-dir %s: looked in %q", c.variable, c.flag, dirs)
		}
		if said := r.nobody(r.places()).Error(); strings.Contains(said, "bytes too long: the path of a socket in it may have 107: name a short directory") != (c.flag == long) {
			t.Errorf("EBB_RUNTIME_DIR=%s --runtime-dir %s: %s", c.variable, c.flag, said)
		}
	}
}
