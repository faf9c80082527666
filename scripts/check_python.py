#!/usr/bin/env python3
"""Checks the Python of this repository with nothing but the standard library.

Every tracked .py file must compile, and the unit tests under python/ (if the folder exists) must
pass. The last line says how many of each.
"""

import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def sources():
    """All Python files that git knows or would add."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in out.split("\0") if name and (ROOT / name).exists()]


def main():
    failed = 0
    files = sources()
    for path in files:
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as err:
            print(f"{path.relative_to(ROOT)}: {err}")
            failed += 1
    print(f"python files: {len(files) - failed} compile, {failed} failed")

    package = ROOT / "python"
    if package.is_dir():
        sys.path.insert(0, str(package))
        suite = unittest.defaultTestLoader.discover(str(package), top_level_dir=str(package))
        result = unittest.TextTestRunner(verbosity=1).run(suite)
        bad = len(result.failures) + len(result.errors)
        print(f"python tests: {result.testsRun - bad} passed, {bad} failed")
        failed += bad
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
