"""Streamed state without PyTorch: segments between files, device memory and host memory."""

import contextlib
import json
import os
import tempfile
import unittest
from unittest import mock

import ebb
from ebb import _abi
from ebb._state import Done, Part, State
from support import DISK, MiB, Memory, Pattern, child, content, free, malloc, read

# What the programs of child() begin with.
PRELUDE = """
import os, sys
import ebb
from ebb._state import Part, State
from gpu import MiB, Pattern, backup_files, malloc
"""


class Streamed(Memory):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(dir=DISK)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def state(self, *sizes, name="test"):
        state = State(name, sizes)
        self.addCleanup(state.close)
        return state

    def device(self, size):
        with ebb.disable():
            address = malloc(size)
        self.addCleanup(free, address)
        return address

    def test_bytes_come_back(self):
        size = 3 * MiB + 4096
        state, address = self.state(size, 2 * MiB), self.device(size)
        pattern = Pattern("state", size)
        pattern.write(address)
        done = state.wait(state.write([Part(0, 0, size, address)]))
        self.assertEqual((done.bytes, done.disk_bytes, done.skipped_zero_bytes), (size, size, 0))
        Pattern("other", size).write(address)
        state.wait(state.read([Part(0, 0, size, address)]))
        pattern.check(address)

    def test_it_is_zero_at_first_and_zeros_move_no_byte(self):
        state, address = self.state(2 * MiB), self.device(2 * MiB)
        Pattern("before", 2 * MiB).write(address)
        done = state.wait(state.read([Part(0, 0, 2 * MiB, address)]))
        self.assertEqual((done.disk_bytes, done.skipped_zero_bytes), (0, 2 * MiB))
        self.assertEqual(read(address, 2 * MiB), bytes(2 * MiB))
        self.assertEqual(state.wait(state.write([Part(0, 0, 2 * MiB, address)])).disk_bytes, 0)

    def test_requests_of_a_segment_keep_their_order(self):
        state, address, other = self.state(MiB), self.device(MiB), self.device(MiB)
        pattern = Pattern("order", MiB)
        pattern.write(address)
        tickets = [state.write([Part(0, 0, MiB, address)]), state.read([Part(0, 0, MiB, other)])]
        for ticket in reversed(tickets):
            self.assertIsInstance(state.wait(ticket), Done)
        pattern.check(other)

    def test_host_memory(self):
        block = self.state(1).block
        size = block + 1234
        state, address = self.state(size), self.device(size)
        pattern = Pattern("host", size)
        state.write_host(0, 0, bytearray(content(pattern)))
        back = bytearray(1000)
        state.read_host(0, block, back)
        self.assertEqual(back, content(pattern)[block : block + 1000])
        state.wait(state.read([Part(0, 0, size, address)]))
        pattern.check(address)
        for wrong in (b"read-only", object(), memoryview(bytearray(8))[::2]):
            with self.assertRaises(ebb.InvalidArgument):
                state.read_host(0, 0, wrong)

    def test_a_checkpoint(self):
        pattern = Pattern("kept", 2 * MiB)
        state = self.state(2 * MiB, 4096)
        state.write_host(0, 0, bytearray(content(pattern)))
        folder = os.path.join(self.folder, "checkpoint")
        state.save(folder, {"step": 7})
        with open(os.path.join(folder, "manifest.json")) as file:
            self.assertEqual(json.load(file)["extra"], {"step": 7})
        state.write_host(0, 0, bytearray(2 * MiB))
        state.load(folder)
        back = bytearray(2 * MiB)
        state.read_host(0, 0, back)
        self.assertEqual(back, content(pattern))
        with self.assertRaises(ebb.InvalidArgument) as caught:
            self.state(MiB, name="another").load(folder)
        self.assertIn(folder, str(caught.exception))

    def test_what_makes_no_sense(self):
        state, address = self.state(MiB), self.device(MiB)
        for call in (
            lambda: State("", [1]), lambda: State("x", []),
            lambda: state.read([]),
            lambda: state.read([Part(1, 0, MiB, address)]),
            lambda: state.read([Part(0, 512, 512, address)]),
            lambda: state.write([Part(0, 0, 2 * MiB, address)]),
            lambda: state.wait(12345),
            lambda: state.load(self.folder),
        ):
            with self.assertRaises((ebb.InvalidArgument, ebb.CorruptBackup)):
                call()
        ticket = state.read([Part(0, 0, MiB, address)])
        state.wait(ticket)
        with self.assertRaises(ebb.InvalidArgument):
            state.wait(ticket)

    def test_while_the_memory_is_paused(self):
        state, address = self.state(MiB), self.device(MiB)
        self.allocate(MiB, backup="cpu")
        with ebb.paused():
            for request in (state.read, state.write):
                with self.assertRaises(ebb.WrongState):
                    request([Part(0, 0, MiB, address)])
            self.assertEqual(ebb.status()["bytes_paused"], MiB)
        state.wait(state.read([Part(0, 0, MiB, address)]))

    def test_no_pause_moves_it(self):
        state = self.state(4 * MiB)
        state.write_host(0, 0, bytearray(content(Pattern("streamed", 4 * MiB))))
        self.allocate(MiB, backup="disk")
        with ebb.paused() as result:
            self.assertEqual((result.allocations, result.bytes), (1, MiB))

    def test_its_files_go_with_it(self):
        def streamed():
            return [s["name"] for s in ebb.status()["states"]]

        state = State("short-lived", [MiB])
        self.assertEqual(streamed(), ["short-lived"])
        state.close()
        state.close()
        self.assertEqual(streamed(), [])
        with self.assertRaises(ebb.WrongState):
            state.read_host(0, 0, bytearray(1))
        State("dropped", [MiB])
        self.assertEqual(streamed(), [])

    def test_an_interruption_leaves_none(self):
        """Neither where the error is kept."""
        with mock.patch.object(_abi, "check", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt) as kept:
            State("interrupted", [MiB])
        self.assertEqual(ebb.status()["states"], [])
        del kept
        state = State("interrupted", [MiB])
        with mock.patch.object(ebb._state, "library", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, state.close)
        with mock.patch.object(_abi, "check", side_effect=KeyboardInterrupt):
            with contextlib.suppress(KeyboardInterrupt):
                state.close()
        state.close()
        self.assertEqual(ebb.status()["states"], [])

    def test_what_handles_a_signal_finds_the_library(self):
        """Though it interrupted whoever was about to find it, on the same thread."""
        ebb._state.library()
        with ebb._state._lock:
            ebb._state.library()

    def test_no_room(self):
        done = child(
            """
            try:
                State("large", [MiB, MiB])
            except ebb.NoSpace as err:
                assert "large" in str(err), err
            else:
                raise AssertionError("there was room")
            assert ebb.status()["states"] == []
            assert backup_files(os.environ["TMS_DISK_BACKUP_DIR"]) == {}
            State("small", [MiB])
            """,
            prelude=PRELUDE, EBB_FAULT_FILES="fallocate:2:ENOSPC", TMS_DISK_BACKUP_DIR=self.folder,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_checkpoint_of_more_segments_than_the_process_may_have_files(self):
        done = child(
            """
            import resource
            resource.setrlimit(resource.RLIMIT_NOFILE, (160, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            state, folder = State("many", [5000] * 300), os.path.join(os.environ["TMS_DISK_BACKUP_DIR"], "checkpoint")
            for segment in range(300):
                state.write_host(segment, 0, bytearray(b"%5000d" % segment))
            state.save(folder)
            other = State("others", [5000] * 300)
            other.load(folder)
            for segment in range(300):
                got = bytearray(5000)
                other.read_host(segment, 0, got)
                assert got == b"%5000d" % segment, segment
            """,
            prelude=PRELUDE, TMS_DISK_BACKUP_DIR=self.folder,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_disk_that_changes_a_bit(self):
        done = child(
            """
            state = State("changed", [MiB])
            state.write_host(0, 0, bytearray(Pattern("x", MiB).base))
            try:
                state.read_host(0, 0, bytearray(MiB))
            except ebb.CorruptBackup as err:
                assert "changed" in str(err) and "segment 0" in str(err), err
            else:
                raise AssertionError("taken for right")
            """,
            prelude=PRELUDE, EBB_FAULT_FILES="pwrite:2:flip", TMS_DISK_BACKUP_DIR=self.folder,
        )
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
