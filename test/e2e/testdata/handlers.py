"""handlers.py: a free of managed memory that waits for work on the device, and that work waits for a signal's
handler in the very thread: handlers run while the driver waits, as without ebb. The handler is one in C, without
a stack of its own."""

import ctypes
import os
import signal
import threading

from gpu import *
from gpu import _check, _cudart

libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
wait, post = os.pipe()


def is_free(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


end = next(number for number in range(signal.SIGRTMIN + 2, signal.SIGRTMAX) if is_free(number))
os.dup2(post, end)  # as its handler, close(2) ends the pipe
os.close(post)
libc.signal(end, ctypes.cast(libc.close, ctypes.c_void_p))

ebb = Ebb()
with ebb.region(backup="disk"):
    memory = malloc(2 * MiB)
work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: os.read(wait, 1))
_check("cudaLaunchHostFunc", _cudart.cudaLaunchHostFunc(None, work, None))
main = threading.main_thread()
freeing = threading.Event()


def interrupt():
    freeing.wait()
    asleep = 0
    while asleep < 20:
        with open(f"/proc/self/task/{main.native_id}/stat") as stat:
            asleep = asleep + 1 if stat.read().rsplit(")", 1)[1].split()[0] == "S" else 0
    signal.pthread_kill(main.ident, end)


sender = threading.Thread(target=interrupt)
sender.start()
freeing.set()
free(memory)
sender.join()
ebb.must_pause()
print("freed")
