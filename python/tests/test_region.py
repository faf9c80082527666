"""Regions: what is managed, and that the thread gets its settings back."""

import threading
import unittest
from unittest import mock

import ebb
from ebb import _abi, _region
from support import MiB, Memory, child, free, malloc


def settings():
    return _region.current(_abi.library())


class Regions(Memory):
    def test_only_allocations_inside_are_managed(self):
        outside = malloc(MiB)
        self.addCleanup(free, outside)
        inside, _ = self.allocate(MiB, tag="inside")
        self.assertEqual([(t["tag"], t["allocations"]) for t in ebb.status()["tags"] if t["allocations"]], [("inside", 1)])
        with self.assertRaises(ebb.NotManaged):
            ebb.read(outside, 1)

    def test_settings_inside(self):
        with ebb.region(tag="t", backup="disk", cpu_backend="mmap"):
            self.assertEqual(settings(), _region.Settings(True, b"t", False, True, b"mmap"))
            with ebb.region(backup="cpu"):
                self.assertEqual(settings(), _region.Settings(True, b"default", True, False, b"mmap"))
                with ebb.disable():
                    self.assertEqual(settings(), _region.Settings(False, b"default", True, False, b"mmap"))

    def test_settings_are_restored_where_an_interruption_comes_between_two_of_them(self):
        """Else memory that is allocated later would be of the region, and its content lost in a pause."""
        before, apply = settings(), _region.apply
        for calls in range(2):
            left = iter(range(calls, -1, -1))

            def interrupted(lib, wanted):
                if next(left, None) == 0:
                    lib.tms_set_interesting_region(wanted.managed)
                    raise KeyboardInterrupt
                apply(lib, wanted)

            with mock.patch.object(_region, "apply", interrupted), self.assertRaises(KeyboardInterrupt):
                with ebb.region("a", "disk", "mmap"):
                    pass
            self.assertEqual(settings(), before)

    def test_nested_settings_are_restored_exactly(self):
        before = settings()
        with ebb.region("a", "cpu"):
            a = settings()
            with self.assertRaises(KeyError):
                with ebb.region("b", "disk", "mmap"), ebb.disable():
                    raise KeyError
            self.assertEqual(settings(), a)
            with ebb.disable():
                with ebb.region("c"):
                    pass
            self.assertEqual(settings(), a)
        self.assertEqual(settings(), before)

    def test_settings_made_by_other_means_are_restored(self):
        lib = _abi.library()
        before = settings()
        self.addCleanup(_region.apply, lib, before)
        odd = _region.Settings(True, b"odd \xff\x01", True, True, b"mmap")
        _region.apply(lib, odd)
        with ebb.region("a"):
            with ebb.disable():
                pass
        self.assertEqual(settings(), odd)

    def test_a_region_left_by_an_exception_does_not_manage_what_follows(self):
        with self.assertRaises(ZeroDivisionError):
            with ebb.region("broken", "disk"):
                1 / 0
        address = malloc(MiB)
        self.addCleanup(free, address)
        with self.assertRaises(ebb.NotManaged):
            ebb.read(address, 1)

    def test_other_threads_keep_their_settings(self):
        seen = []
        before = settings()
        with ebb.region("a", "cpu"):
            thread = threading.Thread(target=lambda: seen.append(settings()))
            thread.start()
            thread.join()
        self.assertEqual(seen, [before])

    def test_leaving_on_another_thread_is_refused(self):
        region, seen, before = ebb.region("a"), [], settings()

        def enter():
            region.__enter__()
            seen.append(settings().tag)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        with self.assertRaises(ebb.WrongState):
            region.__exit__(None, None, None)
        self.assertEqual((seen, settings()), ([b"a"], before))

    def test_a_region_decorates_a_function(self):
        @ebb.region("decorated")
        def make():
            return settings().tag

        self.assertEqual((make(), make(), settings().tag), (b"decorated", b"decorated", b"default"))

    def test_what_makes_no_region(self):
        for bad in (
            dict(tag=""), dict(tag="a\0b"), dict(tag="x" * 256), dict(tag=None), dict(tag=b"a"),
            dict(backup="both"), dict(backup=None), dict(cpu_backend="unified"),
        ):
            before = settings()
            with self.subTest(**bad), self.assertRaises(ebb.InvalidArgument):
                with ebb.region(**bad):
                    self.fail("entered")
            self.assertEqual(settings(), before)

    def test_odd_tags(self):
        for tag in ("größe", "a b\n", "\udcff", "x" * 255):
            with self.subTest(tag=tag):
                address, pattern = self.allocate(MiB, tag=tag, backup="cpu")
                with ebb.paused(tag) as result:
                    self.assertEqual(result.allocations, 1)
                pattern.check(address)

    def test_disable_where_the_process_manages_everything(self):
        result = child(
            """
            managed = malloc(MiB)
            with ebb.disable():
                kept = malloc(MiB)
            assert ebb.status()["allocations"] == 1
            ebb.read(managed, 1)
            try:
                ebb.read(kept, 1)
            except ebb.NotManaged:
                print("ok")
            """,
            TMS_INIT_ENABLE="1",
        )
        self.assertEqual((result.returncode, result.stdout), (0, "ok\n"), result.stderr)


if __name__ == "__main__":
    unittest.main()
