"""Which memory pool ebb.torch chooses. PyTorch itself runs in test/gpu; here stands a record of its
rules: the first pool that was begun and not ended is used, and beginning one twice is an error."""

import contextlib
import sys
import threading
import types
import unittest
from unittest import mock

import ebb
import ebb.torch
from ebb import _abi, _region
from support import child


class Pools:
    """torch, as far as ebb.torch uses it."""

    def __init__(self):
        self.__version__ = "2.11.0"
        self.begun = {}  # device: pools, in order
        self.made = []
        self.emptied = 0
        self.current = 0
        self._C = types.SimpleNamespace(__name__="torch._C", _cuda_beginAllocateCurrentThreadToPool=None)
        self.cuda = types.SimpleNamespace(
            __name__="torch.cuda", MemPool=self._mem_pool, use_mem_pool=self._use_mem_pool, device=self._device,
            current_device=lambda: self.current, empty_cache=self._empty_cache,
            memory=types.SimpleNamespace(CUDAPluggableAllocator=self._pluggable),
        )
        self.pluggable = []

    def device(self, name):
        return types.SimpleNamespace(index=int(name.partition(":")[2]) if ":" in str(name) else None)

    def used(self, device=0):
        """The pool that an allocation of this thread comes from."""
        for pool, thread in self.begun.get(device, []):
            if thread == threading.get_ident():
                return pool
        return None

    @contextlib.contextmanager
    def _device(self, index):
        before, self.current = self.current, index
        yield
        self.current = before

    def _mem_pool(self, allocator=None):
        self.made.append(types.SimpleNamespace(device=self.current, allocator=allocator, id=(0, len(self.made) + 1)))
        return self.made[-1]

    @contextlib.contextmanager
    def _use_mem_pool(self, pool, device=None):
        begun = self.begun.setdefault(device, [])
        assert all(pool is not other for other, _ in begun), "already recording to mempool_id"
        begun.append((pool, threading.get_ident()))
        try:
            yield
        finally:
            self.begun[device] = [entry for entry in self.begun[device] if entry[0] is not pool]

    def _empty_cache(self):
        self.emptied += 1

    def _pluggable(self, *arguments):
        self.pluggable.append(arguments)
        return types.SimpleNamespace(allocator=lambda: self.pluggable)


class Choice(unittest.TestCase):
    def setUp(self):
        self.torch = Pools()
        for patch in (
            mock.patch.dict(sys.modules, torch=self.torch),
            mock.patch.dict(ebb.torch._idle, clear=True),
            mock.patch.multiple(ebb.torch, _own=set(), _allocator=None, _chosen=False),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(lambda: self.assertFalse(any(self.torch.begun.values())))

    def pool(self, device=0, **region):
        """The pool of a region."""
        with ebb.torch.region(device=device, **region):
            return self.torch.used(device)

    def test_regions_of_one_kind_share_a_pool(self):
        self.assertIs(self.pool(tag="a", backup="cpu"), self.pool(tag="a", backup="cpu"))
        self.assertEqual(len(self.torch.made), 1)

    def test_regions_of_another_kind_do_not(self):
        kinds = [
            dict(tag="a"), dict(tag="b"), dict(tag="a", backup="cpu"), dict(tag="a", backup="disk"),
            dict(tag="a", backup="cpu", cpu_backend="mmap"), dict(tag="a", device=1),
        ]
        pools = [self.pool(**kind) for kind in kinds]
        self.assertEqual(len({id(pool) for pool in pools}), len(kinds))
        self.assertEqual([self.pool(**kind) for kind in kinds], pools)
        self.assertEqual([pool.device for pool in pools], [0, 0, 0, 0, 0, 1])

    def test_the_device(self):
        self.torch.current = 2
        with ebb.torch.region():
            self.assertIsNotNone(self.torch.used(2))
        with ebb.torch.region(device="cuda:1"):
            self.assertIsNotNone(self.torch.used(1))
        with ebb.torch.region(device="cuda"):
            self.assertIsNotNone(self.torch.used(2))

    def test_settings_of_the_thread_inside_and_after(self):
        before = _region.current(_abi.library())
        with ebb.torch.region("a", "disk"):
            self.assertEqual(_region.current(_abi.library())[:4], (True, b"a", False, True))
        self.assertEqual(_region.current(_abi.library()), before)

    def test_the_innermost_region_counts(self):
        with ebb.torch.region("a"):
            a = self.torch.used()
            with ebb.torch.region("b"):
                b = self.torch.used()
                with ebb.torch.region("a"):
                    self.assertIs(self.torch.used(), a)
                    with ebb.torch.region("a"):
                        self.assertIs(self.torch.used(), a)
                    self.assertIs(self.torch.used(), a)
                self.assertIs(self.torch.used(), b)
            self.assertIs(self.torch.used(), a)
        self.assertIsNone(self.torch.used())
        self.assertIsNot(a, b)

    def test_an_exception_leaves_all_pools_as_they_were(self):
        with ebb.torch.region("a"):
            a = self.torch.used()
            with self.assertRaises(KeyError):
                with ebb.torch.region("b"), ebb.torch.region("c"):
                    raise KeyError
            self.assertIs(self.torch.used(), a)
        self.assertIs(self.pool(tag="a"), a)

    def test_disable_uses_a_pool_that_no_region_uses(self):
        with ebb.torch.region("a"):
            a = self.torch.used()
            with ebb.torch.disable():
                kept = self.torch.used()
                self.assertFalse(_region.current(_abi.library()).managed)
            self.assertIs(self.torch.used(), a)
        with ebb.torch.disable():
            self.assertIs(self.torch.used(), kept)
        self.assertIsNot(a, kept)

    def test_threads_in_one_kind_of_region_at_one_time(self):
        inside, leave, seen = threading.Event(), threading.Event(), []

        def other():
            with ebb.torch.region("a"):
                seen.append(self.torch.used())
                inside.set()
                leave.wait()

        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
        mine = self.pool(tag="a")
        leave.set()
        thread.join()
        self.assertIsNot(mine, seen[0])
        for _ in range(3):
            self.assertIn(self.pool(tag="a"), (mine, seen[0]))

    def test_empty_cache_drops_pools_that_are_not_in_use(self):
        b = self.pool(tag="b")
        with ebb.torch.region("a"):
            a = self.torch.used()
            ebb.torch.empty_cache()
            self.assertIs(self.torch.used(), a)
        self.assertEqual(self.torch.emptied, 1)
        self.assertIs(self.pool(tag="a"), a)
        self.assertIsNot(self.pool(tag="b"), b)

    def test_bad_arguments_change_nothing(self):
        for bad in (dict(tag=""), dict(backup="both"), dict(cpu_backend="x")):
            with self.assertRaises(ebb.InvalidArgument):
                self.pool(**bad)
        self.assertEqual(self.torch.made, [])

    def test_the_pluggable_allocator(self):
        ebb.torch.use_pluggable_allocator()
        ebb.torch.use_pluggable_allocator()
        self.assertEqual(self.torch.pluggable, [(ebb.library_path(), "tms_torch_malloc", "tms_torch_free")])
        self.assertIs(self.pool().allocator, self.torch.pluggable)
        with ebb.torch.disable():
            self.assertIsNone(self.torch.used().allocator)

    def test_the_pluggable_allocator_after_a_region(self):
        self.pool()
        with self.assertRaises(ebb.WrongState):
            ebb.torch.use_pluggable_allocator()

    def test_a_pytorch_without_such_pools(self):
        del self.torch._C._cuda_beginAllocateCurrentThreadToPool
        with self.assertRaises(ebb.UnsafeConfiguration) as caught:
            self.pool()
        self.assertIn("PyTorch 2.11.0 has no torch._C._cuda_beginAllocateCurrentThreadToPool", str(caught.exception))

    def test_no_pytorch(self):
        with mock.patch.dict(sys.modules, torch=None), self.assertRaises(ebb.UnsafeConfiguration):
            self.pool()


class PluggableAllocator(unittest.TestCase):
    def test_the_library_is_loaded_from_its_file(self):
        result = child(
            """
            import ctypes, ebb
            from ebb import _abi
            library = _abi.load(ebb.library_path())
            library.tms_torch_malloc.restype = ctypes.c_void_p
            library.tms_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            library.tms_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
            from gpu import Pattern, MiB
            with ebb.region("pool", "disk"):
                address = library.tms_torch_malloc(MiB, 0, None)
            pattern = Pattern("pool", MiB)
            pattern.write(address)
            with ebb.paused("pool") as done:
                print(done.allocations, ebb.read(address, MiB) == pattern.base)
            pattern.check(address)
            library.tms_torch_free(address, MiB, 0, None)
            """,
            prelude="",
            preload=False,
        )
        self.assertEqual((result.returncode, result.stdout), (0, "1 True\n"), result.stderr)

    def test_a_file_that_is_no_library(self):
        result = child(
            "from ebb import _abi, NotLoaded\ntry:\n    _abi.load('/nowhere.so')\nexcept NotLoaded as err:\n    print(err)", prelude="", preload=False
        )
        self.assertIn("/nowhere.so", result.stdout, result.stderr)


if __name__ == "__main__":
    unittest.main()
