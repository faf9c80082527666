"""The examples of docs/python.md run. Those with PyTorch run on a GPU (test/gpu/python_api.py). Those of the
other pages use what there is."""

import ast
import contextlib
import io
import re
import unittest

import ebb
from support import ROOT, Memory, free, malloc

TEXT = (ROOT / "docs/python.md").read_text()


def examples(text=TEXT):
    """(line, code) of each Python block."""
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S):
        yield text.count("\n", 0, found.start()) + 2, found.group(1)


def names_of(file):
    """What a module of the package defines at its top."""
    tree = ast.parse((ROOT / "python/ebb" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def used(code):
    """The dotted names that begin with ebb."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.startswith("ebb."):
                yield name


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

    def test_names_on_all_pages_exist(self):
        header = (ROOT / "abi/ebb.h").read_text()
        modules = {name: names_of(f"{name}.py") for name in ("torch", "optim", "ray", "megatron")}
        found = 0
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
            for line, code in examples(page.read_text()):
                for name in used(code):
                    found += 1
                    with self.subTest(page=page.name, line=line, name=name):
                        _, first, *more = name.split(".")
                        if "CDLL(None)" in code:
                            self.assertRegex(header, rf"\b{first}\(")
                        elif first in modules:
                            self.assertTrue(not more or more[0] in modules[first])
                        else:
                            self.assertTrue(hasattr(ebb, first))
        self.assertGreater(found, 20)

    def test_every_exception_is_in_the_table(self):
        listed = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `"))))
        public = {n for n in ebb.__all__ if isinstance(getattr(ebb, n), type) and issubclass(getattr(ebb, n), ebb.Error)}
        self.assertEqual(listed, public - {"Error"})


if __name__ == "__main__":
    unittest.main()
