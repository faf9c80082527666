"""What the programs of this folder share: the adopted torch_memory_saver in the hook mode that the
command line names (preload or torch), used by its public API only."""

import sys

from gputest import *
from torch_memory_saver import torch_memory_saver as saver

MODE = sys.argv[1]
saver.hook_mode = MODE


def device_free():
    """What the driver has left."""
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def filled(size, seed=0, **region):
    """A tensor of random bytes made in a region with these settings."""
    with saver.region(**region):
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    fill_random(tensor, seed)
    return tensor


@contextlib.contextmanager
def parked(tag, *tensors):
    """The body runs while a tag, or everything for None, is paused. Checks that the driver gets the
    tensors' memory and gives it again at the same addresses."""
    places = [tensor.data_ptr() for tensor in tensors]
    torch.cuda.empty_cache()  # what PyTorch only keeps is not to count
    before = device_free()
    saver.pause(tag)
    try:
        freed, size = device_free() - before, sum(tensor.nbytes for tensor in tensors)
        assert freed >= size - DRIVER_OWN, f"the driver got {freed >> 20} MiB of {size >> 20}"
        yield
    finally:
        torch.cuda.empty_cache()
        saver.resume(tag)
    taken = before - device_free()
    assert abs(taken) <= DRIVER_OWN, f"after the resume {taken >> 20} MiB more are taken than before"
    assert [tensor.data_ptr() for tensor in tensors] == places


def run(checks):
    """Runs functions; each is one check, whose name is its first line of documentation."""
    for function in checks:
        with check(f"tms {MODE}: {function.__doc__.splitlines()[0]}") as note:
            note.detail = function() or ""
