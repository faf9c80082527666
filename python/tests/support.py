"""What the tests share. They run under the preloaded library, over the software GPU (run.py)."""

import os
import pathlib
import subprocess
import sys
import textwrap
import unittest

import ebb
from gpu import MiB, Pattern, backup_files, free, free_memory, malloc, read, write  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
DISK = os.environ["TMS_DISK_BACKUP_DIR"]

# What the programs of child() begin with.
PRELUDE = """
import os, sys, threading
import ebb
from gpu import MiB, Pattern, backup_files, free, free_memory, malloc, read, write
"""


class Memory(unittest.TestCase):
    """A test that begins with no managed memory, and frees what it allocated."""

    def setUp(self):
        self.assertEqual(ebb.status()["allocations"], 0)
        self.addCleanup(self._nothing_left)  # the last one to run

    def _nothing_left(self):
        self.assertEqual(ebb.status()["allocations"], 0, "the test left memory behind")
        self.assertEqual(backup_files(DISK), {}, "the test left files behind")

    def allocate(self, size, seed="content", **region):
        """Address of managed memory with a pattern in it, freed after the test."""
        with ebb.region(**region):
            address = malloc(size)
        self.addCleanup(free, address)
        pattern = Pattern(f"{seed} {size}", size)
        pattern.write(address)
        return address, pattern


def content(pattern):
    return b"".join(part for _, part in pattern._parts())


def environment(preload=True, **changed):
    """Of a child. A value of None takes a variable out."""
    env = dict(os.environ)
    if not preload:
        changed["LD_PRELOAD"] = None
    env.update({name: value for name, value in changed.items() if value is not None})
    return {name: value for name, value in env.items() if changed.get(name, value) is not None}


def child(program, prelude=PRELUDE, **env):
    """Runs a program in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(program)],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        universal_newlines=True,
    )


class Hog:
    """Another process that takes all device memory but some."""

    def __init__(self, leave):
        program = f"held = malloc(free_memory() - {leave}); print('ready', flush=True); sys.stdin.read()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + program],
            env=environment(preload=False),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()
