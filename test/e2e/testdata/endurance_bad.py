"""endurance_bad.py CASE: what should not happen to a training process, and what it must survive:
a typed error or one line, nothing lost, and everything works afterwards."""

import os
import shutil
import sys
import threading

from endurance_common import *

disk = os.environ["E2E_DISK"]
ebb = Ebb()


def make(seed, tag="default", size=2 * MiB + 5, **settings):
    with ebb.region(tag=tag, **settings):
        address = malloc(size)
    pattern = Pattern(seed, size)
    pattern.write(address)
    return address, pattern


def disk_directory_disappears():
    backups = os.path.join(disk, "given", "by", "the launcher")
    ebb.lib.tms_set_disk_backup_dir(backups.encode())

    def emptied():
        for name in os.listdir(backups):
            os.unlink(os.path.join(backups, name))

    def removed():
        shutil.rmtree(backups)

    def removed_with_its_parent():
        shutil.rmtree(os.path.join(disk, "given"))

    def made_again():
        removed()
        os.makedirs(backups)

    def replaced_by_another():
        os.rename(backups, backups + ".old")
        os.makedirs(backups)
        shutil.rmtree(backups + ".old")

    memory = [make(i, f"tag {i}", backup="disk") for i in range(3)]
    for cycle, loss in enumerate([removed_with_its_parent, emptied, removed, removed_with_its_parent, made_again, replaced_by_another] * 2):
        if os.path.isdir(backups):
            loss()  # the memory is active: nothing is lost with the files
        for address, pattern in memory:
            pattern.write(address)
        assert ebb.must_pause().allocations == len(memory), loss
        files = backup_files(backups)
        assert len(files) == len(memory) and len(set(files.values())) == 1, (loss, files)
        ebb.must_resume()
        for address, pattern in memory:
            pattern.check(address)

    # With the memory paused its bytes go with the files. That is said, and the rest is not lost.
    for loss in (emptied, removed, made_again):
        kept, pattern = make("kept", "kept", backup="cpu")
        lost, _ = make("lost", "lost", backup="disk")
        ebb.must_pause()
        loss()
        code, _ = ebb.resume()
        assert code in (IO, CORRUPT), (loss, code, ebb.error())
        assert backups in ebb.error() and "\n" not in ebb.error(), ebb.error()
        assert ebb_read(lost, 16)[0] in (IO, CORRUPT), loss
        assert ebb.status()["bytes_active"] == 0, "a resume that failed resumed in part"
        assert must_ebb_read(ebb, kept, pattern.size)[:511] == pattern.base[:511]
        ebb.must_resume("kept")
        pattern.check(kept)
        free(lost)
        free(kept)
        for address, _ in memory:
            free(address)
        ebb.must_resume()
        memory = [make(i, f"tag {i}", backup="disk") for i in range(3)]
        ebb.must_pause()
        ebb.must_resume()
        for address, pattern in memory:
            pattern.check(address)


def larger_than_the_device():
    total = free_memory()
    ebb.lib.tms_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    ebb.lib.tms_torch_malloc.restype = ctypes.c_void_p
    first, pattern = make(1, backup="disk")
    left = free_memory()
    for mode in MODES.values():
        for size in (left + 1, total, total + 1, 1 << 40, (1 << 64) - 1):
            with ebb.region(**mode):
                try:
                    malloc(size)
                    raise AssertionError(f"{size} bytes of {left} were allocated")
                except CudaError as err:
                    assert err.code == 2, err
        for size in (left + 1, 1 << 40, (1 << 63) - 1, 0, -1):
            assert ebb.lib.tms_torch_malloc(size, 0, None) is None, size
    assert free_memory() == left, "a refused allocation holds memory"
    # Neither does it while something is paused, and all that is left can be had.
    ebb.must_pause()
    with ebb.region(backup="cpu"):
        try:
            malloc(total + 1)
            raise AssertionError("allocated")
        except CudaError as err:
            assert err.code == 2, err
    ebb.must_resume()
    pattern.check(first)
    with ebb.region(backup="cpu"):
        rest = malloc(left)
    free(rest)
    ebb.must_pause()
    ebb.must_resume()
    pattern.check(first)


def region_left_open():
    """With the reference's functions nothing closes a region that an exception leaves."""
    lib = ebb.lib
    lib.tms_get_current_tag.restype = ctypes.c_char_p
    lib.tms_get_interesting_region.restype = ctypes.c_bool

    def train():
        lib.tms_set_interesting_region(True)
        lib.tms_set_current_tag(b"left open")
        lib.tms_set_enable_disk_backup(True)
        raise MemoryError("in the middle of a region")

    def leaves_one_open():
        try:
            train()
        except MemoryError:
            pass

    # In a thread: it ends with the thread, and no other one sees it.
    thread = threading.Thread(target=leaves_one_open)
    thread.start()
    thread.join()
    assert not lib.tms_get_interesting_region() and lib.tms_get_current_tag() == b"default"
    # In this one: what follows is managed as the region says, and comes back.
    leaves_one_open()
    assert lib.tms_get_interesting_region() and lib.tms_get_current_tag() == b"left open"
    address, pattern = malloc(3 * MiB), Pattern("left open", 3 * MiB)
    pattern.write(address)
    seen = []

    def other_thread():
        inside = malloc(MiB)
        seen.append((inside, lib.tms_get_interesting_region(), ebb.status()["allocations"]))

    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    (unmanaged, region, allocations), = seen
    assert not region and allocations == 1, seen
    assert ebb.must_pause("left open").allocations == 1
    Pattern(0, MiB).write(unmanaged)
    assert len(backup_files(disk)) == 1
    ebb.must_resume()
    pattern.check(address)
    # The next region's own settings count, and it can be closed.
    with ebb.region(tag="next", backup="none"):
        assert lib.tms_get_current_tag() == b"next"
        following = malloc(MiB)
    free(malloc(MiB))
    assert {tag["tag"]: tag["allocations"] for tag in ebb.status()["tags"] if tag["allocations"]} == {"left open": 1, "next": 1}
    free(following)
    free(address)
    Pattern(0, MiB).check(unmanaged)
    free(unmanaged)

    # ebb's own region closes itself, from however deep, and gives back what the thread had.
    import ebb as package

    def deep(n):
        with package.region(tag=f"level {n}", backup="disk" if n % 2 else "cpu"):
            if n == 0:
                raise MemoryError("in the middle of regions")
            deep(n - 1)

    lib.tms_set_current_tag(b"before")
    before = (lib.tms_get_interesting_region(), lib.tms_get_current_tag(), lib.tms_get_enable_cpu_backup(), lib.tms_get_enable_disk_backup())
    for _ in range(3):
        try:
            deep(20)
            raise AssertionError("no exception")
        except MemoryError:
            pass
        assert (lib.tms_get_interesting_region(), lib.tms_get_current_tag(), lib.tms_get_enable_cpu_backup(), lib.tms_get_enable_disk_backup()) == before
    free(malloc(MiB))
    assert ebb.status()["allocations"] == 0


def another_version():
    """The engine is one that does not belong to the library: memory cannot be managed, all else works."""
    outside = malloc(MiB)
    pattern = Pattern(1, MiB)
    pattern.write(outside)
    for _ in range(3):
        try:
            make(2, backup="disk")
            raise AssertionError("managed memory without an engine")
        except CudaError:
            pass
        assert ebb.pause()[0] == NOT_LOADED
        assert ebb.resume()[0] == NOT_LOADED
        assert ebb_read(outside, 8)[0] == NOT_LOADED
    print(ebb.error())
    again = malloc(MiB)
    pattern.write(again)
    for address in (outside, again):
        pattern.check(address)
        free(address)


def listed_twice():
    address, pattern = make(1, "disk", backup="disk")
    other, host = make(2, "cpu", backup="cpu")
    for _ in range(2):
        assert ebb.must_pause().allocations == 2
        assert len(backup_files(disk)) == 1
        assert ebb.must_resume().allocations == 2
        pattern.check(address)
        host.check(other)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        libraries = {line.split()[-1] for line in maps if "libebb" in line}
    print(sorted(os.path.basename(library) for library in libraries))
    free(address)
    free(other)
    assert ebb.status()["allocations"] == 0


globals()[sys.argv[1]]()
