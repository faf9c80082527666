"""everything.py preload: a training process in which all memory is managed (TMS_INIT_ENABLE and
TMS_INIT_ENABLE_CPU_BACKUP), started by start.py. What PyTorch keeps for reuse is managed too, so it
must give that back when memory is short."""

import os
import subprocess

from saver import *

HOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "hog.py")


def cycle():
    """all memory is paused and resumed without a region"""
    weights = [torch.randn(size, device="cuda") for size in (3, 1 << 20, 1 << 26)]
    before = [fingerprint(tensor) for tensor in weights]
    with parked(None, *weights):
        pass
    assert [fingerprint(tensor) for tensor in weights] == before


def work_while_paused():
    """disable() gives memory to work with while all is paused, and takes it back"""
    weights = torch.randn(1 << 26, device="cuda")
    before = fingerprint(weights)
    torch.cuda.empty_cache()
    saver.pause()
    try:
        begin = device_free()
        with saver.disable():
            work = torch.full((512 * MiB,), 3, dtype=torch.uint8, device="cuda")
            assert int(work.sum(dtype=torch.int64)) == 3 * work.numel()
            assert begin - device_free() >= work.nbytes
            del work
        left = begin - device_free()
        assert left <= DRIVER_OWN, f"{left >> 20} MiB stay"
    finally:
        saver.resume()
    assert fingerprint(weights) == before


def region_without_backup():
    """a region inside takes memory out of the backup, and only that"""
    weights = torch.randn(1 << 25, device="cuda")
    with saver.region(tag="gradients", enable_cpu_backup=False):
        gradients = torch.randn(1 << 25, device="cuda")
    after = torch.randn(1 << 25, device="cuda")
    before = fingerprint(weights), fingerprint(after)
    with parked(None, weights, gradients, after):
        assert saver.get_cpu_backup(weights) is not None
    assert (fingerprint(weights), fingerprint(after)) == before
    gradients.zero_()
    assert not bool(gradients.any())


def out_of_memory_and_retry():
    """out of memory, PyTorch gives back what it keeps and tries again"""
    kept = torch.randn(1 << 24, device="cuda")
    before = fingerprint(kept)
    torch.cuda.empty_cache()
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("TMS_")}
    hog = subprocess.Popen([sys.executable, HOG, CUDART, "4096"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        answer = hog.stdout.readline().strip()
        assert answer == "ready", answer
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        small = [torch.empty(GiB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        del small
        large = torch.full((3 * GiB,), 1, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_stats()["num_alloc_retries"] > retries, "there was room without a retry"
        with parked(None, large, kept):
            pass
        assert bool((large[:: 1 << 20] == 1).all())
        del large
        torch.cuda.empty_cache()
        try:
            torch.empty(8 * GiB, dtype=torch.uint8, device="cuda")
            raise RuntimeError("8 GiB of 4 were given")
        except torch.cuda.OutOfMemoryError:
            pass
    finally:
        hog.communicate()
    assert fingerprint(kept) == before


run([cycle, work_while_paused, region_without_backup, out_of_memory_and_retry])
finish()
