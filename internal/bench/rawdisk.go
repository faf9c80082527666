package bench

import "fmt"

// rawFiles are the files of a process that does nothing but read and write them.
type rawFiles struct {
	rank  *rank
	shape shape
}

// mostWorkers is how many a raw process may use.
const mostWorkers = 64

// openFiles readies raw transfers of a process. No files are made yet.
func (r *rank) openFiles(bytes uint64, sh shape) (rawFiles, error) {
	_, err := r.call("disk_open bytes=%d files=%d block=%d workers=%d", bytes, sh.files, sh.block, min(2*max(sh.writers, sh.readers), mostWorkers))
	return rawFiles{r, sh}, err
}

// writtenFiles are raw files that have been written once.
func (r *rank) writtenFiles(bytes uint64, sh shape) (rawFiles, error) {
	f, err := r.openFiles(bytes, sh)
	if err == nil {
		_, err = f.move("fresh")
	}
	return f, err
}

// move carries out a transfer of all bytes: fresh, write, read or mixed, with as many workers as ebb
// uses for it.
func (f rawFiles) move(what string) (operation, error) {
	workers := f.shape.writers
	switch what {
	case "read":
		workers = f.shape.readers
	case "mixed":
		workers = f.shape.writers + f.shape.readers
	}
	v, err := f.rank.measure(fmt.Sprintf("disk op=%s workers=%d", what, workers), "begin", "end", "cpu", "bytes")
	if err != nil {
		return operation{}, err
	}
	return operation{begin: v[0], end: v[1], cpu: v[2], bytes: uint64(v[3])}, nil
}

// arm is a transfer as an arm.
func (f rawFiles) arm(row, what string, notes *operations) arm {
	return arm{row, func() error {
		o, err := f.move(what)
		if err == nil {
			*notes = append(*notes, o)
		}
		return err
	}}
}

// close gives back the room of the files.
func (f rawFiles) close() error {
	_, err := f.rank.call("disk_close")
	return err
}

// copyBytes is the largest buffer of raw copies.
const copyBytes = gib

// openCopies readies raw copies between the device and pinned host memory.
func (r *rank) openCopies(bytes uint64) error {
	_, err := r.call("copies_open bytes=%d", min(bytes, copyBytes))
	return err
}

// copyArm is a copy to the host or to the device as an arm.
func (r *rank) copyArm(row, to string, bytes uint64, notes *operations) arm {
	return arm{row, func() error {
		v, err := r.measure(fmt.Sprintf("copy to=%s bytes=%d", to, bytes), "seconds")
		if err == nil {
			*notes = append(*notes, operation{bytes: bytes, end: v[0]})
		}
		return err
	}}
}

func (r *rank) closeCopies() error {
	_, err := r.call("copies_close")
	return err
}
