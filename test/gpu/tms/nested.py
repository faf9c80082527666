"""Regions in regions, regions switched off, regions and threads."""

from saver import *


def settings_return():
    """after an inner region the outer one's settings hold again"""
    with saver.region(tag="outer", enable_cpu_backup=True):
        first = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
        with saver.region(tag="inner", enable_cpu_backup=False):
            inner = torch.empty(96 * MiB, dtype=torch.uint8, device="cuda")
            with saver.region(tag="innermost", enable_disk_backup=True):
                innermost = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
        second = torch.empty(160 * MiB, dtype=torch.uint8, device="cuda")
    kept = [first, second, innermost]
    for seed, tensor in enumerate(kept + [inner]):
        fill_random(tensor, seed)
    before = [fingerprint(tensor) for tensor in kept]
    with parked("inner", inner):
        assert [fingerprint(tensor) for tensor in kept] == before, "the inner tag took memory of another"
    with parked("outer", first, second):
        assert fingerprint(innermost) == before[2]
        inner.fill_(1)
    assert [fingerprint(tensor) for tensor in kept] == before
    with parked(None, inner, *kept):
        pass
    assert [fingerprint(tensor) for tensor in kept] == before


def left_by_an_exception():
    """a region that an exception leaves is left"""
    try:
        with saver.region(tag="raised", enable_cpu_backup=True):
            raise KeyError("on purpose")
    except KeyError:
        pass
    outside = torch.ones(64 * MiB, dtype=torch.uint8, device="cuda")
    saver.pause()
    try:
        assert bool((outside == 1).all())
    finally:
        saver.resume()


def of_one_thread():
    """a region is that of its thread"""
    made = []

    def elsewhere():
        made.append(torch.full((96 * MiB,), 5, dtype=torch.uint8, device="cuda"))
        torch.cuda.synchronize()

    torch.cuda.empty_cache()
    with saver.region(tag="thread"):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        own = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
    with parked("thread", own):
        assert bool((made[0] == 5).all())


# Not here: disable() inside a region. The package ends a memory pool there while another is in
# use, on which PyTorch 2.11 aborts the process ("captures_underway.empty() INTERNAL ASSERT FAILED"
# in the pool's destructor), whatever library is below.
CHECKS = [settings_return, left_by_an_exception, of_one_thread]
