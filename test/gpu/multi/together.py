"""together.py NAME MIB ROUNDS DIRECTORY MEETING: a rank that pauses and resumes random bytes at the same time as the
others, through the preloaded library's tms_pause and tms_resume, and in turn with them writes and reads raw
files of the same sizes in DIRECTORY. Rank 0 reports, for the library NAME, the sum of the rates of all ranks by
that of the raw ones, and the slowest rank by the fastest. No PyTorch."""

import statistics
import sys
import time

from multi import *
from rawdisk import RawDisk

ALLOCATIONS = 8
# For a library that does not tell how it writes.
BLOCK, WORKERS = 4 * MiB, 4


def main():
    name, size, rounds, directory, meeting = sys.argv[1], int(sys.argv[2]) * MiB // ALLOCATIONS, int(sys.argv[3]), sys.argv[4], sys.argv[5]
    deadline(2 * STEP)
    total = size * ALLOCATIONS
    directory = os.path.join(directory, f"rank{RANK}")
    os.makedirs(directory)
    ours = hasattr(PROCESS, "ebb_version")
    if "TMS_DISK_BACKUP_DIR" not in os.environ:  # no launcher has set it
        PROCESS.tms_set_disk_backup_dir(directory.encode())
    cuda = Cuda()
    cuda.device(LOCAL_RANK)
    memory = [cuda.malloc(size) for _ in range(ALLOCATIONS)]
    content = Content(cuda, min(size, Content.PART))
    meet = Meeting(meeting)
    seconds = {what: [] for what in ("raw write", "pause", "raw read", "resume")}  # a list of those of all ranks for each round
    faults = []

    def fill():
        for address in memory:
            content.write(address, size)

    def timed(what, action):
        deadline()
        meet.exchange()
        begin = time.perf_counter()
        action()
        mine = time.perf_counter() - begin
        seconds[what].append(meet.exchange(mine))

    def call(function):
        code = getattr(PROCESS, function)(None)
        if ours and code != 0:
            raise RuntimeError(f"{function}: {code}: {Ebb().error()}")

    def cycle(around=None):
        """A pause and a resume; around is called for what comes beside each."""
        fill()
        if around:
            around("raw write")
        before = cuda.free_memory()
        timed("pause", lambda: call("tms_pause"))
        freed = cuda.free_memory() - before
        if around:
            around("raw read")
        timed("resume", lambda: call("tms_resume"))
        if freed < total - DRIVER_OWN:
            faults.append(f"rank {RANK}: of {total} bytes {freed} became free")
        faults.extend(f"rank {RANK}: other bytes at {place}" for place in content.wrong())

    cycle()  # makes files and buffers, and is not measured
    for each in seconds.values():
        each.clear()
    status = Ebb().status() if ours else {}
    raw = RawDisk(directory, [size] * ALLOCATIONS, status.get("block_bytes") or BLOCK, status.get("workers") or WORKERS)
    try:
        for _ in range(rounds):
            cycle(lambda what: timed(what, raw.write if what == "raw write" else raw.read))
    finally:
        raw.close()
    faults = sum(meet.exchange(faults), [])
    if RANK == 0:
        report(name, total, seconds, faults)
    deadline()
    finish()


def report(name, total, seconds, faults):
    with check(f"disk, {name}: both freed and restored") as note:
        assert not faults, "; ".join(faults[:5])
        note.detail = f"{WORLD} x {total / MiB:.0f} MiB, rounds: {len(seconds['pause'])}"

    def sums(what):
        return [sum(total / 1e9 / mine for mine in each) for each in seconds[what]]

    for what, raw in ("pause", "raw write"), ("resume", "raw read"):
        figure(f"disk, {name}: {what}, sum of the ranks", statistics.median(sums(what)), "GB/s")
        figure(f"disk, {name}: {raw} beside it, sum", statistics.median(sums(raw)), "GB/s")
        figure(f"disk, {name}: {what} / {raw}", statistics.median(a / b for a, b in zip(sums(what), sums(raw))), "ratio")
        figure(f"disk, {name}: {what}, slowest / fastest", statistics.median(min(each) / max(each) for each in seconds[what]), "ratio")


if __name__ == "__main__":
    main()
