#!/usr/bin/env python3
"""Runs the tests of the package, over the software GPU and under the preloaded library:

    python3 python/tests/run.py [arguments of unittest]

Needs what `make build` puts into dist/.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRELOAD = ROOT / "dist/lib/torch_memory_saver/libebb.so"
SOFTGPU = ROOT / "dist/lib/softgpu"
PATHS = ("python", "python/tests", "test/e2e/testdata", "test/python")


def main() -> int:
    for need in (PRELOAD, SOFTGPU / "libcuda.so.1", ROOT / "dist/lib/libebb-engine.so"):
        if not need.exists():
            print(f"run.py: {need} is missing (make build)", file=sys.stderr)
            return 1
    (ROOT / "build").mkdir(exist_ok=True)
    work = tempfile.mkdtemp(prefix="python-tests-", dir=ROOT / "build")
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "EBB_CI", "EBB_TEST_SEED", "EBB_TEST_LONG") if name in os.environ}
    environment.update(
        LC_ALL="C.UTF-8",
        PYTHONPATH=os.pathsep.join(str(ROOT / path) for path in PATHS),
        PYTHONDONTWRITEBYTECODE="1",
        LD_PRELOAD=str(PRELOAD),
        LD_LIBRARY_PATH=str(SOFTGPU),
        SOFTGPU_NODE=f"python-{os.getpid()}",
        SOFTGPU_MEM_MB="256",
        TMS_DISK_BACKUP_DIR=work,
        TMS_DISK_BACKUP_CHUNK_MB="16",
    )
    command = [sys.executable, "-m", "unittest"] + (sys.argv[1:] or ["discover", "--start-directory", "python/tests"])
    try:
        return subprocess.run(command, cwd=ROOT, env=environment).returncode
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    sys.exit(main())
