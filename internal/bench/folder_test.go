package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// newRun is the folder of a run, which ends with the test.
func newRun(t *testing.T, base string) *folder {
	t.Helper()
	f, err := makeFolder(base, func(line string) { t.Error(line) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if why, err := f.close(); why != "" || err != nil {
			t.Errorf("%s stays: %q, %v", f.path, why, err)
		}
	})
	return f
}

// deadRun is what a run that was killed leaves: a folder with a rank's folder, in which there are a
// backup file of ebb, one of torch_memory_saver and a raw file.
func deadRun(t *testing.T, base string) (path string) {
	t.Helper()
	in, err := openDirectory(nil, base)
	if err != nil {
		t.Fatal(err)
	}
	f, err := newFolder(in)
	if err != nil {
		t.Fatal(err)
	}
	rank, err := f.forRank()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{backupName(), "tms_a1B2c3", "raw-12-0"} {
		put(t, filepath.Join(f.path, rank, name))
	}
	change(t, f.path, func(m *marker) { m.Owner = nobody() })
	if err := errors.Join(f.dir.Close(), in.Close()); err != nil { // its lock is gone with it
		t.Fatal(err)
	}
	return f.path
}

// nobody is a process of an earlier boot.
func nobody() rankdir.Owner {
	return rankdir.Owner{BootID: "00000000-0000-0000-0000-000000000000", PIDNamespace: 1, PID: 2, StartTime: 3, UID: os.Geteuid()}
}

func backupName() string { return nobody().DataFile(0) }

func put(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func makeDir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// change rewrites a folder's marker.
func change(t *testing.T, path string, how func(*marker)) {
	t.Helper()
	file := filepath.Join(path, markerName)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := parseMarker(text)
	if m == nil {
		t.Fatalf("%s is no marker: %s", file, text)
	}
	how(m)
	if text, err = m.text(); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tree is every name below a directory with what it is; no link is followed.
func tree(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err == nil {
			all = append(all, fmt.Sprintf("%s %v", strings.TrimPrefix(path, dir), info.Mode()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// swept makes a folder as a new run does, and returns what that said.
func swept(t *testing.T, base string) (said string) {
	t.Helper()
	f, err := makeFolder(base, func(line string) { said += line + "\n" })
	if err != nil {
		t.Fatal(err)
	}
	if why, err := f.close(); why != "" || err != nil {
		t.Errorf("the new run's folder stays: %q, %v", why, err)
	}
	return said
}

func TestFoldersOfDeadRunsAreRemoved(t *testing.T) {
	base := diskDir(t)
	dead, again := deadRun(t, base), deadRun(t, base)
	if said := swept(t, base); said != "" {
		t.Errorf("said %q", said)
	}
	if left := tree(t, base); len(left) != 1 {
		t.Errorf("of %s and %s there is left %q", dead, again, left)
	}
}

// A marker counts for the folder that it was written into by a run of this user.
func TestWithoutAMarkerThatFitsNothingIsRemoved(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"no marker": func(t *testing.T, path string) { gone(t, filepath.Join(path, markerName)) },
		"an empty marker": func(t *testing.T, path string) {
			if err := os.Truncate(filepath.Join(path, markerName), 0); err != nil {
				t.Fatal(err)
			}
		},
		"a marker of another folder": func(t *testing.T, path string) { change(t, path, func(m *marker) { m.Folder.Ino++ }) },
		"a marker of a directory that had its number": func(t *testing.T, path string) {
			change(t, path, func(m *marker) { m.Folder.Born-- })
		},
		"a marker with another name": func(t *testing.T, path string) {
			change(t, path, func(m *marker) { m.Name = "ebb-bench-0123456789abcdef" })
		},
		"a marker of another user":    func(t *testing.T, path string) { change(t, path, func(m *marker) { m.Owner.UID++ }) },
		"a marker of another version": func(t *testing.T, path string) { change(t, path, func(m *marker) { m.Version++ }) },
		"a marker that is a link": func(t *testing.T, path string) {
			aside := filepath.Join(filepath.Dir(path), "aside.json")
			if err := errors.Join(os.Rename(filepath.Join(path, markerName), aside), os.Symlink(aside, filepath.Join(path, markerName))); err != nil {
				t.Fatal(err)
			}
		},
		"a marker with two names": func(t *testing.T, path string) {
			link(t, filepath.Join(path, markerName), filepath.Join(filepath.Dir(path), "aside.json"))
		},
		"a folder that others may write": func(t *testing.T, path string) {
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		},
		"the marker's process is alive": func(t *testing.T, path string) {
			self, err := rankdir.Self()
			if err != nil {
				t.Fatal(err)
			}
			change(t, path, func(m *marker) { m.Owner = self })
		},
		"a copy": func(t *testing.T, path string) {
			// The folder moves away and a copy of it takes its name.
			aside := path + "-aside"
			if err := errors.Join(os.Rename(path, aside), os.CopyFS(path, os.DirFS(aside)), os.Chmod(path, 0o700), os.RemoveAll(aside)); err != nil {
				t.Fatal(err)
			}
		},
		"another name": func(t *testing.T, path string) {
			if err := os.Rename(path, filepath.Join(filepath.Dir(path), "ebb-bench-results")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := diskDir(t)
			spoil(t, deadRun(t, base))
			before := tree(t, base)
			swept(t, base)
			if left := tree(t, base); !slices.Equal(left, before) {
				t.Errorf("there was\n%q\nand there is\n%q", before, left)
			}
		})
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Link(from, to); err != nil {
		t.Fatal(err)
	}
}

// Directories of people with names like those of runs.
func TestForeignFoldersAreNotTouched(t *testing.T) {
	base := diskDir(t)
	for _, name := range []string{"ebb-bench-results", "ebb-bench-", "ebb-bench-123456789", "ebb-bench-0123456789abcdef", "ebb-bench-0123456789ABCDEF"} {
		put(t, filepath.Join(makeDir(t, filepath.Join(base, name)), "mine"))
		put(t, filepath.Join(makeDir(t, filepath.Join(base, name, "rank-1")), backupName()))
	}
	put(t, filepath.Join(base, "ebb-bench-00000000000000ff"))
	before := tree(t, base)
	if said := swept(t, base); said != "" {
		t.Errorf("said %q", said)
	}
	if left := tree(t, base); !slices.Equal(left, before) {
		t.Errorf("there was\n%q\nand there is\n%q", before, left)
	}
}

// Whatever is not of a run, in whatever place: all stays as it is, and a line says where it is.
func TestAFolderWithAnythingForeignStaysWhole(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, run, elsewhere string)
		line  string
	}{
		"a file beside the ranks": {func(t *testing.T, run, _ string) { put(t, filepath.Join(run, "notes")) }, `"notes" in it is not of a run`},
		"a backup beside the ranks": {func(t *testing.T, run, _ string) { put(t, filepath.Join(run, backupName())) },
			`.bak" in it is not of a run`},
		"a directory beside the ranks": {func(t *testing.T, run, _ string) { makeDir(t, filepath.Join(run, "old")) }, `"old" in it is not of a run`},
		"a link beside the ranks": {func(t *testing.T, run, elsewhere string) { symlink(t, elsewhere, filepath.Join(run, "latest")) },
			`"latest" in it is not of a run`},
		"a link in place of a rank": {func(t *testing.T, run, elsewhere string) { symlink(t, elsewhere, filepath.Join(run, "rank-2")) },
			"rank-2 in it is no directory"},
		"a file in place of a rank": {func(t *testing.T, run, _ string) { put(t, filepath.Join(run, "rank-2")) }, "rank-2 in it is no directory"},
		"a rank's folder that others may read": {func(t *testing.T, run, _ string) {
			if err := errors.Join(os.Mkdir(filepath.Join(run, "rank-2"), 0o700), os.Chmod(filepath.Join(run, "rank-2"), 0o755)); err != nil {
				t.Fatal(err)
			}
		}, "rank-2 in it is not as a run makes it"},
		"a rank with a leading zero": {func(t *testing.T, run, _ string) { makeDir(t, filepath.Join(run, "rank-01")) }, `"rank-01" in it is not of a run`},
		"a file in a rank": {func(t *testing.T, run, _ string) { put(t, filepath.Join(run, "rank-1", "notes")) },
			`"notes" in its rank-1 is not of a run`},
		"a directory in a rank": {func(t *testing.T, run, _ string) { makeDir(t, filepath.Join(run, "rank-1", "raw-1-1")) },
			`"raw-1-1" in its rank-1 is not of a run`},
		"a link in a rank": {func(t *testing.T, run, elsewhere string) {
			symlink(t, filepath.Join(elsewhere, "keep"), filepath.Join(run, "rank-1", "raw-1-1"))
		}, `"raw-1-1" in its rank-1 is not of a run`},
		"a link to a directory in a rank": {func(t *testing.T, run, elsewhere string) {
			symlink(t, elsewhere, filepath.Join(run, "rank-1", "tms_abcdef"))
		},
			`"tms_abcdef" in its rank-1 is not of a run`},
		"a hard link in a rank": {func(t *testing.T, run, elsewhere string) {
			link(t, filepath.Join(elsewhere, "keep"), filepath.Join(run, "rank-1", "raw-1-1"))
		}, "raw-1-1 in its rank-1 has a second name"},
		"a pipe in a rank": {func(t *testing.T, run, _ string) {
			if err := unix.Mkfifo(filepath.Join(run, "rank-1", "raw-1-1"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, `"raw-1-1" in its rank-1 is not of a run`},
		"a backup of a living process": {func(t *testing.T, run, _ string) {
			self, err := rankdir.Self()
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(run, "rank-1", self.DataFile(0)))
		}, "which is alive"},
	} {
		t.Run(name, func(t *testing.T) {
			base, elsewhere := diskDir(t), diskDir(t)
			put(t, filepath.Join(elsewhere, "keep"))
			put(t, filepath.Join(elsewhere, backupName()))
			run := deadRun(t, base)
			c.spoil(t, run, elsewhere)
			before, beforeElsewhere := tree(t, base), tree(t, elsewhere)
			said := swept(t, base)
			if !strings.Contains(said, run+" stays: ") || !strings.Contains(said, c.line) || strings.Count(said, "\n") != 1 {
				t.Errorf("said %q, want %q", said, c.line)
			}
			if left := tree(t, base); !slices.Equal(left, before) {
				t.Errorf("there was\n%q\nand there is\n%q", before, left)
			}
			if left := tree(t, elsewhere); !slices.Equal(left, beforeElsewhere) {
				t.Errorf("elsewhere there was\n%q\nand there is\n%q", beforeElsewhere, left)
			}
		})
	}
}

func symlink(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

// A link in place of the folder itself.
func TestALinkWithTheNameOfARunIsNotFollowed(t *testing.T) {
	base, elsewhere := diskDir(t), diskDir(t)
	run := deadRun(t, base)
	moved := filepath.Join(elsewhere, filepath.Base(run))
	if err := os.Rename(run, moved); err != nil {
		t.Fatal(err)
	}
	symlink(t, moved, run)
	before := tree(t, elsewhere)
	swept(t, base)
	if left := tree(t, elsewhere); !slices.Equal(left, before) {
		t.Errorf("there was\n%q\nand there is\n%q", before, left)
	}
}

// Runs at the same time leave each other's folders alone.
func TestTheFolderOfALiveRunStays(t *testing.T) {
	base := diskDir(t)
	live := newRun(t, base)
	rank, err := live.forRank()
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(live.path, rank, backupName()))
	// Though the process in its marker is dead: the lock says that somebody has it.
	change(t, live.path, func(m *marker) { m.Owner = nobody() })
	before := tree(t, base)
	if said := swept(t, base); said != "" {
		t.Errorf("said %q", said)
	}
	if left := tree(t, base); !slices.Equal(left, before) {
		t.Errorf("there was\n%q\nand there is\n%q", before, left)
	}
}

// The same holds for what comes into a run's own folder while it runs.
func TestARunsOwnFolderWithAnythingForeignStays(t *testing.T) {
	base, elsewhere := diskDir(t), diskDir(t)
	put(t, filepath.Join(elsewhere, backupName()))
	f, err := makeFolder(base, func(line string) { t.Error(line) })
	if err != nil {
		t.Fatal(err)
	}
	rank, err := f.forRank()
	if err != nil {
		t.Fatal(err)
	}
	symlink(t, elsewhere, filepath.Join(f.path, "latest"))
	put(t, filepath.Join(f.path, rank, "notes"))
	before := tree(t, base)
	if why, err := f.removeRank(rank); err != nil || why != `"notes" in its rank-1 is not of a run` {
		t.Errorf("the rank's folder: %q, %v", why, err)
	}
	if why, err := f.close(); err != nil || why != `"latest" in it is not of a run` {
		t.Errorf("the run's folder: %q, %v", why, err)
	}
	if left := tree(t, base); !slices.Equal(left, before) {
		t.Errorf("there was\n%q\nand there is\n%q", before, left)
	}
	if left := tree(t, elsewhere); len(left) != 2 {
		t.Errorf("elsewhere there is %q", left)
	}
}

// Another directory that has taken the name of a run's folder is not looked into.
func TestAFolderThatWasReplacedStays(t *testing.T) {
	base := diskDir(t)
	f, err := makeFolder(base, func(line string) { t.Error(line) })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path, f.path+"-aside"); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(makeDir(t, filepath.Join(f.path, "rank-1")), backupName()))
	before := tree(t, base)
	if why, err := f.close(); err != nil || why != "something else has taken its place" {
		t.Errorf("%q, %v", why, err)
	}
	if left := tree(t, base); !slices.Equal(left, before) {
		t.Errorf("there was\n%q\nand there is\n%q", before, left)
	}
}

// While a folder is removed, somebody exchanges a rank's folder for a link to another directory, and
// the run's folder for another one with names like those of a run.
func TestWhatIsSwappedInDuringRemovalIsNotReached(t *testing.T) {
	for _, c := range []struct{ name, place string }{{"a rank's folder", "rank-1"}, {"the run's folder", ""}} {
		t.Run(c.name, func(t *testing.T) {
			base, elsewhere := diskDir(t), diskDir(t)
			victim := makeDir(t, filepath.Join(elsewhere, "victim"))
			put(t, filepath.Join(victim, backupName()))
			put(t, filepath.Join(makeDir(t, filepath.Join(victim, "rank-1")), backupName()))
			before := tree(t, victim)
			bait := filepath.Join(elsewhere, "link")
			swaps := 0
			for round := 0; round < 200 || swaps == 0 && round < 10_000; round++ { // on a busy machine a removal may be over before the first one
				run := deadRun(t, base)
				symlink(t, victim, bait)
				stop, stopped := make(chan struct{}), make(chan int)
				go func() {
					n := 0
					for {
						select {
						case <-stop:
							stopped <- n
							return
						default:
						}
						if unix.Renameat2(unix.AT_FDCWD, filepath.Join(run, c.place), unix.AT_FDCWD, bait, unix.RENAME_EXCHANGE) == nil {
							n++
						}
					}
				}()
				f, err := makeFolder(base, func(string) {})
				if err != nil {
					t.Fatal(err)
				}
				close(stop)
				swaps += <-stopped
				if left := tree(t, victim); !slices.Equal(left, before) {
					t.Fatalf("there was\n%q\nand there is\n%q", before, left)
				}
				if _, err := f.close(); err != nil {
					t.Fatal(err)
				}
				for _, dir := range []string{base, elsewhere} {
					entries, err := os.ReadDir(dir)
					if err != nil {
						t.Fatal(err)
					}
					for _, entry := range entries {
						if entry.Name() != "victim" {
							if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
			}
			if swaps == 0 {
				t.Error("nothing was ever exchanged")
			}
		})
	}
}
