"""One exception for each meaning, with its numbers."""

import pickle
import unittest

import ebb
from ebb import _errors
from support import MiB, Memory, child


class Classes(unittest.TestCase):
    def test_everything_is_an_error_with_a_code_and_documented(self):
        for code, cls in _errors.CLASSES.items():
            self.assertTrue(issubclass(cls, ebb.Error))
            self.assertEqual(_errors.from_code(code, "text", {}).code, code)
            self.assertTrue(cls.__doc__)
            self.assertIs(getattr(ebb, cls.__name__), cls)

    def test_numbers(self):
        error = _errors.from_code(11, "disk full", {"code": 11, "need_bytes": 5, "free_bytes": 3, "dir": "/d"})
        self.assertIs(type(error), ebb.NoSpace)
        self.assertEqual((error.needed, error.free, error.directory, str(error)), (5, 3, "/d", "disk full"))
        error = _errors.from_code(9, "short", {"device": 1, "need_bytes": 5, "free_bytes": 3, "holders": [{"pid": 7, "bytes": 9, "name": "n"}]})
        self.assertEqual((error.device, error.needed, error.free, error.holders), (1, 5, 3, (ebb.Holder(7, 9, "n"),)))
        error = _errors.from_code(10, "host", {"need_bytes": 5, "free_bytes": 3})
        self.assertEqual((error.needed, error.free), (5, 3))

    def test_numbers_that_are_not_known(self):
        error = _errors.from_code(9, "short", {})
        self.assertEqual((error.device, error.needed, error.free, error.holders), (None, None, None, ()))

    def test_a_code_from_a_later_version(self):
        error = _errors.from_code(99, "new", {})
        self.assertEqual((type(error), error.code, str(error)), (ebb.InternalError, 99, "new"))

    def test_errors_cross_processes(self):
        error = _errors.from_code(9, "short", {"code": 9, "need_bytes": 5, "free_bytes": 3, "device": 0})
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(copy), str(copy), copy.code, copy.needed), (ebb.OutOfDeviceMemory, "short", 9, 5))

    def test_usual_exceptions_catch_them_too(self):
        self.assertTrue(issubclass(ebb.Timeout, TimeoutError))
        self.assertTrue(issubclass(ebb.InvalidArgument, ValueError))
        # Code that tries `import ebb` and goes on without it must not swallow this one.
        self.assertFalse(issubclass(ebb.UnsafeConfiguration, ImportError))


class FromTheLibrary(Memory):
    def test_unknown_tag(self):
        self.allocate(MiB)
        for call in (ebb.pause, ebb.resume):
            with self.assertRaises(ebb.UnknownTag) as caught:
                call("never seen")
            self.assertEqual(caught.exception.code, 4)
            self.assertIn("never seen", str(caught.exception))

    def prints(self, want, program, **env):
        result = child(program, **env)
        self.assertEqual((result.returncode, result.stdout), (0, want + "\n"), result.stderr)

    def test_forked_child(self):
        self.prints(
            "\n".join(["refused"] * 5),
            """
            with ebb.region(backup="cpu"):
                address = malloc(MiB)
            pattern = Pattern("fork", MiB)
            pattern.write(address)
            child = os.fork()
            if child == 0:
                for call in (ebb.pause, ebb.resume, ebb.status, ebb.safe_point, lambda: ebb.read(address, 1)):
                    try:
                        call()
                    except ebb.ForkedChild as err:
                        assert str(os.getpid()) in str(err), err
                        print("refused", flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            with ebb.paused():
                pass
            pattern.check(address)
            """,
        )

    def test_nothing_managed(self):
        self.prints(
            "Unmanaged 17",
            """
            address = malloc(MiB)
            try:
                ebb.pause()
            except ebb.Unmanaged as err:
                print(type(err).__name__, err.code)
            """,
        )

    def test_capture(self):
        self.prints(
            "CaptureActive 6",
            """
            import ctypes
            from gpu import PROCESS, _cudart
            with ebb.region(backup="cpu"):
                address = malloc(MiB)
            stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
            assert _cudart.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
            assert PROCESS.cudaStreamBeginCapture(stream, 2) == 0
            try:
                ebb.pause()
            except ebb.CaptureActive as err:
                print(type(err).__name__, err.code)
            assert PROCESS.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
            assert ebb.pause().allocations == 1
            """,
        )

    PARTIAL = """
        with ebb.region(backup="cpu"):
            made = [malloc(3 * MiB) for _ in range(3)]
        patterns = [Pattern(i, 3 * MiB) for i in range(3)]
        for address, pattern in zip(made, patterns):
            pattern.write(address)
        try:
            {call}
        except ebb.PartialPause as err:
            print(err.code, err.result.allocations, ebb.status()["bytes_paused"] // MiB)
        ebb.resume()
        for address, pattern in zip(made, patterns):
            pattern.check(address)
        """

    def test_partial_pause(self):
        self.prints("14 2 6", self.PARTIAL.format(call="ebb.pause()"), SOFTGPU_FAULT="cuMemUnmap:1:CUDA_ERROR_UNKNOWN")

    def test_paused_repairs_a_partial_pause(self):
        self.prints(
            "14 2 0", self.PARTIAL.format(call="ebb.paused().__enter__()"), SOFTGPU_FAULT="cuMemUnmap:1:CUDA_ERROR_UNKNOWN"
        )

    def test_device_error(self):
        self.prints(
            "DeviceError 7",
            """
            with ebb.region():
                malloc(MiB)
            ebb.pause()
            try:
                ebb.resume()
            except ebb.DeviceError as err:
                print(type(err).__name__, err.code)
            ebb.resume()
            """,
            SOFTGPU_FAULT="cuMemMap:2:CUDA_ERROR_UNKNOWN",
        )

    def test_engine_that_cannot_be_loaded(self):
        self.prints(
            "NotLoaded 15",
            """
            try:
                with ebb.region():
                    malloc(MiB)
            except Exception:
                pass
            try:
                ebb.pause()
            except ebb.NotLoaded as err:
                assert "/nowhere/engine.so" in str(err), err
                print(type(err).__name__, err.code)
            """,
            EBB_ENGINE="/nowhere/engine.so",
        )


if __name__ == "__main__":
    unittest.main()
