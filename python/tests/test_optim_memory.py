"""GPU memory of streamed optimizers: buckets that are read ahead, what is taken and given back, and pauses that come
from elsewhere."""

import contextlib
import copy
import ctypes
import gc
import os
import threading
import unittest
import weakref
from unittest import mock

import ebb
from optim_support import BUCKET, Plain, Streamed, groups, loss_of, parameters, torch
from support import MiB, free_memory

if torch is not None:
    import ebb.optim
    from ebb._state import State
    from ebb.optim import StreamedAdamW


class PrefetchInBackward(Streamed):
    """The first gradient of a backward begins to read the first buckets."""

    def setUp(self):
        super().setUp()
        self.reads = []
        read = ebb.optim.Slots.read
        patched = mock.patch.object(ebb.optim.Slots, "read", lambda s, b: self.reads.append(b) or read(s, b))
        patched.start()
        self.addCleanup(patched.stop)

    def both(self, **options):
        plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters()
        optimizer = self.streamed(made, lr=1e-2, foreach=True, buckets_in_flight=2, **options)
        self.train(plain, made, optimizer, 2)
        self.reads.clear()
        return plain, made, optimizer

    def backward(self, plain, made, number):
        for side in (plain.parameters, made):
            loss_of(side, number).backward()

    def finish(self, plain, made, optimizer):
        plain.step()
        optimizer.step()
        self.all_same(plain, made)
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)

    def test_the_first_buckets_are_read_once(self):
        plain, made, optimizer = self.both()
        optimizer.zero_grad(set_to_none=True)
        plain.zero_grad()
        for number in range(2, 4):
            self.backward(plain, made, number)
            self.assertEqual(self.reads, optimizer._buckets[:2])
            self.finish(plain, made, optimizer)
            self.assertEqual(len(self.reads), len(optimizer._buckets))
            self.reads.clear()

    def test_gradients_that_add_up_over_several_backwards(self):
        plain, made, optimizer = self.both()
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)
        for number in range(3):
            self.backward(plain, made, number)
            self.assertEqual(self.reads, optimizer._buckets[:2])
        self.finish(plain, made, optimizer)

    def test_a_step_that_is_skipped_keeps_what_was_read(self):
        plain, made, optimizer = self.both()
        for number in range(2):
            plain.zero_grad()
            optimizer.zero_grad(set_to_none=True)
            self.backward(plain, made, number)  # and no step: as a GradScaler does it after an overflow
        self.assertEqual(self.reads, optimizer._buckets[:2])
        self.finish(plain, made, optimizer)

    def test_a_backward_that_fails(self):
        plain, made, optimizer = self.both()

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(_, value):
                return value.clone()

            @staticmethod
            def backward(_, __):
                raise ArithmeticError("no gradient")

        with self.assertRaisesRegex(ArithmeticError, "no gradient"):
            (made[-1].sum() + Fails.apply(made[0]).sum()).backward()
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)
        self.backward(plain, made, 5)
        self.finish(plain, made, optimizer)

    def test_a_state_dict_that_is_loaded_in_between(self):
        plain, made, optimizer = self.both()
        saved, theirs = optimizer.state_dict(), copy.deepcopy(plain.optimizer.state_dict())
        values = [[p.detach().clone() for p in side] for side in (plain.parameters, made, plain.masters)]
        for number in range(2, 4):
            plain.zero_grad()
            optimizer.zero_grad(set_to_none=True)
            self.backward(plain, made, number)
            if number == 2:
                self.finish(plain, made, optimizer)
        optimizer.load_state_dict(saved)  # after the reads
        plain.optimizer.load_state_dict(theirs)
        with torch.no_grad():
            for side, kept in zip((plain.parameters, made, plain.masters), values):
                for parameter, value in zip(side, kept):
                    parameter.copy_(value)
        self.finish(plain, made, optimizer)

    def test_a_checkpoint_in_between(self):
        plain, made, optimizer = self.both()
        folder = os.path.join(self.folder, "checkpoint")
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)
        self.backward(plain, made, 2)
        optimizer.save(folder)
        self.backward(plain, made, 3)
        self.assertEqual(self.reads, optimizer._buckets[:2] * 2, "the next backward reads again")
        optimizer.load(folder)
        self.finish(plain, made, optimizer)

    def test_a_pause_in_between(self):
        plain, made, optimizer = self.both()
        self.allocate(MiB, backup="cpu")
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)
        self.backward(plain, made, 2)
        with ebb.paused():
            self.backward(plain, made, 3)  # these parameters are not on the GPU
        self.finish(plain, made, optimizer)

    def test_a_pause_in_a_hook_of_the_backward(self):
        """After the reads have begun, also inside of a step's closure."""
        plain, made, optimizer = self.both()
        self.allocate(MiB, backup="cpu")
        pauses = []

        def pause(_):
            self.assertEqual(self.reads, optimizer._buckets[:2])
            pauses.append(ebb.pause())
            ebb.resume()

        handle = made[0].register_hook(pause)  # its gradient comes last
        self.addCleanup(handle.remove)

        def closure():
            plain.zero_grad()
            optimizer.zero_grad(set_to_none=True)
            self.backward(plain, made, 2)

        closure()
        self.finish(plain, made, optimizer)
        self.reads.clear()
        optimizer.step(closure)
        plain.step()
        self.all_same(plain, made)
        self.assertEqual(len(pauses), 2)

    def test_with_a_closure(self):
        plain, made, optimizer = self.both()

        def closure():
            self.assertEqual(self.reads, optimizer._buckets[:2], "the reads go on beside the closure")
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(made, 4)
            loss.backward()
            return loss

        plain.zero_grad()
        loss_of(plain.parameters, 4).backward()
        plain.step()
        optimizer.step(closure)
        self.all_same(plain, made)

    def test_parameters_without_gradient(self):
        for parameter in (made := parameters()):
            parameter.requires_grad_(False)
        optimizer = self.streamed(made, buckets_in_flight=2)
        made[-1].requires_grad_(True)
        optimizer.prefetch()
        self.assertEqual(self.reads, [b for b in optimizer._buckets if any(p.parameter is made[-1] for p in b.pieces)])

    def test_what_cannot_be_read_is_told_by_the_step(self):
        plain, made, optimizer = self.both()
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)
        with mock.patch.object(State, "read", side_effect=ebb.DiskError("no answer")):
            self.backward(plain, made, 2)
            with self.assertRaisesRegex(ebb.StateError, "no answer"):
                optimizer.step()
        self.finish(plain, made, optimizer)

    def test_where_it_is_not_wanted(self):
        plain, made, optimizer = self.both(prefetch_in_backward=False)
        plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)
        self.backward(plain, made, 2)
        self.assertEqual(self.reads, [])
        self.finish(plain, made, optimizer)

    def test_it_keeps_nothing_and_leaves_nothing(self):
        made = parameters()
        optimizer = StreamedAdamW(groups(made), bucket_elements=BUCKET)
        copies = copy.deepcopy(made)  # as people do with models
        there = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        self.assertIsNone(there())
        for side in (made, copies):
            loss_of(side, 0).backward()
        self.assertEqual(self.reads, [])


class DeviceMemory(Streamed):
    def test_it_does_not_grow_with_the_state(self):
        peaks = []
        for times in (1, 8):
            made = [torch.nn.Parameter(torch.zeros(1 << 16)) for _ in range(2 * times)]
            before = free_memory()
            optimizer = self.streamed(made, bucket_elements=1 << 16, buckets_in_flight=2)
            self.assertEqual(free_memory(), before, "an optimizer that is made takes nothing")
            least = before
            for number in range(2):
                for parameter in made:
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
                least = min(least, free_memory())
            peaks.append(before - least)
            optimizer.close()
            self.assertEqual(free_memory(), before)
        self.assertEqual(peaks[0], peaks[1])
        self.assertGreater(peaks[0], 0)

    def test_the_state_is_made_for_the_device_of_the_parameters(self):
        device, current, seen = torch.device("cuda", 1), [torch.device("cuda", 0)], []

        @contextlib.contextmanager
        def on(other):
            current.append(other)
            yield
            current.pop()

        def made(*arguments):
            seen.append(current[-1])
            return State(*arguments)

        with mock.patch.object(ebb._tensors, "one_device", lambda parameters: device), \
                mock.patch.object(torch.cuda, "device", on), mock.patch.object(ebb.optim, "State", made):
            self.streamed(parameters())
        self.assertEqual((seen, current), ([device], [torch.device("cuda", 0)]))

    def test_a_pause_gets_it_back(self):
        made = parameters()
        optimizer = self.streamed(made)
        self.allocate(MiB, backup="cpu")
        before = free_memory()
        loss_of(made, 0).backward()
        optimizer.step()
        self.assertLess(free_memory(), before)
        with ebb.paused():
            self.assertGreaterEqual(free_memory(), before)
        optimizer.step()
        optimizer.release()
        self.assertEqual(free_memory(), before)

    def test_a_pause_in_a_forked_child_touches_nothing_of_it(self):
        made = parameters()
        optimizer = self.streamed(made, lr=1e-2, foreach=True)
        loss_of(made, 0).backward()
        optimizer.step()
        process = os.fork()
        if process == 0:
            try:
                ebb.pause()
            except ebb.ForkedChild:
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(process, 0)[1], 0)

    def test_a_forked_child_is_told_that_the_state_is_not_there(self):
        made = parameters()
        optimizer = self.streamed(made, lr=1e-2, foreach=True)
        loss_of(made, 0).backward()
        optimizer.step()
        inside, go_on = threading.Event(), threading.Event()

        def closure():  # another thread is inside when the process is forked: in the child its lock is never free
            inside.set()
            go_on.wait()

        other = threading.Thread(target=optimizer.step, args=(closure,))
        other.start()
        inside.wait()
        process = os.fork()
        if process == 0:
            try:
                for call in (
                    optimizer.step, optimizer.prefetch, optimizer.release, optimizer.close, optimizer.state_dict,
                    optimizer.take_parameters, lambda: optimizer.save(self.folder), lambda: optimizer.load(self.folder),
                    lambda: optimizer.load_state_dict({}),
                ):
                    try:
                        call()
                        os._exit(2)
                    except ebb.ForkedChild:
                        pass
                os._exit(0)
            finally:
                os._exit(1)
        go_on.set()
        other.join()
        self.assertEqual(os.waitpid(process, 0)[1], 0)
        optimizer.step()

    def test_an_optimizer_that_nobody_has_any_more(self):
        made = parameters()
        before = free_memory()
        loss_of(made, 0).backward()
        optimizer = StreamedAdamW(groups(made))
        optimizer.step()
        optimizer.prefetch()
        del optimizer
        gc.collect()
        self.assertEqual((free_memory(), ebb.status()["states"]), (before, []))

    def test_all_is_given_back_that_the_driver_takes(self):
        """What it refuses is named, and tried again."""
        for give_back in ("release", "close"):
            made = parameters()
            before = free_memory()
            optimizer = self.streamed(made)
            loss_of(made, 0).backward()
            optimizer.step()
            library, refused = ctypes.CDLL(None), []

            class Library:
                def cudaFree(self, pointer):
                    if len(refused) < 2:
                        refused.append(pointer.value)
                        return 719
                    return library.cudaFree(pointer)

                def __getattr__(self, name):
                    return getattr(real(), name)

            real = ebb._device._abi.library
            with mock.patch.object(ebb._device._abi, "library", Library), self.assertRaises(ebb.DeviceError) as caught:
                getattr(optimizer, give_back)()
            self.assertEqual(len(refused), 2)
            for address in refused:
                self.assertIn(f"{address:#x}", str(caught.exception))
            self.assertIn("error 719", str(caught.exception.__cause__))
            left = before - free_memory()
            self.assertEqual(optimizer._state.closed, give_back == "close")
            if give_back == "release":
                optimizer.step()  # with other memory
            optimizer.close()
            self.assertEqual(free_memory(), before)
            self.assertGreater(left, 0)

    def test_what_is_freed_when_an_interruption_comes_is_not_freed_again(self):
        """Its address may be somebody else's by then."""
        made = parameters()
        optimizer = self.streamed(made)
        loss_of(made, 0).backward()
        optimizer.step()
        library, freed = ctypes.CDLL(None), []

        class Library:
            def cudaFree(self, pointer):
                freed.append(pointer.value)
                code = library.cudaFree(pointer)
                if len(freed) == 1:
                    raise KeyboardInterrupt
                return code

            def __getattr__(self, name):
                return getattr(real(), name)

        real = ebb._device._abi.library
        with mock.patch.object(ebb._device._abi, "library", Library):
            self.assertRaises(KeyboardInterrupt, optimizer.release)
            optimizer.close()
        self.assertGreater(len(freed), 1)
        self.assertEqual(len(freed), len(set(freed)))

    def test_what_an_interrupted_release_left_goes_with_the_next_pause(self):
        before, made = free_memory(), parameters()
        optimizer = self.streamed(made)
        loss_of(made, 0).backward()
        optimizer.step()
        with mock.patch.object(ebb._device, "free_all", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, optimizer.release)
        self.assertLess(free_memory(), before)
        with ebb.paused():
            self.assertEqual(free_memory(), before)

    def test_no_room_for_it(self):
        made = [torch.nn.Parameter(torch.zeros(24 * MiB))]
        optimizer = self.streamed(made, bucket_elements=24 * MiB)
        made[0].grad = torch.ones_like(made[0])
        before = free_memory()
        with self.assertRaisesRegex(ebb.OutOfDeviceMemory, "bucket_elements"):
            optimizer.step()
        self.assertEqual(free_memory(), before)


class PausesFromElsewhere(Streamed):
    """They ask no optimizer: what it has on the GPU is managed memory where the rank has some."""

    def setUp(self):
        super().setUp()
        library = ctypes.CDLL(None)
        self.pause, self.resume = (lambda: library.tms_pause(None)), (lambda: library.tms_resume(None))
        self.plain, self.made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters()

    def optimizer(self, managed=True):
        if managed:
            self.allocate(MiB, backup="cpu")
        return self.streamed(self.made, lr=1e-2, foreach=True)

    def give_gradients(self, optimizer):
        """New ones, the same for both."""
        self.plain.zero_grad()
        optimizer.zero_grad(set_to_none=True)
        for side in (self.plain.parameters, self.made):
            loss_of(side, 7).backward()

    def test_memory_of_buckets_is_freed_and_nothing_of_it_is_saved(self):
        optimizer = self.optimizer()
        before = free_memory()
        self.train(self.plain, self.made, optimizer, 2)
        self.assertLess(free_memory(), before)
        self.pause()
        try:
            self.assertGreaterEqual(free_memory(), before + MiB)
            latest = ebb.status()["last_pause"]
            self.assertEqual(latest["host_bytes"] + latest["disk_bytes"] + latest["skipped_zero_bytes"], MiB)
            with self.assertRaisesRegex(ebb.WrongState, "paused"):
                optimizer.step()
        finally:
            self.resume()
        self.train(self.plain, self.made, optimizer, 2, 2)
        self.all_same(self.plain, self.made)

    def test_what_was_read_before_is_read_again(self):
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 2)
        for early in (lambda: None, optimizer.prefetch):
            self.plain.zero_grad()
            optimizer.zero_grad(set_to_none=True)
            for side in (self.plain.parameters, self.made):
                loss_of(side, 7).backward()  # which begins to read
            self.pause()
            self.resume()
            early()
            self.plain.step()
            optimizer.step()
            self.all_same(self.plain, self.made)

    def test_values_that_were_not_written_yet_are_not_lost_silently(self):
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 1)
        loss_of(self.made, 7).backward()
        with mock.patch.object(State, "write", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                optimizer.step()
        self.pause()
        self.resume()
        with self.assertRaisesRegex(ebb.WrongState, "load the last checkpoint"):
            optimizer.step()

    def test_ebb_pause_writes_them_first(self):
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 1)
        self.give_gradients(optimizer)
        self.plain.step()
        with mock.patch.object(State, "write", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                optimizer.step()
        with ebb.paused():
            pass
        optimizer.step()
        self.all_same(self.plain, self.made)

    def test_writes_under_way_that_nobody_waited_for_are_no_loss(self):
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 1)
        self.give_gradients(optimizer)
        self.plain.step()
        with mock.patch.object(ebb.optim.Slots, "_wait_written", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                optimizer.step()
        self.pause()
        self.resume()
        optimizer.step()
        self.all_same(self.plain, self.made)
        self.train(self.plain, self.made, optimizer, 2, 2)
        self.all_same(self.plain, self.made)

    def test_the_next_ebb_pause_does_not_write_what_is_lost(self):
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 1)
        loss_of(self.made, 7).backward()
        with mock.patch.object(State, "write", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                optimizer.step()
        self.pause()
        self.resume()
        with mock.patch.object(State, "write", side_effect=AssertionError("bytes that nobody wrote go to the files")):
            with ebb.paused():
                pass
        with self.assertRaisesRegex(ebb.WrongState, "load the last checkpoint"):
            optimizer.step()

    def step_amid_which(self, of, name, pause):
        """One, with a pause after the first call of a function that it calls."""
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 2)
        self.give_gradients(optimizer)
        self.plain.step()
        real, pauses = getattr(of, name), []

        def called(*arguments):
            real(*arguments)
            if not pauses:
                pauses.append(pause())

        with mock.patch.object(of, name, called):
            optimizer.step()
        self.assertEqual(len(pauses), 1)
        self.all_same(self.plain, self.made)
        self.train(self.plain, self.made, optimizer, 2, 2)
        self.all_same(self.plain, self.made)

    def test_amid_a_step_when_a_bucket_was_read(self):
        self.step_amid_which(ebb.optim.Slots, "arrive", lambda: (self.pause(), self.resume()))

    def test_amid_a_step_when_a_bucket_was_updated(self):
        self.step_amid_which(StreamedAdamW, "update", lambda: (self.pause(), self.resume()))

    def test_amid_a_step_just_before_a_write(self):
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 2)
        before = copy.deepcopy(optimizer.state_dict())
        loss_of(self.made, 7).backward()
        real, pauses = State.write, []

        def write(*arguments):
            if not pauses:
                pauses.append((self.pause(), self.resume()))
            return real(*arguments)

        with mock.patch.object(State, "write", write):
            for _ in range(2):  # however often
                with self.assertRaisesRegex(ebb.WrongState, "a pause took .* load the last checkpoint"):
                    optimizer.step()
        self.assertEqual(len(pauses), 1)
        for parameter, saved in zip(self.made, self.plain.parameters):
            parameter.data.copy_(saved)
        optimizer.load_state_dict(before)
        self.train(self.plain, self.made, optimizer, 2, 2)
        self.all_same(self.plain, self.made)

    def test_ebb_pause_on_the_thread_of_a_step(self):
        def pause():
            with ebb.paused():
                pass

        self.step_amid_which(StreamedAdamW, "update", pause)

    def test_a_resume_of_other_tags_only(self):
        optimizer, other = self.optimizer(), self.streamed([torch.nn.Parameter(torch.zeros(8))], lr=1.0)
        self.train(self.plain, self.made, optimizer, 2)
        other.prefetch()
        self.addCleanup(self.resume)
        self.pause()
        ctypes.CDLL(None).tms_resume(b"default")
        self.train(self.plain, self.made, optimizer, 3, 2)  # reads ahead, too
        self.all_same(self.plain, self.made)

    def test_a_pause_of_other_tags_takes_nothing(self):
        """Neither what was read ahead nor new values that are not written yet: these are no loss, and are written."""
        optimizer = self.optimizer()
        self.train(self.plain, self.made, optimizer, 2)
        self.give_gradients(optimizer)
        self.plain.step()
        optimizer.prefetch()
        tags = ("default", "ebb.optim")
        counts = [ebb.pause_count(tag) for tag in tags]
        ctypes.CDLL(None).tms_pause(b"default")
        self.resume()
        with mock.patch.object(State, "read", side_effect=AssertionError("what was read ahead is read again")), \
                mock.patch.object(State, "write", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            optimizer.step()
        ctypes.CDLL(None).tms_pause(b"default")
        self.resume()
        self.assertEqual([ebb.pause_count(tag) - before for tag, before in zip(tags, counts)], [2, 0])
        optimizer.step()
        self.all_same(self.plain, self.made)
        self.train(self.plain, self.made, optimizer, 2, 2)
        self.all_same(self.plain, self.made)

    def test_close_amid_a_pause(self):
        optimizer = self.optimizer()
        before = free_memory()
        self.train(self.plain, self.made, optimizer, 1)
        self.pause()
        optimizer.close()
        self.resume()
        self.assertEqual(free_memory(), before)

    def test_where_nothing_else_is_managed_a_pause_leaves_it(self):
        optimizer = self.optimizer(managed=False)
        self.train(self.plain, self.made, optimizer, 2)
        self.assertEqual(ebb.status()["allocations"], 0)


if __name__ == "__main__":
    unittest.main()
