"""Pause and resume: content, results, tags, waiting for memory."""

import os
import threading
import unittest

import ebb
from support import DISK, Hog, MiB, Memory, backup_files, free_memory


class PauseAndResume(Memory):
    def test_content_comes_back_in_every_backup(self):
        made = [
            self.allocate(size, backup=backup, cpu_backend=backend)
            for size in (1, 4097, 2 * MiB + 1, 5 * MiB)
            for backup, backend in (("disk", None), ("cpu", "pinned"), ("cpu", "mmap"))
        ]
        total = sum(pattern.size for _, pattern in made)
        for changed in (True, False):
            held = free_memory()
            result = ebb.pause()
            self.assertEqual((result.allocations, result.bytes), (len(made), total))
            self.assertGreaterEqual(free_memory() - held, result.device_bytes - 64 * MiB)
            self.assertGreaterEqual(result.device_bytes, total)
            on_disk = sum(pattern.size for _, pattern in made[::3])
            self.assertGreaterEqual(result.disk_bytes, on_disk if changed else 0)
            self.assertGreaterEqual(result.skipped_same_bytes, 0 if changed else on_disk)
            self.assertGreater(result.seconds, 0)
            self.assertEqual(ebb.status()["bytes_paused"], total)
            self.assertEqual(ebb.resume().bytes, total)
            for address, pattern in made:
                pattern.check(address)

    def test_backup_none_writes_nothing(self):
        self.allocate(4 * MiB, backup="none")
        with ebb.paused() as result:
            self.assertEqual((result.bytes, result.host_bytes, result.disk_bytes), (4 * MiB, 0, 0))

    def test_tags(self):
        a, b, c = (self.allocate(MiB, tag=tag, backup="cpu") for tag in "abc")
        self.assertEqual(ebb.pause("a").allocations, 1)
        self.assertEqual(ebb.pause(["a", "b"]).allocations, 1)
        self.assertEqual(ebb.resume(iter(("a", "b"))).allocations, 2)
        self.assertEqual(ebb.pause(("a", "c")).allocations, 2)
        self.assertEqual(ebb.resume().allocations, 2)
        for address, pattern in (a, b, c):
            pattern.check(address)

    def test_repeats_do_nothing(self):
        self.allocate(MiB, backup="cpu")
        ebb.pause()
        self.assertEqual(ebb.pause().allocations, 0)
        ebb.resume()
        self.assertEqual(ebb.resume().allocations, 0)

    def test_an_empty_list_names_nothing(self):
        self.allocate(MiB, backup="cpu")
        self.assertEqual(ebb.pause([]), ebb.Result())
        self.assertEqual(ebb.status()["bytes_paused"], 0)
        ebb.pause()
        self.assertEqual(ebb.resume(()), ebb.Result())
        self.assertEqual(ebb.status()["bytes_active"], 0)
        ebb.resume()

    def test_paused_resumes_after_an_exception(self):
        address, pattern = self.allocate(MiB, backup="disk")
        with self.assertRaises(KeyError):
            with ebb.paused():
                self.assertEqual(ebb.status()["bytes_active"], 0)
                raise KeyError
        pattern.check(address)

    def test_paused_nests(self):
        address, pattern = self.allocate(MiB, backup="cpu")
        with ebb.paused():
            with ebb.paused() as inner:
                self.assertEqual(inner.allocations, 0)
            self.assertEqual(ebb.status()["bytes_active"], 0, "the inner block resumed what the outer one paused")
        pattern.check(address)

    def test_paused_takes_tags_from_an_iterator(self):
        self.allocate(MiB, tag="a", backup="cpu")
        with ebb.paused(iter(["a"])) as result:
            self.assertEqual(result.allocations, 1)
        self.assertEqual(ebb.status()["bytes_paused"], 0)

    def test_what_are_no_tags_and_no_times(self):
        for call in (
            lambda: ebb.pause(7), lambda: ebb.pause([7]), lambda: ebb.pause(""), lambda: ebb.pause(["a", "b\0"]),
            lambda: ebb.resume(timeout=-1), lambda: ebb.resume(timeout=float("nan")), lambda: ebb.resume(timeout="soon"),
            lambda: ebb.request_pause(timeout=-0.5),
        ):
            with self.assertRaises(ebb.InvalidArgument):
                call()

    def test_an_endless_timeout(self):
        self.allocate(MiB, backup="cpu")
        ebb.pause()
        self.assertEqual(ebb.resume(timeout=float("inf")).allocations, 1)

    def test_out_of_device_memory_names_the_numbers_and_holders(self):
        made = [self.allocate(32 * MiB, seed=i, backup="disk") for i in range(3)]
        ebb.pause()
        with Hog(leave=64 * MiB) as hog:
            with self.assertRaises(ebb.OutOfDeviceMemory) as caught:
                ebb.resume(timeout=0)
            error = caught.exception
            self.assertEqual((error.code, error.device), (9, 0))
            self.assertEqual(error.needed, 96 * MiB)
            self.assertLessEqual(error.free, 64 * MiB)
            self.assertIn("96.0 MiB needed", str(error))
            for holder in error.holders:  # a driver without NVML names nobody
                self.assertEqual(holder.pid, hog.process.pid)
                self.assertGreater(holder.bytes, 64 * MiB)
            self.assertEqual(ebb.status()["bytes_active"], 0)
            with self.assertRaises(ebb.OutOfDeviceMemory):
                ebb.resume(timeout=0.01)
        self.assertEqual(ebb.resume().allocations, 3)
        for address, pattern in made:
            pattern.check(address)

    def test_resume_waits_for_memory(self):
        address, pattern = self.allocate(96 * MiB, backup="disk")
        ebb.pause()
        hog = Hog(leave=64 * MiB)
        leave = threading.Thread(target=hog.__exit__)
        leave.start()
        ebb.resume(timeout=60)
        leave.join()
        pattern.check(address)

    def test_a_backup_that_was_cut(self):
        self.allocate(4 * MiB, backup="disk")
        ebb.pause()
        (name,) = backup_files(DISK)
        os.truncate(os.path.join(DISK, name), 0)
        with self.assertRaises(ebb.CorruptBackup) as caught:
            ebb.resume()
        self.assertIn(name, str(caught.exception))
        self.assertEqual(ebb.status()["bytes_active"], 0)

    def test_a_backup_that_is_gone(self):
        # More files than the store keeps open, so that some must be opened again.
        made = [self.allocate(MiB, seed=i, backup="disk") for i in range(80)]
        ebb.pause()
        for name in backup_files(DISK):
            os.unlink(os.path.join(DISK, name))
        with self.assertRaises(ebb.CorruptBackup) as caught:
            ebb.resume()
        self.assertRegex(str(caught.exception), r"ebb-.*\.bak")
        self.assertEqual(ebb.status()["bytes_paused"], len(made) * MiB)


if __name__ == "__main__":
    unittest.main()
