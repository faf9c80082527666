package cuda

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
)

func TestPoolsTellWhatTheyHoldAndGiveItBack(t *testing.T) {
	d := open(t)
	onDevice(t, d, 1)
	pools, err := d.Pools(1)
	must(t, err)
	if len(pools) != 1 {
		t.Fatalf("%d pools, want one that is both default and current", len(pools))
	}
	usage := func(want device.Usage) {
		t.Helper()
		if u, err := d.PoolUsage(pools[0]); err != nil || u != want {
			t.Fatalf("%+v, %v, want %+v", u, err, want)
		}
	}
	usage(device.Usage{})
	free, err := SoftwarePoolMemory(d, granularity)
	must(t, err)
	usage(device.Usage{Reserved: granularity, Used: granularity})
	must(t, d.PoolTrim(pools[0], 0))
	usage(device.Usage{Reserved: granularity, Used: granularity}) // in use
	must(t, free())
	must(t, d.Synchronize())
	must(t, d.PoolTrim(pools[0], 0))
	usage(device.Usage{})

	if u, err := d.GraphUsage(1); err != nil || u != (device.Usage{}) {
		t.Fatalf("graphs: %+v, %v", u, err)
	}
	must(t, d.GraphTrim(1))
}

func TestPoolsOfAnUnknownDeviceAreATypedError(t *testing.T) {
	d := open(t)
	if _, err := d.Pools(9); !device.IsCode(err, device.CodeInvalidDevice) {
		t.Errorf("pools: %v", err)
	}
	if _, err := d.GraphUsage(9); !device.IsCode(err, device.CodeInvalidDevice) {
		t.Errorf("graph usage: %v", err)
	}
	if err := d.GraphTrim(9); !device.IsCode(err, device.CodeInvalidDevice) {
		t.Errorf("graph trim: %v", err)
	}
}

func TestExportGivesADescriptorToMemoryMadeForIt(t *testing.T) {
	d := open(t)
	props := mem.DeviceProps(0, false)
	plain, err := d.MemCreate(granularity, props)
	must(t, err)
	defer func() { must(t, d.MemRelease(plain)) }()
	fd := int32(-1)
	if err := d.MemExport(unsafe.Pointer(&fd), plain, 1, 0); !device.IsCode(err, device.CodeInvalidValue) || fd != -1 {
		t.Errorf("of memory not made for it: %v, descriptor %d", err, fd)
	}
	props.HandleTypes = 1
	h, err := d.MemCreate(granularity, props)
	must(t, err)
	defer func() { must(t, d.MemRelease(h)) }()
	must(t, d.MemExport(unsafe.Pointer(&fd), h, 1, 0))
	must(t, unix.Close(int(fd)))
}
