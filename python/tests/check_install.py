"""check_install.py PIP: installs the package both ways, into folders of their own, and uses what came of it over the
software GPU: the wheel in dist/, which carries the libraries, and the folder python/ alone."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

CYCLE = """
import sys
sys.path[1:1] = sys.argv[1:]
import ebb
from gpu import MiB, Pattern, malloc
with ebb.region(backup="disk"):
    address = malloc(3 * MiB)
pattern = Pattern("wheel", 3 * MiB)
pattern.write(address)
with ebb.paused() as done:
    assert done.allocations == 1
pattern.check(address)
print(sorted({line.split()[-1] for line in open("/proc/self/maps") if "libebb" in line}))
"""


def output(*command, **environment):
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout.strip()


def install(pip, what, where):
    subprocess.run([pip, "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--target", str(where), str(what)], check=True)
    assert (where / "ebb/py.typed").exists()


def main():
    pip, work = sys.argv[1], pathlib.Path(tempfile.mkdtemp(prefix="install-", dir=ROOT / "build"))
    try:
        (wheel,) = (ROOT / "dist").glob("ebb-*.whl")
        site = work / "wheel"
        install(pip, wheel, site)
        path = output(sys.executable, "-m", "ebb", "preload-path", PYTHONPATH=str(site))
        folder = site / "ebb/lib/torch_memory_saver"
        assert path == str(folder / "libebb.so"), path
        loaded = output(
            sys.executable, "-c", CYCLE, str(site), str(ROOT / "test/e2e/testdata"), str(ROOT / "test/python"),
            LD_PRELOAD=path, LD_LIBRARY_PATH=str(ROOT / "dist/lib/softgpu"), SOFTGPU_NODE=f"install-{os.getpid()}",
            SOFTGPU_MEM_MB="64", TMS_DISK_BACKUP_DIR=str(work), TMS_DISK_BACKUP_CHUNK_MB="4",
        )
        assert loaded == str([str(folder / "libebb-engine.so"), str(folder / "libebb.so")]), loaded
        # The command is in the wheel too, and finds the libraries there.
        settings = output(
            sys.executable, "-c", "import ebb.ray; print(ebb.ray.runtime_env(rank=1, job='j', supervised=False)['env_vars']['LD_PRELOAD'])",
            PYTHONPATH=str(site),
        )
        assert settings == f"{path}:${{LD_PRELOAD}}", settings

        # Elsewhere, so that setuptools leaves nothing in the source tree.
        source = shutil.copytree(ROOT / "python", work / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "tests"))
        install(pip, source, work / "plain")
        plain = subprocess.run(
            [sys.executable, "-m", "ebb", "preload-path"], env={"PATH": os.environ["PATH"], "PYTHONPATH": str(work / "plain")},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
        )
        assert plain.returncode == 1 and "carries no libebb.so" in plain.stderr and "make wheel" in plain.stderr, plain
    finally:
        shutil.rmtree(work)
    print("python install: wheel and folder work")


if __name__ == "__main__":
    main()
