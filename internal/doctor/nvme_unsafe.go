package doctor

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adminCommand is struct nvme_admin_cmd of linux/nvme_ioctl.h.
type adminCommand struct {
	opcode, flags       uint8
	_                   uint16
	namespace           uint32
	_                   [2]uint32
	metadata, addr      uint64
	metadataLen, length uint32
	word10              uint32
	_                   [5]uint32
	timeoutMS, _        uint32
}

// adminIoctl is NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_admin_cmd), of 72 bytes.
const adminIoctl = 3<<30 | 72<<16 | 'N'<<8 | 0x41

// healthLog reads the SMART log of a controller. It changes nothing.
func healthLog(fd int) ([]byte, error) {
	log := make([]byte, healthBytes)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&log[0])
	command := adminCommand{
		opcode: 2, namespace: 1<<32 - 1, // Get Log Page, of the whole controller
		addr: uint64(uintptr(unsafe.Pointer(&log[0]))), length: healthBytes,
		word10:    2 | (healthBytes/4-1)<<16, // SMART, and how many words less one
		timeoutMS: 2000,
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), adminIoctl, uintptr(unsafe.Pointer(&command))); errno != 0 {
		return nil, errno
	}
	return log, nil
}
