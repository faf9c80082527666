"""launched.py DIRECTORY JOB STATUS: a rank. It fills memory, parks it, says in DIRECTORY/JOB.RANK.json who and where it
is, waits until DIRECTORY/go.JOB is there (it ends when DIRECTORY is gone), brings the memory back, looks at it, and ends
with STATUS."""

import json
import os
import pathlib
import sys
import time

import gpu
import ebb

directory, job, status = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rank = os.environ["RANK"]
size = 4 << 20
pattern = gpu.Pattern(f"{job} {rank}", size)
memory = gpu.malloc(size)
pattern.write(memory)
ebb.pause()

dirs = os.environ.get("EBB_DISK_DIRS") or os.environ["TMS_DISK_BACKUP_DIR"]
record = {
    "RANK": rank, "LOCAL_RANK": os.environ.get("LOCAL_RANK"), "WORLD_SIZE": os.environ.get("WORLD_SIZE"),
    "LOCAL_WORLD_SIZE": os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE"),
    "EBB_JOB": os.environ["EBB_JOB"], "EBB_RANK": os.environ["EBB_RANK"],
    "Dir": dirs, "Files": sum(1 for path in pathlib.Path(dirs).iterdir() if path.name.startswith("ebb-")),
    "PID": os.getpid(), "Launcher": os.getppid(),
}
said = directory / f"{job}.{rank}.json"
unfinished = said.with_suffix(".part")
unfinished.write_text(json.dumps(record))
unfinished.rename(said)

while not (directory / f"go.{job}").exists():  # a test says when
    if not directory.exists():
        sys.exit("the test has ended")
    time.sleep(0.02)
ebb.resume()
pattern.check(memory)
print(f"{job} rank {rank}: the memory is what it was", flush=True)
sys.exit(status)
