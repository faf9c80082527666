package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// limiters compiles the other hook in both ways in which such libraries are linked: what their dlsym
// gives is their own, or the first function of that name in the process.
func limiters(t *testing.T) map[string]string {
	t.Helper()
	made := map[string]string{}
	for name, flag := range map[string]string{"own": "-Wl,-Bsymbolic", "first": "-Wl,-z,lazy"} {
		made[name] = filepath.Join(work, t.Name()+"-"+name+".so")
		compile(t, "-shared", "-fPIC", flag, "-o", made[name], filepath.Join(testdir, "limiter.c"), "-ldl")
	}
	return made
}

// The library comes first, as it should, and another hook behind it: all is as without. The other one
// sees nothing of what is managed, neither the program's calls nor the engine's.
func TestAnotherHookBehind(t *testing.T) {
	binary, seed := expandable(t), random(t).Text()
	for name, limiter := range limiters(t) {
		for _, door := range doors {
			t.Run(name+"/"+door, func(t *testing.T) {
				n := expandableNode(t)
				cmd := n.process(t, binary, door, seed, "250")
				cmd.Env = append(cmd.Env, "LD_PRELOAD="+lib("libebb.so")+":"+limiter)
				if o := run(t, cmd); o.status != 0 || strings.Contains(o.stderr, "comes before") || !strings.Contains(o.stderr, "limiter: 0 calls") {
					t.Errorf("%v", o)
				}
				wantNoFiles(t, n.disk)
			})
		}
	}
}

// Behind a hook that passes its calls on, all that comes through it is managed, and nothing is said. Its
// look-ups go to the driver's own functions, past ebb: that is said.
func TestAnotherHookInFront(t *testing.T) {
	binary, seed := expandable(t), random(t).Text()
	for name, limiter := range limiters(t) {
		t.Run(name, func(t *testing.T) {
			n := expandableNode(t)
			cmd := n.process(t, binary, "linked", seed, "250")
			cmd.Env = append(cmd.Env, "LD_PRELOAD="+limiter+":"+lib("libebb.so"))
			o := run(t, cmd)
			if o.status != 0 || strings.Contains(o.stderr, "limiter: 0 calls") {
				t.Errorf("%v", o)
			}
			if said := strings.Count(o.stderr, "comes before "+lib("libebb.so")); said != 1 {
				t.Errorf("it is said %d times that look-ups go past the library: %v", said, o)
			}
			wantNoFiles(t, n.disk)
		})
	}
}
