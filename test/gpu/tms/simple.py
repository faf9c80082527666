"""Regions without a backup: memory goes and comes, content may be lost."""

from saver import *


def one_region():
    """a region is paused and resumed"""
    outside = torch.arange(1 << 20, device="cuda")
    tensor = filled(512 * MiB, tag="simple")
    with parked("simple", tensor):
        assert bool((outside == torch.arange(1 << 20, device="cuda")).all()), "memory outside the region changed"
        other = torch.full((512 * MiB,), 3, dtype=torch.uint8, device="cuda")  # takes what was freed
        assert int(other.sum(dtype=torch.int64)) == 3 * other.numel()
        del other
    tensor.fill_(7)
    assert bool((tensor == 7).all())


def everything():
    """pause and resume without a tag mean everything"""
    a, b = filled(64 * MiB, tag="first"), filled(96 * MiB, tag="second")
    with parked(None, a, b):
        pass
    a.fill_(1)
    b.fill_(2)
    assert bool((a == 1).all()) and bool((b == 2).all())


def repeats():
    """repeated and empty pauses and resumes do nothing"""
    tensor = filled(64 * MiB, 5, tag="repeats", enable_cpu_backup=True)
    before = fingerprint(tensor)
    saver.resume("repeats")
    saver.pause("no such tag")
    saver.resume("no such tag")
    with parked(None, tensor):
        saver.pause("repeats")
        saver.pause()
    saver.resume()
    assert fingerprint(tensor) == before


def many_cycles():
    """30 cycles leave content, addresses and the driver's memory as they were"""
    tensors = [filled(size, seed, tag="cycles", enable_cpu_backup=True)
               for seed, size in enumerate((6912, MiB + 1, 13 * MiB + 419431, 128 * MiB))]
    before = [fingerprint(tensor) for tensor in tensors]
    for _ in range(30):
        with parked("cycles", *tensors):
            pass
    assert [fingerprint(tensor) for tensor in tensors] == before


def free_while_paused():
    """tensors are freed and made while others are paused"""
    tensors = [filled(64 * MiB, seed, tag="half", enable_cpu_backup=True) for seed in range(4)]
    before = [fingerprint(tensor) for tensor in tensors]
    saver.pause("half")
    del tensors[1::2]
    torch.cuda.empty_cache()
    fresh = filled(64 * MiB, 9, tag="fresh", enable_cpu_backup=True)
    expected = fingerprint(fresh)
    saver.resume("half")
    assert [fingerprint(tensor) for tensor in tensors] == before[::2]
    assert fingerprint(fresh) == expected


CHECKS = [one_region, everything, repeats, many_cycles, free_while_paused]
