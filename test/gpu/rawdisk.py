"""What a disk does without ebb: reads and writes with O_DIRECT, by threads, of files that are
preallocated and already written. Standard library only.

rawdisk.py DIR TOTAL_MIB BLOCK_MIB WORKERS [ROUNDS] measures by itself.
"""

import mmap
import os
import statistics
import sys
import threading
import time


class RawDisk:
    """Files of the given sizes in a directory, and one aligned buffer of random bytes for each
    worker. The sizes are rounded up to whole pages."""

    def __init__(self, directory, sizes, block, workers):
        self.block = block
        self.paths, self.fds, self.jobs = [], [], []
        self.buffers = [mmap.mmap(-1, block) for _ in range(workers)]
        for buffer in self.buffers:
            buffer.write(os.urandom(block))
        try:
            for i, size in enumerate(sizes):
                size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
                path = os.path.join(directory, f"raw-{os.getpid()}-{i}.bin")
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
                self.paths.append(path)
                self.fds.append(fd)
                os.posix_fallocate(fd, 0, size)
                self.jobs += [(fd, offset, min(block, size - offset)) for offset in range(0, size, block)]
            self.total = sum(length for _, _, length in self.jobs)
            self.write()  # extents are written once before they are measured
        except BaseException:
            self.close()
            raise

    def close(self):
        for fd in self.fds:
            os.close(fd)
        for path in self.paths:
            os.unlink(path)
        self.fds, self.paths = [], []

    def write(self):
        """Seconds to write everything once."""
        return self._run(lambda fd, buffer, offset: os.pwritev(fd, [buffer], offset))

    def read(self):
        """Seconds to read everything once."""
        return self._run(lambda fd, buffer, offset: os.preadv(fd, [buffer], offset))

    def _run(self, transfer):
        jobs, lock, errors = iter(self.jobs), threading.Lock(), []

        def worker(buffer):
            whole = memoryview(buffer)
            try:
                while True:
                    with lock:
                        job = next(jobs, None)
                    if job is None or errors:
                        return
                    fd, offset, length = job
                    done = 0
                    while done < length:
                        done += transfer(fd, whole[done:length], offset + done)
            except OSError as err:
                errors.append(err)
            finally:
                whole.release()

        threads = [threading.Thread(target=worker, args=(buffer,)) for buffer in self.buffers]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begin
        if errors:
            raise errors[0]
        return seconds


def main():
    directory, total, block, workers = sys.argv[1], int(sys.argv[2]) << 20, int(sys.argv[3]) << 20, int(sys.argv[4])
    rounds = int(sys.argv[5]) if len(sys.argv) > 5 else 5
    disk = RawDisk(directory, [total], block, workers)
    try:
        writes, reads = zip(*[(disk.write(), disk.read()) for _ in range(rounds)])
    finally:
        disk.close()
    for name, seconds in ("write", writes), ("read", reads):
        rates = sorted(disk.total / s / 1e9 for s in seconds)
        print(f"raw {name}: median {statistics.median(rates):.2f} GB/s, lowest {rates[0]:.2f}, highest {rates[-1]:.2f}")


if __name__ == "__main__":
    main()
