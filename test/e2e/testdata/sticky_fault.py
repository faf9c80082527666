"""sticky_fault.py MOMENT ERROR END: the device fails for good, before, in or after a pause. A pause says that it is
an earlier fault and takes nothing; what is parked stays readable, in files that are there until the process ends.

MOMENT is "before", "pause", "parked", "resume" (ebb's own work on the device fails there: the third, and so on, with
a number behind it), or "touched": a kernel of the program touches parked memory. END is how the process ends: "exit",
or "at once", without exit handlers."""

import os
import sys

from endurance_common import *
from gpu import _cudart

moment, error, end = sys.argv[1:4]
name, _, number = moment.partition(" ")
dirs = os.environ.get("EBB_DISK_DIRS", os.environ["TMS_DISK_BACKUP_DIR"]).split(":")
ebb = Ebb()
ebb.lib.tms_set_interesting_region(False)  # what follows is not parked
add = Kernel(os.environ["E2E_KERNEL"], "add")
add.driver.softgpu_set_fault.argtypes = [ctypes.c_char_p]
work = malloc(4096)
memory = {}


def make(mode):
    with ebb.region(tag=mode, **MODES[mode]):
        address = malloc(5 * MiB + 12345)
    memory[address] = mode, Pattern(f"{mode} {len(memory)}", 5 * MiB + 12345)
    memory[address][1].write(address)


def files():
    return {name: size for directory in dirs for name, size in backup_files(directory).items()}


def launch(address):
    add.launch(None, ctypes.c_uint64(address), ctypes.c_uint64(16), ctypes.c_uint32(1))


def fails(call, number):
    """The device fails for good in the course of some work."""
    assert add.driver.softgpu_set_fault(f"{call}:{number}:{error}".encode()) == 0


def broken():
    return _cudart.cudaDeviceSynchronize() != 0


def break_by(call):
    """Work of the program itself fails, late."""
    fails(call, 1)
    launch(work) if call == "kernel" else _cudart.cudaMemsetAsync(ctypes.c_void_p(work), 1, ctypes.c_size_t(4096), None)
    assert broken(), "the device works"


def in_use(addresses):
    """Active memory holds its bytes, as the software driver shows it."""
    for address in addresses:
        for begin, part in memory[address][1]._parts():
            assert ctypes.string_at(address + begin, len(part)) == part, f"{memory[address][0]}: content differs"


def parked(addresses):
    for address in addresses:
        mode, pattern = memory[address]
        code, data = ebb_read(address, pattern.size)
        if mode == "none":
            assert code == STATE, (code, ebb.error())
        else:
            assert code == OK and data == b"".join(part for _, part in pattern._parts()), (mode, code, ebb.error())
            assert must_ebb_read(ebb, address + 3 * MiB + 5, 99) == data[3 * MiB + 5:3 * MiB + 104]


def pause_is_refused():
    before, paused = files(), ebb.status()["bytes_paused"]
    for pause in (lambda: ebb.pause()[0], lambda: ebb.lib.tms_pause(None), lambda: ebb.pause(memory[active[0]][0])[0]):
        code = pause()
        assert code == DEVICE_FAULT and "failed before this call" in ebb.error() and error in ebb.error(), (code, ebb.error())
        assert ebb.status()["bytes_paused"] == paused and files() == before, (before, files())
    in_use(active)


for mode in MODES:
    make(mode)
active = list(memory)
if name == "before":
    break_by(number)
elif name == "pause":
    fails("kernel", int(number))
    code, _ = ebb.pause()
    assert code in (DEVICE, DEVICE_FAULT) and error in ebb.error(), (code, ebb.error())
    assert broken() and ebb.status()["bytes_paused"] == 0 and files() == {}, files()
    in_use(active)
else:
    ebb.must_pause()
    held, asleep, active = files(), list(memory), []
    assert held
    for mode in MODES:
        make(mode)
    active = [address for address in memory if address not in asleep]
    if name == "touched":
        launch(asleep[0])
        broken()
        raise SystemExit("a kernel could use parked memory")
    if name == "parked":
        break_by(number)
    else:
        fails(*number.split("-"))
    for _ in range(2):
        code, _ = ebb.resume()
        assert code in (DEVICE, DEVICE_FAULT) and error in ebb.error(), (code, ebb.error())
        assert broken() and files() == held, (files(), held)
        assert ebb.status()["bytes_paused"] == sum(memory[address][1].size for address in asleep)
        parked(asleep)
pause_is_refused()
if name not in ("before", "pause"):
    parked(asleep)
    assert files() == held, (files(), held)
print(ebb.error(), flush=True)
if end == "at once":
    os._exit(5)
