"""roundtrip.py: every size in every backup mode comes back bit for bit at its address."""

import ctypes

from gpu import *

SIZES = (1, 511, 4097, 2 * MiB - 1, 2 * MiB, 2 * MiB + 1, 13 * MiB + 419431)
MODES = {"disk": dict(backup="disk"), "pinned": dict(backup="cpu"), "mmap": dict(backup="cpu", backend="mmap"), "none": dict(backup="none")}

ebb = Ebb()
memory = []  # (mode, address, pattern)
for mode, settings in MODES.items():
    for size in SIZES:
        with ebb.region(tag=mode, **settings):
            address = malloc(size)
        pattern = Pattern(len(memory), size)
        pattern.write(address)
        memory.append((mode, address, pattern))
# Memory outside a region is not ebb's.
outside = malloc(MiB)
untouched = Pattern(99, MiB)
untouched.write(outside)


def check():
    for mode, address, pattern in memory:
        if mode == "none":
            write(address, bytes(pattern.size))  # there again, content undefined
            pattern.write(address)
        pattern.check(address)
    untouched.check(outside)


def tags():
    return {tag["tag"]: tag for tag in ebb.status()["tags"]}


total = sum(SIZES)
check()
for retain in (False, True):
    ebb.lib.tms_set_retain_cpu_backup(retain)
    for _ in range(2):
        # All at once.
        result = ebb.must_pause()
        assert (result.allocations, result.bytes) == (len(memory), 4 * total), (result.allocations, result.bytes)
        assert result.device_bytes >= 4 * total
        # What a backup holds already is not moved again.
        assert result.host_bytes + result.disk_bytes + result.skipped_same_bytes >= 3 * total, result.skipped_same_bytes
        assert ebb.status()["bytes_active"] == 0
        untouched.check(outside)
        for mode, address, pattern in memory:
            pointer = ebb.lib.tms_get_cpu_backup_pointer(address, pattern.size)
            assert (pointer is not None) == (mode in ("pinned", "mmap")), mode
            if pointer:
                assert ctypes.string_at(pointer, min(pattern.size, MiB)) == pattern.base[:min(pattern.size, MiB)]
        result = ebb.must_resume()
        assert result.bytes == 4 * total
        check()

        # One tag, others staying as they are.
        for mode in MODES:
            result = ebb.must_pause(mode)
            assert result.bytes == total, (mode, result.bytes)
            for other, seen in tags().items():
                assert (seen["active"] == 0) == (other == mode), (mode, seen)
            for other, address, pattern in memory:
                if other not in (mode, "none"):
                    pattern.check(address)
            ebb.must_resume(mode)
            check()

        # Some tags, resumed in two steps.
        ebb.must_pause("disk", "pinned")
        ebb.must_resume("pinned")
        ebb.must_resume()
        check()
for _, address, _ in memory:
    free(address)
assert ebb.status()["allocations"] == 0
free(outside)
