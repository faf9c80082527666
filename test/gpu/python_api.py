"""The Python package, ebb and ebb.torch, with PyTorch on a GPU.

    python_api.py             under the preloaded library
    python_api.py pluggable   without it: memory comes from PyTorch's pluggable allocator
"""

import ctypes
import gc
import os
import pathlib
import re
import subprocess
import sys
import threading

import torch

import ebb
import ebb.torch
from gputest import CUDART, DRIVER_OWN, MiB, check, fill_random, fingerprint, finish

PLUGGABLE = sys.argv[1:] == ["pluggable"]
NAME = "python, pluggable allocator" if PLUGGABLE else "python"
FOLDER = pathlib.Path(__file__).resolve().parent


def make(nbytes, seed=0, dtype=torch.uint8):
    tensor = torch.empty(nbytes // torch.empty((), dtype=dtype).element_size(), dtype=dtype, device="cuda")
    with ebb.torch.disable():  # what filling takes for a moment stays out of the region's pool
        fill_random(tensor, seed)
    return tensor


def free_memory():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def host_bytes(tensor):
    copy = tensor.detach().contiguous().cpu()
    return ctypes.string_at(copy.data_ptr(), copy.nbytes)


def managed(tag):
    """Bytes of managed memory that carry a tag, active and paused."""
    return sum(t["active"] + t["host"] + t["disk"] + t["discarded"] for t in ebb.status()["tags"] if t["tag"] == tag)


def is_managed(tensor):
    try:
        ebb.read(tensor, 1)
    except ebb.NotManaged:
        return False
    return True


def nothing_left():
    """Each check begins and ends with no managed memory."""
    ebb.resume()
    gc.collect()
    ebb.torch.empty_cache()
    left = [t for t in ebb.status()["tags"] if t["allocations"]]
    assert not left, f"left by the check before: {left}"


def content_and_addresses():
    with ebb.torch.region("simple", "disk"):
        tensors = [make(size, size, dtype) for size in (8, 4096, 3 * MiB, 700 * MiB) for dtype in (torch.uint8, torch.bfloat16, torch.int64)]
    with ebb.torch.region("simple", "cpu"):
        tensors += [make(size, size) for size in (7, 2 * MiB + 1, 300 * MiB)]
    before, places = [fingerprint(t) for t in tensors], [t.data_ptr() for t in tensors]
    ebb.torch.empty_cache()
    for _ in range(3):
        free = free_memory()
        with ebb.paused("simple") as done:
            gained = free_memory() - free
            assert abs(gained - done.device_bytes) <= DRIVER_OWN, (gained, done)
            assert done.bytes >= sum(t.nbytes for t in tensors)
            assert done.host_bytes + done.disk_bytes + done.skipped_same_bytes + done.skipped_zero_bytes > 0 and done.seconds > 0
        assert [fingerprint(t) for t in tensors] == before and [t.data_ptr() for t in tensors] == places
    return f"{done.bytes / 1e9:.1f} GB"


def tags_apart():
    # What one tag frees is never handed to another, nor to what is not managed.
    with ebb.torch.region("cache", "none"):
        old = make(64 * MiB)
    place = old.data_ptr()
    del old
    with ebb.torch.region("weights", "cpu"):
        weights = make(64 * MiB, 1)
    outside = make(64 * MiB, 2)
    with ebb.torch.region("cache", "none"):
        again = make(64 * MiB)
    assert again.data_ptr() == place, "the pool of a tag is not used again"
    assert not is_managed(outside)
    before = fingerprint(weights), fingerprint(outside)
    with ebb.paused("cache") as done:
        assert done.bytes >= 64 * MiB and done.host_bytes == 0
        assert (fingerprint(weights), fingerprint(outside)) == before
    with ebb.paused(["weights", "cache"]):
        assert fingerprint(outside) == before[1]
        assert ebb.read(weights) == ebb.read(weights.untyped_storage(), weights.nbytes)
    assert (fingerprint(weights), fingerprint(outside)) == before
    again.fill_(1)


def nested_regions():
    with ebb.torch.region("outer", "cpu"):
        first = make(32 * MiB, 1)
        with ebb.torch.region("inner", "disk"):
            inner = make(32 * MiB, 2)
            with ebb.torch.disable():
                kept = make(32 * MiB, 3)
            with ebb.torch.region("outer", "cpu"):
                second = make(32 * MiB, 4)
        third = make(32 * MiB, 5)
        try:
            with ebb.torch.region("inner", "disk"):
                raise KeyError
        except KeyError:
            fourth = make(32 * MiB, 6)
    after = make(32 * MiB, 7)
    assert not is_managed(kept) and not is_managed(after)
    outer = [first, second, third, fourth]
    assert managed("outer") == 4 * 32 * MiB and managed("inner") == 32 * MiB, ebb.status()["tags"]
    before = [fingerprint(t) for t in outer + [inner, kept, after]]
    with ebb.paused("outer"):
        assert [fingerprint(t) for t in (inner, kept, after)] == before[4:]
    with ebb.paused("inner"):
        assert [fingerprint(t) for t in outer + [kept, after]] == before[:4] + before[5:]
    assert [fingerprint(t) for t in outer + [inner, kept, after]] == before


def reading():
    for backup in ("disk", "cpu"):
        with ebb.torch.region("read", backup):
            tensors = [make(n, n, dtype) for n in (8, 4096, 33 * MiB) for dtype in (torch.bfloat16, torch.float32, torch.int64)]
            tensors.append(torch.empty(0, device="cuda"))
        part = tensors[-2].view(-1, 64)[3:5]
        crooked = tensors[-2].view(-1, 64)[:, 1:3]
        want = [host_bytes(t) for t in tensors + [part]]
        for _ in ("active", "paused"):
            assert [ebb.read(t) for t in tensors + [part]] == want
            buffer = bytearray(len(want[-3]) + 1)
            assert ebb.read_into(tensors[-2], buffer) == len(want[-3]) and buffer[:-1] == want[-3]
            assert ebb.read(tensors[-2].data_ptr() + 5, 1000) == want[-3][5:1005]
            try:
                ebb.read(crooked)
                raise AssertionError("a tensor that is not contiguous was read")
            except ebb.InvalidArgument:
                pass
            ebb.pause("read")
        ebb.resume("read")
        assert [host_bytes(t) for t in tensors + [part]] == want


def training():
    def run(park):
        torch.manual_seed(0)
        with ebb.torch.region("model", "disk"):
            model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for step in range(12):
            x = torch.randn(64, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            with ebb.torch.region("model", "disk"):  # AdamW makes its state at the first step
                optimizer.step()
            losses.append(loss.item())
            if park and step % 4 == 3:
                with ebb.paused() as done:
                    assert done.bytes >= 3 * sum(p.nbytes for p in model.parameters()), done
        return losses

    torch.use_deterministic_algorithms(True)
    try:
        plain, parked = run(False), run(True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert parked == plain and plain[-1] < plain[0], (plain, parked)


def paused_after_an_exception():
    with ebb.torch.region("raise", "disk"):
        tensor = make(32 * MiB, 1)
    before = fingerprint(tensor)
    try:
        with ebb.paused():
            assert ebb.status()["bytes_active"] == 0
            raise KeyError
    except KeyError:
        assert fingerprint(tensor) == before


def out_of_memory_on_resume():
    with ebb.torch.region("large", "cpu"):
        tensors = [make(512 * MiB, seed) for seed in range(4)]
    before = [fingerprint(t) for t in tensors]
    ebb.torch.empty_cache()
    ebb.pause()
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    hog = subprocess.Popen([sys.executable, str(FOLDER / "hog.py"), CUDART, "1024"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert hog.stdout.readline() == "ready\n"
        try:
            ebb.resume(timeout=0.2)
            raise AssertionError("resumed into memory that another process holds")
        except ebb.OutOfDeviceMemory as err:
            error = err
        assert error.needed >= 4 * 512 * MiB > error.free >= 0 and error.device == 0, vars(error)
        assert ebb.status()["bytes_active"] == 0
        assert ebb.read(tensors[0], MiB) == ebb.read(tensors[0])[:MiB]
    finally:
        hog.communicate()
    ebb.resume(timeout=20)
    assert [fingerprint(t) for t in tensors] == before
    return str(error)


def out_of_memory_on_allocation():
    total = torch.cuda.mem_get_info()[1]
    with ebb.torch.region("toomuch", "disk"):
        try:
            torch.empty(total * 2, dtype=torch.uint8, device="cuda")
            raise AssertionError("twice the device's memory was allocated")
        except torch.OutOfMemoryError:
            pass
        tensor = make(8 * MiB, 1)
    assert is_managed(tensor)


def cached_memory_goes_back():
    with ebb.torch.region("cached", "disk"):
        kept = make(100 * MiB, 1)
        gone = make(900 * MiB, 2)
    before = fingerprint(kept)
    del gone
    torch.cuda.empty_cache()
    assert managed("cached") >= 1000 * MiB
    ebb.torch.empty_cache()
    assert 100 * MiB <= managed("cached") < 200 * MiB, ebb.status()["tags"]
    with ebb.paused():
        pass
    assert fingerprint(kept) == before
    with ebb.torch.region("cached", "disk"):
        more = make(50 * MiB, 3)
    assert is_managed(more) and fingerprint(kept) == before
    del kept
    ebb.torch.empty_cache()
    assert managed("cached") < 100 * MiB, "memory of a tensor that outlived its pool stays"


def threads_at_one_time():
    barrier, made, errors = threading.Barrier(4), {}, []

    def work(number):
        try:
            torch.cuda.set_device(0)
            for round_ in range(5):
                barrier.wait()
                with ebb.torch.region("shared", "cpu"):
                    made[number, round_] = make(5 * MiB, 10 * number + round_)
                    barrier.wait()
        except Exception as err:
            errors.append(err)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    before = {key: fingerprint(t) for key, t in made.items()}
    assert len(set(before.values())) == 20 and all(is_managed(t) for t in made.values())
    with ebb.paused("shared"):
        pass
    assert {key: fingerprint(t) for key, t in made.items()} == before


def documentation():
    text = (FOLDER.parents[1] / "docs/python.md").read_text()
    blocks = [b for b in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "import torch" in b]
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), {"generate": lambda: make(MiB)})


if PLUGGABLE:
    ebb.torch.use_pluggable_allocator()
for title, action in (
    ("tensors keep content and address", content_and_addresses),
    ("memory of tags stays apart", tags_apart),
    ("nested regions", nested_regions),
    ("read equals the tensor, active and paused", reading),
    ("training with parked model and optimizer state", training),
    ("paused resumes after an exception", paused_after_an_exception),
    ("OutOfDeviceMemory on resume", out_of_memory_on_resume),
    ("out of memory on allocation", out_of_memory_on_allocation),
    ("cached memory goes back", cached_memory_goes_back),
    ("threads in one kind of region", threads_at_one_time),
    ("the example of docs/python.md", documentation),
):
    with check(f"{NAME}: {title}") as note:
        note.detail = action() or ""
    with check(f"{NAME}: nothing left after that"):
        nothing_left()
# The interpreter ends with pools and a tensor alive, and memory paused.
with ebb.torch.region("end", "disk"):
    last = make(8 * MiB, 1)
ebb.pause()
finish()
