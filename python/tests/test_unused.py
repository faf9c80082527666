"""Memory that no tensor uses: what is read from PyTorch's snapshots, and when it is told to the
library. PyTorch itself runs in test/gpu; the snapshots here have the shape of its versions."""

import contextlib
import sys
import types
import unittest
from unittest import mock

import ebb
import ebb.torch
from ebb import _memory, _unused
from ebb._unused import Range
from support import MiB, Memory, Pattern, free, malloc

KiB = 1024
BASE = 0x7F00_0000_0000


def segment(address, *blocks, pool=(0, 0), expandable=False):
    """As PyTorch 2.1 and later tell it. blocks: (size, state)."""
    told, at = [], address
    for size, state in blocks:
        told.append({"address": at, "size": size, "requested_size": size, "state": state, "frames": []})
        at += size
    return {
        "device": 0, "address": address, "total_size": at - address, "stream": 0, "segment_type": "large",
        "segment_pool_id": pool, "is_expandable": expandable, "frames": [], "blocks": told,
    }


class Ranges(unittest.TestCase):
    def test_only_what_is_inactive(self):
        snapshot = [segment(BASE, (4 * MiB, "active_allocated"), (2 * MiB, "inactive"), (512, "active_pending_free"), (MiB, "inactive"))]
        self.assertEqual(
            _unused.ranges(snapshot, frozenset()), [Range(BASE + 4 * MiB, 2 * MiB), Range(BASE + 6 * MiB + 512, MiB)]
        )

    def test_unknown_states_are_in_use(self):
        self.assertEqual(_unused.ranges([segment(BASE, (MiB, "active_awaiting_free"), (MiB, "new in 3.0"))], frozenset()), [])

    def test_neighbours_are_one_range_across_segments(self):
        # A range of addresses that grew is told as segments wherever a piece of it was unmapped or not.
        snapshot = [
            segment(BASE + 20 * MiB, (8 * MiB, "inactive"), (12 * MiB, "active_allocated"), expandable=True),
            segment(BASE, (10 * MiB, "active_allocated"), (10 * MiB, "inactive"), expandable=True),
            segment(BASE + 60 * MiB, (MiB, "inactive"), expandable=True),
        ]
        self.assertEqual(
            _unused.ranges(snapshot, frozenset()), [Range(BASE + 10 * MiB, 18 * MiB), Range(BASE + 60 * MiB, MiB)]
        )

    def test_pools_of_graphs_are_left_alone(self):
        snapshot = [
            segment(BASE, (2 * MiB, "inactive"), pool=(0, 1)),  # made by ebb.torch
            segment(BASE + 10 * MiB, (2 * MiB, "inactive"), pool=(0, 2)),  # graph_pool_handle or somebody's MemPool
            segment(BASE + 20 * MiB, (2 * MiB, "inactive"), pool=(7, 0)),  # a capture's own
            segment(BASE + 30 * MiB, (2 * MiB, "inactive")),
        ]
        self.assertEqual(
            _unused.ranges(snapshot, {(0, 1)}), [Range(BASE, 2 * MiB), Range(BASE + 30 * MiB, 2 * MiB)]
        )

    def test_snapshots_of_earlier_versions(self):
        # 2.0 tells no addresses of blocks; 1.13 neither them nor pools, so that any may be a graph's.
        old = segment(BASE, (MiB, "active_allocated"), (2 * MiB, "inactive"))
        for block in old["blocks"]:
            del block["address"]
        self.assertEqual(_unused.ranges([old], frozenset()), [Range(BASE + MiB, 2 * MiB)])
        del old["segment_pool_id"]
        self.assertEqual(_unused.ranges([old], frozenset()), [])

    def test_nothing(self):
        self.assertEqual(_unused.ranges([], frozenset()), [])


class Counters(unittest.TestCase):
    STATS = {f"{what}.all.{how}": 5 for what in ("allocation", "active", "segment", "allocated_bytes") for how in ("current", "allocated", "freed")}

    def test_they_differ_after_every_use_of_the_allocator(self):
        before = _unused.counters([self.STATS, {}])
        self.assertEqual(_unused.counters([dict(self.STATS), {}]), before)
        for name in ("allocation.all.allocated", "allocation.all.freed", "active.all.freed", "segment.all.allocated", "segment.all.freed"):
            self.assertNotEqual(_unused.counters([{**self.STATS, name: 6}, {}]), before, name)
        self.assertNotEqual(_unused.counters([self.STATS, {"allocation.all.allocated": 1}]), before)


class Allocator:
    """torch, as far as skip_unused uses it: one device, a snapshot, and what happens meanwhile."""

    def __init__(self, snapshot=(), backend="native"):
        self.__version__ = "2.11.0"
        self.uses, self.synchronized = 0, []
        self.during = {}  # name of a function: what else happens in it
        self._C = types.SimpleNamespace(__name__="torch._C", _cuda_beginAllocateCurrentThreadToPool=None)
        self.cuda = types.SimpleNamespace(
            __name__="torch.cuda", MemPool=self._mem_pool, use_mem_pool=lambda *_, **__: contextlib.nullcontext(),
            device=lambda _: contextlib.nullcontext(), current_device=lambda: 0, device_count=lambda: 1,
            is_initialized=lambda: True, get_allocator_backend=lambda: backend, is_current_stream_capturing=lambda: False,
            memory_stats=lambda device: {"allocation.all.allocated": self.uses}, memory_reserved=lambda device: MiB,
            memory_snapshot=self._called("snapshot", lambda: list(snapshot)),
            synchronize=self._called("synchronize", self.synchronized.append),
        )
        self.pools = 0

    def allocate(self):
        self.uses += 1

    def _called(self, name, function):
        def call(*arguments):
            self.during.get(name, lambda: None)()
            return function(*arguments)

        return call

    def _mem_pool(self):
        self.pools += 1
        return types.SimpleNamespace(id=(0, self.pools))


class SkipUnused(unittest.TestCase):
    """What reaches the library."""

    def setUp(self):
        self.paused = []  # ranges of each pause; None: nothing was told
        for patch in (
            mock.patch.dict(ebb.torch._idle, clear=True),
            mock.patch.object(ebb.torch, "_own", set()),
            mock.patch.object(_memory, "_move", self._move),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def _move(self, function, tags, *arguments):
        told = None
        if function == "ebb_pause_except":
            array, count = arguments
            told = [Range(array[i].ptr, array[i].bytes) for i in range(count)]
        self.paused.append((function, tags, told))
        self.torch.during.get("pause", lambda: None)()
        return ebb.Result(allocations=1)

    def pause(self, torch, tags=None):
        self.torch = torch
        with mock.patch.dict(sys.modules, torch=torch):
            return ebb.pause(tags, skip_unused=True)

    def test_ranges_are_told(self):
        torch = Allocator([segment(BASE, (MiB, "inactive"), (MiB, "active_allocated"), (3 * MiB, "inactive"))])
        result = self.pause(torch, "weights")
        self.assertEqual(self.paused, [("ebb_pause_except", "weights", [Range(BASE, MiB), Range(BASE + 2 * MiB, 3 * MiB)])])
        self.assertEqual((result.allocations, result.allocator_changed), (1, ""))
        self.assertEqual(torch.synchronized, [0])

    def test_pools_of_regions_are_told_too(self):
        torch = Allocator([segment(BASE, (MiB, "inactive"), pool=(0, 1)), segment(BASE + 4 * MiB, (MiB, "inactive"), pool=(0, 2))])
        with mock.patch.dict(sys.modules, torch=torch), ebb.torch.region("weights", device=0):
            pass
        self.pause(torch)
        self.assertEqual(self.paused[0][2], [Range(BASE, MiB)])

    def test_an_allocator_that_was_used_before_the_pause(self):
        for moment in ("snapshot", "synchronize"):
            with self.subTest(moment):
                self.paused.clear()
                torch = Allocator([segment(BASE, (MiB, "inactive"))])
                torch.during[moment] = torch.allocate
                result = self.pause(torch)
                self.assertEqual(self.paused, [("ebb_pause", None, None)], "everything is to move")
                self.assertEqual(result.allocator_changed, "before")

    def test_an_allocator_that_was_used_during_the_pause(self):
        torch = Allocator([segment(BASE, (MiB, "inactive"))])
        torch.during["pause"] = torch.allocate
        self.assertEqual(self.pause(torch).allocator_changed, "during")
        self.assertEqual(self.paused[0][0], "ebb_pause_except")

    def test_before_pytorch_uses_the_device(self):
        torch = Allocator()
        torch.cuda.is_initialized = lambda: False
        self.pause(torch)
        self.assertEqual(self.paused, [("ebb_pause", None, None)])

    def test_other_allocators_are_refused(self):
        for backend in ("cudaMallocAsync", "pluggable"):
            with self.assertRaises(ebb.UnsafeConfiguration) as caught:
                self.pause(Allocator(backend=backend))
            self.assertIn(backend, str(caught.exception))
        self.assertEqual(self.paused, [])

    def test_a_capture_is_not_waited_for(self):
        torch = Allocator()
        torch.cuda.is_current_stream_capturing = lambda: True
        with self.assertRaises(ebb.CaptureActive):
            self.pause(torch)
        self.assertEqual((self.paused, torch.synchronized), ([], []))

    def test_without_pytorch(self):
        with mock.patch.dict(sys.modules):
            sys.modules.pop("torch", None)
            with self.assertRaises(ebb.UnsafeConfiguration) as caught:
                ebb.pause(skip_unused=True)
        self.assertIn("not imported PyTorch", str(caught.exception))
        self.assertEqual(self.paused, [])

    def test_paused_passes_it_on(self):
        self.torch = torch = Allocator([segment(BASE, (MiB, "inactive"))])
        with mock.patch.dict(sys.modules, torch=torch), ebb.paused("a", skip_unused=True):
            pass
        self.assertEqual([function for function, *_ in self.paused], ["ebb_pause_except", "ebb_resume"])


class InTheLibrary(Memory):
    def test_used_bytes_stay_and_unused_ones_are_counted(self):
        size = 64 * MiB
        for backup in ("disk", "cpu"):
            with self.subTest(backup):
                with ebb.region("unused", backup):
                    address = malloc(size)
                try:
                    pattern = Pattern(backup, size)
                    pattern.write(address)
                    # Parts of no whole block, memory that is not managed, and ranges that overlap.
                    unused = [
                        Range(address + 16 * MiB, 32 * MiB), Range(address + 24 * MiB, 20 * MiB),
                        Range(address, 1), Range(BASE, MiB), Range(address + size - KiB, KiB),
                    ]
                    result = _memory.pause_except("unused", unused)
                    self.assertGreater(result.skipped_unused_bytes, 0)
                    self.assertLessEqual(result.skipped_unused_bytes, 32 * MiB)
                    self.assertLess(result.host_bytes + result.disk_bytes, size)
                    ebb.resume()
                    want = b"".join(part for _, part in pattern._parts())
                    got = ebb.read(address, size)
                    self.assertEqual(got[: 16 * MiB], want[: 16 * MiB])
                    self.assertEqual(got[48 * MiB :], want[48 * MiB :])
                finally:
                    free(address)


if __name__ == "__main__":
    unittest.main()
