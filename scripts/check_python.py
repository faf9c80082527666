#!/usr/bin/env python3
"""Checks the Python of this repository.

Every Python file must compile. The unit tests of the package (python/tests) must pass with this
interpreter, and with the oldest one on this machine that the package supports; those of streamed
optimizers with one that has a PyTorch for CPUs: this one, or Debian's with its package python3-torch, which is
fetched where that is allowed. The package must install, as a folder and as the wheel that `make wheel` builds. Each step ends with one line.

With the names of unit tests that need PyTorch as arguments, only these are run.
"""

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OLDEST = (3, 9)


def sources():
    """All Python files that git knows or would add."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in out.split("\0") if name and (ROOT / name).exists()]


def compiles():
    failed, files = 0, sources()
    for path in files:
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as err:
            print(f"{path.relative_to(ROOT)}: {err}")
            failed += 1
    print(f"python files: {len(files) - failed} compile, {failed} failed")
    return failed == 0


def version(python):
    """(major, minor) of an interpreter; None when it does not start."""
    try:
        out = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True).stdout
        return tuple(int(part) for part in out.split()) or None
    except (OSError, ValueError):
        return None


def interpreters():
    """This one, and the oldest supported one that is older."""
    places = os.environ["PATH"].split(os.pathsep) + glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin"))
    found = {sys.version_info[:2]: sys.executable}
    for place in places:
        for python in glob.glob(os.path.join(place, "python3.*")):
            if re.fullmatch(r"python3\.\d+", os.path.basename(python)):
                this = version(python)
                if this is not None and this >= OLDEST:
                    found.setdefault(this, python)
    return [sys.executable] + [found[v] for v in sorted(found)[:1] if v < sys.version_info[:2]]


def has_torch(python):
    """Whether it has a PyTorch for CPUs. One for CUDA does not load over the software GPU's runtime."""
    program = "import sys, torch; sys.exit(torch.version.cuda is not None)"
    return subprocess.run([python, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def with_torch():
    """An interpreter that has PyTorch; None when there is none."""
    if has_torch(sys.executable):
        return sys.executable
    debian = "/usr/bin/python3"
    if not os.path.exists(debian):
        return None
    if not has_torch(debian) and os.geteuid() == 0 and shutil.which("apt-get") and os.environ.get("EBB_CI"):
        print("python tests: installing python3-torch", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", "python3-torch"]):
            subprocess.run([str(ROOT / "scripts/again.sh"), "apt-get", "-qq", *command], env=environment, stdout=subprocess.DEVNULL)
    return debian if has_torch(debian) else None


def unit_tests(python, *names):
    print(f"python tests: Python {'.'.join(map(str, version(python)))}{''.join(', ' + name for name in names)}", flush=True)
    done = subprocess.run([python, str(ROOT / "python/tests/run.py"), *names], stderr=subprocess.PIPE, text=True)
    ran = re.search(r"^Ran (\d+) tests?\b", done.stderr, re.M)
    if done.returncode != 0 or ran is None or int(ran.group(1)) == 0:
        print(done.stderr, end="")
        print("python tests: failed")
        return False
    skipped = re.search(r"skipped=(\d+)", done.stderr)
    count = int(skipped.group(1)) if skipped else 0
    print(f"python tests: {int(ran.group(1)) - count} passed{f', {count} skipped' if count else ''}")
    return True


def optimizer_tests(*names):
    python = with_torch()
    if python is None:
        print("python tests: skipped: those of streamed optimizers need PyTorch (apt-get install python3-torch)")
        return True
    return unit_tests(python, *names)


def installs():
    wheel = subprocess.run([str(ROOT / "scripts/build-wheel.sh")], env={**os.environ, "PYTHON": sys.executable})
    if wheel.returncode == 3 and not os.environ.get("EBB_CI"):
        return True  # it has said why
    return wheel.returncode == 0 and subprocess.run(
        [sys.executable, str(ROOT / "python/tests/check_install.py"), str(ROOT / "build/venv/bin/pip")]).returncode == 0


def main():
    if sys.argv[1:]:
        return 0 if optimizer_tests(*sys.argv[1:]) else 1
    good = compiles()
    for python in interpreters():
        good = unit_tests(python) and good
    names = sorted(path.stem for path in (ROOT / "python/tests").glob("test_optim*.py"))
    good = optimizer_tests(*names, "test_megatron") and good
    good = installs() and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
