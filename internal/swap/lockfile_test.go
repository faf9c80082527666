package swap

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// refused is what a hand-over says that cannot take its lock in a directory: one line that names the lock.
func refused(t *testing.T, dir string) string {
	t.Helper()
	h := of(dir, "j", ToTrain)
	h.NoWait = true
	locks, err := h.take(t.Context())
	if err == nil {
		locks.release()
		t.Fatal("the lock was taken")
	}
	if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(text, lockPath(dir, "job", "j")) || !strings.HasSuffix(text, "; nothing was moved") {
		t.Errorf("not one line with the lock: %s", text)
	}
	return err.Error()
}

// Others may write to the directory. What they put in the place of a lock is not followed, waited for, written to
// or removed, and what it is and how to go on is said.
func TestWhatIsPlantedInThePlaceOfALockIsLeftAlone(t *testing.T) {
	for what, plant := range map[string]func(t *testing.T, path, dear string) error{
		"symbolic link":      func(_ *testing.T, path, dear string) error { return os.Symlink(dear, path) },
		"is a symbolic link": func(_ *testing.T, path, dear string) error { return os.Symlink(dear+"-to-be", path) },
		"2 names":            func(_ *testing.T, path, dear string) error { return os.Link(dear, path) },
		"FIFO":               func(_ *testing.T, path, _ string) error { return unix.Mkfifo(path, 0o666) },
		"directory":          func(_ *testing.T, path, _ string) error { return os.Mkdir(path, 0o700) },
		"socket": func(t *testing.T, path, _ string) error {
			t.Chdir(filepath.Dir(path)) // its path may be too long
			l, err := net.Listen("unix", filepath.Base(path))
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		},
		"file of user 4711": func(t *testing.T, path, _ string) error {
			if os.Geteuid() != 0 {
				t.Skip("needs root: it gives a file away")
			}
			return errors.Join(os.WriteFile(path, nil, 0o666), os.Chown(path, 4711, 4711))
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir, dear := t.TempDir(), filepath.Join(t.TempDir(), "dear")
			path := lockPath(dir, "job", "j")
			if err := errors.Join(os.WriteFile(dear, []byte("dear"), 0o600), plant(t, path, dear)); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			remover := "rm"
			if what == "directory" {
				remover = "rmdir"
			}
			said := refused(t, dir)
			if !strings.Contains(said, what) || !strings.Contains(said, " "+remover+" "+path) {
				t.Error(said)
			}
			if owned := strings.HasPrefix(what, "file of user"); owned != strings.Contains(said, "let a hand-over of user 4711 end") || owned == strings.Contains(said, "which ebb did not put there") {
				t.Errorf("what may be a lock that is held: %v: %s", owned, said)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it is not there any more: %v", err)
			}
			if text, err := os.ReadFile(dear); string(text) != "dear" || err != nil {
				t.Errorf("%q, %v", text, err)
			}
			if _, err := os.Lstat(dear + "-to-be"); err == nil {
				t.Error("what the link points to was made")
			}
		})
	}
}

// The superuser hands over for the user whose directory it is, who has a lock there at other times.
func TestALockOfTheDirectorysOwnerIsNoForeignOneToTheSuperuser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives files away")
	}
	dir := t.TempDir()
	path := lockPath(dir, "job", "j")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 4711, 4711), os.Chown(dir, 4711, 4711)); err != nil {
		t.Fatal(err)
	}
	taken(t, of(dir, "j", ToTrain)).release()
	wantNoLocks(t, dir)
	locks := taken(t, of(dir, "j", ToTrain)) // made by the superuser, whose it must not stay
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Uid != 4711 {
		t.Errorf("a lock of user %d, %v", st.Uid, err)
	}
	locks.release()
	wantNoLocks(t, dir)
}

// Somebody who may write to the directory can put another file there while the lock is held. That one is not
// ebb's to remove.
func TestTheEndOfAHandOverRemovesNoFileButItsOwn(t *testing.T) {
	dir := t.TempDir()
	path := lockPath(dir, "job", "j")
	locks := taken(t, of(dir, "j", ToTrain))
	if err := errors.Join(os.Rename(path, path+".away"), os.WriteFile(path, []byte("another"), 0o600)); err != nil {
		t.Fatal(err)
	}
	locks.release()
	if text, err := os.ReadFile(path); string(text) != "another" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

func TestAReadOnlyDirectoryIsSaidToBeOne(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, "size=64k"); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if said := refused(t, dir); !strings.Contains(said, "read-only here: mount it writable, or hand over from where the ranks run") {
		t.Error(said)
	}
}

func TestADirectoryThatTheUserMayNotWriteIsSaidToBeOne(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		dir = "/sys/kernel" // not even the superuser may
	}
	if said := refused(t, dir); !strings.Contains(said, fmt.Sprintf("user %d may not write there: hand over as the user whose ranks they are", os.Geteuid())) {
		t.Error(said)
	}
}

// Whatever the reason, what helps is said.
func TestEveryReasonForNoLockHasARemedy(t *testing.T) {
	for err, want := range map[error]string{
		unix.EROFS:                   "mount it writable",
		unix.EACCES:                  "hand over as the user whose ranks they are",
		unix.EPERM:                   "hand over as the user whose ranks they are",
		unix.ENOSPC:                  "make room in /run/ebb",
		unix.EDQUOT:                  "make room in /run/ebb",
		unix.ENOTDIR:                 "EBB_RUNTIME_DIR",
		unix.EIO:                     "/run/ebb",
		ownedError{"/run", 7}:        "EBB_RUNTIME_DIR",
		plantedError{what: "is odd"}: "rm /run/ebb/x.lock",
		plantedError{what: "is odd", directory: true}:                 "rmdir /run/ebb/x.lock",
		plantedError{what: "is odd", owner: new(uint32)}:              "let a hand-over of user 0 end that is under way; if there is none",
		&fs.PathError{Op: "mkdir", Path: "/run/ebb", Err: unix.EROFS}: "mount it writable",
	} {
		if got := remedy("/run/ebb/x.lock", err); !strings.Contains(got, want) {
			t.Errorf("%v: %s", err, got)
		}
	}
}
