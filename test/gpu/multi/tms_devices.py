"""tms_devices.py MODE LIBRARY: the published torch_memory_saver on two GPUs in one process, by its public API, in hook mode
preload (started by tms/start.py) or torch. LIBRARY is the name of what is in place: ebb, or the package's own."""

from saver import *

from multi import deadline

LIBRARY = sys.argv[2]
BACKUPS = {"cpu": {"enable_cpu_backup": True}, "disk": {"enable_disk_backup": True}}


def on(device, seed, **region):
    with torch.cuda.device(device):
        return filled(64 * MiB, seed, **region)


def free_of_each():
    return [torch.cuda.mem_get_info(device)[0] for device in (0, 1)]


def hashes(tensors):
    found = []
    for tensor in tensors:
        with torch.cuda.device(tensor.device):
            found.append(fingerprint(tensor))
    return found


def each_device_by_itself():
    """a tag on each GPU, paused by itself"""
    tensors = [on(device, device, tag=f"gpu{device}", enable_cpu_backup=True) for device in (0, 1)]
    known = hashes(tensors)
    for device in (0, 1):
        before = free_of_each()
        saver.pause(f"gpu{device}")
        risen = [after - then for after, then in zip(free_of_each(), before)]
        assert risen[device] >= 64 * MiB - DRIVER_OWN and abs(risen[1 - device]) <= DRIVER_OWN, f"became free: {risen}"
        saver.resume(f"gpu{device}")
    assert hashes(tensors) == known


def both_at_once():
    """both GPUs under one tag"""
    for name, backup in BACKUPS.items():
        tensors = [on(device, 10 + device, tag=name, **backup) for device in (0, 1)]
        known, places = hashes(tensors), [tensor.data_ptr() for tensor in tensors]
        before = free_of_each()
        saver.pause(name)
        risen = [after - then for after, then in zip(free_of_each(), before)]
        assert all(each >= 64 * MiB - DRIVER_OWN for each in risen), f"{name}: became free: {risen}"
        saver.resume(name)
        assert hashes(tensors) == known and [tensor.data_ptr() for tensor in tensors] == places, f"{name}: bytes or places differ"


def one_region():
    """both GPUs in one region"""
    with saver.region(tag="region", enable_cpu_backup=True):
        tensors = [torch.full((64 * MiB,), 1 + device, dtype=torch.uint8, device=f"cuda:{device}") for device in (0, 1)]
    before = free_of_each()
    saver.pause("region")
    risen = [after - then for after, then in zip(free_of_each(), before)]
    saver.resume("region")
    assert all(bool((tensor == 1 + tensor.device.index).all()) for tensor in tensors), "bytes differ"
    assert risen[0] >= 64 * MiB - DRIVER_OWN, f"became free: {risen}"
    return f"became free: {risen[0] / MiB:.0f} and {risen[1] / MiB:.0f} MiB"


for device in (0, 1):  # contexts and kernels, which stay
    with torch.cuda.device(device):
        fingerprint(filled(MiB, tag="warm-up", enable_cpu_backup=True))
saver.pause("warm-up")
saver.resume("warm-up")
for function in each_device_by_itself, both_at_once, one_region:
    deadline()
    with check(f"tms, {LIBRARY}, {MODE}: {function.__doc__}") as note:
        note.detail = function() or ""
deadline()
finish()
