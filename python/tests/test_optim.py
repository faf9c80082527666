"""Optimizers with streamed state against those of PyTorch, bit for bit. On the CPU: softgpu's memory is in its
reach."""

import copy
import ctypes
import os
import pickle
import unittest
import warnings
from unittest import mock

import ebb
from optim_support import BF16, FLAVOUR, FP16, FP32, Plain, SHAPES, Streamed, bits, groups, loss_of, parameters, torch
from support import MiB, ROOT
from test_docs import examples

if torch is not None:
    import ebb.optim
    from ebb._state import State
    from ebb.optim import StreamedAdam, StreamedAdamW, StreamedSGD


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


if __name__ == "__main__":
    unittest.main()
