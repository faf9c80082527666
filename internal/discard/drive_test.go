package discard

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// drive is an ext4 on a loop device, whose image shows what the drive still holds.
type drive struct {
	t          *testing.T
	image, dir string
}

func newDrive(t *testing.T, options string) drive {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	base := t.TempDir()
	d := drive{t: t, image: filepath.Join(base, "image"), dir: filepath.Join(base, "mnt")}
	for _, err := range []error{os.WriteFile(d.image, nil, 0o600), os.Truncate(d.image, 64<<20), os.Mkdir(d.dir, 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", d.image}, {"mount", "-o", "loop," + options, d.image, d.dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", d.dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return d
}

// holds says whether the drive has the bytes, when the file system has told it all.
func (d drive) holds(parked []byte) bool {
	d.t.Helper()
	if out, err := exec.Command("sync", "-f", d.dir).CombinedOutput(); err != nil {
		d.t.Fatalf("sync: %v: %s", err, out)
	}
	raw, err := os.ReadFile(d.image)
	if err != nil {
		d.t.Fatal(err)
	}
	return bytes.Contains(raw, parked)
}

// What the drive still has of a file whose blocks were given back depends on how the file system is mounted:
// with -o discard nothing, else everything, until somebody trims it.
func TestWhatTheDriveHoldsOfAFileWhoseBlocksWereGivenBack(t *testing.T) {
	parked := bytes.Repeat([]byte("parked on a drive "), 64<<10)
	for options, keeps := range map[string]bool{"discard": false, "nodiscard": true} {
		t.Run(options, func(t *testing.T) {
			d := newDrive(t, options)
			f, err := os.OpenFile(filepath.Join(d.dir, "file"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(parked); err != nil {
				t.Fatal(err)
			}
			if !d.holds(parked[:100]) {
				t.Fatal("the drive never had it")
			}
			// A loop device cannot zero without writing: the kernel refuses the one way, and the other is taken.
			if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_WRITE_ZEROES, 0, 4096); !unsupported(err) && err != nil {
				t.Errorf("a refusal that is not taken for one: %v", err)
			}
			if err := File(int(f.Fd()), int64(len(parked))); errors.Is(err, unix.EOPNOTSUPP) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			if !keeps { // the file system tells the drive a moment after the blocks are free
				for deadline := time.Now().Add(time.Minute); d.holds(parked[:100]); {
					if time.Now().After(deadline) {
						t.Fatal("the drive holds it")
					}
				}
				return
			}
			if !d.holds(parked[:100]) {
				t.Error("the drive does not hold it")
			}
			if out, err := exec.Command("fstrim", d.dir).CombinedOutput(); err != nil {
				t.Skipf("fstrim: %v: %s", err, out)
			}
			if d.holds(parked[:100]) {
				t.Error("the drive holds it after fstrim")
			}
		})
	}
}
