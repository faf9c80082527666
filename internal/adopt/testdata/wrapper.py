"""wrapper.py SITE MODE: drives the C side of an adopted torch_memory_saver the way the package does,
over softgpu and without PyTorch: its search for the library, its LD_PRELOAD for children, its
signatures. MODE preload or torch.
"""

import ctypes
import inspect
import os
import subprocess
import sys
import types

site, mode = sys.argv[1:3]

# The package's __init__ imports PyTorch; the modules below do not.
package = types.ModuleType("torch_memory_saver")
package.__path__ = [os.path.join(site, "torch_memory_saver")]
sys.modules["torch_memory_saver"] = package

from torch_memory_saver.binary_wrapper import BinaryWrapper
from torch_memory_saver.hooks.mode_preload import HookUtilModePreload, configure_subprocess
from torch_memory_saver.utils import get_binary_path_from_package

if mode == "preload" and "LD_PRELOAD" not in os.environ:
    with configure_subprocess():
        sys.exit(subprocess.run([sys.executable] + sys.argv).returncode)

MiB = 1 << 20
SIZE = 6 * MiB + 6912
runtime = ctypes.CDLL("libcudart.so.13")


def check(what, good):
    if not good:
        sys.exit(f"{what} does not hold")


def call(function, *arguments):
    code = function(*arguments)
    check(f"{function.__name__}: {code}", code == 0)


def device_free():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call(runtime.cudaMemGetInfo, ctypes.byref(free), ctypes.byref(total))
    return free.value


if mode == "preload":
    path = HookUtilModePreload().get_path_binary()
    wrapper = BinaryWrapper(path)
    process = ctypes.CDLL(None)  # what a program that is linked with the runtime calls

    def allocate(size):
        pointer = ctypes.c_void_p()
        code = process.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        check(f"cudaMalloc gives memory or says that there is none: {code}", code in (0, 2))
        return pointer.value

    def free(pointer):
        call(process.cudaFree, ctypes.c_void_p(pointer))
else:
    path = str(get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))
    wrapper = BinaryWrapper(path)
    wrapper.cdll.tms_torch_malloc.restype = ctypes.c_void_p
    wrapper.cdll.tms_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    wrapper.cdll.tms_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    wrapper.cdll.tms_torch_free.restype = None

    def allocate(size):
        return wrapper.cdll.tms_torch_malloc(size, 0, None)

    def free(pointer):
        wrapper.cdll.tms_torch_free(pointer, SIZE, 0, None)

library = wrapper.cdll
settings = inspect.signature(BinaryWrapper.set_config).parameters
has_disk = "enable_disk_backup" in settings


def memory(tag, cpu=False, disk=False):
    """Device memory with content, made with these settings of a region."""
    values = {"tag": tag, "interesting_region": True, "enable_cpu_backup": cpu}
    if has_disk:
        values["enable_disk_backup"] = disk
    wrapper.set_config(**values)
    pointer = allocate(SIZE)
    content = os.urandom(SIZE)
    if pointer:
        call(runtime.cudaMemcpy, ctypes.c_void_p(pointer), content, ctypes.c_size_t(SIZE), 1)
    values.update(tag="default", interesting_region=False, enable_cpu_backup=False)
    if has_disk:
        values["enable_disk_backup"] = False
    wrapper.set_config(**values)
    return pointer, content


def content_of(pointer):
    buffer = ctypes.create_string_buffer(SIZE)
    call(runtime.cudaMemcpy, buffer, ctypes.c_void_p(pointer), ctypes.c_size_t(SIZE), 2)
    return buffer.raw


def backup_of(pointer):
    return library.tms_get_cpu_backup_pointer(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint8)), SIZE)


flags = ctypes.c_uint()
check("the handle forwards cudaHostGetFlags", library.cudaHostGetFlags(ctypes.byref(flags), None) != 0)
check("and cudaGetLastError", library.cudaGetLastError() != 0)

kept, kept_content = memory("kept", cpu=True)
lost, _ = memory("lost")
check("there is memory", kept and lost)
before = device_free()
library.tms_pause(b"lost")
check("a tag is paused alone", device_free() >= before + SIZE and content_of(kept) == kept_content)
library.tms_pause(None)
check("all is paused", device_free() >= before + 2 * SIZE)
if has_disk:
    pointer = backup_of(kept)
    check("the backup can be read while paused", pointer and bytes(pointer[:SIZE]) == kept_content)
library.tms_resume(None)
check("memory is taken again", device_free() == before)
check("content comes back", content_of(kept) == kept_content)

if has_disk:
    check("without retention the backup goes with the resume", not backup_of(kept))
    library.tms_set_retain_cpu_backup(True)
    library.tms_pause(b"kept")
    library.tms_resume(b"kept")
    check("with retention it stays", library.tms_get_retain_cpu_backup() and bool(backup_of(kept)))
    library.tms_set_retain_cpu_backup(False)

    folder = os.environ["WRAPPER_DISK"]
    library.tms_set_disk_backup_dir(folder.encode())
    spilled, spilled_content = memory("spilled", disk=True)
    check("no file before the first pause", not os.listdir(folder))
    sizes = set()
    for _ in range(3):
        library.tms_pause(b"spilled")
        check("one file for the allocation", len(os.listdir(folder)) == 1)
        sizes.add(os.stat(os.path.join(folder, os.listdir(folder)[0])).st_size)
        library.tms_resume(b"spilled")
        check("content comes back from disk", content_of(spilled) == spilled_content)
    check("files keep their size", len(sizes) == 1)
    free(spilled)
    check("the file goes with the allocation", not os.listdir(folder))

    library.set_memory_margin_bytes(1 << 40)
    check("the margin is kept", not memory("margin")[0])
    library.set_memory_margin_bytes(0)

library.tms_pause(None)
free(lost)  # while paused
library.tms_resume(None)
check("the other comes back", content_of(kept) == kept_content)
free(kept)

# Both libraries of the package in one process are one libebb.so.
other = "torch" if mode == "preload" else "preload"
ctypes.CDLL(str(get_binary_path_from_package("torch_memory_saver_hook_mode_" + other)))
with open("/proc/self/maps", encoding="utf-8") as maps:
    mapped = {line.split(maxsplit=5)[-1].strip() for line in maps if "libebb.so" in line or "hook_mode" in line}
check(f"one libebb.so is loaded: {mapped}", len(mapped) == 1)
print("wrapper: ok")
