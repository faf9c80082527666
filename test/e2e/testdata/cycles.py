"""cycles.py END: parks the same memory again and again, into the same files of the same size, and
ends as END says."""

import os
import signal
import sys

from gpu import *

end = sys.argv[1]
disk = os.environ["TMS_DISK_BACKUP_DIR"]
ebb = Ebb()
with ebb.region(backup="disk"):
    memory = {malloc(size): size for size in (511, 2 * MiB, 9 * MiB + 77)}
first = None
for cycle in range(4):
    for address, size in memory.items():
        Pattern(f"{cycle} {size}", size).write(address)
    ebb.must_pause()
    files = backup_files(disk)
    assert len(files) == len(memory), files
    assert first is None or files == first, (first, files)
    assert all(os.stat(os.path.join(disk, name)).st_mode & 0o777 == 0o600 for name in files)
    first = files
    assert ebb.status()["disk"]["files"] == len(files)
    ebb.must_resume()
    for address, size in memory.items():
        Pattern(f"{cycle} {size}", size).check(address)

match end:
    case "free":
        for address in memory:
            free(address)
        assert backup_files(disk) == {}
    case "normal":
        pass
    case "exit-paused":
        ebb.must_pause()
        sys.exit(0)
    case "exception":
        ebb.must_pause()
        raise RuntimeError("the training loop failed")
    case "sigterm-handled":
        ebb.must_pause()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        os.kill(os.getpid(), signal.SIGTERM)
    case "sigkill":
        ebb.must_pause()
        print("paused", len(backup_files(disk)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
