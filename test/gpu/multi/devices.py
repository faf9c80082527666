"""devices.py KIND MIB: one process with MIB on each of two GPUs that use each other's memory, all of it managed. KIND is
malloc, or pieces: address ranges mapped piece by piece, as PyTorch's expandable segments are. No PyTorch."""

import sys

from multi import *

KIND, SIZE = sys.argv[1], int(sys.argv[2]) * MiB
SIZES = [SIZE // 2, SIZE // 4 + 4096, 300, 2 * MiB]
PIECE = min(20 * MiB, SIZE // 8 // MiB * 2 * MiB)  # a multiple of the granularity
PIECES = SIZE // PIECE

# Its name is that of a kernel which softgpu, too, has: there it is not run from this text.
FILL = b"softgpu_selftest_fill"
PTX = b"""\
.version 7.0
.target sm_70
.address_size 64
.visible .entry softgpu_selftest_fill(.param .u64 to, .param .u32 value, .param .u32 count)
{
	.reg .pred %p1;
	.reg .b32 %r<7>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [to];
	ld.param.u32 %r1, [value];
	ld.param.u32 %r2, [count];
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.s32 %r6, %r3, %r4, %r5;
	setp.ge.u32 %p1, %r6, %r2;
	@%p1 bra DONE;
	cvta.to.global.u64 %rd1, %rd1;
	mul.wide.u32 %rd2, %r6, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r1;
DONE:
	ret;
}
\0"""

u64, size_t = ctypes.c_uint64, ctypes.c_size_t


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp of memory of a device."""

    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p), ("flags", u64)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Two:
    """The two devices, each a peer of the other."""

    def __init__(self):
        self.cuda = Cuda()
        assert self.cuda.count() >= 2, f"{self.cuda.count()} GPU here, 2 are needed"
        for name, arguments in {
            "cuMemCreate": [ctypes.c_void_p, size_t, ctypes.c_void_p, u64],
            "cuMemAddressReserve": [ctypes.c_void_p, size_t, size_t, u64, u64],
            "cuMemMap": [u64, size_t, size_t, u64, u64],
            "cuMemSetAccess": [u64, size_t, ctypes.c_void_p, size_t],
        }.items():
            getattr(self.cuda.driver, name).argtypes = arguments
        self.fill = []
        for device in (0, 1):
            self.cuda.device(device)
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self.cuda("cuModuleLoadData", ctypes.byref(module), PTX)
            self.cuda("cuModuleGetFunction", ctypes.byref(function), module, FILL)
            self.fill.append(function)
        for device in (0, 1):
            can = ctypes.c_int()
            self.cuda("cudaDeviceCanAccessPeer", ctypes.byref(can), device, 1 - device)
            assert can.value, f"GPU {device} cannot use the memory of GPU {1 - device}"
            self.cuda.device(device)
            self.cuda("cudaDeviceEnablePeerAccess", 1 - device, 0)

    def pieces(self, device):
        """Address of a range of pieces of a device, which both devices may use."""
        address, access = u64(), (Access * 2)(Access(Location(1, 0), 3), Access(Location(1, 1), 3))
        self.cuda("cuMemAddressReserve", ctypes.byref(address), PIECE * PIECES, 0, 0, 0)
        for i in range(PIECES):
            handle = u64()
            self.cuda("cuMemCreate", ctypes.byref(handle), PIECE, ctypes.byref(Properties(type=1, location=Location(1, device))), 0)
            self.cuda("cuMemMap", address.value + i * PIECE, PIECE, 0, handle, 0)
            self.cuda("cuMemSetAccess", address.value + i * PIECE, PIECE, access, 2)
        return address.value

    def allocate(self, device):
        self.cuda.device(device)
        if KIND == "malloc":
            return [(self.cuda.malloc(size), size) for size in SIZES]
        return [(self.pieces(device), PIECE * PIECES)]

    def free(self):
        free = []
        for device in (0, 1):
            self.cuda.device(device)
            free.append(self.cuda.free_memory())
        return free

    def kernel_writes(self, device, address, value, count):
        """A kernel of one device writes count words wherever they are."""
        self.cuda.device(device)
        to, word, n = u64(address), ctypes.c_uint32(value), ctypes.c_uint32(count)
        parameters = (ctypes.c_void_p * 3)(*[ctypes.addressof(x) for x in (to, word, n)])
        self.cuda("cuLaunchKernel", self.fill[device], -(-count // 256), 1, 1, 256, 1, 1, 0, None, parameters, None)
        self.cuda("cudaDeviceSynchronize")

    def read(self, address, size):
        back = ctypes.create_string_buffer(size)
        self.cuda.copy(ctypes.addressof(back), address, size, Cuda.D2H)
        return back.raw

    def use_each_other(self, memory):
        """A kernel of each device writes to the other's memory, and a copy goes there. Both are then undone."""
        for device in (0, 1):
            (mine, _), (others, _) = memory[device][0], memory[1 - device][0]
            size = 1 * MiB
            before = self.read(others, size)
            self.kernel_writes(device, others, 0xE0 + device, size // 4)
            assert self.read(others, size) == (0xE0 + device).to_bytes(4, "little") * (size // 4), f"a kernel of GPU {device} wrote something else"
            self.cuda.copy(others, mine, size, Cuda.DEFAULT)
            assert self.read(others, size) == self.read(mine, size), f"a copy from GPU {device} is something else"
            back = ctypes.create_string_buffer(before, size)
            self.cuda.copy(others, ctypes.addressof(back), size, Cuda.H2D)


def main():
    deadline(2 * STEP)
    with check(f"two GPUs, {KIND}: freed and restored, peers as before") as note:
        ebb, two = Ebb(), Two()
        memory = [two.allocate(device) for device in (0, 1)]
        content = Content(two.cuda, 32 * MiB)
        sizes = [sum(size for _, size in those) for those in memory]
        for _ in range(3):
            deadline()
            for device in (0, 1):
                two.cuda.device(device)
                for address, size in memory[device]:
                    content.write(address, size)
            two.use_each_other(memory)
            before = two.free()
            done = ebb.must_pause()
            risen = [after - then for after, then in zip(two.free(), before)]
            assert done.bytes == sum(sizes), f"{done.bytes} bytes parked of {sum(sizes)}"
            assert done.kept_bytes == 0, f"{done.kept_bytes} bytes stayed"
            assert all(a >= b - DRIVER_OWN for a, b in zip(risen, sizes)), f"became free: {risen} of {sizes}"
            ebb.must_resume()
            two.cuda.device(0)
            assert not content.wrong(), f"other bytes at {content.wrong()}"
            two.use_each_other(memory)
        note.detail = " and ".join(f"{size / MiB:.0f} MiB" for size in sizes)
    finish()


if __name__ == "__main__":
    main()
