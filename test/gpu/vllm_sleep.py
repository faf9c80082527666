"""vllm_sleep.py FOLDER: vLLM's sleep allocator and ebb in one process.

FOLDER holds, of the published vLLM wheel, only the allocator: its extension and its Python wrapper
(make gpu-wheels puts them into build/wheels). The rest of the package is large, and not needed:
what the wrapper imports of it stands below. Under the preloaded library, with or without
TMS_INIT_ENABLE=1.
"""

import gc
import glob
import importlib
import logging
import sys
import types

from gputest import *

EVERYTHING = bool(os.environ.get("TMS_INIT_ENABLE"))
NAME = "vllm, whole process managed" if EVERYTHING else "vllm"


def module(name, **content):
    """A module of the package, as far as the wrapper uses it."""
    made = types.ModuleType(name)
    made.__dict__.update(content)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, made)
    return made


class AllocationData:
    def __init__(self, handle, tag):
        self.handle, self.tag, self.cpu_backup_tensor, self.is_asleep = handle, tag, None, False


class Runtime:
    """The runtime's copy, from and to any memory."""

    def cudaMemcpy(self, to, source, size):
        code = ctypes.CDLL(CUDART).cudaMemcpy(ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size), 4)
        assert code == 0, f"cudaMemcpy: {code}"


def loaded(name):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(line.split(maxsplit=5)[-1].strip() for line in maps if name in line)


def allocator(folder):
    """vLLM's CuMemAllocator."""
    for library in glob.glob(os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia", "*", "lib", "libnvrtc.so.*")):
        if "builtins" not in library:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)  # the extension was linked with it, and does not use it
    module("vllm", __path__=[os.path.join(folder, "vllm")])
    module("vllm.device_allocator", __path__=[os.path.join(folder, "vllm/device_allocator")], AllocationData=AllocationData,
           HandleType=tuple, DEFERRABLE_TAGS=("weights", "kv_cache"))
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.platforms", current_platform=types.SimpleNamespace(is_rocm=lambda: False))
    module("vllm.utils")
    module("vllm.utils.system_utils", find_loaded_library=loaded)
    module("vllm.utils.torch_utils", PIN_MEMORY=True)
    module("vllm.distributed")
    module("vllm.distributed.device_communicators")
    module("vllm.distributed.device_communicators.cuda_wrapper", CudaRTLibrary=Runtime)
    return importlib.import_module("vllm.device_allocator.cumem").CuMemAllocator.get_instance()


def device_free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def filled(size, seed):
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    fill_random(tensor, seed)
    return tensor


ebb = Ebb()
sleeper = allocator(sys.argv[1])
with sleeper.use_memory_pool("weights"):
    weights = torch.empty(300 * MiB, dtype=torch.uint8, device="cuda")
with sleeper.use_memory_pool("kv_cache"):
    cache = torch.empty(500 * MiB, dtype=torch.uint8, device="cuda")
fill_random(weights, 1)
fill_random(cache, 2)
with ebb.region(tag="trainer", backup="disk"):
    address = malloc(200 * MiB)
trainer = view(address, 200 * MiB)
fill_random(trainer, 3)
before = {"weights": fingerprint(weights), "cache": fingerprint(cache), "trainer": fingerprint(trainer)}
SLEEPING = weights.nbytes + cache.nbytes


def same(cache_too=True):
    assert fingerprint(weights) == before["weights"], "weights"
    assert fingerprint(trainer) == before["trainer"], "memory of the trainer"
    assert not cache_too or fingerprint(cache) == before["cache"], "cache"


def sleep_and_wake(tags):
    free = device_free()
    sleeper.sleep(offload_tags=tags)
    gained = device_free() - free
    assert gained >= SLEEPING - DRIVER_OWN, f"its sleep gave back {gained >> 20} MiB of {SLEEPING >> 20}"
    sleeper.wake_up()
    same(cache_too="kv_cache" in tags)
    return f"{gained / MiB:.0f} MiB"


def its_sleep_alone():
    return sleep_and_wake(("weights", "kv_cache"))


def ebbs_pause_alone():
    free = device_free()
    result = ebb.must_pause(*([] if EVERYTHING else ["trainer"]))
    gained = device_free() - free
    assert result.bytes >= trainer.nbytes + (SLEEPING if EVERYTHING else 0), result.bytes
    if not EVERYTHING:
        assert result.bytes < trainer.nbytes + MiB, "memory of the sleep allocator, made outside of regions, was parked"
        assert fingerprint(weights) == before["weights"]
    ebb.must_resume()
    same()
    return f"{result.bytes / MiB:.0f} MiB parked, {gained / MiB:.0f} MiB free again"


def pause_while_it_sleeps():
    sleeper.sleep(offload_tags=("weights", "kv_cache"))
    held, free = ebb.status(), device_free()
    result = ebb.must_pause("trainer") if not EVERYTHING else ebb.must_pause()
    gained = device_free() - free
    assert gained >= result.device_bytes - DRIVER_OWN, (gained, result.device_bytes)
    if EVERYTHING:
        assert result.bytes < trainer.nbytes + SLEEPING, "what sleeps was parked once more"
    ebb.must_resume()
    sleeper.wake_up()
    same()
    return f"{held['bytes_active'] / MiB:.0f} MiB managed while it sleeps"


def sleep_after_a_pause():
    ebb.must_pause()
    ebb.must_resume()
    return sleep_and_wake(("weights",))  # the cache's content goes, as asked


def all_is_freed():
    global weights, cache, trainer
    allocations = ebb.status()["allocations"]
    weights = cache = trainer = None
    free(address)
    gc.collect()
    sleeper.allocator_and_pools.clear()
    gc.collect()
    torch.cuda.empty_cache()
    assert ebb.status()["allocations"] < allocations, ebb.status()


for title, action in (
    ("its sleep works under the hook", its_sleep_alone),
    ("ebb's pause works beside it", ebbs_pause_alone),
    ("a pause while it sleeps parks nothing twice", pause_while_it_sleeps),
    ("its sleep works after a pause", sleep_after_a_pause),
    ("memory is freed", all_is_freed),
):
    with check(f"{NAME}: {title}") as note:
        note.detail = action() or ""
finish()
