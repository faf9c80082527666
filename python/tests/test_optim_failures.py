"""Steps of streamed optimizers that fail or are interrupted, and go on."""

import contextlib
import itertools
import unittest
from unittest import mock

import ebb
from optim_support import FLAVOUR, Plain, Streamed, loss_of, parameters, torch
from support import child

if torch is not None:
    import ebb.optim
    from ebb._state import State
    from ebb.optim import StreamedAdam, StreamedAdamW, StreamedSGD

# Trains to the end in spite of what fails, and compares with PyTorch's.
RETRY = """
import sys, torch, ebb, ebb.optim
from optim_support import FLAVOUR, Plain, parameters, groups, loss_of, bits
plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, **FLAVOUR), parameters()
optimizer = ebb.optim.StreamedAdamW(groups(made), lr=1e-2, bucket_elements=1024, **FLAVOUR)
failed = 0
for number in range(6):
    plain.zero_grad()
    optimizer.zero_grad(set_to_none=True)
    for side in (plain.parameters, made):
        loss_of(side, number).backward()
    plain.step()
    for group in plain.optimizer.param_groups:
        group["lr"] *= 0.9
    while True:
        try:
            optimizer.step()
            break
        except ebb.StateError as err:
            failed += 1
            assert failed < 99, err
            assert isinstance(err.__cause__, ebb.Error) and "call step() again" in str(err), err
            for call in (optimizer.state_dict, lambda: optimizer.save("x")):
                try:
                    call()
                    raise AssertionError("half a step was taken for a whole one")
                except ebb.WrongState:
                    pass
            optimizer.prefetch()
            if CHANGED:
                made[0].grad.add_(1)
                try:
                    optimizer.step()
                    raise AssertionError("other gradients were taken")
                except ebb.WrongState as refused:
                    assert "gradients have changed" in str(refused)
                print("refused")
                sys.exit()
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
assert all(torch.equal(bits(a), bits(b)) for a, b in zip(plain.parameters, made)), "bits differ"
assert {float(e["step"]) for e in optimizer.state_dict()["state"].values()} == {6.0}
print("failed", failed)
"""


# Likewise, and after each failure somebody else pauses and resumes the rank.
PAUSED = RETRY.replace("failed = 0", """failed = 0
import ctypes
from gpu import malloc
with ebb.region(backup="cpu"):
    malloc(1 << 20)
kept = set()""").replace("            optimizer.prefetch()", """            ctypes.CDLL(None).tms_pause(None)
            kept.update(k["reason"] for k in ebb.status()["kept"])
            ctypes.CDLL(None).tms_resume(None)""") + """
assert kept == {"unwritten"}, kept
"""


class Interruptions(Streamed):
    """Whatever stops a step, step() goes on with it: no update is left out, and none is done twice."""

    def stopped_in(self, where, name, before, error=KeyboardInterrupt):
        """A step is stopped before or after one call of a function, whichever it is; then step() is called again."""
        function = getattr(where, name)
        for number in (1, 5):
            plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters()
            optimizer = self.streamed(made, lr=1e-2, foreach=True, prefetch_in_backward=False)  # the step has all calls
            self.train(plain, made, optimizer, 1)
            plain.zero_grad()
            optimizer.zero_grad(set_to_none=True)
            for side in (plain.parameters, made):
                loss_of(side, 1).backward()
            calls = itertools.count(1)

            def stopped(*arguments, **options):
                stop = next(calls) == number
                if stop and before:
                    raise error
                result = function(*arguments, **options)
                if stop:
                    raise error
                return result

            with self.subTest(name, number=number, before=before), mock.patch.object(where, name, stopped):
                with self.assertRaises(error if error is KeyboardInterrupt else ebb.StateError):
                    optimizer.step()
                with self.assertRaises(ebb.WrongState):
                    optimizer.state_dict()
                self.assertTrue(optimizer.unfinished)
                optimizer.step()
                self.assertFalse(optimizer.unfinished)
                plain.step()
                self.train(plain, made, optimizer, 1, 2)
                self.all_same(plain, made)
                self.assertEqual({float(e["step"]) for e in optimizer.state_dict()["state"].values()}, {3.0})
            optimizer.close()

    def test_while_parameters_are_set(self):
        for before in (True, False):
            self.stopped_in(ebb._tensors, "set_flattened", before)
        self.stopped_in(ebb._tensors, "set_flattened", True, RuntimeError)

    def test_while_a_bucket_is_updated(self):
        self.stopped_in(StreamedAdamW, "update", False)

    def test_what_pytorch_does_to_gradients_is_not_done_twice(self):
        """Some of its functions change them in place, and a bucket that was updated may be updated again."""
        for kind, other, options in (
            (StreamedSGD, torch.optim.SGD, dict(lr=1e-2, momentum=0.9, nesterov=True, foreach=True)),
            (StreamedAdam, torch.optim.Adam, dict(lr=1e-2, weight_decay=0.3, foreach=True)),
            (StreamedAdam, torch.optim.Adam, dict(lr=1e-2, weight_decay=0.3, foreach=False, maximize=True)),
        ):
            plain, made = Plain(parameters(), other, **options), parameters()
            optimizer = self.streamed(made, kind, **options)
            update, stops = kind.update, itertools.count()

            def stopped(*arguments):
                update(*arguments)
                if next(stops) % 3 == 0:
                    raise KeyboardInterrupt

            with self.subTest(kind=kind.__name__, **options), mock.patch.object(kind, "update", stopped):
                for number in range(4):
                    plain.zero_grad()
                    optimizer.zero_grad(set_to_none=True)
                    for side in (plain.parameters, made):
                        loss_of(side, number).backward()
                    gradients = [p.grad.clone() for p in made]
                    plain.step()
                    done = False
                    while not done:
                        with contextlib.suppress(KeyboardInterrupt):
                            optimizer.step()
                            done = True
                    for parameter, gradient in zip(made, gradients):
                        self.same(parameter.grad, gradient)
                self.all_same(plain, made)
            optimizer.close()

    def test_while_requests_are_under_way(self):
        for name in ("read", "write", "wait"):
            for before in (True, False):
                self.stopped_in(State, name, before)

    def test_while_a_write_that_is_done_is_registered(self):
        for before in (True, False):
            self.stopped_in(ebb.optim.Step, "written", before)

    def test_a_read_that_was_begun_is_waited_for(self):
        made = parameters()
        optimizer, begun = self.streamed(made), []
        read, wait = State.read, State.wait

        def interrupted(*arguments):
            begun.append(read(*arguments))
            raise KeyboardInterrupt

        with mock.patch.object(State, "read", interrupted), self.assertRaises(KeyboardInterrupt):
            optimizer.prefetch()
        waited = []
        with mock.patch.object(State, "wait", lambda state, ticket: (waited.append(ticket), wait(state, ticket))[1]):
            optimizer.release()
        self.assertEqual(waited, begun)


class Failures(Streamed):
    def run_with(self, faults, program=RETRY, changed=False):
        return child(
            program.replace("CHANGED", str(changed)), prelude="", EBB_FAULT_FILES=faults, TMS_DISK_BACKUP_DIR=self.folder
        )

    def test_a_write_that_failed_is_repeated_and_no_bit_differs(self):
        done = self.run_with("pwrite:23:EIO,pwrite:41:ENOSPC,pwrite:42:EIO,pwrite:62:EDQUOT,pread:40:EIO")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"failed [2-9]")

    def test_a_pause_from_elsewhere_leaves_values_whose_write_failed(self):
        for program in (PAUSED, PAUSED.replace("tms_resume(None)", 'tms_resume(b"default")')):
            done = self.run_with("pwrite:23:EIO,pwrite:41:ENOSPC,pwrite:42:EIO,pwrite:62:EDQUOT,pread:40:EIO", program)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"failed [2-9]")

    def test_the_scale_is_that_of_the_first_try(self):
        made, others = parameters(), parameters()
        optimizer, unscaled = self.streamed(made, **FLAVOUR), self.streamed(others, **FLAVOUR)
        for side in (made, others):
            loss_of(side, 0).backward()
        for parameter in made:
            parameter.grad.mul_(4)
        unscaled.step()
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(0.0), torch.tensor(4.0)
        with mock.patch.object(ebb._tensors, "set_flattened", side_effect=RuntimeError):
            with self.assertRaisesRegex(ebb.StateError, "the optimizer's own also where there is a GradScaler"):
                optimizer.step()
        optimizer.grad_scale.mul_(2)  # as GradScaler.update() does it
        optimizer.found_inf.fill_(1)
        optimizer.step()
        self.assertEqual(float(optimizer.grad_scale), 8)
        for a, b in zip(made, others):
            self.same(a, b)

    def test_the_options_are_those_of_the_first_try(self):
        """Also where a scheduler changes them in place."""
        made, others = parameters(), parameters()
        optimizer, undisturbed = self.streamed(made, foreach=False), self.streamed(others, foreach=False)
        for side in (made, others):
            loss_of(side, 0).backward()
        for each in (optimizer, undisturbed):
            for group in each.param_groups:
                group["lr"] = torch.tensor(0.1)
        undisturbed.step()
        with mock.patch.object(ebb._tensors, "set_flattened", side_effect=RuntimeError), self.assertRaises(ebb.StateError):
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"].mul_(10)
        optimizer.step()
        for a, b in zip(made, others):
            self.same(a, b)

    def test_other_gradients_are_not_taken(self):
        done = self.run_with("pwrite:60+:EIO", changed=True)
        self.assertEqual((done.returncode, done.stdout), (0, "refused\n"), done.stderr)

    def test_no_room_leaves_nothing(self):
        done = self.run_with(
            "fallocate:4+:ENOSPC",
            """
            import os, ebb, ebb.optim
            from gpu import backup_files
            from optim_support import parameters
            try:
                ebb.optim.StreamedAdamW(parameters(), bucket_elements=1024)
                raise AssertionError("there was room")
            except ebb.NoSpace:
                assert backup_files(os.environ["TMS_DISK_BACKUP_DIR"]) == {}
                assert ebb.status()["states"] == []
            """,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_full_disk_in_a_save(self):
        """The older checkpoint is whole, the state is what it was, and the training goes on."""
        program = """
            import copy, os, sys, torch, ebb, ebb.optim
            from optim_support import FLAVOUR, Plain, parameters, groups, loss_of, bits
            def streamed(made):
                return ebb.optim.StreamedAdamW(groups(made), lr=1e-2, bucket_elements=1024, **FLAVOUR)
            def step(number, *sides):
                for made, optimizer in sides:
                    for parameter in made:
                        parameter.grad = None
                    loss_of(made, number).backward()
                    optimizer.step()
            def same(a, b):
                assert all(torch.equal(bits(x), bits(y)) for x, y in zip(a, b)), "bits differ"
            plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, **FLAVOUR), parameters()
            optimizer, folder = streamed(made), os.path.join(os.environ["TMS_DISK_BACKUP_DIR"], "c")
            step(0, (plain.parameters, plain), (made, optimizer))
            optimizer.save(folder)
            older = copy.deepcopy(made)
            step(1, (plain.parameters, plain), (made, optimizer))
            try:
                optimizer.save(folder)
                raise AssertionError("there was room")
            except ebb.NoSpace as err:
                assert folder in str(err), err
            assert os.listdir(os.path.dirname(folder)).count("c") == 1
            assert not [n for n in os.listdir(os.path.dirname(folder)) if n.startswith("c.")]
            step(2, (plain.parameters, plain), (made, optimizer))
            same(plain.parameters, made)
            twin = streamed(older)
            twin.load(folder)
            step(1, (older, twin))
            step(2, (older, twin))
            same(plain.parameters, older)
            optimizer.save(folder)
            """
        # The first save makes one directory, and a file for each segment: as many as there are of the state.
        for fault in ("mkdir:2:ENOSPC", "fallocate:36:ENOSPC", "fallocate:45:EDQUOT"):
            done = self.run_with("clone:*:EOPNOTSUPP," + fault, program)
            self.assertEqual(done.returncode, 0, f"{fault}: {done.stderr}")

    def test_a_directory_that_cannot_be_written(self):
        done = child(  # a place where nobody can make a file
            """
            import ebb, ebb.optim
            from optim_support import parameters
            try:
                ebb.optim.StreamedAdamW(parameters())
                raise AssertionError("it was written")
            except ebb.DiskError as err:
                assert "/sys" in str(err), err
            assert ebb.status()["states"] == []
            """,
            prelude="", TMS_DISK_BACKUP_DIR="/sys",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.run_with(
            "open:*:EROFS",
            """
            import os, ebb, ebb.optim
            from optim_support import parameters
            try:
                ebb.optim.StreamedAdamW(parameters())
                raise AssertionError("it was written")
            except ebb.DiskError as err:
                assert os.environ["TMS_DISK_BACKUP_DIR"] in str(err), err
            """,
        )
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
