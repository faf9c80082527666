"""Regions with a backup: content comes back, and can be had while it is away."""

import os

from saver import *

DISK = os.path.join(os.environ["TMS_DISK_BACKUP_DIR"], MODE)


def tensors_of_all_kinds(**region):
    """Tensors of several types and sizes, small ones inside shared segments."""
    with saver.region(**region):
        return [torch.randn(shape, device="cuda").mul_(1000).to(dtype)
                for shape in ((3,), (10, 20, 30), (1 << 20,), (33_000_001,))
                for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8)]


def round_trip(tag, tensors, cycles=3):
    """Cycles, with new content in each."""
    big = [tensor for tensor in tensors if tensor.nbytes >= 64 * MiB]
    for _ in range(cycles):
        for tensor in tensors:
            tensor.add_(1)
        before = [fingerprint(tensor) for tensor in tensors]
        with parked(tag, *big):
            yield
        assert [fingerprint(tensor) for tensor in tensors] == before


def cpu():
    """content of every type comes back from host memory, pinned or mmap"""
    for backend in (None, "pinned", "mmap"):
        tag = f"cpu {backend}"
        tensors = tensors_of_all_kinds(tag=tag, enable_cpu_backup=True, cpu_backup_backend=backend)
        for _ in round_trip(tag, tensors):
            pass


def reading():
    """get_cpu_backup gives the content while it is paused"""
    tensors = tensors_of_all_kinds(tag="reading", enable_cpu_backup=True)
    for round_number in range(2):
        expected = [tensor.cpu() for tensor in tensors]
        saver.pause("reading")
        try:
            for tensor, content in zip(tensors, expected):
                for zero_copy in (False, True):
                    got = saver.get_cpu_backup(tensor, zero_copy=zero_copy)
                    assert got is not None and torch.equal(got, content), (round_number, tensor.dtype, tensor.shape, zero_copy)
                    del got
        finally:
            saver.resume("reading")
        assert all(saver.get_cpu_backup(tensor) is None for tensor in tensors), "a backup without retention is still there"
        for tensor in tensors:
            tensor.add_(3)


def retention():
    """retain_cpu_backup keeps backups after a resume"""
    tensor = filled(128 * MiB, 4, tag="retained", enable_cpu_backup=True)
    content = tensor.cpu()
    saver.retain_cpu_backup = True
    try:
        assert saver.retain_cpu_backup
        with parked("retained", tensor):
            pass
        assert torch.equal(saver.get_cpu_backup(tensor), content)
        tensor.bitwise_not_()  # the next pause must see it
        content = tensor.cpu()
        with parked("retained", tensor):
            assert torch.equal(saver.get_cpu_backup(tensor), content)
        assert torch.equal(tensor.cpu(), content)
    finally:
        saver.retain_cpu_backup = False
    with parked("retained", tensor):
        pass
    assert saver.get_cpu_backup(tensor) is None
    assert torch.equal(tensor.cpu(), content)


def disk():
    """content of every type comes back from disk, through files of constant size"""
    saver.set_disk_backup_dir(DISK)
    tensors = tensors_of_all_kinds(tag="disk", enable_disk_backup=True)
    assert not os.listdir(DISK), "files before the first pause"
    seen = []
    for _ in round_trip("disk", tensors):
        seen.append({name: os.stat(os.path.join(DISK, name)).st_size for name in os.listdir(DISK)})
        assert saver.get_cpu_backup(tensors[-1]) is None, "a host copy of memory on disk"
    assert seen[0] and all(files == seen[0] for files in seen), seen
    assert sum(seen[0].values()) >= sum(tensor.nbytes for tensor in tensors)
    return f"{len(seen[0])} files"


def removed_directory():
    """the directory may be removed before the first pause"""
    folder = os.path.join(DISK, "again")
    saver.set_disk_backup_dir(folder)
    tensor = filled(64 * MiB, 6, tag="removed", enable_disk_backup=True)
    before = fingerprint(tensor)
    os.rmdir(folder)
    with parked("removed", tensor):
        assert len(os.listdir(folder)) == 1
    assert fingerprint(tensor) == before
    saver.set_disk_backup_dir(DISK)


def all_together():
    """backups on disk, in host memory and none are paused together"""
    on_disk = filled(128 * MiB, 7, tag="mixed", enable_disk_backup=True)
    on_host = filled(128 * MiB, 8, tag="mixed", enable_cpu_backup=True)
    nowhere = filled(128 * MiB, 9, tag="mixed")
    before = [fingerprint(on_disk), fingerprint(on_host)]
    with parked("mixed", on_disk, on_host, nowhere):
        pass
    assert [fingerprint(on_disk), fingerprint(on_host)] == before


def not_both():
    """both backups at once are refused"""
    try:
        with saver.region(enable_cpu_backup=True, enable_disk_backup=True):
            raise RuntimeError("accepted")
    except AssertionError:
        pass


CHECKS = [cpu, reading, retention, disk, removed_directory, all_together, not_both]
