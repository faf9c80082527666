package engine

import (
	"encoding/json"
	"errors"

	"github.com/ebb-offload/ebb/internal/device"
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
	Holders []device.Holder `json:"holders,omitempty"`
}

// Details is an error as one JSON object, in the form of ebb_last_error_json.
func Details(err error) []byte {
	d := details{Code: Code(err)}
	if err != nil {
		d.Message = err.Error()
	}
	var memory *DeviceMemoryError
	var space *store.NoSpaceError
	var host *store.HostMemoryError
	switch {
	case errors.As(err, &memory):
		d.Device, d.Need, d.Free, d.Holders = &memory.Device, &memory.Need, &memory.Free, memory.Holders
	case errors.As(err, &space):
		d.Need, d.Free, d.Dir = &space.Need, &space.Free, space.Dir
	case errors.As(err, &host):
		d.Need, d.Free = &host.Need, &host.Available
	}
	out, e2 := json.Marshal(d)
	if e2 != nil { // no value above can fail to marshal
		return []byte(`{}`)
	}
	return out
}
