"""capture.py API: what works while a stream capture is open, none of which may spoil it. The capture
begins and ends by calls of that API: runtime or driver."""

import ctypes
import os
import sys
import threading

from gpu import *
from gpu import _check, _cudart, _hooked

driver = ctypes.CDLL("libcuda.so.1")
ebb = Ebb()
stream = ctypes.c_void_p()
_cudart.cudaStreamCreateWithFlags.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]
_check("cudaStreamCreateWithFlags", _cudart.cudaStreamCreateWithFlags(ctypes.byref(stream), 1))


begin, end = {
    "runtime": (_hooked.cudaStreamBeginCapture, _hooked.cudaStreamEndCapture),
    "driver": (driver.cuStreamBeginCapture_v2, driver.cuStreamEndCapture),
}[sys.argv[1]]


class Capture:
    """A capture of the strictest mode, open while the block runs, and valid at its end."""

    def __enter__(self):
        _check("begin of a capture", begin(stream, 0))

    def __exit__(self, *_):
        graph = ctypes.c_void_p()
        _check("end of a capture", end(stream, ctypes.byref(graph)))


def in_thread(body):
    failed = []

    def run():
        try:
            body()
        except BaseException as err:
            failed.append(err)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed, failed


memory = {}
for seed, backup in enumerate(("disk", "cpu", "none")):
    with ebb.region(tag=backup, backup=backup):
        address = malloc(3 * MiB + 5)
    memory[address] = Pattern(seed, 3 * MiB + 5)
    memory[address].write(address)


def check():
    for address in list(memory)[:2]:
        memory[address].check(address)


# Nothing is paused: there is nothing to resume, and the process lives.
with Capture():
    assert ebb.lib.tms_resume(None) == OK

# What is active cannot be paused: one line.
with Capture():
    assert ebb.pause()[0] == CAPTURE
    assert ebb.lib.tms_pause(None) == CAPTURE
check()

# Nothing is active: there is nothing to pause. A resume needs no wait for the device, here or in
# another thread.
for resume in (lambda: in_thread(ebb.must_resume), lambda: ebb.must_resume("disk", "cpu", "none")):
    ebb.must_pause()
    with Capture():
        assert ebb.lib.tms_pause(None) == OK
        assert ebb.must_pause().allocations == 0
        resume()
    check()

# A thread that has used no device yet gets memory and a context.
fresh = []


def first_allocation():
    context = ctypes.c_void_p()
    _check("cuCtxGetCurrent", driver.cuCtxGetCurrent(ctypes.byref(context)))
    assert context.value is None
    with ebb.region(backup="disk"):
        fresh.append(malloc(MiB))
    _check("cuCtxGetCurrent", driver.cuCtxGetCurrent(ctypes.byref(context)))
    assert context.value is not None


with Capture():
    in_thread(first_allocation)
pattern = Pattern(7, MiB)
pattern.write(fresh[0])
ebb.must_pause()
ebb.must_resume()
pattern.check(fresh[0])
check()
