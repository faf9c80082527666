"""children.py: children of a process that uses the GPU under ebb, while its memory is on the GPU
and while it is parked."""

import multiprocessing
import os
import subprocess

from gputest import *

ebb = Ebb()
disk = os.environ["TMS_DISK_BACKUP_DIR"]


def square(x):
    return x * x


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((1000,), i)


def fork_pool():
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(square, range(100)) == [x * x for x in range(100)]


def data_loader():
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=3, multiprocessing_context="fork")
    assert sorted(int(row[0]) for batch in loader for row in batch) == list(range(64))


def programs():
    for command in (["true"], ["bash", "-c", "true"], ["git", "--version"], ["nvidia-smi", "-L"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            continue
        assert done.returncode == 0 and "ebb" not in done.stderr, done


def refused():
    pid = os.fork()
    if pid == 0:
        os._exit(ebb.pause()[0])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == FORKED


size = 64 * MiB
with ebb.region(backup="disk"):
    address = malloc(size)
tensor = view(address, size)
fill_random(tensor, 1)
before = fingerprint(tensor)
ebb.must_pause()
files = backup_files(disk)
ebb.must_resume()
for state in ("active", "parked"):
    if state == "parked":
        ebb.must_pause()
    for name, action in (("fork pool", fork_pool), ("DataLoader with workers", data_loader), ("programs", programs), ("ebb_pause in a forked child is refused", refused)):
        with check(f"{name}, memory {state}"):
            action()
            assert backup_files(disk) == files
ebb.must_resume()
with check("content after all children"):
    assert fingerprint(tensor) == before
finish()
