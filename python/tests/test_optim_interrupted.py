"""Ctrl-C anywhere in what a program does with a streamed optimizer: it can go on as the documents say, no bit differs,
and nothing is left behind: memory, files, locks, settings of the thread.

Python looks for signals when a function is entered, after a call, and when a loop begins again. At such places of
the package an interruption is raised: at a few of them, or with EBB_TEST_LONG=1 at many. EBB_TEST_SEED repeats a choice.
"""

import contextlib
import copy
import dis
import functools
import gc
import os
import random
import sys
import threading
import unittest
from unittest import mock

import ebb
from ebb import _abi, _region
from support import DISK, MiB, backup_files, free, free_memory, malloc
from optim_support import Plain, Streamed, groups, loss_of, parameters, torch

if torch is not None:
    import ebb.optim

SEED = os.environ.get("EBB_TEST_SEED")
PLACES = 40 if os.environ.get("EBB_TEST_LONG") else 5
FILES = (os.path.dirname(ebb.__file__) + os.sep, contextlib.__file__)


@functools.lru_cache(maxsize=None)
def handler(code, offset):
    """Where an error of an operation goes: 0 is to the caller. (Before Python 3.11 an operation ends a try, and this is 0.)"""
    table = dis._parse_exception_table(code) if hasattr(dis, "_parse_exception_table") else ()
    return next((entry.target for entry in table if entry.start <= offset < entry.end), 0)


class Interruption:
    """KeyboardInterrupt at one place, the so many-th time; place None: nowhere, but `seen` tells of all."""

    def __init__(self, place=None, time=0):
        self.place, self.time, self.seen = place, time, {}

    def __enter__(self):
        sys.settrace(self._enters)

    def __exit__(self, *_):
        sys.settrace(None)

    def _enters(self, frame, *_):
        code = frame.f_code
        if not code.co_filename.startswith(FILES) or code.co_name == "__del__":  # Python lets nothing out of that
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        looks, before = True, None  # Python looks for signals, before the next operation

        def operation(frame, event, _):
            nonlocal looks, before
            if event == "opcode":
                # What Python finds at the end of a call it raises in the call: where the next operation is no longer in the
                # call's try, nothing can come between the two.
                name, now = dis.opname[code.co_code[frame.f_lasti]], looks and before in (None, handler(code, frame.f_lasti))
                looks = name.startswith("CALL") or name in ("JUMP_BACKWARD", "JUMP_ABSOLUTE", "BEFORE_WITH", "SETUP_WITH")
                before = handler(code, frame.f_lasti)
                if now:
                    place = (os.path.basename(code.co_filename), code.co_name, frame.f_lasti)
                    self.seen[place] = self.seen.get(place, 0) + 1
                    if (place, self.seen[place]) == (self.place, self.time):
                        raise KeyboardInterrupt
            return operation

        return operation


class Program:
    """Trains, beside PyTorch's optimizer. `managed`: the rank has other managed memory, and so the slots are, too."""

    def __init__(self, folder, managed):
        self.plain, self.made, self.number = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters(), 0
        self.folder, self.memory = folder, contextlib.ExitStack()
        if managed:
            with ebb.region(backup="cpu"):
                self.memory.callback(free, malloc(MiB))
        self.optimizer = None

    def make(self):
        self.optimizer = ebb.optim.StreamedAdamW(
            groups(self.made), lr=1e-2, foreach=True, bucket_elements=1024, buckets_in_flight=2, prefetch_in_backward=False
        )

    def gradients(self):
        for side in (self.plain.parameters, self.made):
            for parameter in side:
                parameter.grad = None
            loss_of(side, self.number).backward()
        self.number += 1

    def train(self):
        self.gradients()
        self.plain.step()
        self.optimizer.step()

    def checkpoint(self):
        self.optimizer.save(os.path.join(self.folder, "c"))
        self.state = self.optimizer.state_dict()
        sides = (self.plain.parameters, self.plain.masters, self.made)
        self.values = [(p, p.detach().clone()) for side in sides for p in side]
        self.plain_state = copy.deepcopy(self.plain.optimizer.state_dict())

    def restore_others(self):
        with torch.no_grad():
            for parameter, value in self.values:
                parameter.copy_(value)
        self.plain.optimizer.load_state_dict(copy.deepcopy(self.plain_state))

    def step_that_fails(self):
        self.gradients()
        with mock.patch.object(ebb._tensors, "set_flattened", side_effect=RuntimeError), contextlib.suppress(ebb.StateError):
            self.optimizer.step()
        assert self.optimizer.unfinished

    # What is interrupted.

    def step(self):
        self.optimizer.step()

    def prefetch(self):
        self.optimizer.prefetch()

    def state_dict(self):
        self.optimizer.state_dict()

    def save(self):
        self.optimizer.save(os.path.join(self.folder, "c"))

    def load(self):
        self.optimizer.load(os.path.join(self.folder, "c"))

    def load_state_dict(self):
        self.optimizer.load_state_dict(self.state)

    def release(self):
        self.optimizer.release()

    def pause(self):
        ebb.pause()
        ebb.resume()

    def close(self):
        self.optimizer.close()


class Interrupted(Streamed):
    def everywhere(self, action, *before):
        """The action is interrupted after the others, which an optimizer without state has gone through."""
        seed = random.SystemRandom().randrange(1 << 32) if SEED is None else int(SEED)
        self.chance = random.Random(seed)
        nowhere = Interruption()
        self.interrupted(nowhere, action, before, managed=True)
        times = [(place, time) for place, most in nowhere.seen.items() for time in {1, self.chance.randint(1, most), most}]
        for place, time in self.chance.sample(times, min(PLACES, len(times))):
            managed = self.chance.random() < 0.5
            with self.subTest(f"EBB_TEST_SEED={seed}", place=place, time=time, managed=managed):
                self.interrupted(Interruption(place, time), action, before, managed)

    def interrupted(self, interruption, action, before, managed):
        free_before, settings = free_memory(), _region.current(_abi.library())
        program = Program(self.folder, managed)
        try:
            if action != "make":
                program.make()
            for each in before:
                getattr(program, each)()
            values, done = [p.detach().clone() for p in program.made], False
            try:
                with interruption:
                    getattr(program, action)()
                done = True
            except KeyboardInterrupt:
                pass
            self.assertEqual(_region.current(_abi.library()), settings)
            torch.set_grad_enabled(True)  # an interruption at the end of PyTorch's own no_grad() leaves it as it is inside
            if program.optimizer is not None:
                self.nobody_has(program.optimizer._lock)
            self.goes_on(program, action, done, values)
        finally:
            _region.apply(_abi.library(), settings)
            if program.optimizer is not None:
                program.optimizer.close()
            program.optimizer = None
            program.memory.close()
        gc.collect()
        self.assertEqual((ebb.status()["states"], ebb.status()["allocations"]), ([], 0))
        self.assertEqual(backup_files(DISK), {})
        self.assertEqual(free_memory(), free_before)

    def nobody_has(self, lock):
        taken = []
        other = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False) and lock.release() is None))
        other.start()
        other.join()
        self.assertEqual(taken, [True])

    def goes_on(self, program, action, done, values):
        """As a program does that was interrupted."""
        if action == "make":
            if program.optimizer is None:
                program.make()
        elif action == "step":
            if program.optimizer.unfinished or not done and all(torch.equal(a, b) for a, b in zip(program.made, values)):
                program.step()
            program.plain.step()
        elif action.startswith("load"):
            if not done:  # what is not wholly loaded is not taken for a state
                with contextlib.suppress(ebb.WrongState):
                    program.optimizer.step()
                getattr(program, action)()
            program.restore_others()
        elif action == "pause":
            ebb.resume()
        elif not done:
            getattr(program, action)()
        if action == "close":
            return
        for _ in range(2):
            program.train()
            with ebb.paused():
                pass
        self.all_same(program.plain, program.made)
        self.assertEqual(len({float(e["step"]) for e in program.optimizer.state_dict()["state"].values()}), 1)

    def test_making_one(self):
        self.everywhere("make")

    def test_a_first_step(self):
        self.everywhere("step", "gradients")

    def test_a_step(self):
        self.everywhere("step", "train", "gradients")

    def test_a_step_that_goes_on(self):
        self.everywhere("step", "train", "step_that_fails")

    def test_prefetch(self):
        self.everywhere("prefetch", "train")

    def test_a_state_dict(self):
        self.everywhere("state_dict", "train")

    def test_a_state_dict_that_is_loaded(self):
        self.everywhere("load_state_dict", "train", "checkpoint", "train", "prefetch")

    def test_a_state_dict_that_is_loaded_amid_a_step(self):
        self.everywhere("load_state_dict", "train", "checkpoint", "step_that_fails")

    def test_a_checkpoint(self):
        self.everywhere("save", "train", "checkpoint", "train", "prefetch")

    def test_a_checkpoint_that_is_loaded(self):
        self.everywhere("load", "train", "checkpoint", "train", "prefetch")

    def test_a_checkpoint_that_is_loaded_amid_a_step(self):
        self.everywhere("load", "train", "checkpoint", "step_that_fails")

    def test_release(self):
        self.everywhere("release", "train", "prefetch")

    def test_a_pause(self):
        self.everywhere("pause", "train", "prefetch")

    def test_close(self):
        self.everywhere("close", "train", "prefetch")

    def test_close_amid_a_step(self):
        self.everywhere("close", "train", "step_that_fails")


if __name__ == "__main__":
    unittest.main()
