package cuda

// #include "cuda_load.h"
// #include "fingerprint.h"
//
// static CUresult launch_fingerprint(const struct ebb_cuda *cuda, CUfunction kernel, struct ebb_fp_key *key,
//				   CUdeviceptr tiles, CUdeviceptr parts, unsigned int n, CUstream stream)
// {
//	void *params[] = {key, &tiles, &parts};
//	return call_cuLaunchKernel(cuda, kernel, n, 1, 1, EBB_FP_COLUMNS, 1, 1, 0, stream, params, NULL);
// }
import "C"

import (
	_ "embed"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
)

// kernelPTX is fingerprint.cu, compiled by scripts/make-ptx.py. The driver compiles it for its GPU.
//
//go:embed fingerprint.ptx
var kernelPTX string

const kernelName = "ebb_fingerprint"

// The C structs are the Go ones.
var (
	_ [unsafe.Sizeof(fingerprint.Key{})]byte  = [C.sizeof_struct_ebb_fp_key]byte{}
	_ [unsafe.Sizeof(fingerprint.Part{})]byte = [C.sizeof_struct_ebb_fp_part]byte{}
	_ [fingerprint.TileBytes]byte             = [C.EBB_FP_TILE_BYTES]byte{}
)

func (d *driver) LoadFingerprint() error {
	_, err := d.kernel()
	return err
}

// kernel is the fingerprint kernel in the current context, loaded at the first use. Its module is never
// unloaded: it ends with its context.
func (d *driver) kernel() (C.CUfunction, error) {
	ctx, err := d.Context()
	if err != nil {
		return nil, err
	}
	d.kernelsMu.Lock()
	defer d.kernelsMu.Unlock()
	if f, ok := d.kernels[ctx]; ok {
		return f, nil
	}
	f, err := d.loadKernel()
	if err != nil {
		return nil, fmt.Errorf("load the fingerprint kernel: %w", err)
	}
	d.kernels[ctx] = f
	return f, nil
}

func (d *driver) loadKernel() (C.CUfunction, error) {
	image, name := C.CString(kernelPTX), C.CString(kernelName)
	defer C.free(unsafe.Pointer(image))
	defer C.free(unsafe.Pointer(name))
	var module C.CUmodule
	if err := d.check("cuModuleLoadData", C.call_cuModuleLoadData(d.cuda, &module, unsafe.Pointer(image))); err != nil {
		return nil, err
	}
	var f C.CUfunction
	if err := d.check("cuModuleGetFunction", C.call_cuModuleGetFunction(d.cuda, &f, module, name)); err != nil {
		return nil, errors.Join(err, d.check("cuModuleUnload", C.call_cuModuleUnload(d.cuda, module)))
	}
	return f, nil
}

// hasher is a device.Hasher. Its pinned memory holds the tiles of a launch, then their parts.
type hasher struct {
	d      *driver
	key    *fingerprint.Key
	room   int            // tiles of a launch
	by     device.Context // that memory was pinned by
	memory unsafe.Pointer // nil: none now
	addr   mem.Addr       // of memory, for kernels
	tiles  []C.struct_ebb_fp_tile
	parts  []fingerprint.Part
	blocks []hashed // of the last launch
}

// hashed is a block of the last launch.
type hashed struct {
	bytes uint64
	parts int // index of its first
}

func (d *driver) NewHasher(k *fingerprint.Key, tiles int) (device.Hasher, error) {
	if tiles < 1 {
		return nil, fmt.Errorf("make a hasher with room for %d tiles: there must be room for one", tiles)
	}
	h := &hasher{d: d, key: k, room: tiles, blocks: make([]hashed, 0, tiles)}
	if err := h.allocate(); err != nil {
		return nil, fmt.Errorf("make a hasher with room for %d tiles: %w", tiles, err)
	}
	return h, nil
}

// allocate gives a hasher its memory, in the current context.
func (h *hasher) allocate() error {
	const tileBytes, partBytes = C.sizeof_struct_ebb_fp_tile, C.sizeof_struct_ebb_fp_part
	ctx, err := h.d.Context()
	if err != nil {
		return err
	}
	memory, err := h.d.HostAlloc(uint64(h.room) * (tileBytes + partBytes))
	if err != nil {
		return err
	}
	addr, err := h.d.HostDevicePointer(memory)
	if err != nil {
		return errors.Join(err, h.d.HostFree(memory))
	}
	h.memory, h.addr, h.by = memory, addr, ctx
	h.tiles = unsafe.Slice((*C.struct_ebb_fp_tile)(memory), h.room)
	h.parts = unsafe.Slice((*fingerprint.Part)(unsafe.Add(memory, h.room*tileBytes)), h.room)
	h.d.hostMu.Lock()
	h.d.hashers[h] = true
	h.d.hostMu.Unlock()
	return nil
}

// forget leaves a hasher without memory.
func (h *hasher) forget() {
	h.memory, h.addr, h.tiles, h.parts = nil, 0, nil, nil
	h.blocks = h.blocks[:0]
}

func (h *hasher) Launch(spans []device.Span, s device.Stream) (int, error) {
	h.blocks = h.blocks[:0]
	kernel, err := h.d.kernel()
	if err != nil {
		return 0, err
	}
	if h.memory == nil {
		if err := h.allocate(); err != nil {
			return 0, fmt.Errorf("make memory of a hasher again, after a reset of the device that had it: %w", err)
		}
	}
	used := 0
	for _, span := range spans {
		if span.Bytes == 0 || (span.Addr|span.To)%C.EBB_FP_CHUNK_BYTES != 0 {
			return 0, fmt.Errorf("hash %d bytes at %v, copy to %v: a block is not empty and begins at a multiple of %d",
				span.Bytes, span.Addr, span.To, C.EBB_FP_CHUNK_BYTES)
		}
		need := fingerprint.Tiles(span.Bytes)
		if need > len(h.tiles)-used {
			break
		}
		h.blocks = append(h.blocks, hashed{bytes: span.Bytes, parts: used})
		for at := uint64(0); at < span.Bytes; at += fingerprint.TileBytes {
			tile := C.struct_ebb_fp_tile{
				address: C.uint64_t(uint64(span.Addr) + at),
				bytes:   C.uint64_t(min(span.Bytes-at, fingerprint.TileBytes)),
			}
			if span.To != 0 {
				tile.to = C.uint64_t(uint64(span.To) + at)
			}
			h.tiles[used] = tile
			used++
		}
	}
	if used == 0 {
		if len(spans) == 0 {
			return 0, nil
		}
		return 0, &device.HasherRoomError{Bytes: spans[0].Bytes, Tiles: len(h.tiles)}
	}
	parts := uint64(h.addr) + uint64(len(h.tiles))*C.sizeof_struct_ebb_fp_tile
	err = h.d.check("cuLaunchKernel", C.launch_fingerprint(h.d.cuda, kernel, cKey(h.key),
		C.CUdeviceptr(h.addr), C.CUdeviceptr(parts), C.uint(used), toStream(s)))
	if err != nil {
		return 0, fmt.Errorf("hash %d blocks: %w", len(h.blocks), err)
	}
	return len(h.blocks), nil
}

func (h *hasher) Sum(i int) (s fingerprint.Sum, zero bool) {
	b := h.blocks[i]
	return h.key.Fold(h.parts[b.parts:b.parts+fingerprint.Tiles(b.bytes)], b.bytes)
}

func (h *hasher) Close() error {
	if h.memory == nil {
		return nil
	}
	memory := h.memory
	h.d.hostMu.Lock()
	delete(h.d.hashers, h)
	h.d.hostMu.Unlock()
	h.forget()
	return h.d.HostFree(memory)
}

func (d *driver) HostFingerprint(k *fingerprint.Key, p []byte) (s fingerprint.Sum, zero bool) {
	r := C.ebb_fp_block(cKey(k), unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)))
	return fingerprint.Sum{uint64(r.v[0]), uint64(r.v[1])}, r.any == 0
}

func cKey(k *fingerprint.Key) *C.struct_ebb_fp_key { return (*C.struct_ebb_fp_key)(unsafe.Pointer(k)) }
