"""Reading the bytes of managed memory, wherever they are."""

import array
import unittest

import ebb
from support import MiB, Memory, content, free_memory


class Tensor:
    """What read needs of a tensor."""

    def __init__(self, address, nbytes, contiguous=True):
        self.address, self.nbytes, self.contiguous = address, nbytes, contiguous

    def data_ptr(self):
        return self.address

    def is_contiguous(self):
        return self.contiguous


class Storage:
    """What read needs of a storage."""

    def __init__(self, address, size):
        self.address, self.size = address, size

    def data_ptr(self):
        return self.address

    def nbytes(self):
        return self.size


class Read(Memory):
    def setUp(self):
        super().setUp()
        self.memory = {
            name: self.allocate(3 * MiB + 77, seed=name, **region)
            for name, region in {
                "disk": dict(backup="disk"),
                "pinned": dict(backup="cpu", cpu_backend="pinned"),
                "mmap": dict(backup="cpu", cpu_backend="mmap"),
            }.items()
        }

    def check(self):
        for name, (address, pattern) in self.memory.items():
            with self.subTest(name):
                whole = content(pattern)
                self.assertEqual(ebb.read(address, len(whole)), whole)
                for begin, size in ((0, 1), (511, 2), (MiB - 1, MiB + 2), (len(whole) - 1, 1)):
                    self.assertEqual(ebb.read(address + begin, size), whole[begin:begin + size])

    def test_active(self):
        self.check()

    def test_paused_and_without_taking_device_memory(self):
        with ebb.paused():
            before = free_memory()
            self.check()
            self.assertEqual(free_memory(), before)
        self.check()

    def test_tensor_and_storage(self):
        address, pattern = self.memory["disk"]
        whole = content(pattern)
        with ebb.paused():
            self.assertEqual(ebb.read(Tensor(address, len(whole))), whole)
            self.assertEqual(ebb.read(Tensor(address + 4, 16)), whole[4:20])
            self.assertEqual(ebb.read(Tensor(address, len(whole)), 5), whole[:5])
            self.assertEqual(ebb.read(Storage(address, len(whole))), whole)
            self.assertEqual(ebb.read(Tensor(0, 0)), b"")

    def test_into_buffers(self):
        address, pattern = self.memory["mmap"]
        want = content(pattern)[:64]
        with ebb.paused():
            for buffer in (bytearray(64), bytearray(100), array.array("d", bytes(64)), memoryview(bytearray(64))):
                self.assertEqual(ebb.read_into(Tensor(address, 64), buffer), 64)
                self.assertEqual(bytes(memoryview(buffer).cast("B"))[:64], want)
            part = memoryview(bytearray(100))[10:74]
            ebb.read_into(address, part, 64)
            self.assertEqual(bytes(part), want)
            grown = bytearray(64)
            ebb.read_into(address, grown, 64)
            grown.append(1)  # the buffer is no longer held

    def test_unfit_buffers_stay_unchanged(self):
        address, _ = self.memory["disk"]
        short = bytearray(63)
        for buffer in (bytes(64), short, memoryview(bytearray(128))[::2], "text", None):
            with self.assertRaises(ebb.InvalidArgument):
                ebb.read_into(address, buffer, 64)
        self.assertEqual(short, bytes(63))

    def test_what_cannot_be_read(self):
        address, pattern = self.memory["disk"]
        for bad in (
            (address,), (address, -1), (address, 1.5), (address, True), (-1, 1), (1 << 64, 1), (True, 1),
            ("text",), (None, 1), (object(), 1), (Tensor(address, 8), 9), (Tensor(address, 8, contiguous=False),),
            (Tensor(address, None),),
        ):
            with self.subTest(bad), self.assertRaises(ebb.InvalidArgument):
                ebb.read(*bad)

    def test_beyond_the_allocation(self):
        address, pattern = self.memory["disk"]
        for begin, size in ((0, pattern.size + 1), (pattern.size, 1), (1, pattern.size)):
            with self.assertRaises(ebb.Error) as caught:
                ebb.read(address + begin, size)
            self.assertIn(caught.exception.code, (1, 2))

    def test_not_managed(self):
        for place in (8, 1 << 40):
            with self.assertRaises(ebb.NotManaged):
                ebb.read(place, 1)

    def test_no_backup(self):
        address, _ = self.allocate(MiB, backup="none", tag="lost")
        self.assertEqual(len(ebb.read(address, MiB)), MiB)
        with ebb.paused("lost"), self.assertRaises(ebb.WrongState):
            ebb.read(address, 1)


if __name__ == "__main__":
    unittest.main()
