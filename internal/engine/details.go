package engine

import (
	"encoding/json"
	"errors"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/store"
)

// details is an error as programs read it. Sizes are bytes.
type details struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Device  *int            `json:"device,omitempty"`
	Need    *uint64         `json:"need_bytes,omitempty"`
	Free    *uint64         `json:"free_bytes,omitempty"`
	Dir     string          `json:"dir,omitempty"`
	Tag     *string         `json:"tag,omitempty"`     // of the allocation that the error is about,
	Address string          `json:"address,omitempty"` // its begin, hexadecimal,
	Offset  *uint64         `json:"offset,omitempty"`  // the block in it,
	Bytes   *uint64         `json:"bytes,omitempty"`   // the block's size
	Where   string          `json:"where,omitempty"`   // and the place of its backup
	Holders []device.Holder `json:"holders,omitempty"`
}

func (d *details) about(a *alloc.Allocation, off, n uint64) {
	d.Tag, d.Address, d.Offset, d.Bytes = &a.Tag, a.Address().String(), &off, &n
}

// Details is an error as one JSON object, in the form of ebb_last_error_json.
func Details(err error) []byte {
	d := details{Code: Code(err)}
	if err != nil {
		d.Message = err.Error()
	}
	var memory *DeviceMemoryError
	var space *store.NoSpaceError
	var host *hostmem.ShortError
	var corrupt *CorruptError
	var written *WrittenError
	var hang *filesys.HangError
	switch {
	case errors.As(err, &memory):
		d.Device, d.Need, d.Free, d.Holders = &memory.Device, &memory.Need, &memory.Free, memory.Holders
	case errors.As(err, &space):
		d.Need, d.Free, d.Dir = &space.Need, &space.Free, space.Dir
	case errors.As(err, &corrupt):
		d.about(corrupt.Allocation, corrupt.Offset, corrupt.Bytes)
		d.Where = corrupt.Where
	case errors.As(err, &written):
		d.about(written.Allocation, written.Offset, written.Bytes)
	case errors.As(err, &hang):
		d.Where = "file " + hang.Path
	case errors.As(err, &host):
		d.Need, d.Free = &host.Need, &host.Left
	}
	out, e2 := json.Marshal(d)
	if e2 != nil { // no value above can fail to marshal
		return []byte(`{}`)
	}
	return out
}
