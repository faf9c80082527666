"""The examples of docs/python.md run. Those with PyTorch run on a GPU (test/gpu/python_api.py)."""

import contextlib
import io
import re
import unittest

import ebb
from support import ROOT, Memory, free, malloc

TEXT = (ROOT / "docs/python.md").read_text()


def examples():
    """(line, code) of each Python block."""
    for found in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.M | re.S):
        yield TEXT.count("\n", 0, found.start()) + 2, found.group(1)


class Docs(Memory):
    def test_examples(self):
        calls = []

        def allocate(size):
            address = malloc(size)
            self.addCleanup(free, address)
            return address

        def during(name):
            def call():
                calls.append((name, ebb.status()["bytes_active"] > 0))

            return call

        names = {"allocate": allocate, **{name: during(name) for name in ("generate", "train_step", "load_batch")}}
        run = 0
        for line, code in examples():
            if "import torch" in code:
                continue
            with self.subTest(line=line), contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * (line - 1) + code, "docs/python.md", "exec"), names)
            run += 1
        self.assertEqual(run, 6)
        self.assertEqual(calls.count(("generate", False)), 1, "the rollout of request_pause saw active memory")
        self.assertIn(("train_step", True), calls)
        self.assertNotIn(("train_step", False), calls)
        self.assertEqual(ebb.status()["bytes_paused"], 0)

    def test_every_exception_is_in_the_table(self):
        listed = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `"))))
        public = {n for n in ebb.__all__ if isinstance(getattr(ebb, n), type) and issubclass(getattr(ebb, n), ebb.Error)}
        self.assertEqual(listed, public - {"Error"})


if __name__ == "__main__":
    unittest.main()
