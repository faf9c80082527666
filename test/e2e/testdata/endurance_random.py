"""endurance_random.py SEED STEPS: any sequence of calls on any thread is safe.

Several threads each own some tags and the memory that carries them, and keep a model of it: the
bytes it must hold, and whether it is paused. One thread pauses and resumes everything in between,
and one forks. The application's own lock is what a training program has too: memory that somebody
else may pause is not touched. Calls of different threads still meet in the library at any time:
only the thread that pauses everything keeps the others out, and the one that forks asks nobody."""

import collections
import os
import random
import sys
import threading
import traceback

from endurance_common import *

seed, steps = sys.argv[1], int(sys.argv[2])
WORKERS, MOST, LARGEST = 4, 6, 300_000
ebb = Ebb()
content = random.Random(seed).randbytes(4 * MiB)
failed = threading.Event()
working = WORKERS  # threads with steps left


class Memory:
    """One allocation and its model."""

    def __init__(self, rng, tag, mode):
        self.tag, self.mode, self.paused = tag, mode, False
        self.size = rng.choice([1, 7, 511, 512, 513, 4095, 4096, 4097, 65_536, 65_537, rng.randint(1, LARGEST)])
        with ebb.region(tag=tag, **MODES[mode]):
            self.address = malloc(self.size)
        self.write(rng)

    def write(self, rng):
        at = rng.randrange(len(content) - self.size)
        self.want = content[at:at + self.size]
        write(self.address, self.want)

    def check(self):
        assert read(self.address, self.size) == self.want, f"content of {self} differs"

    def was_resumed(self, rng):
        self.paused = False
        if self.mode == "none":
            self.write(rng)
        self.check()

    def __repr__(self):
        return f"{self.size} bytes at {self.address:#x}, tag {self.tag}, {self.mode}, {'paused' if self.paused else 'active'}"


class Actor(threading.Thread):
    """Takes random steps to its end, or until some thread has failed."""

    def __init__(self, name):
        super().__init__(name=name)
        self.rng = random.Random(f"{seed} {name}")
        self.said = collections.deque(maxlen=25)
        self.did = collections.Counter()

    def say(self, *what):
        self.did[what[0]] += 1
        self.said.append(" ".join(map(str, what)))

    def run(self):
        try:
            self.work()
        except BaseException:
            failed.set()
            sys.stderr.write(f"{self.name} failed after\n  " + "\n  ".join(self.said) + f"\n{traceback.format_exc()}")


class Worker(Actor):
    """Owns two tags. `own` guards its model, and its memory against pauses of everything."""

    def __init__(self, i):
        super().__init__(f"worker {i}")
        self.own = threading.Lock()
        self.tags = (f"a{i}", f"b{i}")
        self.known = set()  # tags that an allocation has carried
        self.memory = []

    def work(self):
        global working
        actions = [self.allocate] * 4 + [self.free] * 3 + [self.pause] * 4 + [self.resume] * 5 + [self.write, self.read] * 3 + [self.pointer, self.retain, self.refused]
        for _ in range(steps):
            if failed.is_set():
                break
            with self.own:
                self.rng.choice(actions)()
        with self.own:
            working -= 1

    def allocate(self):
        if len(self.memory) < MOST:
            tag, mode = self.rng.choice(self.tags), self.rng.choice(list(MODES))
            self.memory.append(Memory(self.rng, tag, mode))
            self.known.add(tag)
            self.say("allocate", self.memory[-1])

    def free(self):
        if self.memory:
            memory = self.memory.pop(self.rng.randrange(len(self.memory)))
            self.say("free", memory)
            free(memory.address)

    def affected(self, tags, paused):
        return [memory for memory in self.memory if memory.tag in tags and memory.paused == paused]

    def some_tags(self):
        return self.rng.choice([self.tags[:1], self.tags[1:], self.tags])

    def call(self, own, reference, tags, expected):
        """Through ebb's function, or the reference's, which takes one tag and forgives unknown ones."""
        if len(tags) == 1 and self.rng.random() < 0.3:
            assert reference(tags[0].encode()) == OK, ebb.error()
            return
        code, result = own(*tags)
        if not self.known.issuperset(tags):
            assert code == UNKNOWN_TAG, (code, ebb.error())
        else:
            assert code == OK, (code, ebb.error())
            assert result.allocations == len(expected), (result.allocations, expected)

    def pause(self):
        tags = self.some_tags()
        affected = self.affected(tags, paused=False) if self.known.issuperset(tags) or len(tags) == 1 else []
        self.say("pause", tags, affected)
        self.call(ebb.pause, ebb.lib.tms_pause, tags, affected)
        for memory in affected:
            memory.paused = True

    def resume(self):
        tags = self.some_tags()
        affected = self.affected(tags, paused=True) if self.known.issuperset(tags) or len(tags) == 1 else []
        self.say("resume", tags, affected)
        self.call(ebb.resume, ebb.lib.tms_resume, tags, affected)
        for memory in affected:
            memory.was_resumed(self.rng)
        for memory in self.memory:
            if not memory.paused:
                memory.check()

    def write(self):
        for memory in self.memory:
            if not memory.paused and self.rng.random() < 0.5:
                memory.write(self.rng)

    def read(self):
        if not self.memory:
            return
        memory = self.rng.choice(self.memory)
        at = self.rng.randrange(memory.size)
        size = self.rng.randint(1, memory.size - at)
        self.say("read", size, "at", at, "of", memory)
        code, data = ebb_read(memory.address + at, size)
        if memory.paused and memory.mode == "none":
            assert code == STATE, (code, ebb.error())
        else:
            assert code == OK, (code, ebb.error())
            assert data == memory.want[at:at + size], f"ebb_read of {size} bytes at {at} of {memory}: other bytes"

    def pointer(self):
        for memory in self.memory:
            pointer = ebb.lib.tms_get_cpu_backup_pointer(memory.address, memory.size)
            if memory.paused:
                assert (pointer is not None) == (memory.mode in ("pinned", "mmap")), (pointer, memory)
                assert not pointer or ctypes.string_at(pointer, memory.size) == memory.want, f"backup pointer of {memory}: other bytes"

    def retain(self):
        ebb.lib.tms_set_retain_cpu_backup(self.rng.random() < 0.5)

    def refused(self):
        """Impossible things are errors, and change nothing."""
        self.say("what is refused")
        assert ebb.pause(f"nobody's {self.name}")[0] == UNKNOWN_TAG
        assert ebb.resume(self.tags[0], f"nobody's {self.name}")[0] == UNKNOWN_TAG
        assert ebb_read(0x10000, 8)[0] == NOT_MANAGED
        try:
            with ebb.region(tag=self.tags[0], backup="cpu"):
                malloc(1 << 45)
            raise AssertionError("more than the device has was allocated")
        except CudaError as err:
            assert err.code == 2, err


class Everything(Actor):
    """Pauses and resumes the memory of all workers, which wait meanwhile; leaves it paused, at
    times, for the workers to find."""

    def __init__(self, workers):
        super().__init__("everything")
        self.workers = workers

    def work(self):
        while not failed.is_set():
            for worker in self.workers:
                worker.own.acquire()
            try:
                if working == 0:
                    return
                self.rng.choice([self.pause, self.resume, self.cycle])()
                self.compare()
            finally:
                for worker in self.workers:
                    worker.own.release()
            failed.wait(self.rng.random() * 0.01)  # the workers' turn

    def memory(self, paused):
        return [memory for worker in self.workers for memory in worker.memory if memory.paused == paused]

    def pause(self):
        active = self.memory(paused=False)
        self.say("pause everything:", active)
        assert ebb.must_pause().allocations == len(active)
        for memory in active:
            memory.paused = True

    def resume(self):
        paused = self.memory(paused=True)
        self.say("resume everything:", paused)
        assert ebb.must_resume().allocations == len(paused)
        for memory in paused:
            memory.was_resumed(self.rng)
        for memory in self.memory(paused=False):
            memory.check()

    def cycle(self):
        self.pause()
        self.resume()

    def compare(self):
        """The library's own account agrees with the model."""
        paused, active = self.memory(paused=True), self.memory(paused=False)
        status = ebb.status()
        assert status["allocations"] == len(paused) + len(active), (status, paused, active)
        assert status["bytes_paused"] == sum(memory.size for memory in paused), (status, paused)
        assert status["bytes_active"] == sum(memory.size for memory in active), (status, active)


class Forks(Actor):
    """Starts children at any moment. Some live on while their parent works."""

    def work(self):
        alive = collections.deque()  # (pid, pipe through which it is told to end, status)
        while working and not failed.is_set():
            failed.wait(self.rng.random() * 0.01)
            alive.append(self.fork())
            if len(alive) > self.rng.randrange(6):
                self.reap(*alive.popleft())
        for child in alive:
            self.reap(*child)

    def fork(self):
        kind, status = self.rng.choice(["exits", "runs exit handlers", "lives", "calls"]), self.rng.randrange(100)
        self.say("fork a child that", kind)
        pipe = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(pipe[1])
                child(kind, pipe[0], status)
            except BaseException:
                sys.stderr.write(f"child that {kind} failed\n{traceback.format_exc()}")
            os._exit(250)
        return pid, pipe, status

    def reap(self, pid, pipe, status):
        os.write(pipe[1], b"x")  # closing it would not do: later children have copies
        got = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert got == status, f"a child ended with {got}, not {status}"
        for end in pipe:
            os.close(end)


def child(kind, told, status):
    if kind == "lives":
        os.read(told, 1)
    if kind == "calls":
        assert ebb.pause()[0] == FORKED
        assert ebb.resume()[0] == FORKED
        assert ebb.pause("a0")[0] == FORKED
        assert ebb_read(0x10000, 8)[0] == FORKED
        assert ebb.lib.ebb_status(None, 0, None) == FORKED
        assert ebb.lib.tms_pause(None) == FORKED and ebb.lib.tms_resume(b"a0") == FORKED
        assert "fork" in ebb.error(), ebb.error()
    if kind == "runs exit handlers":
        PROCESS.exit(status)
    os._exit(status)


with ebb.region(tag="first"):
    free(malloc(1))  # a pause of nothing at all is fine from now on
workers = [Worker(i) for i in range(WORKERS)]
actors = [*workers, Everything(workers), Forks("forks")]
done = collections.Counter()
for actor in actors:
    actor.start()
for actor in actors:
    actor.join()
    done += actor.did
print(", ".join(f"{what} {n}" for what, n in done.items()))
if failed.is_set():
    sys.exit(1)
ebb.must_resume()
for memory in [memory for worker in workers for memory in worker.memory]:
    memory.was_resumed(random.Random(0)) if memory.paused else memory.check()
    free(memory.address)
assert ebb.status()["allocations"] == 0 and backup_files(os.environ["E2E_DISK"]) == {}
