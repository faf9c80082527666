"""soak_actor.py SEED ROUNDS REPORTS: an actor that does anything that an actor may do, while files, driver and
device memory fail it at random moments, and after every operation checks the rule: a pause that failed has left
the memory as it was, a resume that failed has left it parked, readable and to be resumed, and no byte is ever
another.

It works in rounds, each with threads of its own; after each it holds nothing, and notes what it takes of its
host. ROUNDS is how many; 0: until it is told to end by SIGTERM. It ends with the counts, and the ends of the
curves, in REPORTS/told-<number of the process>. SOAK_SILENT says that file calls may change bytes silently:
then a resume may find backups corrupt, and their memory is given up."""

import collections
import gc
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
import traceback

from endurance_common import *
from gpu import _check, _cudart, _hooked

seed, rounds, reports = sys.argv[1], int(sys.argv[2]), sys.argv[3]
# What faults of files and of the driver may be answered with.
SILENT = bool(os.environ.get("SOAK_SILENT"))
EXCUSES = {IO, NO_SPACE, DEVICE, DEVICE_MEMORY, HOST_MEMORY, PARTIAL, CAPTURE} | ({CORRUPT} if SILENT else set())
NAMES = {IO: "I/O", NO_SPACE: "no space", DEVICE: "driver", DEVICE_MEMORY: "device memory", HOST_MEMORY: "host memory",
         PARTIAL: "in part", CAPTURE: "capture", CORRUPT: "corrupt"}
DRIVER_FAULTS = ["cuMemUnmap", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuLaunchKernel", "cuStreamCreate", "cuMemcpyHtoDAsync"]
LARGEST, MOST, STEPS, TRIES = 900_000, 7, 14, 40
ENDS = 20  # rounds at both ends of a curve, of which the medians are compared
WARM_UP = 30  # rounds until everything has been its largest
# After the warm-up Go starts a thread now and then, with three mappings.
TOLERANCE = {"resident": 12 * MiB, "shared": 1 * MiB, "mappings": 24, "descriptors": 0, "threads": 6, "disk bytes": 0, "inodes": 0}

ebb = Ebb()
PROCESS.ebb_pause_except.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
driver = ctypes.CDLL("libcuda.so.1")
driver.softgpu_set_fault.argtypes = [ctypes.c_char_p]
dirs = os.environ.get("EBB_DISK_DIRS", os.environ["TMS_DISK_BACKUP_DIR"]).split(":")
content = random.Random(seed).randbytes(2 * MiB)
# Pinned memory comes in large pieces, which takes its time: not every actor uses it.
modes = ["disk"] * 3 + random.Random(seed).choice([["none", "mmap"], ["none", "mmap", "pinned"]])
did, failed, ended = collections.Counter(), threading.Event(), False
counting = threading.Lock()
injecting = threading.Lock()  # held while calls of the driver fail


def end(*_):
    global ended
    ended = True


signal.signal(signal.SIGTERM, end)
with open(os.path.join(reports, str(os.getpid())), "w", encoding="ascii"):
    pass  # by which it is found


def count(what, n=1):
    with counting:
        did[what] += n


class Range(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class Memory:
    """One allocation and its model. unused: what need not come back of it; unsure: after a pause in part it may
    still be active."""

    def __init__(self, rng, tag):
        self.tag, self.mode, self.paused, self.unsure, self.unused = tag, rng.choice(modes), False, False, (0, 0)
        self.size = rng.choice([1, 513, 65_536, 65_537, 300_001, rng.randint(1, LARGEST)])
        with ebb.region(tag=tag, **MODES[self.mode]):
            self.address = malloc(self.size)
        self.write(rng)

    def write(self, rng):
        at = rng.randrange(len(content) - self.size)
        self.want, self.unused = content[at:at + self.size], (0, 0)
        write(self.address, self.want)

    def same(self, data, begin=0):
        """data, from begin on, is what this must hold."""
        first, last = (min(max(0, at - begin), len(data)) for at in self.unused)
        return data[:first] == self.want[begin:begin + first] and data[last:] == self.want[begin + last:begin + len(data)]

    def check(self):
        assert self.same(read(self.address, self.size)), f"content of {self} differs"

    def read(self, begin, size):
        """ebb_read; whether the backup can be read. A fault may hit it."""
        for attempt in range(TRIES):
            code, data = ebb_read(self.address + begin, size)
            if code not in EXCUSES or code == CORRUPT and attempt == 3:
                break
            count("ebb_read failed: " + NAMES[code])
        if self.paused and self.mode == "none" and not (self.unsure and code == OK):
            assert code == STATE, (code, ebb.error())
            return True
        if code == CORRUPT and SILENT and self.paused:
            return False
        assert code == OK, (code, ebb.error())
        assert self.same(data, begin), f"ebb_read of {size} bytes at {begin} of {self}: other bytes"
        return True

    def __repr__(self):
        return f"{self.size} bytes at {self.address:#x}, tag {self.tag}, {self.mode}, unused {self.unused}, {'paused' if self.paused else 'active'}"


class Owner(threading.Thread):
    """Owns two tags and the memory that carries them. own guards both, and the model."""

    def __init__(self, name):
        super().__init__(name=name)
        self.rng = random.Random(f"{seed} {name}")
        self.own, self.memory, self.known = threading.Lock(), [], set()
        self.tags = (f"a {name}", f"b {name}")
        self.said = collections.deque(maxlen=20)

    def run(self):
        try:
            for _ in range(STEPS):
                if failed.is_set():
                    return
                self.rng.choice([self.mine] * 12 + [self.everything, self.everything, self.capture, self.fork])()
        except BaseException:
            failed.set()
            sys.stderr.write(f"{self.name} FAILED after\n  " + "\n  ".join(self.said) + f"\n{traceback.format_exc()}")

    def say(self, *what):
        self.said.append(" ".join(map(str, what)))
        count(what[0])

    # ---- steps ----

    def mine(self):
        with self.own:
            self.rng.choice([self.allocate] * 3 + [self.free, self.write, self.look, self.pause, self.resume, self.cycle, self.cycle])()

    def allocate(self):
        if len(self.memory) == MOST:
            return
        tag = self.rng.choice(self.tags)
        try:
            memory = Memory(self.rng, tag)
        except CudaError as err:  # others have the memory, or a fault meant for somebody else met it
            count(f"allocation failed: {err.code}")
            return
        self.memory.append(memory)
        self.known.add(tag)
        self.say("allocations", memory)

    def free(self):
        if self.memory:
            self.drop(self.rng.choice(self.memory))

    def drop(self, memory):
        self.say("frees", memory)
        self.memory.remove(memory)
        with injecting:  # memory that the driver does not take back is gone
            free(memory.address)

    def write(self):
        for memory in self.memory:
            if not memory.paused:
                memory.write(self.rng)

    def look(self):
        for memory in self.memory:
            begin = self.rng.randrange(memory.size)
            self.say("reads", memory)
            memory.read(begin, self.rng.randint(1, memory.size - begin))

    def cycle(self):
        self.pause()
        self.look()
        self.resume()

    def pause(self):
        tags = [tag for tag in self.tags if tag in self.known and self.rng.random() < 0.8]
        if tags:
            pause([self], tags, self.rng, self.say)

    def resume(self):
        tags = [tag for tag in self.tags if tag in self.known]
        if tags:
            resume([self], tags, self.rng, self.say)

    def everything(self):
        """Pauses and resumes the memory of all, which keep their hands off meanwhile."""
        with everybody():
            pause(owners, [], self.rng, self.say)
            for owner in owners:
                owner.look()
            resume(owners, [], self.rng, self.say)

    def capture(self):
        """A pause during a stream capture is refused, and the capture stays valid."""
        with everybody():
            if not any(not memory.paused for owner in owners for memory in owner.memory):
                return
            self.say("captures")
            stream, graph = non_blocking_stream(), ctypes.c_void_p()
            _check("cudaStreamBeginCapture", _hooked.cudaStreamBeginCapture(stream, 0))
            code = ebb.pause()[0]
            _check("cudaStreamEndCapture", _hooked.cudaStreamEndCapture(stream, ctypes.byref(graph)))
            assert code == CAPTURE, (code, ebb.error())
            _check("cuGraphDestroy", driver.cuGraphDestroy(graph))
            _check("cudaStreamDestroy", _cudart.cudaStreamDestroy(stream))
            agree(owners)

    def fork(self):
        self.say("forks")
        status = self.rng.randrange(1, 100)
        pid = os.fork()
        if pid == 0:
            os._exit(status if ebb.pause()[0] == FORKED and ebb_read(0x10000, 8)[0] == FORKED else 101)
        got = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert got == status, f"a child ended with {got}, not {status}"


class everybody:
    """Holds back all owners."""

    def __enter__(self):
        for owner in owners:
            owner.own.acquire()

    def __exit__(self, *_):
        for owner in owners:
            owner.own.release()


def faulty(rng, call):
    """call() while a call of the driver may fail: for this operation, or for another thread's."""
    if rng.random() < 0.6:
        return call()
    spec = f"{rng.choice(DRIVER_FAULTS)}:{rng.randint(1, 6)}:{rng.choice(['CUDA_ERROR_OUT_OF_MEMORY', 'CUDA_ERROR_UNKNOWN'])}"
    with injecting:
        assert driver.softgpu_set_fault(spec.encode()) == 0
        try:
            return call()
        finally:
            assert driver.softgpu_set_fault(None) == 0


def some(owners, tags, paused):
    return [memory for owner in owners for memory in owner.memory if memory.paused == paused and (not tags or memory.tag in tags)]


def agree(owners):
    """ebb's account of the owners' tags is the model's, and active memory holds what it must."""
    status = {tag["tag"]: tag for tag in ebb.status()["tags"]}
    for owner in owners:
        for tag in owner.tags:
            told = status.get(tag, {"active": 0, "host": 0, "disk": 0, "discarded": 0})
            active, parked = (sum(memory.size for memory in owner.memory if memory.tag == tag and memory.paused == paused) for paused in (False, True))
            assert (told["active"], told["host"] + told["disk"] + told["discarded"]) == (active, parked), (told, active, parked)
        for memory in owner.memory:
            if not memory.paused:
                memory.check()


def excused(what, code):
    assert code in EXCUSES, f"{what}: {code}: {ebb.error()}"
    count(f"{what} failed: {NAMES[code]}")


def pause(owners, tags, rng, say):
    """A pause that may fail."""
    affected = some(owners, tags, paused=False)
    ranges, unused = [], {}
    for memory in affected if rng.random() < 0.3 else ():
        begin, end = sorted(rng.randrange(memory.size + 1) for _ in range(2))
        unused[memory] = begin, end
        ranges.append(Range(memory.address + begin, end - begin))
    say("pauses", tags, affected, unused)
    argument = (Range * max(1, len(ranges)))(*ranges)
    result = Result(struct_size=ctypes.sizeof(Result))
    code = faulty(rng, lambda: PROCESS.ebb_pause_except(Ebb._tags(tags), len(tags), argument, len(ranges), ctypes.byref(result)))
    if code in (OK, PARTIAL):
        for memory in affected:
            memory.paused, memory.unsure, memory.unused = True, code == PARTIAL, unused.get(memory, (0, 0))
    if code == OK:
        assert result.allocations == len(affected), (result.allocations, affected)
    else:
        excused("pause", code)
    if code == PARTIAL:  # some of it is active: a resume repairs it
        resume(owners, tags, rng, say)
    agree(owners)


def resume(owners, tags, rng, say):
    """Resumes until it works. What is corrupt for good is given up."""
    affected = some(owners, tags, paused=True)
    say("resumes", tags, affected)
    for attempt in range(TRIES):
        code, result = faulty(rng, lambda: ebb.resume(*tags, timeout=rng.choice([0.0, 0.2])))
        if code == OK:
            break
        excused("resume", code)
        give_up(owners, affected)  # all of it is parked still
        if attempt > 10 and code == DEVICE_MEMORY and affected:  # others have it, and may wait as this does
            give_up(owners, affected, rng.choice(affected))
    assert code == OK, f"after {TRIES} attempts: {code}: {ebb.error()}"
    for memory in affected:
        memory.paused = memory.unsure = False
        if memory.mode == "none":
            memory.write(rng)
        memory.check()
        if memory.unused != (0, 0):
            memory.write(rng)
    agree(owners)


def give_up(owners, affected, wanted=None):
    """Reads all, and frees what is corrupt, or what is wanted."""
    for memory in list(affected):
        if memory is wanted or not memory.read(0, memory.size):
            count("given up")
            affected.remove(memory)
            for owner in owners:
                if memory in owner.memory:
                    owner.drop(memory)


with ebb.region():
    free(malloc(1))  # the library is loaded: a child of this process is refused everything
first, last, flat = [], collections.deque(maxlen=ENDS), 0  # rounds after the warm-up; flat: how many
for number in range(sys.maxsize):
    owners = [Owner(f"{number} {i}") for i in range(3)]
    for owner in owners:
        owner.start()
    for owner in owners:
        owner.join()
    if failed.is_set():
        sys.exit(1)
    if ended or number + 1 == rounds:
        break
    with everybody():
        resume(owners, [], random.Random(number), lambda *_: None)
    for owner in owners:
        for memory in list(owner.memory):
            owner.drop(memory)
    count("rounds")
    gc.collect()
    if number >= WARM_UP:
        takes = [usage(where) for where in dirs]
        last.append({kind: sum(one[kind] for one in takes) if kind in ("disk bytes", "inodes") else takes[0][kind] for kind in TOLERANCE})
        first += [last[-1]] if flat < ENDS else []
        flat += 1

if random.Random(seed).random() < 0.5:
    with everybody():
        resume(owners, [], random.Random(0), lambda *_: None)
curve = {}
if flat >= 4:
    ends = min(ENDS, flat // 2)
    for kind in TOLERANCE:
        curve[kind] = [statistics.median(sample[kind] for sample in part) for part in (first[:ends], list(last)[-ends:])]
with open(os.path.join(reports, f"told-{os.getpid()}"), "w", encoding="ascii") as file:
    json.dump({"did": did, "curve": curve}, file)
for kind, (begin, finish) in curve.items():
    assert finish - begin <= TOLERANCE[kind], f"{kind} FAILED to be flat: from {begin:.0f} to {finish:.0f} in {flat} rounds"
