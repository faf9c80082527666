package cuda

// #include "cuda_load.h"
import "C"

import (
	"slices"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
)

func (d *driver) Pools(ordinal int) ([]device.Pool, error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return nil, err
	}
	var standard, current C.CUmemoryPool
	if err := d.check("cuDeviceGetDefaultMemPool", C.call_cuDeviceGetDefaultMemPool(d.cuda, &standard, dev)); err != nil {
		return nil, err
	}
	if err := d.check("cuDeviceGetMemPool", C.call_cuDeviceGetMemPool(d.cuda, &current, dev)); err != nil {
		return nil, err
	}
	return slices.Compact([]device.Pool{fromPool(standard), fromPool(current)}), nil
}

func (d *driver) PoolUsage(p device.Pool) (u device.Usage, err error) {
	pool := toPool(p)
	for _, q := range []struct {
		attribute C.CUmemPool_attribute
		value     *uint64
	}{
		{C.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &u.Reserved},
		{C.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u.Used},
	} {
		if err := d.check("cuMemPoolGetAttribute",
			C.call_cuMemPoolGetAttribute(d.cuda, pool, q.attribute, unsafe.Pointer(q.value))); err != nil {
			return device.Usage{}, err
		}
	}
	return u, nil
}

func (d *driver) PoolTrim(p device.Pool, keep uint64) error {
	return d.check("cuMemPoolTrimTo", C.call_cuMemPoolTrimTo(d.cuda, toPool(p), C.size_t(keep)))
}

func (d *driver) GraphUsage(ordinal int) (u device.Usage, err error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return u, err
	}
	for _, q := range []struct {
		attribute C.CUgraphMem_attribute
		value     *uint64
	}{
		{C.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &u.Reserved},
		{C.CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &u.Used},
	} {
		if err := d.check("cuDeviceGetGraphMemAttribute",
			C.call_cuDeviceGetGraphMemAttribute(d.cuda, dev, q.attribute, unsafe.Pointer(q.value))); err != nil {
			return device.Usage{}, err
		}
	}
	return u, nil
}

func (d *driver) GraphTrim(ordinal int) error {
	dev, err := d.device(ordinal)
	if err != nil {
		return err
	}
	return d.check("cuDeviceGraphMemTrim", C.call_cuDeviceGraphMemTrim(d.cuda, dev))
}

func fromPool(p C.CUmemoryPool) device.Pool { return *(*device.Pool)(unsafe.Pointer(&p)) }
func toPool(p device.Pool) C.CUmemoryPool   { return *(*C.CUmemoryPool)(unsafe.Pointer(&p)) }
