package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/launch"
)

// Every flag of run, exec and env takes a value that it keeps, or says in one sentence what it wants.
func FuzzFlagValues(f *testing.F) {
	for _, s := range []string{"", "1", "true", "cpu", "disk", "/a,/b", "30s", "1GiB", "-1", "a\nb", "\x00", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var o launch.Options
		var rank int
		flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
		launchFlags(flags, &o)
		ranksFlag(flags, &o, "1", "")
		graceFlag(flags, &o)
		rankFlag(flags, &rank)
		flags.VisitAll(func(flag *pflag.Flag) {
			before := flag.Value.String()
			err := flag.Value.Set(text)
			switch {
			case err == nil && flag.Value.String() != text:
				t.Errorf("--%s %q is %q", flag.Name, text, flag.Value)
			case err != nil && flag.Value.String() != before:
				t.Errorf("--%s %q was refused (%v) and is %q", flag.Name, text, err, flag.Value)
			case err != nil && strings.ContainsAny(err.Error(), "\n\x00"):
				t.Errorf("--%s %q: %q", flag.Name, text, err)
			}
		})
		if o.Ranks < 1 || o.ChunkMB < 1 || o.HostMB < 0 || o.Cell < 0 || o.Grace < 0 || rank < -1 {
			t.Errorf("%q: %+v, rank %d", text, o, rank)
		}
	})
}
