"""State dicts and checkpoints of streamed optimizers, and what they refuse."""

import copy
import errno
import io
import itertools
import json
import os
import unittest
from unittest import mock

import ebb
from optim_support import BF16, Plain, Streamed, files_are_closed, groups, loss_of, parameters, torch
from support import DISK, backup_files

if torch is not None:
    import ebb.optim
    from ebb._state import State
    from ebb.optim import StreamedAdam


class StateDicts(Streamed):
    def test_from_plain_to_streamed_and_back(self):
        for foreach in (True, False):
            plain = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=foreach)
            made = parameters()
            self.train(plain, made, self.streamed(made, lr=1e-2, foreach=foreach), 3)

            made = copy.deepcopy(plain.parameters)
            optimizer = self.streamed(made, bucket_elements=300)
            saved = plain.optimizer.state_dict()
            for number, master in enumerate(plain.masters):
                saved["state"][number]["master"] = master.detach()
            optimizer.load_state_dict(saved)
            self.assertEqual(optimizer.param_groups[1]["weight_decay"], 0.2)
            self.train(plain, made, optimizer, 3, 3)
            self.all_same(plain, made)

            # Through a file, as programs keep it, to a new plain one.
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            saved = torch.load(file)
            back = Plain(copy.deepcopy(made), torch.optim.AdamW)
            with torch.no_grad():
                for number, (parameter, master) in enumerate(zip(back.parameters, back.masters)):
                    if parameter is not master:
                        master.copy_(saved["state"][number]["master"])
            back.optimizer.load_state_dict(saved)
            self.train(back, made, optimizer, 3, 6)
            self.all_same(back, made)

    def test_without_masters_they_begin_as_the_parameters(self):
        plain = Plain(parameters(), torch.optim.AdamW)
        loss_of(plain.parameters, 0).backward()
        plain.step()
        made = copy.deepcopy(plain.parameters)
        optimizer = self.streamed(made)
        optimizer.load_state_dict(plain.optimizer.state_dict())
        with torch.no_grad():
            for parameter, master in zip(plain.parameters, plain.masters):
                master.copy_(parameter)
        self.train(plain, made, optimizer, 2, 1)
        self.all_same(plain, made)

    def test_masters_that_are_not_made_yet_are_not_given(self):
        plain = Plain(parameters(), torch.optim.AdamW)
        loss_of(plain.parameters, 0).backward()
        plain.step()
        first = self.streamed(copy.deepcopy(plain.parameters))
        first.load_state_dict(plain.optimizer.state_dict())
        saved = first.state_dict()
        self.assertFalse([n for n, entry in saved["state"].items() if "master" in entry])
        made = copy.deepcopy(plain.parameters)
        optimizer = self.streamed(made)
        optimizer.load_state_dict(saved)
        with torch.no_grad():
            for parameter, master in zip(plain.parameters, plain.masters):
                master.copy_(parameter)
        self.train(plain, made, optimizer, 2, 1)
        self.all_same(plain, made)

    def test_in_files_with_names(self):
        made = parameters()
        optimizer = self.streamed(made)
        loss_of(made, 0).backward()
        optimizer.step()
        folder = os.path.join(self.folder, "state")
        named, unnamed = optimizer.state_dict(to=folder), optimizer.state_dict()
        for number, entry in unnamed["state"].items():
            for key, value in entry.items():
                self.same(value, named["state"][number][key], key)
                self.assertEqual(value.shape, made[number].shape if key != "step" else ())
        self.assertIn("1.exp_avg", os.listdir(folder))
        with self.assertRaises(OSError):
            optimizer.state_dict(to=folder)

    def test_no_room_for_it_leaves_nothing(self):
        made = parameters()
        optimizer = self.streamed(made)
        loss_of(made, 0).backward()
        optimizer.step()
        real, folder = os.posix_fallocate, os.path.join(self.folder, "state")
        for code, raised in ((errno.ENOSPC, ebb.NoSpace), (errno.EDQUOT, ebb.NoSpace), (errno.EIO, ebb.DiskError)):
            for to in (folder, None):
                calls = itertools.count()

                def fails(*arguments):
                    if next(calls) == 3:
                        raise OSError(code, os.strerror(code))
                    real(*arguments)

                with mock.patch.object(os, "posix_fallocate", fails), self.assertRaisesRegex(raised, "for a tensor of the state dict"):
                    optimizer.state_dict(to=to)
                self.assertEqual(os.listdir(self.folder), [])
        optimizer.state_dict(to=folder)
        optimizer.step()

    def test_before_the_first_step_it_is_empty(self):
        optimizer, plain = self.streamed(parameters()), torch.optim.AdamW(groups(parameters()))
        self.assertEqual(optimizer.state_dict(), plain.state_dict())

    def test_of_something_else(self):
        optimizer = self.streamed(parameters())
        fewer = torch.optim.AdamW(parameters()[:3])
        with self.assertRaisesRegex(ebb.InvalidArgument, r"groups of \[3\] parameters, this optimizer of \[4, 6\]"):
            optimizer.load_state_dict(fewer.state_dict())
        made = parameters()
        other = Plain(made, torch.optim.AdamW)
        loss_of(made, 0).backward()
        other.step()
        saved = copy.deepcopy(other.optimizer.state_dict())
        saved["state"][1]["exp_avg"] = torch.zeros(2, 2)
        with self.assertRaisesRegex(ebb.InvalidArgument, r"'exp_avg' of parameter 1 has shape \(2, 2\).*\(40, 30\)"):
            optimizer.load_state_dict(saved)
        saved["state"][1]["exp_avg"] = None  # of one moment only
        with self.assertRaisesRegex(ebb.InvalidArgument, "no 'exp_avg' of parameter 1"):
            optimizer.load_state_dict(saved)
        del saved["state"][1]["exp_avg"]
        with self.assertRaisesRegex(ebb.InvalidArgument, "no 'exp_avg' of parameter 1"):
            optimizer.load_state_dict(saved)
        saved = copy.deepcopy(other.optimizer.state_dict())
        for steps in (torch.tensor(float("nan")), torch.tensor(-1.0), 1.5, "x", None):
            saved["state"][2]["step"] = steps
            with self.assertRaisesRegex(ebb.InvalidArgument, "'step' of parameter 2"):
                optimizer.load_state_dict(saved)
        del saved["state"][2]["step"]
        with self.assertRaisesRegex(ebb.InvalidArgument, "'step' of parameter 2"):
            optimizer.load_state_dict(saved)
        saved = copy.deepcopy(other.optimizer.state_dict())
        saved["param_groups"][0]["amsgrad"] = True
        with self.assertRaisesRegex(ebb.InvalidArgument, "amsgrad"):
            optimizer.load_state_dict(saved)
        self.assertEqual(optimizer.state_dict()["state"], {})


    def test_a_learning_rate_that_is_a_tensor_is_the_optimizers_own(self):
        made = parameters()
        optimizer, twin = self.streamed(made), self.streamed(copy.deepcopy(made))
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(0.1)
        twin.load_state_dict(optimizer.state_dict())
        for group in optimizer.param_groups:
            group["lr"].mul_(2)
        self.assertEqual([float(g["lr"]) for g in twin.param_groups], [float(torch.tensor(0.1))] * 2)


class Checkpoints(Streamed):
    def trained(self, steps=3, **options):
        made = parameters()
        optimizer = self.streamed(made, lr=1e-2, **options)
        for number in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss_of(made, number).backward()
            optimizer.step()
        return made, optimizer

    def test_save_and_load(self):
        made, optimizer = self.trained()
        folder = os.path.join(self.folder, "checkpoint")
        optimizer.prefetch()
        optimizer.save(folder)
        twin = copy.deepcopy(made)
        other = self.streamed(twin)
        other.load(folder)
        self.assertEqual(other.param_groups[0]["lr"], 1e-2)
        self.assertIsInstance(other.param_groups[0]["betas"], tuple)
        for side, each in ((made, optimizer), (twin, other)):
            for parameter in side:
                parameter.grad = None
            loss_of(side, 3).backward()
            each.step()
        for a, b in zip(made, twin):
            self.same(a, b)
        optimizer.save(folder)  # over the older one
        self.assertEqual(os.listdir(self.folder), ["checkpoint"])

    def test_of_another_optimizer(self):
        made, optimizer = self.trained()
        folder = os.path.join(self.folder, "checkpoint")
        optimizer.save(folder)
        shaped = parameters()
        shaped[1] = torch.nn.Parameter(torch.zeros(30, 40))
        typed = parameters()
        typed[1] = torch.nn.Parameter(torch.zeros(40, 30, dtype=BF16))
        for other, said in (
            (self.streamed(parameters(), StreamedAdam), "has optimizer StreamedAdamW, this optimizer StreamedAdam"),
            (self.streamed(parameters(), moments_dtype="bf16"), "has moments_dtype fp32, this optimizer bf16"),
            (self.streamed(parameters()[:2]), "has number of parameters 10, this optimizer 2"),
            (self.streamed(shaped), r"has parameters\[1\] \['float32', \[40, 30\].*this optimizer \['float32', \[30, 40\]"),
            (self.streamed(typed), r"this optimizer \['bfloat16'"),
            (self.streamed(parameters(), bucket_elements=2048), "has bucket_elements 1024, this optimizer 2048"),
        ):
            with self.assertRaisesRegex(ebb.InvalidArgument, said):
                other.load(folder)
        with self.assertRaisesRegex(ebb.InvalidArgument, "is no checkpoint"):
            optimizer.load(self.folder)
        loss_of(made, 5).backward()
        optimizer.step()  # nothing was changed

    def test_files_that_are_gone_short_or_changed_and_a_checkpoint_of_before(self):
        def change(path):
            with open(path, "r+b") as file:
                first = file.read(1)
                file.seek(0)
                file.write(bytes([first[0] ^ 1]))

        for number, spoil in enumerate((os.unlink, lambda path: os.truncate(path, 0), change)):
            with self.subTest(number):
                made, optimizer = self.trained()
                folder = os.path.join(self.folder, f"checkpoint {number}")
                optimizer.save(folder)
                twin = copy.deepcopy(made)
                files_are_closed()
                for name in backup_files(DISK):
                    spoil(os.path.join(DISK, name))
                with self.assertRaises(ebb.StateError) as caught:
                    optimizer.step()
                self.assertIsInstance(caught.exception.__cause__, ebb.CorruptBackup)
                self.assertRegex(str(caught.exception), r"ebb-.*\.bak")
                for a, b in zip(made, twin):
                    self.same(a, b)
                optimizer.load(folder)
                other = self.streamed(twin)
                other.load(folder)
                for side, each in ((made, optimizer), (twin, other)):
                    for parameter in side:
                        parameter.grad = None
                    loss_of(side, 3).backward()
                    each.step()
                for a, b in zip(made, twin):
                    self.same(a, b)
                optimizer.close()
                other.close()

    def test_a_state_dict_makes_files_anew_that_are_gone_or_were_changed(self):
        for spoil in (os.unlink, lambda path: os.truncate(path, 0), os.utime):
            made, optimizer = self.trained()
            state, twin = optimizer.state_dict(), copy.deepcopy(made)
            empty = self.streamed(copy.deepcopy(made)).state_dict()  # of zeros, which are not written
            files_are_closed()
            for name in backup_files(DISK):
                spoil(os.path.join(DISK, name))
            for each in (empty, state):
                optimizer.load_state_dict(each)
            other = self.streamed(twin)
            other.load_state_dict(state)
            for side, each in ((made, optimizer), (twin, other)):
                for parameter in side:
                    parameter.grad = None
                loss_of(side, 3).backward()
                each.step()
                each.close()
            for a, b in zip(made, twin):
                self.same(a, b)

    def test_a_load_that_is_interrupted_while_it_gives_files_up_can_be_done_again(self):
        for after in (False, True):
            made, optimizer = self.trained()
            state = optimizer.state_dict()
            files_are_closed()
            for name in backup_files(DISK):
                os.unlink(os.path.join(DISK, name))
            close = ebb._state.library().ebb_state_close

            class Library:
                def ebb_state_close(self, number):
                    if after:
                        close(number)
                    raise KeyboardInterrupt

                def __getattr__(self, name):
                    return getattr(real(), name)

            real = ebb._state.library
            with mock.patch.object(ebb._state, "library", Library):
                self.assertRaises(KeyboardInterrupt, optimizer.load_state_dict, state)
            optimizer.load_state_dict(state)
            optimizer.step()
            self.assertEqual({float(e["step"]) for e in optimizer.state_dict()["state"].values()}, {4.0})
            optimizer.close()

    def test_a_state_dict_for_whose_files_there_is_no_room_can_be_loaded_again(self):
        made, optimizer = self.trained()
        state = optimizer.state_dict()
        files_are_closed()
        for name in backup_files(DISK):
            os.unlink(os.path.join(DISK, name))
        with mock.patch.object(ebb.optim, "State", side_effect=ebb.NoSpace("full")), self.assertRaises(ebb.NoSpace):
            optimizer.load_state_dict(state)
        for call in (optimizer.step, optimizer.state_dict, optimizer.prefetch, lambda: optimizer.save(self.folder)):
            with self.assertRaisesRegex(ebb.WrongState, "load it again"):
                call()
        optimizer.release()
        optimizer.load_state_dict(state)
        optimizer.step()
        self.assertEqual({float(e["step"]) for e in optimizer.state_dict()["state"].values()}, {4.0})

    def test_one_that_is_replaced_while_it_is_loaded(self):
        """Steps of one and values of another are not taken for a state."""
        made, optimizer = self.trained()
        folder = os.path.join(self.folder, "checkpoint")
        optimizer.save(folder)
        _, other = self.trained(1)
        load = State.load

        def replaced(state, path):
            optimizer.step()
            optimizer.save(folder)
            load(state, path)

        with mock.patch.object(State, "load", replaced), self.assertRaisesRegex(ebb.DiskError, "replaced while it was loaded"):
            other.load(folder)
        self.assertRaises(ebb.WrongState, other.step)
        other.load(folder)
        self.assertEqual({float(e["step"]) for e in other.state_dict()["state"].values()}, {4.0})

    def test_one_that_was_changed(self):
        made, optimizer = self.trained()
        folder = os.path.join(self.folder, "checkpoint")
        optimizer.save(folder)
        name = max((n for n in os.listdir(folder) if n.startswith("segment")), key=lambda n: os.path.getsize(os.path.join(folder, n)))
        with open(os.path.join(folder, name), "r+b") as file:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
        with self.assertRaises(ebb.CorruptBackup):
            optimizer.load(folder)
        with self.assertRaisesRegex(ebb.WrongState, "failed: load it"):
            optimizer.step()
        with self.assertRaises(ebb.WrongState):
            optimizer.state_dict()


    def refused(self, optimizer):
        """A checkpoint of this optimizer, of which the files do not take anything."""
        folder = os.path.join(self.folder, "refused")
        optimizer.save(folder)
        path = os.path.join(folder, "manifest.json")
        with open(path) as file:
            manifest = json.load(file)
        manifest["segments"][0]["bytes"] += manifest["block_bytes"]
        with open(path, "w") as file:
            json.dump(manifest, file)
        return folder

    def test_one_whose_steps_were_changed(self):
        made, optimizer = self.trained()
        folder = os.path.join(self.folder, "checkpoint")
        optimizer.save(folder)
        path = os.path.join(folder, "manifest.json")
        with open(path) as file:
            saved = json.load(file)
        for change in (
            lambda e: e["pieces"].pop(), lambda e: e["pieces"][0].pop(), lambda e: e["pieces"][0].__setitem__(0, [-1, True]),
            lambda e: e["pieces"][0].__setitem__(0, [1.5, True]), lambda e: e["pieces"][0].__setitem__(0, [1]), lambda e: e["groups"].pop(),
            lambda e: e.pop("pieces"),
        ):
            changed = copy.deepcopy(saved)
            change(changed["extra"])
            with open(path, "w") as file:
                json.dump(changed, file)
            with self.assertRaisesRegex(ebb.InvalidArgument, "was changed"):
                optimizer.load(folder)
        loss_of(made, 5).backward()
        optimizer.step()  # nothing was changed

    def test_one_that_is_refused_makes_no_unusable_state_usable(self):
        made, optimizer = self.trained()
        refused, changed = self.refused(optimizer), os.path.join(self.folder, "changed")
        optimizer.save(changed)
        for name in os.listdir(changed):
            if name.startswith("segment"):
                os.truncate(os.path.join(changed, name), 0)
        with self.assertRaises(ebb.Error):
            optimizer.load(changed)
        with self.assertRaises(ebb.InvalidArgument):
            optimizer.load(refused)
        with self.assertRaisesRegex(ebb.WrongState, "changed' failed: load it"):
            optimizer.step()

    def test_one_that_is_refused_takes_nothing_of_a_step_that_failed(self):
        plain, made = Plain(parameters(), torch.optim.AdamW, foreach=True), parameters()
        optimizer = self.streamed(made, foreach=True)
        self.train(plain, made, optimizer, 1)
        refused = self.refused(optimizer)
        for side in (plain.parameters, made):
            loss_of(side, 1).backward()
        with mock.patch.object(ebb._tensors, "set_flattened", side_effect=RuntimeError), self.assertRaises(ebb.StateError):
            optimizer.step()
        with self.assertRaises(ebb.InvalidArgument):
            optimizer.load(refused)
        with self.assertRaises(ebb.WrongState):
            optimizer.state_dict()
        optimizer.step()
        plain.step()
        self.all_same(plain, made)


if __name__ == "__main__":
    unittest.main()
