"""main.py MODE: the public API of the adopted torch_memory_saver in hook mode preload (started by
start.py) or torch, over real device memory. Wants TMS_DISK_BACKUP_DIR."""

from saver import *

import backup
import graphs
import nested
import shortage
import simple
import tags


def one_library():
    """the package uses ebb's library, once"""
    filled(MiB, tag="loads the engine")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps}
    mapped = sorted(path for path in paths if "libebb" in path or "hook_mode" in path)
    assert [path.rsplit("/", 1)[-1] for path in mapped] == ["libebb-engine.so", "libebb.so"], mapped
    assert saver.enabled


def warm_up():
    """the kernels and streams of the checks are loaded, which takes device memory for good"""
    outside = torch.arange(1 << 20, device="cuda")
    tensor = filled(4 * MiB, tag="warm-up", enable_cpu_backup=True)
    fingerprint(tensor)
    bool((outside == torch.arange(1 << 20, device="cuda")).all())
    int(torch.full((MiB,), 3, dtype=torch.uint8, device="cuda").sum(dtype=torch.int64))
    tensor.fill_(7)
    bool((tensor == 7).all())
    saver.pause("warm-up")
    saver.resume("warm-up")


for checks in ([one_library, warm_up], simple.CHECKS, tags.CHECKS, backup.CHECKS, graphs.CHECKS, shortage.CHECKS, nested.CHECKS):
    run(checks)
finish()
