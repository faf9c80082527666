"""bounded.py MIB CHUNK_MIB CACHE_MIB: parks MIB mebibytes on disk. The process's own memory may
grow by the chunk and 64 MiB at any moment, the files' page cache by CACHE_MIB."""

import os
import sys
import threading

from gpu import *

size, chunk, cache = (int(arg) * MiB for arg in sys.argv[1:])
disk = os.environ["E2E_DISK"]
ebb = Ebb()
before = private_memory()
peak = 0
done = threading.Event()


def watch():
    global peak
    while not done.is_set():
        peak = max(peak, private_memory())
        done.wait(0.002)


watcher = threading.Thread(target=watch)
watcher.start()
try:
    with ebb.region(backup="disk"):
        address = malloc(size)
    files = None
    for cycle in range(2):
        pattern = Pattern(1 + cycle, size)  # what is not new does not move
        pattern.write(address)
        result = ebb.must_pause()
        assert result.bytes == size and result.host_bytes == 0 and result.disk_bytes >= size
        cached = sum(page_cache_bytes(os.path.join(disk, name)) for name in backup_files(disk))
        assert cached <= cache, f"page cache holds {cached / MiB:.1f} MiB of the files"
        assert files is None or backup_files(disk) == files
        files = backup_files(disk)
        assert sum(files.values()) >= size
        ebb.must_resume()
        pattern.check(address)
finally:
    done.set()
    watcher.join()
grown = peak - before
print(f"grown by {grown / MiB:.1f} MiB while {size / MiB:.0f} MiB were parked, page cache {cached / MiB:.1f} MiB")
assert grown <= chunk + 64 * MiB, f"grown by {grown / MiB:.1f} MiB"
status = ebb.status()
assert status["staging_bytes"] <= chunk, status
print(f"direct_io={str(status['disk']['direct_io']).lower()}")
