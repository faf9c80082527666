"""expandable.py PART: PyTorch's expandable segments, and other memory that does not come from
cudaMalloc of a shared runtime, under the preloaded library.

    regions   expandable segments, and regions of ebb.torch
    process   expandable segments, and the whole process managed
    async     PyTorch on cudaMallocAsync, and the whole process managed

expandable segments are turned on from outside, by PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF.
"""

import gc
import os
import random
import subprocess
import sys

from gputest import *

import ebb
import ebb.torch

PART = sys.argv[1]
FOLDER = os.path.dirname(os.path.abspath(__file__))


def device_free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def filled(nbytes, seed):
    tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    with ebb.torch.disable():  # what filling takes for a moment stays out of what is parked
        fill_random(tensor, seed)
    return tensor


def expandable():
    """Whether PyTorch's segments are expandable, by what the allocator says."""
    return any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())


def managed(tag):
    return sum(t["active"] + t["host"] + t["disk"] + t["discarded"] for t in ebb.status()["tags"] if t["tag"] == tag)


class Hog:
    """Another process that takes all device memory but some."""

    def __init__(self, leave_mib):
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("TMS_")}
        self.process = subprocess.Popen([sys.executable, os.path.join(FOLDER, "hog.py"), CUDART, str(leave_mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        answer = self.process.stdout.readline().strip()
        assert answer == "ready", answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()


# ---- regions ---------------------------------------------------------------------------------


def content_and_addresses():
    made = []
    for backup in ("disk", "cpu"):
        with ebb.torch.region("weights", backup):
            made += [filled(size, size) for size in (8, 4096, 3 * MiB, 21 * MiB + 7, 333 * MiB)]
    assert expandable(), "the allocator has no expandable segment"
    before, places = [fingerprint(t) for t in made], [t.data_ptr() for t in made]
    for _ in range(3):
        free = device_free()
        with ebb.paused("weights") as done:
            gained = device_free() - free
            assert abs(gained - done.device_bytes) <= DRIVER_OWN, (gained, done)
            assert done.bytes >= sum(t.nbytes for t in made), done
        assert [fingerprint(t) for t in made] == before and [t.data_ptr() for t in made] == places
    return f"{done.bytes / 1e9:.2f} GB in {done.allocations} pieces"


def tags_stay_apart():
    with ebb.torch.region("cache", "none"):
        cache = filled(100 * MiB, 1)
    with ebb.torch.region("weights", "cpu"):
        weights = filled(100 * MiB, 2)
    outside = filled(100 * MiB, 3)
    before = fingerprint(weights), fingerprint(outside)
    with ebb.paused("cache") as done:
        assert done.bytes >= 100 * MiB and done.host_bytes == 0, done
        assert (fingerprint(weights), fingerprint(outside)) == before
    with ebb.paused(["cache", "weights"]):
        assert fingerprint(outside) == before[1]
        assert ebb.read(weights.data_ptr(), 1000) == ebb.read(weights.data_ptr(), MiB)[:1000]
    assert (fingerprint(weights), fingerprint(outside)) == before
    cache.fill_(1)


def cache_emptied_while_paused():
    with ebb.torch.region("weights", "disk"):
        kept, gone, small = filled(100 * MiB, 1), filled(500 * MiB, 2), filled(1000, 3)
    before = fingerprint(kept), fingerprint(small)
    del gone
    with ebb.paused("weights"):
        held = ebb.status()["bytes_paused"]
        ebb.torch.empty_cache()
        torch.cuda.empty_cache()
        less = ebb.status()["bytes_paused"]
        assert less <= held - 400 * MiB, (held, less)
    assert (fingerprint(kept), fingerprint(small)) == before
    return f"{(held - less) / MiB:.0f} MiB unmapped while paused"


def growth_after_a_resume():
    with ebb.torch.region("weights", "disk"):
        first = filled(64 * MiB, 1)
    before = fingerprint(first)
    with ebb.paused("weights"):
        pass
    with ebb.torch.region("weights", "disk"):
        second = filled(300 * MiB, 2)
    assert managed("weights") >= 364 * MiB, ebb.status()["tags"]
    both = before, fingerprint(second)
    with ebb.paused("weights") as done:
        assert done.bytes >= 364 * MiB, done
    assert (fingerprint(first), fingerprint(second)) == both


def unused_memory_stays_behind():
    with ebb.torch.region("weights", "disk"):
        tensors = [filled(40 * MiB, i) for i in range(12)]
    del tensors[1:11:2]
    before = [fingerprint(t) for t in tensors]
    with ebb.paused("weights", skip_unused=True) as done:
        assert done.allocator_changed == "", done
        assert done.skipped_unused_bytes >= 150 * MiB, done
    assert [fingerprint(t) for t in tensors] == before
    return f"{done.skipped_unused_bytes / MiB:.0f} of {done.bytes / MiB:.0f} MiB left behind"


# ---- the whole process -----------------------------------------------------------------------


def all_that_the_allocator_holds():
    kept = [filled(300 * MiB, 1), filled(5 * MiB, 2)]
    filled(700 * MiB, 3)  # freed, and kept by the allocator
    assert expandable()
    before = [fingerprint(t) for t in kept]
    ebb.pause()
    ebb.resume()
    reserved, free = torch.cuda.memory_reserved(), device_free()
    with ebb.paused() as done:
        gained = device_free() - free
        # What is made under disable() is PyTorch's too and stays.
        stays = sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0))
        assert gained >= reserved - stays - DRIVER_OWN, (gained, reserved, stays)
    assert [fingerprint(t) for t in kept] == before
    return f"{gained / 1e9:.2f} GB free again, {reserved / 1e9:.2f} reserved"


def sizes_vary():
    rng, tensors, cycles = random.Random(5), {}, 100
    for cycle in range(cycles):
        for _ in range(rng.randrange(1, 5)):
            if tensors and rng.random() < 0.45:
                del tensors[rng.choice(list(tensors))]
            elif sum(t.nbytes for t, _ in tensors.values()) < 400 * MiB:
                size = rng.choice([rng.randrange(1, 4096), rng.randrange(1, 2 * MiB), rng.randrange(1, 60 * MiB)])
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                tensor.random_(0, 256, generator=torch.Generator("cuda").manual_seed(cycle))
                tensors[cycle, size] = tensor, fingerprint(tensor)
        with ebb.paused(skip_unused=cycle % 3 == 1):
            if cycle % 4 == 0:
                torch.cuda.empty_cache()
            if cycle % 5 == 0 and tensors:
                del tensors[rng.choice(list(tensors))]
        for key, (tensor, want) in tensors.items():
            assert fingerprint(tensor) == want, f"cycle {cycle}, {key}: other bytes"
    return f"{cycles} cycles"


def out_of_memory_and_retry():
    kept = filled(64 * MiB, 1)
    before = fingerprint(kept)
    torch.cuda.empty_cache()
    with Hog(4096):
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        small = [torch.empty(GiB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        other = torch.cuda.Stream()
        del small
        with torch.cuda.stream(other):  # whose allocations do not come from the other stream's cache
            large = torch.full((3 * GiB,), 1, dtype=torch.uint8, device="cuda")
        other.synchronize()
        assert torch.cuda.memory_stats()["num_alloc_retries"] > retries, "there was room without a retry"
        with ebb.paused() as done:
            assert done.bytes >= large.nbytes
        assert bool((large[:: 1 << 20] == 1).all())
        del large
        torch.cuda.empty_cache()
        try:
            torch.empty(8 * GiB, dtype=torch.uint8, device="cuda")
            raise RuntimeError("8 GiB of 4 were given")
        except torch.OutOfMemoryError:
            pass
    assert fingerprint(kept) == before


def garbage_collection():
    # Past 0.6 of what the process may take, PyTorch gives back old cached memory before it takes more.
    total = torch.cuda.mem_get_info()[1]
    kept = filled(32 * MiB, 1)
    before = fingerprint(kept)
    torch.cuda.set_per_process_memory_fraction(2 * GiB / total)
    try:
        for size in range(300, 1100, 100):
            work = torch.empty(size * MiB, dtype=torch.uint8, device="cuda")
            work.fill_(size % 251)
            with ebb.paused():
                pass
            assert bool((work[:: 1 << 16] == size % 251).all())
            del work
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert fingerprint(kept) == before


# ---- cudaMallocAsync -------------------------------------------------------------------------


def stream_ordered():
    assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    free = device_free()
    kept, gone = torch.empty(GiB, dtype=torch.uint8, device="cuda"), torch.empty(2 * GiB, dtype=torch.uint8, device="cuda")
    kept.fill_(3)
    del gone
    with ebb.region("plain", "cpu"):
        address = malloc(64 * MiB)
    taken = device_free()
    try:
        done = ebb.pause()
        said = f"pause: {done.bytes / MiB:.0f} MiB parked, {(device_free() - taken) / MiB:.0f} MiB free again"
    except ebb.Unmanaged as err:
        said = f"pause refused: {err}"
    said += f"; unmanaged {ebb.status()['unmanaged']['classes']}"
    ebb.resume()
    assert bool((kept == 3).all()), "memory of cudaMallocAsync lost its bytes"
    free_again = PROCESS.cudaFree(address)
    assert free_again == 0
    try:
        ebb.pause(skip_unused=True)
        raise AssertionError("skip_unused with cudaMallocAsync")
    except ebb.UnsafeConfiguration:
        pass
    names = {c["name"] for c in ebb.status()["unmanaged"]["classes"] if c["bytes"] >= GiB // 2}
    assert "pool" in names, ebb.status()["unmanaged"]
    return said


CHECKS = {
    "regions": (
        ("tensors keep content and address", content_and_addresses),
        ("tags stay apart", tags_stay_apart),
        ("the cache is emptied while paused", cache_emptied_while_paused),
        ("growth after a resume", growth_after_a_resume),
        ("unused memory stays behind", unused_memory_stays_behind),
    ),
    "process": (
        ("the driver gets what the allocator held", all_that_the_allocator_holds),
        ("sizes vary at random", sizes_vary),
        ("garbage collection", garbage_collection),
        ("out of memory and retry", out_of_memory_and_retry),
    ),
    "async": (("memory of cudaMallocAsync is named", stream_ordered),),
}

for title, action in CHECKS[PART]:
    with check(f"expandable {PART}: {title}") as note:
        note.detail = action() or ""
    ebb.resume()
    gc.collect()
    if PART != "async":
        ebb.torch.empty_cache()
finish()
