"""Finding the library, and refusing to go on without it."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import ebb
from support import DISK, ROOT, child, environment

EVERY_CALL = """
import ebb, os
calls = [
    ebb.pause, ebb.resume, ebb.status, ebb.safe_point, ebb.request_pause, ebb.version,
    lambda: ebb.read(8, 1), lambda: ebb.read_into(8, bytearray(1), 1),
    lambda: ebb.region().__enter__(), lambda: ebb.disable().__enter__(),
    lambda: ebb.paused().__enter__(), lambda: ebb.idle().__enter__(),
]
for call in calls:
    try:
        call()
    except ebb.NotLoaded as err:
        text = str(err)
        assert f"process {os.getpid()} " in text and "ebb run --offload-train" in text and "LD_PRELOAD=" in text, text
        print("refused")
print(text)
"""


class Loading(unittest.TestCase):
    def test_the_preloaded_library_is_the_one_in_use(self):
        self.assertEqual(ebb.version(), ebb.__version__)
        header = (ROOT / "abi/ebb_engine.h").read_text()
        self.assertEqual(re.search(r'#define EBB_VERSION "(.*)"', header).group(1), ebb.__version__)

    def test_path_for_the_preload(self):
        self.assertEqual(ebb.library_path(), str(ROOT / "dist/lib/torch_memory_saver/libebb.so"))
        got = subprocess.run([sys.executable, "-m", "ebb", "preload-path"], env=environment(preload=False), stdout=subprocess.PIPE, check=True)
        self.assertEqual(os.fsdecode(got.stdout), ebb.library_path() + "\n")
        got = subprocess.run([sys.executable, "-m", "ebb", "version"], stdout=subprocess.PIPE, check=True)
        self.assertEqual(got.stdout.decode(), ebb.__version__ + "\n")

    def test_without_the_library_every_function_refuses(self):
        result = child(EVERY_CALL, prelude="", preload=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[:-1], ["refused"] * 12)
        self.assertIn("LD_PRELOAD=not set", lines[-1])
        self.assertIn(ebb.library_path(), lines[-1])

    def test_another_library_in_the_preload(self):
        other = str(ROOT / "dist/lib/softgpu/libcuda.so.1")
        result = child("import ebb\ntry:\n    ebb.pause()\nexcept ebb.NotLoaded as err:\n    print(err)", prelude="", LD_PRELOAD=other)
        self.assertIn(f"LD_PRELOAD='{other}'", result.stdout)

    def test_an_older_library(self):
        with tempfile.TemporaryDirectory(dir=DISK) as folder:
            old = os.path.join(folder, "libebb.so")
            subprocess.run(
                ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", old], check=True,
                input=b'const char *ebb_version(void) { return "0.0.1"; }',
            )
            result = child("import ebb\ntry:\n    ebb.pause()\nexcept ebb.NotLoaded as err:\n    print(err)", prelude="", LD_PRELOAD=old)
            self.assertIn(f"{old} (version 0.0.1) has no ebb_", result.stdout, result.stderr)

    def test_a_library_listed_twice_or_beside_others(self):
        mine = os.environ["LD_PRELOAD"]
        other = str(ROOT / "dist/lib/softgpu/libcuda.so.1")
        for value in (f"{mine}:{mine}", f"{other}:{mine}", f"{mine} {ROOT / 'dist/lib/libebb.so'}"):
            result = child(
                """
                with ebb.region(backup="cpu"):
                    address = malloc(MiB)
                with ebb.paused() as done:
                    print(done.allocations)
                """,
                LD_PRELOAD=value,
            )
            self.assertEqual((result.returncode, result.stdout), (0, "1\n"), result.stderr)

    def test_settings_of_pytorchs_allocator_are_nobodys_business(self):
        for value in ("", "expandable_segments:True", "backend:cudaMallocAsync", "max_split_size_mb:128,expandable_segments:true"):
            result = child("import ebb, ebb.torch", prelude="", PYTORCH_CUDA_ALLOC_CONF=value, PYTORCH_ALLOC_CONF=value)
            self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_importing_changes_nothing(self):
        program = """
        import os, sys
        def threads(): return sorted(os.listdir("/proc/self/task"))
        before = threads()
        import ebb, ebb.torch
        assert threads() == before
        assert "torch" not in sys.modules
        assert "libebb-engine" not in open("/proc/self/maps").read()
        """
        result = child(program, prelude="")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_only_the_standard_library_is_imported(self):
        for source in pathlib.Path(ebb.__file__).parent.glob("*.py"):
            for name in re.findall(r"^(?:from|import) ([\w.]+)", source.read_text(), re.M):
                if not name.startswith("."):
                    self.assertIn(
                        name.split(".")[0],
                        {
                            "__future__", "argparse", "asyncio", "concurrent", "contextlib", "copy", "ctypes", "dataclasses", "errno", "functools", "importlib", "inspect", "itertools", "json", "logging",
                            "math", "os", "pathlib", "re", "shlex", "shutil", "subprocess", "sys", "tempfile", "threading", "time", "typing", "warnings", "weakref",
                        },
                    )


if __name__ == "__main__":
    unittest.main()
