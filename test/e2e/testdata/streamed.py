"""streamed.py END [DIR]: a process with two streamed states that steps through them, and then ends by END:
"exit", "exception", "kill" (SIGKILL with requests under way), "fork" (a forked child, which is refused
and holds no file open) or "park" (a pause and a resume between steps, which move none of their bytes).
DIR: where the files must lie."""

import ctypes
import os
import signal
import sys

from gpu import *

ending = sys.argv[1]
where = sys.argv[2] if len(sys.argv) > 2 else None
ebb = Ebb()
lib = ebb.lib
u64 = ctypes.c_uint64


class IO(ctypes.Structure):
    _fields_ = [("segment", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("offset", u64), ("bytes", u64), ("gpu", ctypes.c_void_p)]


lib.ebb_state_create.argtypes = [ctypes.c_char_p, ctypes.POINTER(u64), ctypes.c_size_t, ctypes.POINTER(u64)]
lib.ebb_state_read.argtypes = [u64, ctypes.POINTER(IO), ctypes.c_size_t, ctypes.POINTER(u64)]
lib.ebb_state_write.argtypes = [u64, ctypes.POINTER(IO), ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(u64)]
lib.ebb_state_wait.argtypes = [u64, u64, ctypes.c_void_p]
lib.ebb_state_close.argtypes = [u64]


def must(code):
    if code != 0:
        raise AssertionError(f"code {code}: {ebb.last_error()}")


def create(name, *sizes):
    state = u64()
    must(lib.ebb_state_create(name, (u64 * len(sizes))(*sizes), len(sizes), ctypes.byref(state)))
    return state.value


def begin(state, write, segment, size, slot):
    ticket = u64()
    io = IO(segment=segment, bytes=size, gpu=slot)
    if write:
        must(lib.ebb_state_write(state, ctypes.byref(io), 1, None, ctypes.byref(ticket)))
    else:
        must(lib.ebb_state_read(state, ctypes.byref(io), 1, ctypes.byref(ticket)))
    return ticket.value


SIZE = 3 * MiB + 5
lib.tms_set_interesting_region(False)  # slots are never parked
slots = [malloc(4 * MiB) for _ in range(2)]
lib.tms_set_interesting_region(True)
actor = malloc(2 * MiB)
pattern = Pattern("actor", 2 * MiB)
pattern.write(actor)
states = [create(b"adam", SIZE, SIZE), create(b"other", SIZE)]
expected = {}


def step(number):
    for state, segments in zip(states, (2, 1)):
        for segment in range(segments):
            slot = slots[segment]
            must(lib.ebb_state_wait(state, begin(state, False, segment, SIZE, slot), None))
            assert read(slot, SIZE) == expected.get((state, segment), bytes(SIZE)), f"step {number}: other bytes came back"
            expected[state, segment] = random.Random(f"{state} {segment} {number}").randbytes(SIZE)
            write(slot, expected[state, segment])
            must(lib.ebb_state_wait(state, begin(state, True, segment, SIZE, slot), None))


for number in range(2):
    step(number)
status = ebb.status()
for state in status["states"]:
    assert where is None or all(d.startswith(where + "/") for d in state["dirs"]), state
assert [s["name"] for s in status["states"]] == ["adam", "other"], status["states"]
if ending == "exception":
    raise SystemExit("as it should be")
elif ending == "kill":
    for segment in range(2):
        begin(states[0], True, segment, SIZE, slots[segment])
    os.kill(os.getpid(), signal.SIGKILL)
elif ending == "fork":
    ticket = begin(states[0], True, 0, SIZE, slots[0])
    child = os.fork()
    if child == 0:
        refused = lib.ebb_state_close(states[0]) == 5  # EBB_ERR_FORKED
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
        os._exit(0 if refused and not any(name.endswith(".bak") for name in held) else 1)
    assert os.waitpid(child, 0)[1] == 0
    must(lib.ebb_state_wait(states[0], ticket, None))
elif ending == "park":
    for number in range(2, 4):
        before = ebb.status()["states"]
        ebb.must_pause()
        refused = u64()
        io = IO(bytes=SIZE, gpu=slots[0])
        assert lib.ebb_state_read(states[0], ctypes.byref(io), 1, ctypes.byref(refused)) == 3  # EBB_ERR_STATE
        ebb.must_resume()
        after = ebb.status()
        assert after["states"] == before, (before, after["states"])
        assert after["last_pause"]["bytes"] == 2 * MiB, after["last_pause"]
        pattern.check(actor)
        step(number)
