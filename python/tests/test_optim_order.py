"""Streamed optimizers in any order of what a program does with them: whatever fails, is interrupted, paused, saved or
loaded in between, parameters and state have the bits of PyTorch's optimizer, or an error says that they are lost.

EBB_TEST_SEED repeats one run, but for the moments of signals and threads; EBB_TEST_LONG=1 makes more of them.
"""

import contextlib
import copy
import ctypes
import gc
import itertools
import os
import random
import resource
import signal
import threading
import unittest
from unittest import mock

import ebb
from support import DISK, MiB, backup_files, child, free, malloc
from optim_support import SHAPES, Plain, Streamed, files_are_closed, loss_of, parameters, torch

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
    PLACES = [(State, name) for name in ("read", "write", "wait")] + [(ebb._tensors, "set_flattened"), (ebb.optim.Step, "written")]
    MOMENTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

SEED = os.environ.get("EBB_TEST_SEED")
RUNS = 40 if os.environ.get("EBB_TEST_LONG") else 5
ACTIONS = 25

# Goes on in another process with a checkpoint and the parameters that belong to it.
ANOTHER_PROCESS = """
import os, torch, ebb.optim
from optim_support import groups, loss_of, parameters
told = torch.load(os.environ["TOLD"])
made = parameters()
with torch.no_grad():
    for parameter, value in zip(made, told["values"]):
        parameter.copy_(value)
optimizer = getattr(ebb.optim, told["kind"])(groups(made), **told["settings"])
optimizer.load(told["folder"])
loss_of(made, told["number"]).backward()
optimizer.step()
torch.save([p.detach() for p in made], told["result"])
"""


class Side:
    """A streamed optimizer with its parameters, and PyTorch's with masters, which is to have the same bits."""

    def __init__(self, test, chance, name):
        self.test, self.chance, self.name, self.number = test, chance, name, chance.randrange(1000)
        self.kind, other, options = chance.choice(KINDS)
        self.options = options
        self.stored = chance.choice(("fp32", "fp32", "bf16", "fp16"))
        self.plain, self.made = Plain(parameters(), other, **options), parameters()
        self.new_optimizer()
        self.checkpoint()

    def new_optimizer(self):
        self.settings = dict(
            bucket_elements=self.chance.choice((300, 1024, 1 << 16)), buckets_in_flight=self.chance.choice((1, 2, 3, 9)),
            prefetch_in_backward=self.chance.random() < 0.7, moments_dtype=self.stored, **self.options,
        )
        self.optimizer = self.test.streamed(self.made, self.kind, **self.settings)

    def gradients(self):
        without = self.chance.sample(range(len(SHAPES)), self.chance.choice((0, 0, 3, 9, 10)))
        self.plain.zero_grad()
        self.optimizer.zero_grad(set_to_none=True)
        for side in (self.plain.parameters, self.made):
            loss = loss_of(side, self.number, without)
            if loss.requires_grad:
                loss.backward()
        self.number += 1

    def plain_step(self):
        self.plain.step()
        for entry in self.plain.optimizer.state.values():
            for name in self.kind.segments:
                if entry.get(name) is not None:
                    entry[name].copy_(entry[name].to(MOMENTS[self.stored]).float())

    def values(self):
        return [p.detach().clone() for p in self.made]

    def checkpoint(self):
        """Of parameters, of both optimizers, one of them in a folder, over the one before."""
        folder = os.path.join(self.test.folder, f"checkpoint {self.name}")
        self.optimizer.save(folder)
        sides = (self.plain.parameters, self.plain.masters, self.made)
        self.saved = [[p.detach().clone() for p in side] for side in sides], copy.deepcopy(self.plain.optimizer.state_dict()), \
            copy.deepcopy(self.optimizer.state_dict()), folder, self.optimizer._layout()

    def restore_others(self):
        """What is not in the streamed optimizer's checkpoint."""
        with torch.no_grad():
            for side, kept in zip((self.plain.parameters, self.plain.masters, self.made), self.saved[0]):
                for parameter, value in zip(side, kept):
                    parameter.copy_(value)
        self.plain.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))

    def load(self):
        """Either from the folder, where that is of the same layout, or from the state dict."""
        _, _, state, folder, layout = self.saved
        if layout == self.optimizer._layout() and self.chance.random() < 0.5:
            self.optimizer.load(folder)
        else:
            self.optimizer.load_state_dict(state)


class AnyOrder(Streamed):
    def test_no_bit_differs_or_an_error_says_so(self):
        first = random.SystemRandom().randrange(1 << 32) if SEED is None else int(SEED)
        for seed in [first] if SEED is not None else range(first, first + RUNS):
            with self.subTest(f"EBB_TEST_SEED={seed}"):
                with contextlib.ExitStack() as self.memory:
                    self.run_of(random.Random(seed))
                self.assertEqual((ebb.status()["states"], ebb.status()["allocations"]), ([], 0))
                self.assertEqual(backup_files(DISK), {})

    def run_of(self, chance):
        self.chance, self.managed = chance, False
        sides = [Side(self, chance, name) for name in range(chance.choice((1, 1, 2)))]
        said = [" | ".join(f"{s.kind.__name__} {s.settings}" for s in sides)]
        try:
            for _ in range(ACTIONS):
                action, self.side = chance.choice(self.ACTIONS), chance.choice(sides)
                said.append(f"{action.__name__} {self.side.name}")
                action(self)
                for side in sides:
                    self.all_same(side.plain, side.made)
        except BaseException:
            print(", ".join(said))
            raise
        finally:  # the next seed begins with nothing
            for side in sides:
                side.optimizer.close()

    # ---- steps -------------------------------------------------------------------------------

    def step(self):
        self.side.gradients()
        self.side.plain_step()
        self.side.optimizer.step()

    def step_with_a_closure(self):
        """Which makes the gradients; before, one that fails."""
        side = self.side

        def fails():
            side.optimizer.zero_grad(set_to_none=True)
            loss_of(side.made, side.number).backward()
            raise ZeroDivisionError

        def closure():
            side.gradients()
            return 3

        if self.chance.random() < 0.5:
            with self.assertRaises(ZeroDivisionError):
                side.optimizer.step(fails)
        self.assertEqual(side.optimizer.step(closure), 3)
        side.plain_step()

    def step_that_is_stopped(self):
        """Once or more often; in between others pause the rank, where that may cost the step."""
        side = self.side
        side.gradients()
        before, paused = side.values(), False
        for _ in range(self.chance.randrange(1, 4)):
            fault = self.chance.choice((
                self.disk_that_takes_no_writes, self.disk_that_spoils_bytes, self.read_that_fails, self.signal, self.signal,
            ) + 5 * (self.interruption,))
            stopped = self.stopped(fault, before)
            if not stopped:
                side.plain_step()
                self.all_same(side.plain, side.made)
            if fault == self.disk_that_spoils_bytes:
                # The engine may find at any later write that others changed its files, and asks for this.
                self.load_checkpoint()
                return
            if not stopped:
                return
            between = self.chance.choice((None, "pause", "elsewhere", "refused", "prefetch", "options", "forgotten"))
            if between == "elsewhere":
                paused = self.pause_from_elsewhere() or paused
            elif between == "pause":
                self.pause()
            elif between == "prefetch":
                with contextlib.suppress(ebb.WrongState):  # new values are lost: the step says so
                    side.optimizer.prefetch()
            elif between == "refused" and side.optimizer.unfinished:
                for call in (side.optimizer.state_dict, lambda: side.optimizer.save(side.saved[3]), side.optimizer.take_parameters):
                    self.assertRaises(ebb.WrongState, call)
            elif between == "options" and side.optimizer.unfinished:  # they are the next step's
                side.plain_step()
                self.scale_options(0.5)
                try:
                    side.optimizer.step()
                except ebb.WrongState as err:
                    self.lost(err, paused)
                return
            elif between == "forgotten":
                self.load_checkpoint()
                return
        try:
            side.optimizer.step()
        except ebb.WrongState as err:
            self.lost(err, paused)
            return
        side.plain_step()

    def lost(self, err, paused):
        """A step, to a pause amid it."""
        self.assertTrue(paused, err)
        self.assertIn("load the last checkpoint", str(err))
        self.load_checkpoint()

    def stopped(self, fault, before):
        """Whether a step was stopped, or not begun, rather than done, or refused for good."""
        optimizer = self.side.optimizer
        with fault():
            try:
                optimizer.step()
            except (KeyboardInterrupt, ebb.StateError):
                return optimizer.unfinished or all(torch.equal(a, b) for a, b in zip(before, self.side.made))
            except ebb.WrongState:
                return True  # it is said again
        return False

    def interruption(self):
        """Ctrl-C; or a request that is refused."""
        where, name = self.chance.choice(PLACES + 3 * [(self.side.kind, "update")])
        before, error = self.chance.random() < 0.5, KeyboardInterrupt
        if before and name in ("read", "write"):
            error = self.chance.choice((KeyboardInterrupt, ebb.DiskError("disk full")))
        return self.call_that_fails(where, name, error, before)

    @contextlib.contextmanager
    def signal(self):
        """Ctrl-C, at a moment that nobody knows, while the package is at work. It may come too late."""
        armed = True

        def interrupted(_, frame):
            while armed and frame is not None:
                if os.path.dirname(frame.f_code.co_filename) == os.path.dirname(ebb.__file__):
                    raise KeyboardInterrupt
                frame = frame.f_back
            if armed:
                signal.setitimer(signal.ITIMER_REAL, 1e-5)

        former = signal.signal(signal.SIGALRM, interrupted)
        try:
            signal.setitimer(signal.ITIMER_REAL, self.chance.choice((1e-4, 1e-3, 1e-2)) * (0.1 + self.chance.random()))
            yield
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            torch.set_grad_enabled(True)  # an interruption at the end of PyTorch's own no_grad() leaves it as it is inside

    def read_that_fails(self):
        return self.call_that_fails(State, "wait", ebb.DiskError("not what was written"), before=False, of=self.is_read)

    def is_read(self, _, ticket):
        return any(s.reading.value == ticket for s in self.side.optimizer._slots._slots)

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
    def no_file_grows(self):
        """Nor is anything written to one."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    @contextlib.contextmanager
    def disk_that_takes_no_writes(self):
        """From some write on. It is a real one, since the engine keeps memory for the values that it could not write."""
        stop, function, calls = self.chance.choice((0, 0, 1, 1, 2, 3, 5, 8)), State.write, itertools.count()
        with contextlib.ExitStack() as limit:
            def write(*arguments, **options):
                if next(calls) == stop:
                    limit.enter_context(self.no_file_grows())
                return function(*arguments, **options)

            with mock.patch.object(State, "write", write):
                yield

    @contextlib.contextmanager
    def disk_that_spoils_bytes(self):
        """Of some of the files. Afterwards those that nobody has written since hold the right bytes again."""
        files_are_closed()
        folder, spoiled = self.side.optimizer._directory(), []
        for name in self.chance.sample(sorted(os.listdir(folder)), 3):
            path = os.path.join(folder, name)
            if not name.endswith(".bak") or not os.path.getsize(path):
                continue
            with open(path, "r+b") as file:
                content = file.read()
                at = self.chance.randrange(len(content))
                other = content[:at] + bytes([content[at] ^ 1 << self.chance.randrange(8)]) + content[at + 1 :]
                file.seek(0)
                file.write(other)
            spoiled.append((path, content, other))
        yield
        files_are_closed()
        for path, content, other in spoiled:
            with open(path, "r+b") as file:
                if file.read() == other:
                    file.seek(0)
                    file.write(content)

    # ---- what else a program does ------------------------------------------------------------

    def prefetch(self):
        self.side.optimizer.prefetch()

    def release(self):
        self.side.optimizer.release()

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

    @contextlib.contextmanager
    def pauses_on_another_thread(self, *tags):
        over = threading.Event()

        def pauses():
            library = ctypes.CDLL(None)
            while not over.is_set():
                for tag in tags:
                    library.tms_pause(tag)
                    library.tms_resume(tag)

        other = threading.Thread(target=pauses)
        other.start()
        try:
            yield
        finally:
            over.set()
            other.join()

    def step_while_others_pause_their_memory(self):
        if self.managed:
            with self.pauses_on_another_thread(b"default"):
                try:
                    self.step()
                    return
                except ebb.WrongState as err:  # there was no other memory at that moment
                    self.assertIn("resume it first", str(err))
                except ebb.StateError as err:
                    self.assertIn("resume it first", str(err))
            self.side.optimizer.step()

    def pauses_beside_what_is_no_step(self):
        """They take the memory of what is being read, wait for requests, and cost nothing."""
        if self.managed:
            with self.pauses_on_another_thread(None, b"ebb.optim", b"default"):
                for _ in range(3):
                    with contextlib.suppress(ebb.WrongState):  # it is paused now
                        self.side.optimizer.prefetch()
                self.chance.choice((self.checkpoint, self.another_optimizer, self.release, self.load_checkpoint))()

    def interrupted_by_a_signal(self):
        """What is no step: it is done again."""
        side = self.side
        again = self.chance.choice((side.optimizer.release, side.optimizer.prefetch, side.checkpoint, side.load, self.pause))
        with self.signal():
            try:
                again()
            except KeyboardInterrupt:
                if again == self.pause:
                    ebb.resume()
        again()
        if again == side.load:
            side.restore_others()

    def save_that_fails(self):
        """The older checkpoint is whole."""
        if self.chance.random() < 0.5:
            self.step()
        with self.no_file_grows():
            self.assertRaises((ebb.DiskError, ebb.NoSpace), self.side.optimizer.save, self.side.saved[3])
        if self.chance.random() < 0.5:
            self.load_checkpoint()

    def load_that_fails(self):
        """After it there is no step until something was loaded."""
        with self.no_file_grows():
            try:
                self.side.load()
            except (ebb.DiskError, ebb.NoSpace):
                self.assertRaises(ebb.WrongState, self.side.optimizer.step)
                self.assertRaises(ebb.WrongState, self.side.optimizer.prefetch)
                self.assertRaises(ebb.WrongState, self.side.optimizer.state_dict)
        self.load_checkpoint()

    def options_that_change(self):
        self.scale_options(self.chance.choice((0.5, 2)))

    def scale_options(self, factor):
        for optimizer in (self.side.plain.optimizer, self.side.optimizer):
            for group in optimizer.param_groups:
                group["lr"] *= factor
                group["weight_decay"] *= factor

    def parameters_that_others_change(self):
        with torch.no_grad():
            for side in (self.side.plain.parameters, self.side.made):
                for parameter in side:
                    parameter.mul_(0.5)
        self.masters_begin_anew()
        self.side.optimizer.take_parameters()

    def masters_begin_anew(self):
        with torch.no_grad():
            for parameter, master in zip(self.side.plain.parameters, self.side.plain.masters):
                if parameter is not master:
                    master.copy_(parameter)

    def checkpoint(self):
        self.side.checkpoint()

    def load_checkpoint(self):
        self.side.restore_others()
        self.side.load()

    def load_from_pytorchs(self):
        """Which knows no masters."""
        self.side.optimizer.load_state_dict(self.side.plain.optimizer.state_dict())
        self.masters_begin_anew()

    def another_optimizer(self):
        """Of another layout, which takes no checkpoint of the first one's."""
        saved, layout = self.side.optimizer.state_dict(), self.side.optimizer._layout()
        self.side.optimizer.close()
        self.side.new_optimizer()
        self.side.optimizer.load_state_dict(saved)
        if self.side.saved[4] != self.side.optimizer._layout():
            self.assertRaises(ebb.InvalidArgument, self.side.optimizer.load, self.side.saved[3])
        self.assertEqual(self.side.optimizer._layout()["parameters"], layout["parameters"])

    def optimizer_that_is_dropped(self):
        """While requests are under way."""
        state = self.side.optimizer.state_dict()
        with contextlib.suppress(KeyboardInterrupt):
            self.side.optimizer.prefetch()
        self._cleanups[:] = [c for c in self._cleanups if c[0] != self.side.optimizer.close]
        self.side.optimizer = None
        gc.collect()
        self.side.new_optimizer()
        self.side.optimizer.load_state_dict(state)

    def forked_child(self):
        """It has no part in what is under way, and ends without harm to it."""
        self.side.optimizer.prefetch()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (self.side.optimizer.step, self.side.optimizer.prefetch, self.side.optimizer.close):
                    self.assertRaises(ebb.ForkedChild, call)
                self.side = None
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def another_process(self):
        """Goes on with the checkpoint in a folder, as this one does."""
        if self.chance.random() < 0.8:  # it takes seconds
            return
        side = self.side
        side.checkpoint()
        result, told = (os.path.join(self.folder, name) for name in ("result", "told"))
        torch.save(dict(
            values=side.values(), kind=side.kind.__name__, settings=side.settings, folder=side.saved[3], number=side.number,
            result=result,
        ), told)
        done = child(ANOTHER_PROCESS, prelude="", TOLD=told)
        self.assertEqual(done.returncode, 0, done.stderr)
        for each in (side.plain.parameters, side.made):
            for parameter in each:
                parameter.grad = None
            loss_of(each, side.number).backward()
        side.plain_step()
        side.optimizer.step()
        for parameter, value in zip(side.made, torch.load(result)):
            self.same(parameter, value)

    ACTIONS = (
        step, step, step, step, step_with_a_closure, step_that_is_stopped, step_that_is_stopped, step_that_is_stopped, prefetch,
        release, pause, pause_from_elsewhere, pause_of_other_memory, memory_that_is_managed, parameters_that_others_change,
        checkpoint, load_checkpoint, another_optimizer, options_that_change, save_that_fails, load_that_fails, load_from_pytorchs,
        optimizer_that_is_dropped, forked_child, another_process, step_while_others_pause_their_memory,
        pauses_beside_what_is_no_step, interrupted_by_a_signal,
    )


if __name__ == "__main__":
    unittest.main()
