"""What stands between Megatron's distributed optimizer and streamed state. Megatron itself is not here: a class with
the parts of its interface that are used stands for it. With megatron-core, on a GPU: test/gpu/megatron_optimizer.py. Needs
PyTorch."""

import contextlib
import random
import tempfile
import types
import unittest
from unittest import mock

import ebb
from support import DISK, Memory
from test_optim_interrupted import Interruption

try:
    import torch
except ImportError:
    torch = None
else:
    import ebb.megatron
    import ebb.optim
    from ebb._state import State


class Distributed:
    """Calls of Megatron's DistributedOptimizer on its own methods, for parameters that each are one shard."""

    def __init__(self, optimizer, config, models):
        self.optimizer, self.config, self.models = optimizer, config, models
        self.model_fp32_groups = [[m for m in models if m.dtype is torch.float32]]
        self.model_float16_groups = [[m for m in models if m.dtype is not torch.float32]]
        self.shard_fp32_groups = [[m.view(-1) for m in self.model_fp32_groups[0]]]
        self.shard_float16_groups = [[m.detach().view(-1) for m in self.model_float16_groups[0]]]
        self.prepared = 0

    def prepare_grads(self):
        self.prepared += 1
        for models, shards in (
            (self.model_fp32_groups, self.shard_fp32_groups), (self.model_float16_groups, self.shard_float16_groups)
        ):
            for model, shard in zip(models[0], shards[0]):
                shard.decoupled_grad = model.main_grad.view(-1)
        return False

    def step_with_ready_grads(self):
        self.optimizer.step()
        return True

    def step(self):
        self.prepare_grads()
        return self.step_with_ready_grads()

    def state_dict(self):
        groups = self.optimizer.state_dict()["param_groups"]
        for group in groups:
            del group["params"]
        return {"optimizer": {"param_groups": groups}}

    def load_state_dict(self, state_dict):
        assert len(self.optimizer.state) > 0  # else Megatron makes one on the GPU
        inner = self.optimizer.state_dict()
        groups = [
            {**saved, "params": own["params"]}
            for saved, own in zip(state_dict["optimizer"]["param_groups"], inner["param_groups"])
        ]
        self.optimizer.load_state_dict({"state": inner["state"], "param_groups": groups})
        for number, tensors in enumerate(state_dict.get("param_state", ())):
            self._set_main_param_and_optimizer_states(self.models[number], tensors)

    def sharded_state_dict(self, model_sharded_state_dict, is_loading=False, metadata=None):
        return {**self.state_dict(), "param_state": self.get_parameter_state_dp_reshardable()}

    def get_parameter_state_dp_reshardable(self):
        return [self._get_main_param_and_optimizer_states(m) for m in self.models]

    def get_parameter_state_dp_zero(self):
        return self.get_parameter_state_dp_reshardable()

    def reload_model_params(self, state_dict=None):
        self._copy_model_params_to_main_params(state_dict=state_dict)


def config(**changed):
    values = dict(
        optimizer="adam", use_distributed_optimizer=True, use_precision_aware_optimizer=False, optimizer_cpu_offload=False,
        overlap_param_gather_with_optimizer_step=False, reuse_grad_buf_for_mxfp8_param_ag=False, fp8_recipe=None,
        decoupled_weight_decay=True, lr=1e-2, adam_beta1=0.9, adam_beta2=0.99, adam_eps=1e-8, weight_decay=0.1,
    )
    return types.SimpleNamespace(**{**values, **changed})


@unittest.skipIf(torch is None, "PyTorch is not installed for this interpreter")
class Megatron(Memory):
    def setUp(self):
        super().setUp()
        for name in ebb.megatron._SAVE + ebb.megatron._LOAD:  # of these the class above has some
            if not hasattr(Distributed, name):
                setattr(Distributed, name, lambda self, *_, **__: None)
                self.addCleanup(delattr, Distributed, name)
        core = types.SimpleNamespace(DistributedOptimizer=Distributed)
        patched = mock.patch.object(ebb.megatron, "_core", lambda: core)
        patched.start()
        self.addCleanup(patched.stop)
        ebb.megatron._streamed_class.cache_clear()
        self.addCleanup(ebb.megatron._streamed_class.cache_clear)

    def models(self):
        torch.manual_seed(0)
        kinds = [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]
        return [torch.nn.Parameter(torch.randn(n, 3).to(kind)) for n, kind in zip((400, 7, 90, 300), kinds)]

    def streamed(self, models, **changed):
        settings = config(**changed)
        # As Megatron makes it, and then has the streamed one in its place.
        plain = torch.optim.AdamW([{"params": models, "wd_mult": 1.0}], lr=settings.lr, betas=(0.9, 0.99),
                                  weight_decay=settings.weight_decay)
        optimizer = Distributed(plain, settings, models)
        ebb.megatron._stream(optimizer, {"bucket_elements": 512, "foreach": True})
        self.addCleanup(optimizer.optimizer.streamed.close)
        return optimizer

    def gradients(self, models, number):
        generator = torch.Generator().manual_seed(number)
        for model in models:
            model.main_grad = torch.randn(model.shape, generator=generator)

    def steps(self, optimizer, first, count):
        for number in range(first, first + count):
            self.gradients(optimizer.models, number)
            optimizer.step()

    def same(self, a, b):
        for number, (x, y) in enumerate(zip(a, b)):
            self.assertTrue(torch.equal(x, y), f"parameter {number} differs")

    def test_the_bits_of_adam_over_masters_with_gradients_of_fp32(self):
        for decoupled, kind in ((True, torch.optim.AdamW), (False, torch.optim.Adam)):
            models, twins = self.models(), self.models()
            masters = [torch.nn.Parameter(t.detach().float()) for t in twins]
            plain = kind(masters, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1, foreach=True)
            optimizer = self.streamed(models, decoupled_weight_decay=decoupled)
            for number in range(5):
                self.gradients(models, number)
                self.gradients(masters, number)
                for master in masters:
                    master.grad = master.main_grad
                optimizer.step()
                plain.step()
            self.same(models, [m.detach().to(t.dtype) for m, t in zip(masters, twins)])

    def test_the_first_gradient_of_a_model_begins_to_read(self):
        models = self.models()
        optimizer = self.streamed(models)
        self.steps(optimizer, 0, 1)
        with mock.patch.object(State, "read", autospec=True, side_effect=State.read) as read:
            models[3].sum().backward()
        self.assertEqual(read.call_count, 3, "as many buckets as are in flight")

    def test_masters_that_were_loaded_before_the_first_step_are_saved_with_all_their_bits(self):
        optimizer = self.streamed(self.models())
        saved = optimizer.sharded_state_dict({})
        for entry in saved["param_state"]:
            entry["param"] = entry["param"] + 1e-5  # fewer than a bf16 parameter has
        optimizer.load_state_dict(saved)
        again = optimizer.sharded_state_dict({})
        self.same([e["param"] for e in again["param_state"]], [e["param"] for e in saved["param_state"]])
        self.assertEqual(again["optimizer"]["param_groups"][0]["step"], 0)

    def test_a_checkpoint_goes_to_another_optimizer_in_one_pass(self):
        source = self.streamed(self.models())
        self.steps(source, 0, 3)
        with mock.patch.object(ebb.optim.StreamedOptimizer, "state_dict", autospec=True,
                               side_effect=ebb.optim.StreamedOptimizer.state_dict) as read:
            saved = source.sharded_state_dict({})
        self.assertEqual(read.call_count, 1, "the state is read once")
        self.assertIsNone(source._ebb_saved)
        self.assertTrue(all(t.dtype is torch.float32 for e in saved["param_state"] for t in e.values()))
        self.assertEqual(saved["optimizer"]["param_groups"][0]["step"], 3)

        twin = self.streamed(self.models(), lr=0.5)
        with mock.patch.object(State, "read_host", side_effect=AssertionError("what is to be loaded was read")):
            blank = twin.sharded_state_dict({}, is_loading=True)
        self.assertEqual(
            [{k: t.shape for k, t in e.items()} for e in blank["param_state"]],
            [{k: t.shape for k, t in e.items()} for e in saved["param_state"]],
        )
        with torch.no_grad():
            for mine, theirs in zip(twin.models, source.models):
                mine.copy_(theirs)
        with mock.patch.object(ebb.optim.StreamedOptimizer, "load_state_dict", autospec=True,
                               side_effect=ebb.optim.StreamedOptimizer.load_state_dict) as write:
            twin.load_state_dict(saved)
        self.assertEqual(write.call_count, 1, "the state is written once")
        self.assertEqual(twin.optimizer.param_groups[0]["lr"], 1e-2)
        self.assertNotIn("step", twin.optimizer.param_groups[0])
        for each in (source, twin):
            self.steps(each, 3, 3)
        self.same(source.models, twin.models)
        self.assertEqual(twin.state_dict()["optimizer"]["param_groups"][0]["step"], 6)

    def test_a_checkpoint_without_some_parameters(self):
        source = self.streamed(self.models())
        self.steps(source, 0, 1)
        saved = source.sharded_state_dict({})
        del saved["param_state"][2:]
        twin = self.streamed(self.models())
        with self.assertRaisesRegex(ebb.InvalidArgument, "no state of 2 of 4"):
            twin.load_state_dict(saved)
        with self.assertRaisesRegex(ebb.WrongState, "loaded in part"):
            self.steps(twin, 1, 1)
        twin.load_state_dict(source.sharded_state_dict({}))
        self.steps(twin, 1, 1)

    def test_an_interruption_leaves_nothing_of_a_checkpoint_for_the_next(self):
        source, twin = self.streamed(self.models()), self.streamed(self.models())
        self.steps(source, 0, 1)
        saved = source.sharded_state_dict({})
        for optimizer, call in ((source, lambda: source.sharded_state_dict({})), (twin, lambda: twin.load_state_dict(saved))):
            nowhere = Interruption()
            with nowhere:
                call()
            seen = [(place, time) for place, most in nowhere.seen.items() for time in {1, most}]
            for place, time in random.sample(seen, 30):
                with contextlib.suppress(KeyboardInterrupt), Interruption(place, time):
                    call()
                self.assertEqual((optimizer._ebb_saved, optimizer._ebb_loaded), (None, None), (place, time))
        torch.set_grad_enabled(True)  # an interruption at the end of PyTorch's own no_grad() leaves it as it is inside
        twin.load_state_dict(saved)
        with torch.no_grad():
            for mine, theirs in zip(twin.models, source.models):
                mine.copy_(theirs)
        for each in (source, twin):
            self.steps(each, 1, 1)
        self.same(source.models, twin.models)

    def test_groups_of_another_number(self):
        source = self.streamed(self.models())
        self.steps(source, 0, 1)
        saved = source.optimizer.state_dict()
        saved["param_groups"].append(dict(saved["param_groups"][0], lr=9.0))
        with self.assertRaisesRegex(ebb.InvalidArgument, "has 2 groups of parameters, this optimizer 1"):
            source.optimizer.load_state_dict(saved)
        self.assertEqual(source.optimizer.param_groups[0]["lr"], 1e-2)

    def test_before_the_first_step(self):
        optimizer = self.streamed(self.models())
        saved = optimizer.get_parameter_state_dp_zero()
        self.same([e["param"] for e in saved], [m.detach().float().view(-1) for m in optimizer.models])
        self.assertFalse(any(e["exp_avg"].any() or e["exp_avg_sq"].any() for e in saved))
        self.assertEqual(optimizer.state_dict()["optimizer"]["param_groups"][0]["step"], 0)

    def test_parameters_that_were_changed_by_others_are_taken(self):
        source, twin = self.streamed(self.models()), self.streamed(self.models())
        for each in (source, twin):
            self.steps(each, 0, 2)
            with torch.no_grad():
                for model in each.models:
                    model.mul_(0.5)
        source.reload_model_params()
        self.steps(source, 2, 1)
        with self.assertWarnsRegex(RuntimeWarning, "was changed or moved by others"):
            self.steps(twin, 2, 1)
        self.assertFalse(torch.equal(source.models[0], twin.models[0]), "masters were not taken anew")
        with self.assertRaisesRegex(ebb.InvalidArgument, "state_dict"):
            source.reload_model_params({"model": {}})

    def test_a_step_that_failed_goes_on_with_the_gradients_as_they_are(self):
        optimizer, other = self.streamed(self.models()), self.streamed(self.models())
        self.gradients(optimizer.models, 0)
        with mock.patch.object(State, "write", side_effect=ebb.DiskError("disk full")), self.assertRaises(ebb.StateError):
            optimizer.step()
        with self.assertRaisesRegex(ebb.WrongState, "step_with_ready_grads"):
            optimizer.step()
        self.assertEqual(optimizer.prepared, 1)
        optimizer.step_with_ready_grads()
        self.steps(other, 0, 1)
        self.same(optimizer.models, other.models)

    def test_offload_to_host_memory_gives_up_the_memory_of_buckets(self):
        optimizer = self.streamed(self.models())
        self.steps(optimizer, 0, 1)
        optimizer.offload_to_cpu()
        self.assertIsNone(optimizer.optimizer.streamed._slots)
        optimizer.restore_from_cpu()
        self.steps(optimizer, 1, 1)

    def test_what_cannot_be_streamed_is_named(self):
        for changed in (
            {"optimizer": "sgd"}, {"use_distributed_optimizer": False}, {"use_precision_aware_optimizer": True},
            {"optimizer_cpu_offload": True}, {"overlap_param_gather_with_optimizer_step": True}, {"fp8_recipe": "mxfp8"},
            {"reuse_grad_buf_for_mxfp8_param_ag": True},
        ):
            ((name, value),) = changed.items()
            with self.assertRaisesRegex(ebb.InvalidArgument, f"no {name}={value!r}"):
                ebb.megatron.get_megatron_optimizer(config(**changed), [])
        half, single = torch.nn.Linear(2, 2).bfloat16(), torch.nn.Linear(2, 2)
        for settings, module, said in (
            ({"use_megatron_fsdp": True}, half, "use_megatron_fsdp"), ({"grad_reduce_in_fp32": False}, half, "grad_reduce_in_fp32"),
            ({}, torch.nn.Linear(2, 2).double(), "torch.float64"), ({"grad_reduce_in_fp32": False}, single, ""),
        ):
            module.ddp_config = types.SimpleNamespace(**settings)
            with self.assertRaisesRegex(ebb.InvalidArgument, said) if said else contextlib.nullcontext():
                ebb.megatron._check_chunk(module)
        with self.assertRaisesRegex(ebb.InvalidArgument, "fsdp_dtensor"):
            self.streamed(self.models()).sharded_param_state_fsdp_dtensor()


@unittest.skipIf(torch is None, "PyTorch is not installed for this interpreter")
class OtherMegatrons(Memory):
    def test_none(self):
        with mock.patch.dict("sys.modules", {"megatron": None}), tempfile.TemporaryDirectory(dir=DISK):
            with self.assertRaisesRegex(ebb.UnsafeConfiguration, "needs megatron-core"):
                ebb.megatron.get_megatron_optimizer(config(), [])
