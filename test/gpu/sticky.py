"""sticky.py: a kernel that touches paused memory breaks the CUDA context for good. What was paused
can be read all the same, from every kind of backup."""

from gputest import *

ebb = Ebb()
ebb.lib.ebb_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
MODES = {"disk": dict(backup="disk"), "pinned": dict(backup="cpu"), "mmap": dict(backup="cpu", backend="mmap")}


def read(address, size):
    buffer = ctypes.create_string_buffer(size)
    code = ebb.lib.ebb_read(address, size, buffer)
    assert code == OK, f"ebb_read: {code}: {ebb.error()}"
    return buffer.raw[:size]


size = 24 * MiB + 17
memory = {}
for seed, (name, mode) in enumerate(MODES.items()):
    with ebb.region(tag=name, **mode):
        address = malloc(size)
    tensor = view(address, size)
    fill_random(tensor, seed)
    memory[name] = address, bytes(tensor.cpu().numpy().data)
torch.zeros(1, device="cuda").add_(1)  # kernels are loaded while the context works
ebb.must_pause()

with check("content: a kernel that touches paused memory breaks the context") as note:
    try:
        tensor.add_(1)
        torch.cuda.synchronize()
    except RuntimeError as err:
        note.detail = str(err).splitlines()[0]
    assert note.detail, "paused memory was written"
    code = ctypes.CDLL(CUDART).cudaDeviceSynchronize()
    assert code != 0, "the context works again"
for name, (address, want) in memory.items():
    with check(f"content: ebb_read after that, {name}"):
        assert read(address, size) == want, "other bytes"
        assert read(address + 5 * MiB + 3, 1000) == want[5 * MiB + 3:][:1000], "other bytes inside"
with check("content: a resume after that fails, and nothing is lost") as note:
    code, _ = ebb.resume()
    assert code in (DEVICE, DEVICE_FAULT), (code, ebb.error())
    note.detail = ebb.error()[:120]
    assert read(memory["disk"][0], size) == memory["disk"][1]
finish(at_once=True)
