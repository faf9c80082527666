"""Too little device memory: an error that PyTorch understands, never the end of the process."""

from saver import *


def refused(size, **region):
    try:
        with saver.region(**region):
            torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return True
    return False


def too_large():
    """more than the device has is torch.cuda.OutOfMemoryError"""
    kept = filled(64 * MiB, 1, tag="shortage", enable_cpu_backup=True)
    before = fingerprint(kept)
    total = torch.cuda.mem_get_info()[1]
    for region in ({"tag": "shortage"}, {"tag": "shortage", "enable_cpu_backup": True}, {"tag": "shortage", "enable_disk_backup": True}):
        assert refused(total + GiB, **region), region
    with parked("shortage", kept):
        pass
    assert fingerprint(kept) == before
    filled(64 * MiB, 2, tag="shortage")


def margin():
    """memory_margin_bytes is kept free"""
    saver.memory_margin_bytes = torch.cuda.mem_get_info()[1]  # all of it
    try:
        assert refused(256 * MiB, tag="margin")
        torch.empty(256 * MiB, dtype=torch.uint8, device="cuda")  # not managed, so not refused
    finally:
        saver.memory_margin_bytes = 0
    assert not refused(256 * MiB, tag="margin")


CHECKS = [too_large, margin]
