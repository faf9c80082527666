"""fork.py CHILD active|paused: a training process whose engine is loaded and in use starts
children in the way CHILD. They must work and end; its own memory and files must not notice."""

import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import threading

from gpu import *

kind, when = sys.argv[1:]
disk = os.environ["E2E_DISK"]
ebb = Ebb()

patterns = {}
for i, backup in enumerate(["disk", "cpu", "disk"]):
    with ebb.region(tag=f"tag{i}", backup=backup):
        address = malloc(3 * MiB + 5)
    patterns[address] = Pattern(i, 3 * MiB + 5)
    patterns[address].write(address)


def child(action):
    """Runs action in a forked child and returns the child's exit status."""
    pid = os.fork()
    if pid == 0:
        action()
        sys.exit(0)  # through Python's and C's exit handlers
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def children_that_exit():
    assert child(lambda: os._exit(7)) == 7
    assert child(lambda: None) == 0
    assert child(lambda: sys.exit(3)) == 3
    # A grandchild, while the child is still there.
    assert child(lambda: sys.exit(child(lambda: sys.exit(5)))) == 5


def children_that_call_ebb():
    def refused():
        assert ebb.pause()[0] == FORKED
        assert "fork" in ebb.error(), ebb.error()
        assert ebb.resume()[0] == FORKED
        assert ebb.lib.ebb_status(None, 0, None) == FORKED
        assert ebb.lib.tms_pause(b"tag0") == FORKED
        assert ebb.lib.tms_resume(b"tag0") == FORKED

    def passed_on():
        # What the driver says to a forked child is its business; ebb only may not stand in the way.
        for address in patterns:
            ebb.lib.cudaFree(ctypes.c_void_p(address))
        ebb.lib.tms_set_interesting_region(True)
        pointer = ctypes.c_void_p()
        ebb.lib.cudaMalloc(ctypes.byref(pointer), MiB)

    assert child(refused) == 0
    assert child(passed_on) == 0


def square(x):
    return x * x


def pools():
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        assert pool.map(square, range(100), chunksize=3) == [x * x for x in range(100)]
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as executor:
        assert list(executor.map(square, range(20))) == [x * x for x in range(20)]


def batches(worker, queue):
    for i in range(5):
        queue.put((worker, i, bytes([worker]) * 100_000))


def data_loader():
    # As PyTorch's DataLoader does: forked workers fill a queue, and are ended by their parent.
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=batches, args=(i, queue), daemon=True) for i in range(4)]
    for worker in workers:
        worker.start()
    seen = {queue.get()[:2] for _ in range(20)}
    assert seen == {(w, i) for w in range(4) for i in range(5)}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    forever = context.Process(target=threading.Event().wait, daemon=True)
    forever.start()
    forever.terminate()
    forever.join()
    assert forever.exitcode == -15


def subprocesses():
    for extra in ({}, {"preexec_fn": os.setsid}, {"close_fds": False}):
        for command, expected in ((["true"], ""), (["git", "--version"], "git version"), (["bash", "-c", "echo $((6 * 7))"], "42"), ([sys.executable, "-c", "print(8)"], "8")):
            done = subprocess.run(command, check=True, capture_output=True, text=True, **extra)
            assert expected in done.stdout and done.stderr == "", done
    spawn = multiprocessing.get_context("spawn").Process(target=square, args=(3,))
    spawn.start()
    spawn.join()
    assert spawn.exitcode == 0


def children_during_pauses():
    # Another thread pauses and resumes all the while.
    stop, failed = threading.Event(), []

    def cycles():
        try:
            while not stop.is_set():
                ebb.must_pause()
                ebb.must_resume()
        except BaseException as err:
            failed.append(err)

    thread = threading.Thread(target=cycles)
    thread.start()
    try:
        for _ in range(25):
            assert child(lambda: None) == 0
            assert child(lambda: sys.exit(ebb.pause()[0])) == FORKED
    finally:
        stop.set()
        thread.join()
    assert not failed, failed
    if when == "paused":
        ebb.must_pause()


def deleted_backups(pid):
    """Backup files without a name that a process keeps open."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if ".bak" in path and path.endswith("(deleted)"):
            found.append(path)
    return found


def children_that_stay():
    # Forked at any moment of a cycle, they are there when the memory is freed and the files go.
    children, stop, failed = [], threading.Event(), []
    reader, writer = os.pipe()
    ready, tell = os.pipe()

    def stay():
        os.close(writer)
        os.write(tell, b".")
        os.read(reader, 1)  # until the parent closes it
        os._exit(0)

    def cycles():
        try:
            while not stop.is_set():
                with ebb.region(backup="disk"):
                    address = malloc(2 * MiB)
                ebb.must_pause()
                ebb.must_resume()
                free(address)
        except BaseException as err:
            failed.append(err)

    thread = threading.Thread(target=cycles)
    thread.start()
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            stay()
        children.append(pid)
    for _ in children:
        assert os.read(ready, 1) == b"."
    stop.set()
    thread.join()
    kept = {pid: deleted_backups(pid) for pid in children}
    for fd in (writer, reader, ready, tell):
        os.close(fd)
    for pid in children:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not failed, failed
    assert not any(kept.values()), kept
    if when == "paused":
        ebb.must_pause()


def main():
    ebb.must_pause()
    files = backup_files(disk)
    assert len(files) == 2, files
    if when == "active":
        ebb.must_resume()
    {
        "exit": children_that_exit,
        "call": children_that_call_ebb,
        "pools": pools,
        "loader": data_loader,
        "subprocess": subprocesses,
        "during": children_during_pauses,
        "stay": children_that_stay,
    }[kind]()
    assert backup_files(disk) == files, "a child changed the parent's files"
    if when == "paused":
        ebb.must_resume()
    for address, pattern in patterns.items():
        pattern.check(address)
    for _ in range(2):
        ebb.must_pause()
        ebb.must_resume()
    for address, pattern in patterns.items():
        pattern.check(address)
        free(address)


if __name__ == "__main__":
    main()
