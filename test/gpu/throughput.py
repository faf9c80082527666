"""throughput.py disk|cpu|cpu-retained: parks and resumes random bytes, others each time, so that none
can be skipped, and measures the rate. For disk, the raw rate of the same disk is measured beside it: same block size, number of workers and
file sizes, files already written, raw and ebb in turn within one run. Before each cycle `ebb plan --live` is asked.
"""

import os
import statistics
import sys

from gputest import *
from planned import Planned
from rawdisk import RawDisk

ROUNDS = 5
SIZES = [256 * MiB] * 20 + [1 * GiB] + [13 * MiB + 4096] * 40 + [511, 4097, 2 * MiB - 1]


def main():
    kind = sys.argv[1]
    ebb = Ebb()
    ebb.lib.tms_set_retain_cpu_backup(kind == "cpu-retained")
    with ebb.region(tag="bytes", backup="disk" if kind == "disk" else "cpu"):
        memory = [(malloc(size), size) for size in SIZES]
    for seed, (address, size) in enumerate(memory):
        fill_random(view(address, size), seed)
    total = sum(SIZES)

    def fingerprints():
        return [fingerprint(view(address, size)) for address, size in memory]

    def changed():
        """Other bytes, and their fingerprints."""
        for address, size in memory:
            view(address, size).add_(1)
        return fingerprints()

    before = fingerprints()

    # The first cycle makes files, buffers and streams. It is reported by itself.
    first_pause, first_resume = ebb.must_pause(), ebb.must_resume()
    status = ebb.status()
    rates = {name: [] for name in ("pause", "resume", "raw write", "raw read")}
    wrong = sum(a != b for a, b in zip(before, fingerprints()))

    def measure(name, seconds):
        rates[name].append(total / seconds / 1e9)

    raw, planned = None, Planned()
    try:
        if kind == "disk":
            raw = RawDisk(os.environ["TMS_DISK_BACKUP_DIR"], SIZES, status["block_bytes"], status["workers"])
        for _ in range(ROUNDS):
            before = changed()
            torch.cuda.synchronize()
            planned.ask()
            if raw:
                rates["raw write"].append(raw.total / raw.write() / 1e9)
            seconds = ebb.must_pause().nanoseconds / 1e9
            measure("pause", seconds)
            planned.took("pause", seconds)
            if raw:
                rates["raw read"].append(raw.total / raw.read() / 1e9)
            seconds = ebb.must_resume().nanoseconds / 1e9
            measure("resume", seconds)
            planned.took("resume", seconds)
            wrong += sum(a != b for a, b in zip(before, fingerprints()))
    finally:
        if raw:
            raw.close()

    with check(f"throughput {kind}: {total / GiB:.1f} GiB the same after each of {ROUNDS + 1} cycles"):
        assert wrong == 0, f"{wrong} allocations differ"
    figure(f"{kind} first pause", total / first_pause.nanoseconds, "GB/s")  # bytes per nanosecond
    figure(f"{kind} first resume", total / first_resume.nanoseconds, "GB/s")
    for name, values in rates.items():
        if values:
            figure(f"{kind} {name} median", statistics.median(values), "GB/s")
            figure(f"{kind} {name} lowest", min(values), "GB/s")
            figure(f"{kind} {name} highest", max(values), "GB/s")
    planned.report(kind)
    if raw:
        figure("disk pause / raw write", statistics.median(rates["pause"]) / statistics.median(rates["raw write"]), "ratio")
        figure("disk resume / raw read", statistics.median(rates["resume"]) / statistics.median(rates["raw read"]), "ratio")
        figure("disk block", status["block_bytes"] / MiB, "MiB")
        figure("disk workers", status["workers"], "threads")
        figure("disk staging", status["staging_bytes"] / MiB, "MiB")
    finish()


if __name__ == "__main__":
    main()
