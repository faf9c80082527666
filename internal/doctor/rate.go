package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ebb-offload/ebb/internal/diskspeed"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// slow is a rate, in bytes a second, below which a disk is worth a word: a single rank of 80 GB takes
// minutes then.
const slow = 500e6

func (x examination) rate(dir string) part {
	hangs, remedy := x.diskHangs(dir)
	return part{theme: "disk " + dir, hangs: hangs, remedy: remedy, checks: []check{one("disk-rate", func(ctx context.Context) Finding {
		at := dir
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			at = filepath.Dir(dir)
		}
		r, err := diskspeed.Measure(ctx, at, diskspeed.Options{})
		return judgeRate(r, err)
	})}}
}

func judgeRate(r diskspeed.Rates, err error) Finding {
	switch {
	case errors.Is(err, diskspeed.ErrRoom):
		return skip("not measured: %s", errorText(err))
	case errors.Is(err, filesys.ErrHang):
		return fail("look at the disk (dmesg), or name another directory with --disk-dir", "%s", errorText(err))
	case err != nil:
		return fail("look at the disk (dmesg), or name another directory with --disk-dir", "it cannot be measured: %s", errorText(err))
	}
	how := "O_DIRECT"
	if !r.Direct {
		how = "through the page cache"
	}
	const actor = 80 << 30
	text := fmt.Sprintf("writes %.2f GB/s (fresh blocks %.2f), reads %.2f GB/s; an actor of 80 GiB would take about %.0f s out and %.0f s in "+
		"(%s of random bytes, %d threads, blocks of %s, %s)",
		r.WriteBytesPerS/1e9, r.FreshBytesPerS/1e9, r.ReadBytesPerS/1e9, actor/r.WriteBytesPerS, actor/r.ReadBytesPerS,
		sizes.Exact(uint64(r.Bytes)), r.Workers, sizes.Exact(uint64(r.BlockBytes)), how)
	f := ok("%s", text)
	if min(r.WriteBytesPerS, r.ReadBytesPerS) < slow {
		f = warn("name a directory on a faster disk, or several disks with commas; --offload-train-target auto uses host memory first", "%s", text)
	}
	return f.value("write_bytes_per_s", r.WriteBytesPerS).value("fresh_bytes_per_s", r.FreshBytesPerS).value("read_bytes_per_s", r.ReadBytesPerS)
}
