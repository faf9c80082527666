"""others.py STATIC: memory that does not come through PyTorch or a shared CUDA runtime, under the
preloaded library: the driver's allocations, pieces that others may use, NCCL, a runtime that is
linked statically (the program STATIC, or "-": there is no compiler)."""

import subprocess
import sys

import torch.distributed

from gputest import *

ebb = Ebb()
cu = ctypes.CDLL("libcuda.so.1")
SIZE = 64 * MiB


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp of pinned memory of a device that a file descriptor can share."""

    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p), ("flags", ctypes.c_uint64)]

    def __init__(self):
        super().__init__(type=1, handle_types=1, location=Location(1, 0))


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


u64, size_t = ctypes.c_uint64, ctypes.c_size_t
cu.cuMemAlloc_v2.argtypes = [ctypes.POINTER(u64), size_t]
cu.cuMemFree_v2.argtypes = [u64]
cu.cuMemCreate.argtypes = [ctypes.POINTER(u64), size_t, ctypes.c_void_p, u64]
cu.cuMemAddressReserve.argtypes = [ctypes.POINTER(u64), size_t, size_t, u64, u64]
cu.cuMemAddressFree.argtypes = [u64, size_t]
cu.cuMemMap.argtypes = [u64, size_t, size_t, u64, u64]
cu.cuMemUnmap.argtypes = [u64, size_t]
cu.cuMemSetAccess.argtypes = [u64, size_t, ctypes.c_void_p, size_t]
cu.cuMemRelease.argtypes = [u64]
cu.cuMemExportToShareableHandle.argtypes = [ctypes.c_void_p, u64, ctypes.c_int, u64]
cu.cuMemImportFromShareableHandle.argtypes = [ctypes.POINTER(u64), ctypes.c_void_p, ctypes.c_int]


def driver(name, *arguments):
    code = getattr(cu, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def drivers_allocations():
    torch.zeros(1, device="cuda")  # from here on the thread has a context
    address = u64()
    with ebb.region(tag="driver", backup="disk"):
        driver("cuMemAlloc_v2", ctypes.byref(address), SIZE)
    tensor = view(address.value, SIZE)
    fill_random(tensor, 1)
    before = fingerprint(tensor)
    done = ebb.must_pause("driver")
    assert done.bytes == SIZE, done.bytes
    ebb.must_resume("driver")
    assert fingerprint(tensor) == before
    del tensor
    driver("cuMemFree_v2", address)
    assert ebb.status()["allocations"] == 0, ebb.status()


def mapped(handle):
    """Address at which a handle is mapped for the device."""
    address, access = u64(), Access(Location(1, 0), 3)
    driver("cuMemAddressReserve", ctypes.byref(address), SIZE, 0, 0, 0)
    driver("cuMemMap", address, SIZE, 0, handle, 0)
    driver("cuMemSetAccess", address, SIZE, ctypes.byref(access), 1)
    return address.value


def unmapped(address, handle):
    driver("cuMemUnmap", address, SIZE)
    driver("cuMemRelease", handle)
    driver("cuMemAddressFree", address, SIZE)


def shared_memory_is_kept():
    handles = [u64(), u64()]
    with ebb.region(tag="shared", backup="cpu"):
        for handle in handles:
            driver("cuMemCreate", ctypes.byref(handle), SIZE, ctypes.byref(Properties()), 0)
    shared, own = (mapped(handle) for handle in handles)
    tensors = view(shared, SIZE), view(own, SIZE)
    for seed, tensor in enumerate(tensors):
        fill_random(tensor, seed)
    before = [fingerprint(tensor) for tensor in tensors]
    fd = ctypes.c_int()
    driver("cuMemExportToShareableHandle", ctypes.byref(fd), handles[0], 1, 0)
    imported = u64()
    driver("cuMemImportFromShareableHandle", ctypes.byref(imported), ctypes.c_void_p(fd.value), 1)
    other = mapped(imported)
    done = ebb.must_pause("shared")
    assert (done.bytes, done.kept_bytes) == (SIZE, SIZE), (done.bytes, done.kept_bytes)
    assert fingerprint(tensors[0]) == before[0] and fingerprint(view(other, SIZE)) == before[0]
    said = ebb.status().get("kept")
    assert said, ebb.status()
    ebb.must_resume("shared")
    assert [fingerprint(tensor) for tensor in tensors] == before
    os.close(fd.value)
    unmapped(other, imported)
    unmapped(shared, handles[0])
    unmapped(own, handles[1])
    assert ebb.status()["allocations"] == 0, ebb.status()
    return str(said)


def static_runtime():
    if sys.argv[1] == "-":
        return "not run: no nvcc here"
    done = subprocess.run([sys.argv[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def nvml_bytes():
    """What NVML counts for this process."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    return sum(p.usedGpuMemory or 0 for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device) if p.pid == os.getpid())


def nccl_is_named():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517", NCCL_SOCKET_IFNAME="lo", NCCL_NVLS_ENABLE="0")
    address = u64()
    with ebb.region(tag="model", backup="cpu"):
        driver("cuMemAlloc_v2", ctypes.byref(address), SIZE)
    torch.distributed.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    tensor = torch.ones(16 * MiB, device="cuda")
    torch.distributed.all_reduce(tensor)
    assert bool((tensor == 1).all())
    ebb.must_pause()
    unmanaged, held = ebb.status()["unmanaged"], nvml_bytes()
    ebb.must_resume()
    torch.distributed.all_reduce(tensor)
    assert bool((tensor == 1).all()), "all_reduce after a cycle"
    torch.distributed.destroy_process_group()
    driver("cuMemFree_v2", address)
    said = ", ".join(f"{c['name']} {c['bytes'] / MiB:.0f} MiB" for c in unmanaged["classes"])
    if held:  # what is managed is paused: all that is held is unmanaged
        assert unmanaged["measured"] and abs(unmanaged["total"] - held) <= DRIVER_OWN, (unmanaged, held)
        assert abs(sum(c["bytes"] for c in unmanaged["classes"]) - held) <= DRIVER_OWN, (unmanaged, held)
        return f"NVML {held / MiB:.0f} MiB: {said}"
    return f"NVML tells nothing of this process; {said}"


for title, action in (
    ("cuMemAlloc in a region", drivers_allocations),
    ("exported memory is kept and named", shared_memory_is_kept),
    ("a statically linked runtime", static_runtime),
    ("NCCL and what else is not managed", nccl_is_named),
):
    with check(f"others: {title}") as note:
        note.detail = action() or ""
finish()
