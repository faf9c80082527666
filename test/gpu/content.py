"""content.py: what must hold around a pause and a resume on a real device. Disk backup unless a
check says otherwise."""

import os
import subprocess
import sys
import threading

from gputest import *

ebb = Ebb()
disk = os.environ["TMS_DISK_BACKUP_DIR"]


def cycle():
    ebb.must_pause()
    ebb.must_resume()


def managed(size, tag="default", backup="disk", backend="pinned"):
    with ebb.region(tag=tag, backup=backup, backend=backend):
        return malloc(size)


def every_size_and_backup():
    memory = []
    for backup, backend in (("disk", "pinned"), ("cpu", "pinned"), ("cpu", "mmap")):
        for size in (1, 511, 4097, 2 * MiB - 1, 2 * MiB, 2 * MiB + 1, 13 * MiB + 419431, 257 * MiB + 3):
            address = managed(size, f"{backup}-{backend}", backup, backend)
            fill_random(view(address, size), len(memory))
            memory.append((address, size))
    before = [fingerprint(view(*m)) for m in memory]
    for tags in ((), ("disk-pinned",), ("cpu-mmap", "cpu-pinned"), ()):
        ebb.must_pause(*tags)
        ebb.must_resume()
        assert [fingerprint(view(*m)) for m in memory] == before, f"after a pause of {tags or 'everything'}"
    for address, _ in memory:
        free(address)


def pytorch_tensors():
    # Tensors of PyTorch's allocator, of several kinds; its segments are managed.
    torch.cuda.empty_cache()
    with ebb.region(tag="torch", backup="disk"):
        tensors = [torch.randn(n, device="cuda", dtype=torch.float32).to(dtype)
                   for n in (3, 1000, 1 << 20, 33_000_001)
                   for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64)]
    before = [fingerprint(t) for t in tensors]
    places = [t.data_ptr() for t in tensors]
    for _ in range(2):
        assert ebb.must_pause("torch").bytes >= sum(t.nbytes for t in tensors[-4:])
        ebb.must_resume("torch")
    assert [fingerprint(t) for t in tensors] == before and [t.data_ptr() for t in tensors] == places
    # Freed while paused: the memory comes back neither then nor later.
    held = len(backup_files(disk))
    ebb.must_pause("torch")
    del tensors[1::2]
    torch.cuda.empty_cache()
    ebb.must_resume("torch")
    assert [fingerprint(t) for t in tensors] == before[::2]
    del tensors
    torch.cuda.empty_cache()
    assert len(backup_files(disk)) < held, "files of freed memory stay"


def pluggable_allocator():
    library = os.environ["LD_PRELOAD"].split(":")[0]
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "tms_torch_malloc", "tms_torch_free")
    pool = torch.cuda.MemPool(allocator.allocator())
    active = ebb.status()["bytes_active"]
    ebb.lib.tms_set_current_tag(b"pool")
    ebb.lib.tms_set_enable_disk_backup(True)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.arange(50_000_000, device="cuda")
    assert ebb.status()["bytes_active"] >= active + tensor.nbytes
    address = tensor.data_ptr()
    ebb.lib.tms_set_enable_disk_backup(False)
    ebb.lib.tms_set_enable_cpu_backup(True)
    with torch.cuda.use_mem_pool(pool):
        kept = torch.arange(40_000_000, device="cuda")
    ebb.lib.tms_set_enable_cpu_backup(False)
    result = ebb.must_pause("pool")
    assert result.bytes >= tensor.nbytes + kept.nbytes
    ebb.must_resume("pool")
    assert tensor.data_ptr() == address
    assert torch.equal(kept, torch.arange(40_000_000, device="cuda"))
    del tensor, kept, pool
    torch.cuda.empty_cache()


def work_on_other_streams():
    # Nobody waits for the work: PyTorch's streams do not wait for the legacy stream, nor it for them.
    size, rounds = 2 * MiB, 1000
    address = managed(size)
    x = view(address, size, torch.int64)
    x.fill_(1)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for done in range(1, rounds + 1):
        with torch.cuda.stream(streams[done % len(streams)]):
            torch.cuda._sleep(500_000_000 if done % 250 == 0 else 2_000_000)
            x.add_(1)
        cycle()
        assert bool((x == 1 + done).all()), f"round {done}: {x.unique().tolist()}"
    free(address)
    return f"{rounds} rounds"


def graph_replays():
    torch.cuda.empty_cache()
    with ebb.region(tag="graph", backup="disk"):
        x = torch.zeros(1 << 20, device="cuda")
        w = torch.randn(1024, 1024, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            (x.view(1024, 1024) @ w).relu()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x.view(1024, 1024) @ w).relu() + 1
    x.copy_(torch.randn(1 << 20, device="cuda", generator=torch.Generator("cuda").manual_seed(1)))
    graph.replay()
    before = fingerprint(y)
    for _ in range(3):
        assert ebb.must_pause("graph").allocations > 0
        ebb.must_resume("graph")
        assert fingerprint(y) == before, "content"
        y.zero_()
        graph.replay()
        assert fingerprint(y) == before, "the replay after a resume"
    del graph, x, w, y
    torch.cuda.empty_cache()


def capture_refuses():
    address = managed(4 * MiB)
    other = managed(4 * MiB)
    x = view(address, 4 * MiB, torch.int64)
    x.fill_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        code, _ = ebb.pause()
        refused_free = PROCESS.cudaFree(other)
        x.add_(1)
    assert code == CAPTURE, (code, ebb.error())
    assert refused_free != 0, "cudaFree during a capture was not refused"
    graph.replay()
    torch.cuda.synchronize()
    assert bool((x == 3).all()), "the capture was disturbed"
    cycle()
    graph.replay()
    assert bool((x == 5).all())
    free(address)
    free(other)


def free_while_paused():
    addresses = [managed(8 * MiB) for _ in range(3)]
    for seed, address in enumerate(addresses):
        fill_random(view(address, 8 * MiB), seed)
    before = [fingerprint(view(a, 8 * MiB)) for a in addresses]
    ebb.must_pause()
    files = len(backup_files(disk))
    free(addresses[1])
    assert len(backup_files(disk)) == files - 1
    fresh = managed(8 * MiB)
    view(fresh, 8 * MiB).fill_(7)
    ebb.must_resume()
    assert [fingerprint(view(addresses[i], 8 * MiB)) for i in (0, 2)] == [before[0], before[2]]
    assert bool((view(fresh, 8 * MiB) == 7).all())
    for address in (addresses[0], addresses[2], fresh):
        free(address)


class Hog:
    """Another process that takes all memory but some."""

    def __init__(self, leave_mib):
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        self.process = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "hog.py"), CUDART, str(leave_mib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        answer = self.process.stdout.readline().strip()
        assert answer == "ready", answer

    def leave(self):
        self.process.communicate()


def resume_without_memory():
    torch.cuda.empty_cache()
    size = 512 * MiB
    memory = {managed(size): seed for seed in range(4)}
    for address, seed in memory.items():
        fill_random(view(address, size), seed)
    torch.cuda.empty_cache()
    before = [fingerprint(view(address, size)) for address in memory]
    torch.cuda.empty_cache()
    ebb.must_pause()
    hog = Hog(1024)
    try:
        left = torch.cuda.mem_get_info()[0]
        code, _ = ebb.resume()
        text = ebb.error()
        assert code == DEVICE_MEMORY, (code, text)
        assert abs(torch.cuda.mem_get_info()[0] - left) <= 4 * MiB, "a resume that failed holds device memory"
        assert ebb.status()["bytes_active"] == 0
    finally:
        hog.leave()
    ebb.must_resume(timeout=20)
    assert [fingerprint(view(address, size)) for address in memory] == before
    # A resume that may wait succeeds once the other has left.
    torch.cuda.empty_cache()
    ebb.must_pause()
    hog = Hog(1024)
    leave = threading.Thread(target=hog.leave)
    leave.start()
    ebb.must_resume(timeout=60)
    leave.join()
    assert [fingerprint(view(address, size)) for address in memory] == before
    for address in memory:
        free(address)
    return text


def context_is_untouched():
    current, stream = torch.cuda.current_device(), torch.cuda.current_stream()
    driver = ctypes.CDLL("libcuda.so.1")
    before, after = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(before)) == 0
    address = managed(4 * MiB)
    cycle()
    assert driver.cuCtxGetCurrent(ctypes.byref(after)) == 0
    assert before.value == after.value and torch.cuda.current_device() == current and torch.cuda.current_stream() == stream

    # A thread that never touched CUDA has no context, and gets none from ebb.
    seen = []

    def fresh():
        cycle()
        context = ctypes.c_void_p()
        seen.append((driver.cuCtxGetCurrent(ctypes.byref(context)), context.value))

    thread = threading.Thread(target=fresh)
    thread.start()
    thread.join()
    assert seen == [(0, None)], seen
    free(address)


for name, action in (
    ("every size in every backup comes back", every_size_and_backup),
    ("PyTorch tensors keep content and address", pytorch_tensors),
    ("PyTorch pool over tms_torch_malloc", pluggable_allocator),
    ("work on other streams is waited for", work_on_other_streams),
    ("CUDA graph replays after a cycle", graph_replays),
    ("pause and free during a capture are refused", capture_refuses),
    ("free and allocate while paused", free_while_paused),
    ("resume without memory fails, later succeeds", resume_without_memory),
    ("the caller's context stays current", context_is_untouched),
):
    with check(name) as note:
        note.detail = action() or ""
with check("all memory and files were given back"):
    torch.cuda.empty_cache()
    # PyTorch keeps cuBLAS workspaces, which it made inside the region of the graph, for good.
    workspaces = sum(t["allocations"] for t in ebb.status()["tags"] if t["tag"] == "graph")
    status = ebb.status()
    assert status["allocations"] == workspaces and len(backup_files(disk)) <= workspaces, status
finish()
