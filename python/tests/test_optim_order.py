"""Streamed optimizers in any order of what a program does with them: whatever fails, is interrupted, paused, saved or
loaded in between, parameters and state have the bits of PyTorch's optimizer, or an error says that they are lost.

EBB_TEST_SEED repeats one run; EBB_TEST_LONG=1 makes more of them.
"""

import contextlib
import copy
import ctypes
import itertools
import os
import random
import resource
import unittest
from unittest import mock

import ebb
from support import MiB, free, malloc
from test_optim import SHAPES, Plain, Streamed, loss_of, parameters, torch

if torch is not None:
    import ebb.optim
    from ebb._state import State
    from ebb.optim import StreamedAdam, StreamedAdamW, StreamedSGD

    KINDS = (
        (StreamedAdamW, torch.optim.AdamW, dict(lr=1e-2, foreach=True)),
        (StreamedAdam, torch.optim.Adam, dict(lr=1e-2, weight_decay=0.1, foreach=True)),
        (StreamedSGD, torch.optim.SGD, dict(lr=1e-2, momentum=0.9, nesterov=True, foreach=True)),
    )
    # Where a step may be stopped: before or after any call of these.
    PLACES = [(State, name) for name in ("read", "write", "wait")] + [(ebb.optim, "_set_flat"), (ebb.optim._Step, "written")]

SEED = os.environ.get("EBB_TEST_SEED")
RUNS = 40 if os.environ.get("EBB_TEST_LONG") else 5
ACTIONS = 25


class AnyOrder(Streamed):
    def test_no_bit_differs_or_an_error_says_so(self):
        first = random.SystemRandom().randrange(1 << 32) if SEED is None else int(SEED)
        for seed in [first] if SEED is not None else range(first, first + RUNS):
            with self.subTest(f"EBB_TEST_SEED={seed}"):
                with contextlib.ExitStack() as self.memory:
                    self.run_of(random.Random(seed))

    def run_of(self, chance):
        self.chance, self.number = chance, 0
        kind, other, options = chance.choice(KINDS)
        self.kind = kind
        self.settings = dict(bucket_elements=chance.choice((300, 1024, 1 << 16)), buckets_in_flight=chance.choice((1, 2, 3, 9)), **options)
        self.plain, self.made = Plain(parameters(), other, **options), parameters()
        self.optimizer = self.streamed(self.made, kind, **self.settings)
        self.managed = False
        self.checkpoint()
        said = []
        for _ in range(ACTIONS):
            action = chance.choice(self.ACTIONS)
            said.append(action.__name__)
            try:
                action(self)
                self.all_same(self.plain, self.made)
            except BaseException:
                print(f"{kind.__name__} {self.settings}: {', '.join(said)}")
                raise
        self.optimizer.close()

    # ---- what a program does -----------------------------------------------------------------

    def gradients(self):
        without = self.chance.sample(range(len(SHAPES)), self.chance.choice((0, 0, 3, 9, 10)))
        self.plain.zero_grad()
        self.optimizer.zero_grad(set_to_none=True)
        for side in (self.plain.parameters, self.made):
            loss = loss_of(side, self.number, without)
            if loss.requires_grad:
                loss.backward()
        self.number += 1

    def step(self):
        self.gradients()
        self.plain.step()
        self.optimizer.step()

    def step_with_a_closure(self):
        self.gradients()
        self.plain.step()
        self.optimizer.step(lambda: None)

    def step_that_is_stopped(self):
        """Once or more often; in between others pause the rank, where that may cost the step."""
        self.gradients()
        paused = False
        for _ in range(self.chance.randrange(1, 4)):
            if self.stopped():
                if self.chance.random() < 0.5:
                    paused = self.pause_from_elsewhere() or paused
                elif self.chance.random() < 0.5:
                    self.pause()
            else:
                self.plain.step()
                return
        try:
            self.optimizer.step()
        except ebb.WrongState as err:
            self.assertTrue(paused, err)
            self.assertIn("load the last checkpoint", str(err))
            self.load_checkpoint()
            return
        self.plain.step()

    def stopped(self):
        """Whether a step was stopped, rather than done, or refused for good."""
        fault = self.chance.choice((self.disk_that_takes_no_writes, self.read_that_fails) + 8 * (self.interruption,))
        with fault():
            try:
                self.optimizer.step()
            except (KeyboardInterrupt, ebb.StateError):
                return True
            except ebb.WrongState:
                return True  # it is said again
        return False

    def interruption(self):
        """Ctrl-C; or a request that is refused."""
        where, name = self.chance.choice(PLACES + 3 * [(self.kind, "update")])
        before, error = self.chance.random() < 0.5, KeyboardInterrupt
        if before and name in ("read", "write"):
            error = self.chance.choice((KeyboardInterrupt, ebb.DiskError("disk full")))
        return self.call_that_fails(where, name, error, before)

    def read_that_fails(self):
        return self.call_that_fails(State, "wait", ebb.DiskError("not what was written"), before=False, of=self.is_read)

    def is_read(self, _, ticket):
        return any(s.reading.value == ticket for s in self.optimizer._slots._slots)

    def call_that_fails(self, where, name, error, before, of=lambda *_: True):
        """One of the calls of a function that `of` picks: before or after it was made."""
        stop, function, calls = self.chance.choice((0, 0, 1, 1, 2, 3, 5, 8)), getattr(where, name), itertools.count()

        def fails(*arguments, **options):
            now = of(*arguments) and next(calls) == stop
            if now and before:
                raise error
            result = function(*arguments, **options)
            if now:
                raise error
            return result

        return mock.patch.object(where, name, fails)

    @contextlib.contextmanager
    def disk_that_takes_no_writes(self):
        """From some write on. It is a real one, since the engine keeps memory for the values that it could not write."""
        stop, function, calls = self.chance.choice((0, 0, 1, 1, 2, 3, 5, 8)), State.write, itertools.count()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

        def write(*arguments, **options):
            if next(calls) == stop:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
            return function(*arguments, **options)

        with mock.patch.object(State, "write", write):
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def prefetch(self):
        self.optimizer.prefetch()

    def release(self):
        self.optimizer.release()

    def pause(self):
        with ebb.paused():
            pass

    def pause_from_elsewhere(self):
        library = ctypes.CDLL(None)
        before = ebb.pause_count("ebb.optim")
        library.tms_pause(None)
        library.tms_resume(None)
        return ebb.pause_count("ebb.optim") != before

    def pause_of_other_memory(self):
        if self.managed:
            library = ctypes.CDLL(None)
            library.tms_pause(b"default")
            library.tms_resume(b"default")

    def memory_that_is_managed(self):
        """Then the slots are, too, from the next time on that they are made."""
        if not self.managed:
            with ebb.region(backup="cpu"):
                address = malloc(MiB)
            self.managed = True
            self.memory.callback(free, address)

    def parameters_that_others_change(self):
        with torch.no_grad():
            for side in (self.plain.parameters, self.made):
                for parameter in side:
                    parameter.mul_(0.5)
            for parameter, master in zip(self.plain.parameters, self.plain.masters):
                if parameter is not master:
                    master.copy_(parameter)
        self.optimizer.take_parameters()

    def checkpoint(self):
        """The last one: of parameters, of both optimizers, one of them in a folder."""
        folder = os.path.join(self.folder, "checkpoint")
        self.optimizer.save(folder)
        sides = (self.plain.parameters, self.plain.masters, self.made)
        self.saved = [[p.detach().clone() for p in side] for side in sides], copy.deepcopy(self.plain.optimizer.state_dict()), \
            copy.deepcopy(self.optimizer.state_dict()), folder

    def load_checkpoint(self):
        values, theirs, mine, folder = self.saved
        with torch.no_grad():
            for side, kept in zip((self.plain.parameters, self.plain.masters, self.made), values):
                for parameter, value in zip(side, kept):
                    parameter.copy_(value)
        self.plain.optimizer.load_state_dict(copy.deepcopy(theirs))
        if self.chance.random() < 0.5:
            self.optimizer.load(folder)
        else:
            self.optimizer.load_state_dict(mine)

    def another_optimizer(self):
        saved = self.optimizer.state_dict()
        self.optimizer.close()
        self.optimizer = self.streamed(self.made, self.kind, **self.settings)
        self.optimizer.load_state_dict(saved)

    ACTIONS = (
        step, step, step, step_with_a_closure, step_that_is_stopped, step_that_is_stopped, prefetch, release, pause,
        pause_from_elsewhere, pause_of_other_memory, memory_that_is_managed, parameters_that_others_change, checkpoint,
        load_checkpoint, another_optimizer,
    )


if __name__ == "__main__":
    unittest.main()
