"""Optimizers with streamed state against those of PyTorch, bit for bit. On the CPU: softgpu's memory is in its
reach. Needs PyTorch (make test-python finds an interpreter that has it, or says that none has)."""

import contextlib
import copy
import ctypes
import errno
import gc
import io
import itertools
import json
import os
import pickle
import tempfile
import threading
import time
import unittest
import warnings
import weakref
from unittest import mock

import ebb
from support import DISK, MiB, Memory, ROOT, backup_files, child, free_memory
from test_docs import examples

try:
    import torch
except ImportError:
    torch = None
else:
    import ebb.optim
    from ebb._state import State
    from ebb.optim import StreamedAdam, StreamedAdamW, StreamedSGD

FP32, BF16, FP16 = (getattr(torch, name, None) for name in ("float32", "bfloat16", "float16"))

# (shape, type), and how the parameter lies in memory. With buckets of so few elements some are divided.
SHAPES = [
    ((3,), FP32), ((40, 30), FP32), ((17,), BF16), ((33, 31), BF16), ((), FP32), ((64, 8), FP16), ((5, 7), FP32),
    ((0, 4), FP32), ((24, 9), BF16), ((6, 5), FP32),
]
BUCKET = 1024
# PyTorch has fused functions for the CPU from 2.4 on. They take no account of holes in a parameter.
HAS_FUSED = torch is not None and int(torch.__version__.split(".")[0]) >= 2
FLAVOUR = {"fused": True} if HAS_FUSED else {"foreach": True}
TRANSPOSED, WITH_HOLES = (6, 8), () if HAS_FUSED else (9,)


def parameters(seed=0):
    torch.manual_seed(seed)
    made = []
    for i, (shape, kind) in enumerate(SHAPES):
        if i in TRANSPOSED:
            value = torch.randn(shape[::-1]).to(kind).t()
        elif i in WITH_HOLES:
            value = torch.randn(shape[0], 2 * shape[1]).to(kind)[:, ::2]
        else:
            value = torch.randn(shape).to(kind)
        made.append(torch.nn.Parameter(value))
    return made


def groups(made):
    return [
        {"params": made[:4]},
        {"params": made[4:], "lr": 3e-3, "weight_decay": 0.2},
    ]


def loss_of(made, number, without=()):
    generator = torch.Generator().manual_seed(number)
    total = torch.zeros(())
    for i, parameter in enumerate(made):
        target = torch.randn(parameter.shape, generator=generator)
        if i not in without:
            total = total + (parameter.float() - target).pow(2).sum()
    return total


def bits(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view({4: torch.int32, 2: torch.int16}[tensor.element_size()])


def files_are_closed():
    """Waits until the engine has closed its files, which it does when nothing is asked of it: one that is open is read,
    whatever becomes of its name."""
    def any_open():
        return any(os.path.realpath(f"/proc/self/fd/{fd}").endswith(".bak") for fd in os.listdir("/proc/self/fd"))

    while any_open():
        time.sleep(0.001)


class Plain:
    """Parameters that PyTorch's optimizer updates through fp32 masters."""

    def __init__(self, made, kind, **options):
        self.parameters = made
        self.masters = [torch.nn.Parameter(p.detach().float()) if p.dtype != FP32 else p for p in made]
        self.optimizer = kind(groups(self.masters), **options)

    def step(self):
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters):
                if parameter is not master:
                    master.grad = None if parameter.grad is None else parameter.grad.float()
            self.optimizer.step()
            for parameter, master in zip(self.parameters, self.masters):
                if parameter is not master:
                    parameter.copy_(master)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None


@unittest.skipIf(torch is None, "PyTorch is not installed for this interpreter")
class Streamed(Memory):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(dir=DISK)
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def streamed(self, made, kind=None, **options):
        options.setdefault("bucket_elements", BUCKET)
        optimizer = (kind or StreamedAdamW)(groups(made) if len(made) == len(SHAPES) else made, **options)
        self.addCleanup(optimizer.close)
        return optimizer

    def train(self, plain, made, optimizer, steps, first=0, without=lambda number: ()):
        """The same steps with both, whose losses are the same."""
        for number in range(first, first + steps):
            plain.zero_grad()
            optimizer.zero_grad(set_to_none=True)
            losses = []
            for side in (plain.parameters, made):
                loss = loss_of(side, number, without(number))
                loss.backward()
                losses.append(loss)
            self.same(*losses)
            plain.step()
            optimizer.step()

    def same(self, a, b, what="loss"):
        self.assertEqual(a.shape, b.shape)
        self.assertTrue(torch.equal(bits(a), bits(b)), f"{what} differs: {a} {b}")

    def all_same(self, plain, made):
        for i, (a, b) in enumerate(zip(plain.parameters, made)):
            self.same(a, b, f"parameter {i}")


class Arithmetic(Streamed):
    def test_fifty_steps(self):
        for kind, other, steps, options in (
            (StreamedAdamW, torch.optim.AdamW, 50, dict(lr=1e-2, foreach=True)),
            (StreamedAdamW, torch.optim.AdamW, 10, dict(lr=1e-2, **FLAVOUR)),
            (StreamedAdamW, torch.optim.AdamW, 10, dict(lr=1e-2, foreach=False, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
            (StreamedAdam, torch.optim.Adam, 10, dict(lr=1e-2, weight_decay=0.1, maximize=True, foreach=True)),
            (StreamedSGD, torch.optim.SGD, 10, dict(lr=1e-2, momentum=0.9, dampening=0.1, weight_decay=0.1, foreach=True)),
            (StreamedSGD, torch.optim.SGD, 10, dict(lr=1e-2, momentum=0.9, nesterov=True)),
        ):
            with self.subTest(kind=kind.__name__, **options):
                plain, made = Plain(parameters(), other, **options), parameters()
                optimizer = self.streamed(made, kind, **options)
                schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 40) for o in (plain.optimizer, optimizer)]
                for number in range(steps):
                    self.train(plain, made, optimizer, 1, number)
                    for schedule in schedules:
                        schedule.step()
                self.all_same(plain, made)
                optimizer.close()

    def test_parameters_without_gradient_keep_their_state(self):
        plain, made = Plain(parameters(), torch.optim.AdamW, foreach=True), parameters()
        optimizer = self.streamed(made, foreach=True)
        self.train(plain, made, optimizer, 9, without=lambda number: [(1, 2), (), range(1, len(SHAPES)), (3, 5, 6, 9)][number % 4])
        self.all_same(plain, made)
        mine, theirs = optimizer.state_dict()["state"], plain.optimizer.state_dict()["state"]
        self.assertEqual([e["step"] for e in mine.values()], [theirs[n]["step"] for n in mine])

    def test_not_a_number_and_infinity(self):
        plain, made = Plain(parameters(), torch.optim.AdamW, foreach=True), parameters()
        optimizer = self.streamed(made, foreach=True)
        for number in range(3):
            for side in (plain.parameters, made):
                loss_of(side, number).backward()
                side[1].grad[3, 4] = float("nan")
                side[3].grad[1, 1] = float("inf")
            plain.step()
            optimizer.step()
        for a, b in zip(plain.parameters, made):
            self.assertTrue(torch.equal(a.isnan(), b.isnan()))
            self.same(a.detach().nan_to_num(), b.detach().nan_to_num())
        self.assertTrue(made[1].isnan().any())

    def test_buckets_in_flight_change_no_bit(self):
        seen = []
        for count in (1, 2, 3, 7, 100):
            made = parameters()
            optimizer = self.streamed(made, buckets_in_flight=count)
            for number in range(4):
                optimizer.zero_grad(set_to_none=True)
                loss_of(made, number).backward()
                if number % 2:
                    optimizer.prefetch()
                    optimizer.prefetch()
                optimizer.step()
            seen.append([bits(p) for p in made])
        for other in seen[1:]:
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(seen[0], other)))

    def test_closures_clipping_and_zero_grad(self):
        plain, made = Plain(parameters(), torch.optim.AdamW, foreach=True), parameters()
        optimizer = self.streamed(made, foreach=True)
        for number in range(5):
            plain.zero_grad()
            loss = loss_of(plain.parameters, number)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters, 1.0)
            plain.step()

            def closure():
                self.assertTrue(torch.is_grad_enabled())
                optimizer.zero_grad(set_to_none=number % 2 == 0)
                mine = loss_of(made, number)
                mine.backward()
                torch.nn.utils.clip_grad_norm_(made, 1.0)
                return mine

            self.same(loss, optimizer.step(closure))
        self.all_same(plain, made)

    def test_what_a_gradient_scaler_leaves(self):
        made, others = parameters(), parameters()
        optimizer, unscaled = self.streamed(made, **FLAVOUR), self.streamed(others, **FLAVOUR)
        for side in (made, others):
            loss_of(side, 0).backward()
        before = [bits(p).clone() for p in made]
        optimizer.found_inf = torch.tensor(1.0)
        optimizer.step()
        self.assertTrue(all(torch.equal(a, bits(p)) for a, p in zip(before, made)))
        self.assertEqual(optimizer.state_dict()["state"], {})
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(0.0), torch.tensor(4.0)
        for parameter in made:
            parameter.grad.mul_(4)
        optimizer.step()
        unscaled.step()
        for a, b in zip(made, others):
            self.same(a, b)

    @unittest.skipUnless(hasattr(getattr(torch, "amp", None), "GradScaler"), "this PyTorch has no GradScaler for the CPU")
    def test_a_gradient_scaler_itself(self):
        """It skips steps after an overflow, and unscales before the step or leaves it to the fused one."""
        for flavour in ({"foreach": True}, {"fused": True}):
            for clipping in (False, True):
                sides = []
                for kind in (torch.optim.AdamW, StreamedAdamW):
                    made = [p for p in parameters() if p.dtype is FP32]
                    optimizer = kind(made, lr=1e-2, **flavour) if kind is torch.optim.AdamW else self.streamed(made, lr=1e-2, **flavour)
                    sides.append((made, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)))
                for number in range(7):
                    before = [bits(p).clone() for p in sides[1][0]]
                    for made, optimizer, scaler in sides:
                        optimizer.zero_grad()
                        scaler.scale(loss_of(made, number)).backward()
                        if number in (2, 5):
                            made[1].grad[0, 0] = float("inf")
                        if clipping:
                            scaler.unscale_(optimizer)
                            torch.nn.utils.clip_grad_norm_(made, 1.0)
                        scaler.step(optimizer)
                        scaler.update()
                    self.assertEqual(sides[0][2].get_scale(), sides[1][2].get_scale())
                    kept = all(torch.equal(a, bits(p)) for a, p in zip(before, sides[1][0]))
                    self.assertEqual(kept, number in (2, 5))
                    for a, b in zip(sides[0][0], sides[1][0]):
                        self.same(a, b)
                self.assertEqual({float(e["step"]) for e in sides[1][1].state_dict()["state"].values()}, {5.0})

    def test_moments_of_half_the_bytes(self):
        for stored in ("bf16", "fp16"):
            moved = {}
            for kind in ("fp32", stored):
                made = parameters()[2:4]  # with masters
                optimizer = self.streamed(made, moments_dtype=kind, bucket_elements=2048)
                losses = []
                for number in range(6):
                    optimizer.zero_grad(set_to_none=True)
                    loss = (made[0].float() - 3).pow(2).sum() + (made[1].float() + 2).pow(2).sum()
                    loss.backward()
                    optimizer.step()
                    losses.append(float(loss))
                self.assertEqual(losses, sorted(losses, reverse=True))
                moved[kind] = optimizer.last.read_bytes + optimizer.last.written_bytes
                self.assertEqual(optimizer.state_dict()["state"][0]["exp_avg"].dtype, {"fp32": FP32, "bf16": BF16, "fp16": FP16}[kind])
            self.assertAlmostEqual(moved[stored] / moved["fp32"], 0.67, places=2)

    def test_moments_are_rounded_once_a_step_and_nothing_else(self):
        for stored, kind in (("bf16", BF16), ("fp16", FP16)):
            plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters()
            optimizer = self.streamed(made, lr=1e-2, foreach=True, moments_dtype=stored)
            for number in range(5):
                self.train(plain, made, optimizer, 1, number)
                for entry in plain.optimizer.state.values():
                    for name in ("exp_avg", "exp_avg_sq"):
                        entry[name].copy_(entry[name].to(kind).float())
            self.all_same(plain, made)

    def test_a_step_without_any_gradient(self):
        plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters()
        optimizer = self.streamed(made, lr=1e-2, foreach=True)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            optimizer.step()
            self.assertEqual(optimizer.last.buckets, 0)
            self.train(plain, made, optimizer, 2)
        self.all_same(plain, made)

    def test_the_type_of_moments_from_the_environment(self):
        with mock.patch.dict(os.environ, EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE="bf16"):
            self.assertEqual(self.streamed(parameters()).moments_dtype, "bf16")
            self.assertEqual(self.streamed(parameters(), moments_dtype="fp32").moments_dtype, "fp32")

    def test_two_in_one_process(self):
        made = [parameters(seed) for seed in (1, 2)]
        plain = [Plain(parameters(seed), torch.optim.AdamW) for seed in (1, 2)]
        optimizers = [self.streamed(m) for m in made]
        for number in range(4):
            for p, m, o in zip(plain, made, optimizers):
                self.train(p, m, o, 1, number)
        for p, m in zip(plain, made):
            self.all_same(p, m)
        self.assertEqual(len({s["name"] for s in ebb.status()["states"]}), 2)

    def test_one_of_your_own(self):
        (example,) = (code for _, code in examples((ROOT / "docs/streaming.md").read_text()) if "StreamedOptimizer" in code)
        names = {}
        exec(compile(example, "docs/streaming.md", "exec"), names)
        plain, made = Plain(parameters(), torch.optim.SGD, lr=1e-2, momentum=0.9, foreach=True), parameters()
        for group in plain.optimizer.param_groups:
            group["weight_decay"] = 0
        optimizer = self.streamed(made, names["Momentum"], lr=1e-2)
        self.train(plain, made, optimizer, 5)
        self.all_same(plain, made)

    def test_whether_it_was_asked_for(self):
        for name in ("EBB_OPTIMIZER_STATE_NVME_DIR", "EBB_STREAM_OPTIMIZER_STATE_TO_DISK"):
            self.assertFalse(ebb.optim.requested())
            with mock.patch.dict(os.environ, {name: "/somewhere"}):
                self.assertTrue(ebb.optim.requested())


class ChangedByOthers(Streamed):
    """Parameters that somebody else assigns to between steps."""

    def trained(self):
        plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters()
        optimizer = self.streamed(made, lr=1e-2, foreach=True)
        self.train(plain, made, optimizer, 2)
        return plain, made, optimizer

    def test_other_storage_with_the_same_values(self):
        plain, made, optimizer = self.trained()
        kept = [p.data for p in made]
        with self.assertWarnsRegex(RuntimeWarning, "moved"):
            for parameter in made:
                parameter.data = parameter.data.clone(memory_format=torch.preserve_format) if parameter.dim() < 2 else (
                    torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype).copy_(parameter.data))
            self.train(plain, made, optimizer, 2, 2)
        self.all_same(plain, made)
        for old, parameter in zip(kept, made):
            self.assertTrue(old.numel() == 0 or old.data_ptr() != parameter.data_ptr())

    def test_values_of_fp32_count_and_of_others_are_told_of(self):
        plain, made, optimizer = self.trained()
        with torch.no_grad():
            for side in (plain.parameters, made):
                for parameter in side:
                    parameter.mul_(0.5)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for number in (2, 3):
                plain.zero_grad()
                optimizer.zero_grad(set_to_none=True)
                for side in (plain.parameters, made):
                    loss_of(side, number, without=(2,)).backward()
                plain.step()
                optimizer.step()
        said = [str(w.message) for w in told if w.category is RuntimeWarning]
        self.assertEqual(len(said), 1, "once")
        self.assertRegex(said[0], r"parameter 3 was changed.*\(of 3 .*take_parameters\(\)")
        self.all_same(type("", (), {"parameters": plain.parameters[:2] + plain.parameters[3:]}), made[:2] + made[3:])

    def test_parameters_that_are_taken(self):
        plain, made, optimizer = self.trained()
        with torch.no_grad():
            for side in (plain.parameters, made):
                for parameter in side:
                    parameter.mul_(0.5)
            for parameter, master in zip(plain.parameters, plain.masters):
                master.copy_(parameter)
        optimizer.take_parameters()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            self.train(plain, made, optimizer, 2, 2)
        self.all_same(plain, made)

    def test_a_step_alone_is_nobody_elses(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            plain, made, optimizer = self.trained()
            self.train(plain, made, optimizer, 9, 2, without=lambda number: [(1, 2), (), (3, 5, 6, 9)][number % 3])
            optimizer.load_state_dict(optimizer.state_dict())
            self.train(plain, made, optimizer, 2, 11)
        self.all_same(plain, made)

    def test_amid_a_step_that_failed(self):
        for change in (lambda p: p.mul_(2), lambda p: setattr(p, "data", p.detach().t().clone().t())):
            plain, made, optimizer = self.trained()
            loss_of(made, 5).backward()
            with mock.patch.object(State, "write", side_effect=ebb.DiskError("disk full")), self.assertRaises(ebb.StateError):
                optimizer.step()
            with torch.no_grad():
                change(made[-1])  # a bucket that is behind
            with self.assertRaisesRegex(ebb.WrongState, "parameter 9 was changed or moved since the step that failed"):
                optimizer.step()
            optimizer.close()


class Closures(Streamed):
    def test_one_that_raises_changes_nothing(self):
        plain, made = Plain(parameters(), torch.optim.AdamW, lr=1e-2, foreach=True), parameters()
        optimizer = self.streamed(made, lr=1e-2, foreach=True)
        self.train(plain, made, optimizer, 2)
        optimizer.zero_grad(set_to_none=True)

        def closure():
            loss_of(made, 9).backward()
            raise ArithmeticError("no loss")

        with self.assertRaisesRegex(ArithmeticError, "no loss"):
            optimizer.step(closure)
        self.all_same(plain, made)
        self.train(plain, made, optimizer, 2, 2)
        self.all_same(plain, made)

    def test_one_that_changes_what_was_looked_at_before(self):
        made = parameters()
        optimizer = self.streamed(made)
        self.allocate(MiB, backup="cpu")
        before = [bits(p).clone() for p in made]

        def pauses():
            loss_of(made, 0).backward()
            ebb.pause()

        def changes():
            loss_of(made, 0).backward()
            made[1].data = made[1].data.bfloat16()

        try:
            with self.assertRaisesRegex(ebb.WrongState, "step called while paused"):
                optimizer.step(pauses)
        finally:
            ebb.resume()
        kept = made[1].data
        with self.assertRaisesRegex(ebb.WrongState, "parameter 1 was float32"):
            optimizer.step(changes)
        made[1].data = kept
        self.assertTrue(all(torch.equal(a, bits(p)) for a, p in zip(before, made)))


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


class Refused(Streamed):
    def test_what_cannot_be_streamed(self):
        one = [torch.nn.Parameter(torch.zeros(3))]
        for call, said in (
            (lambda: StreamedAdamW(one, amsgrad=True), "third moment"),
            (lambda: StreamedAdamW([{"params": one, "amsgrad": True}]), "third moment"),
            (lambda: StreamedAdamW(one, moments_dtype="fp8"), "mantissa"),
            (lambda: StreamedAdamW(one, moments_dtype="int8"), "fp32, bf16, fp16"),
            (lambda: StreamedAdamW(one, bucket_elements=0), "bucket_elements is a whole number from 1 on, not 0"),
            (lambda: StreamedAdamW(one, bucket_elements=2.5), "bucket_elements .* not 2.5"),
            (lambda: StreamedAdamW(one, bucket_elements=float("inf")), "bucket_elements .* not inf"),
            (lambda: StreamedAdamW(one, buckets_in_flight="3"), "buckets_in_flight .* not '3'"),
            (lambda: StreamedAdamW([torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))]), "complex64"),
            (lambda: StreamedAdamW([torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))]), "float64"),
            (lambda: StreamedSGD(one, lr=0.1, momentum=0), "no state to stream"),
            (lambda: StreamedAdamW(one, lr=-1), "learning rate"),
            (lambda: StreamedAdamW([]), "empty"),
        ):
            with self.assertRaisesRegex(ValueError, said):
                call()
        self.assertEqual(ebb.status().get("states", []), [])

    def test_a_sparse_gradient(self):
        table = torch.nn.Embedding(8, 4, sparse=True)
        optimizer = self.streamed(list(table.parameters()))
        table(torch.tensor([1, 2])).sum().backward()
        with self.assertRaisesRegex(ebb.InvalidArgument, "sparse"):
            optimizer.step()

    def test_parameters_added_later(self):
        optimizer = self.streamed(parameters())
        with self.assertRaisesRegex(ebb.WrongState, "all groups"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
        self.assertEqual(len(optimizer.param_groups), 2)

    def test_parameters_taken_from_a_group_or_moved_in_it(self):
        def change(groups):
            yield lambda: groups[0]["params"].pop(0)
            yield lambda: groups[0]["params"].reverse()
            yield lambda: groups[0]["params"].append(torch.nn.Parameter(torch.zeros(8)))
            yield lambda: groups.pop()
            yield lambda: groups.append(dict(groups[0]))

        for number in range(5):
            made = [torch.nn.Parameter(torch.zeros(8)) for _ in range(3)]
            optimizer = self.streamed([{"params": made[:2]}, {"params": made[2:]}])
            for parameter in made:
                parameter.grad = torch.ones(8)
            list(change(optimizer.param_groups))[number]()
            with self.assertRaisesRegex(ebb.WrongState, "are others than when the optimizer was made"):
                optimizer.step()
            self.assertTrue(all(not p.any() for p in made), "nothing was updated")

    def test_parameters_that_changed_their_layout_or_type(self):
        made = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3,), (2, 3, 4, 4))]
        optimizer = self.streamed(made)
        sum(p.pow(2).sum() for p in made).backward()
        optimizer.step()
        saved = optimizer.state_dict()
        before = [p.detach().clone() for p in made]
        for change, said in (
            (lambda p: p.to(memory_format=torch.channels_last), r"parameter 1 was .*strides \(48, 16, 4, 1\).*\(48, 1, 12, 3\)"),
            (lambda p: p.bfloat16(), "parameter 1 was float32 .* is bfloat16"),
            (lambda p: p.reshape(4, 24), r"parameter 1 was .*\(4, 24\)"),
        ):
            old = made[1].data
            made[1].data = change(old)
            for call in (optimizer.step, optimizer.prefetch, optimizer.state_dict, lambda: optimizer.load_state_dict(saved),
                         lambda: optimizer.save(self.folder), lambda: optimizer.load(self.folder)):
                with self.assertRaisesRegex(ebb.WrongState, said):
                    call()
            made[1].data = old
        for a, b in zip(before, made):
            self.same(a, b)
        optimizer.step()

    def test_copies(self):
        optimizer = self.streamed(parameters())
        for made in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "state_dict"):
                made(optimizer)

    def test_parameters_that_share_memory(self):
        """Each would be updated from what it was before the step."""
        whole, one, two = torch.zeros(64), torch.nn.Parameter(torch.zeros(8)), torch.nn.Parameter(torch.zeros(8))
        for made, said in (
            ([torch.nn.Parameter(whole[:40]), torch.nn.Parameter(torch.zeros(5)), torch.nn.Parameter(whole[39:])], "parameters 0 and 2"),
            ([torch.nn.Parameter(whole.view(8, 8)[:, ::2]), torch.nn.Parameter(whole.view(8, 8)[:, ::2])], "parameters 0 and 1"),
            ([torch.nn.Parameter(torch.zeros(1).expand(5))], "parameter 0 has elements that share memory"),
        ):
            with self.assertRaisesRegex(ebb.InvalidArgument, said):
                StreamedAdamW(made)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of it only
            with self.assertRaisesRegex(ebb.InvalidArgument, "parameters 0 and 1 share memory, or are the same"):
                StreamedAdamW([one, one])
        apart = [torch.nn.Parameter(whole.view(8, 8)[:, i::2]) for i in range(2)] + [torch.nn.Parameter(torch.zeros(0)) for _ in range(2)]
        apart += [one, two]
        optimizer = self.streamed(apart)
        for parameter in apart:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        before = [p.detach().clone() for p in apart]
        one.data = two.data
        with self.assertRaisesRegex(ebb.InvalidArgument, "share memory"):
            optimizer.step()
        for a, b in zip(before, apart):
            self.same(a, b)
        self.assertEqual([s["name"] for s in ebb.status()["states"]], [optimizer._state.name])

    def test_a_parameter_that_was_moved_to_another_device(self):
        made = parameters()
        optimizer = self.streamed(made)
        loss_of(made, 0).backward()
        optimizer._device = torch.device("cuda", 0)  # as if it had been made there
        with self.assertRaisesRegex(ebb.WrongState, "parameter 0 is on cpu, and the optimizer was made for cuda:0"):
            optimizer.step()
        optimizer._device = torch.device("cpu")

    def test_parameters_of_two_devices(self):
        made = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3, device="meta"))]
        with self.assertRaisesRegex(ebb.InvalidArgument, "the parameters are on cpu, meta"):
            StreamedAdamW(made)

    def test_options_that_were_set_later(self):
        for kind, option, value, said in (
            (StreamedAdamW, "amsgrad", True, "third moment"), (StreamedAdamW, "decoupled_weight_decay", False, "the other kind's"),
            (StreamedAdam, "decoupled_weight_decay", True, "the other kind's"), (StreamedSGD, "momentum", 0, "no state to stream"),
        ):
            made = [torch.nn.Parameter(torch.zeros(3))]
            optimizer = self.streamed(made, kind)
            made[0].grad = torch.ones(3)
            optimizer.param_groups[0][option] = value
            with self.assertRaisesRegex(ebb.InvalidArgument, said):
                optimizer.step()
            self.assertFalse(made[0].any())

    def test_a_gradient_from_elsewhere_of_another_shape(self):
        class Elsewhere(StreamedAdamW):
            def gradient_of(self, parameter):
                return self.given

        made = [torch.nn.Parameter(torch.zeros(6))]
        optimizer = self.streamed(made, Elsewhere)
        optimizer.given = torch.ones(1)  # which would be taken for six
        with self.assertRaisesRegex(ebb.InvalidArgument, r"gradient of parameter 0 has shape \(1,\), the parameter \(6,\)"):
            optimizer.step()
        plain = torch.nn.Parameter(torch.zeros(6))
        plain.grad = torch.full((6,), 1 / 3).bfloat16().float()
        torch.optim.AdamW([plain]).step()
        optimizer.given = torch.full((6,), 1 / 3, dtype=BF16)  # of a parameter of fp32
        optimizer.step()
        self.same(plain, made[0])

    def test_an_update_that_changes_gradients(self):
        class Changes(StreamedAdamW):
            def update(self, group, values, gradients, state, steps):
                gradients[0].add_(1)

        made = [torch.nn.Parameter(torch.zeros(6))]
        optimizer = self.streamed(made, Changes)
        made[0].grad = torch.ones(6)
        for _ in range(2):
            with self.assertRaisesRegex(ebb.StateError, "changed gradients in place"):
                optimizer.step()
        self.assertFalse(made[0].any())

    def test_after_close(self):
        made = parameters()
        optimizer = self.streamed(made)
        loss_of(made, 0).backward()
        optimizer.step()
        optimizer.close()
        optimizer.close()
        for call in (optimizer.step, optimizer.prefetch, optimizer.state_dict):
            with self.assertRaisesRegex(ebb.WrongState, "closed"):
                call()

    def test_a_step_while_paused(self):
        made = parameters()
        plain = Plain(parameters(), torch.optim.AdamW)
        optimizer = self.streamed(made)
        self.allocate(MiB, backup="cpu")
        self.train(plain, made, optimizer, 2)
        loss_of(made, 9).backward()
        optimizer.prefetch()
        with ebb.paused():
            for call in (optimizer.step, optimizer.prefetch):
                with self.assertRaisesRegex(ebb.WrongState, "paused"):
                    call()
        self.train(plain, made, optimizer, 2, 2)
        self.all_same(plain, made)


    def test_a_step_while_all_is_paused_but_what_others_use_too(self):
        """Memory that was exported stays, and is none that a step could be about."""
        made = parameters()
        optimizer = self.streamed(made)
        self.allocate(MiB, backup="cpu")
        loss_of(made, 0).backward()
        driver, handle, exported = ctypes.CDLL(None), ctypes.c_uint64(), ctypes.c_int(-1)
        pinned_on_device_0_as_descriptor = (ctypes.c_int * 8)(1, 1, 1, 0)
        with ebb.region(backup="cpu"):
            self.assertEqual(driver.cuMemCreate(
                ctypes.byref(handle), ctypes.c_size_t(2 * MiB), pinned_on_device_0_as_descriptor, ctypes.c_ulonglong(0)), 0)
        self.addCleanup(lambda: self.assertEqual(driver.cuMemRelease(handle), 0))
        self.assertEqual(driver.cuMemExportToShareableHandle(ctypes.byref(exported), handle, 1, ctypes.c_ulonglong(0)), 0)
        self.addCleanup(os.close, exported.value)
        with ebb.paused():
            status = ebb.status()
            self.assertEqual(status["kept"], [{"reason": "exported", "count": 1, "bytes": 2 * MiB}])
            for call in (optimizer.step, optimizer.prefetch):
                with self.assertRaisesRegex(ebb.WrongState, "paused"):
                    call()
        optimizer.step()


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


# Trains to the end in spite of what fails, and compares with PyTorch's.
RETRY = """
import sys, torch, ebb, ebb.optim
from test_optim import FLAVOUR, Plain, parameters, groups, loss_of, bits
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
            from test_optim import parameters
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
            from test_optim import FLAVOUR, Plain, parameters, groups, loss_of, bits
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
            from test_optim import parameters
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
            from test_optim import parameters
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
