"""Pauses that another thread asks for."""

import threading
import unittest

import ebb
from support import MiB, Memory, child


class Asking(threading.Thread):
    """Asks for a pause, says when it has it, and resumes when told."""

    def __init__(self, *arguments):
        super().__init__()
        self.arguments, self.paused, self.go = arguments, threading.Event(), threading.Event()
        self.result = self.error = None

    def run(self):
        try:
            self.result = ebb.request_pause(*self.arguments)
            self.paused.set()
            self.go.wait()
            ebb.resume()
        except ebb.Error as err:
            self.error = err
            self.paused.set()


class SafePoints(Memory):
    def setUp(self):
        super().setUp()
        self.address, self.pattern = self.allocate(3 * MiB, tag="model", backup="cpu")

    def test_without_a_request_nothing_happens(self):
        ebb.safe_point()
        with ebb.idle():
            pass
        self.pattern.check(self.address)

    def test_a_request_is_met_while_idle(self):
        asking = Asking()
        with ebb.idle():
            asking.start()
            asking.paused.wait()
            self.assertEqual(ebb.status()["bytes_active"], 0)
            asking.go.set()
        # Leaving waited for the resume.
        self.pattern.check(self.address)
        asking.join()
        self.assertEqual((asking.error, asking.result.allocations), (None, 1))

    def test_a_request_waits_for_a_safe_point(self):
        asking = Asking("model")
        asking.go.set()
        asking.start()
        while asking.is_alive():
            self.assertEqual(ebb.status()["bytes_paused"], 0, "paused outside a safe point")
            ebb.safe_point()
        self.pattern.check(self.address)
        self.assertEqual((asking.error, asking.result.bytes), (None, 3 * MiB))

    def test_no_safe_point_in_time(self):
        with self.assertRaises(ebb.Timeout) as caught:
            ebb.request_pause(timeout=0.01)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertEqual(ebb.status()["bytes_paused"], 0)
        ebb.safe_point()
        self.assertEqual(ebb.status()["bytes_paused"], 0, "a request that gave up was met")

    def test_idle_nests_and_ends_with_an_exception(self):
        with self.assertRaises(KeyError):
            with ebb.idle(), ebb.idle():
                raise KeyError
        with self.assertRaises(ebb.Timeout):
            ebb.request_pause(timeout=0)

    def test_a_request_that_names_nothing(self):
        self.assertEqual(ebb.request_pause([], timeout=0), ebb.Result())

    def test_errors_of_the_pause_reach_who_asked(self):
        with ebb.idle(), self.assertRaises(ebb.UnknownTag):
            ebb.request_pause("never seen")

    def test_before_anything_is_managed(self):
        result = child("ebb.safe_point()\nwith ebb.idle():\n    pass\nprint(ebb.status()['allocations'])")
        self.assertEqual((result.returncode, result.stdout), (0, "0\n"), result.stderr)


if __name__ == "__main__":
    unittest.main()
