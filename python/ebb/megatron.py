"""Megatron-core's distributed optimizer with streamed state: fp32 masters and Adam's moments of a rank's shards lie
in files and pass through the step (ebb.optim).

    import ebb.megatron
    optimizer = ebb.megatron.get_megatron_optimizer(config, model_chunks)

in place of megatron.core.optimizer.get_megatron_optimizer, with the same arguments. Everything else is Megatron's:
its gradient buffers, scaling, clipping and gathering of parameters, its schedulers and checkpoints. What it can do
and what is refused: docs/frameworks/megatron.md. Written for megatron-core 0.16.

Megatron has a way for optimizers that hold the masters themselves: their parameters are the rank's shards of the
model, and the gradients are in `decoupled_grad`. The streamed optimizer is put in there, so that no master is on the
GPU at any time, also while the optimizer is made.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
from typing import Any, Callable, Dict, List, Optional

from . import _tensors, optim
from ._errors import InvalidArgument, UnsafeConfiguration, WrongState
from ._layout import MASTER

__all__ = ["get_megatron_optimizer"]

torch: Any = _tensors.torch
_MASTER, _MOMENTS = MASTER, ("exp_avg", "exp_avg_sq")
_FLAVOUR = ("foreach", "fused", "maximize", "capturable", "differentiable", "amsgrad", "decoupled_weight_decay", "bias_correction")
# Methods of Megatron's class that are used or replaced by name.
_SAVE = ("save_parameter_state", "get_parameter_state_dp_zero", "get_parameter_state_dp_reshardable")
_LOAD = (
    "load_state_dict", "load_parameter_state", "load_parameter_state_from_dp_zero",
    "load_parameter_state_from_fully_reshardable", "load_parameter_state_from_dp_reshardable",
    "load_parameter_state_from_fs_model_space",
)
_OTHERS = (
    "_get_main_param_and_optimizer_states", "_set_main_param_and_optimizer_states", "sharded_state_dict",
    "sharded_param_state_fsdp_dtensor", "_init_optimizer_states_with_dummy_values", "_copy_model_params_to_main_params",
    "prepare_grads", "step_with_ready_grads", "offload_to_cpu", "restore_from_cpu",
)
_OWN_MASTERS = "use_precision_aware_optimizer_no_fp8_or_ds_fp8"  # of a config: the optimizer holds them


def get_megatron_optimizer(
    config: Any,
    model_chunks: List[Any],
    *arguments: Any,
    streaming: Optional[Dict[str, Any]] = None,
    **options: Any,
) -> Any:
    """megatron.core.optimizer.get_megatron_optimizer, whose distributed optimizers have streamed state.

    config: Megatron's OptimizerConfig, for adam with the distributed optimizer. It is not changed.
    streaming: arguments of ebb.optim.StreamedAdamW: moments_dtype, bucket_elements, buckets_in_flight,
        prefetch_in_backward, foreach, fused.

    After a StateError of step() call step_with_ready_grads() again: step() would scale and clip gradients twice.

    Raises InvalidArgument: something in config or model that cannot be streamed, by name, and nothing was made;
    UnsafeConfiguration: no megatron-core, or one that is laid out differently; what StreamedAdamW raises.
    """
    core = _core()
    _check_config(config)
    for chunk in model_chunks:
        _check_chunk(chunk)
    inner = copy.copy(config)
    setattr(inner, _OWN_MASTERS, True)
    made = core.get_megatron_optimizer(inner, model_chunks, *arguments, **options)
    for optimizer in getattr(made, "chained_optimizers", [made]):
        if not optimizer.is_stub_optimizer:
            _stream(optimizer, dict(streaming or {}))
    return made


# ---- what is refused -------------------------------------------------------------------------


def _core() -> Any:
    try:
        core = importlib.import_module("megatron.core.optimizer")
    except ImportError as err:
        raise UnsafeConfiguration(f"ebb.megatron needs megatron-core, which cannot be imported: {err}") from err
    fields = {field.name for field in dataclasses.fields(core.OptimizerConfig)}
    missing = [name for name in ("use_precision_aware_optimizer", "main_params_dtype") if name not in fields]
    missing += [name for name in _SAVE + _LOAD + _OTHERS if not hasattr(core.DistributedOptimizer, name)]
    if missing:
        raise UnsafeConfiguration(
            f"this megatron-core has no {', '.join(missing)}: ebb.megatron was written for megatron-core 0.16"
        )
    return core


def _check_config(config: Any) -> None:
    for name, allowed, why in (
        ("optimizer", ("adam",), "only Adam and AdamW are streamed"),
        ("use_distributed_optimizer", (True,), "the shards of the distributed optimizer are what is streamed"),
        ("use_precision_aware_optimizer", (False,), "it keeps the masters itself, as the streamed optimizer does: "
         "moments of fewer bytes are moments_dtype here"),
        ("optimizer_cpu_offload", (False,), "it keeps state in host memory, and the streamed one in files: choose one"),
        ("overlap_param_gather_with_optimizer_step", (False,), "a step has the state of all model chunks pass at once"),
        ("reuse_grad_buf_for_mxfp8_param_ag", (False,), "fp8 parameters are not streamed"),
        ("fp8_recipe", (None,), "fp8 parameters are not streamed"),
    ):
        if getattr(config, name, allowed[0]) not in allowed:
            raise InvalidArgument(f"ebb.megatron has no {name}={getattr(config, name)!r}: {why}")


def _check_chunk(chunk: Any) -> None:
    settings = chunk.ddp_config
    if getattr(settings, "use_megatron_fsdp", False):
        raise InvalidArgument("ebb.megatron has no use_megatron_fsdp: its shards are laid out by FSDP, not by the gradient buffers")
    if not getattr(settings, "grad_reduce_in_fp32", True) and any(p.dtype is not torch.float32 for p in chunk.parameters()):
        raise InvalidArgument(
            "ebb.megatron has no grad_reduce_in_fp32=False: gradients of fewer bits would be clipped in place, and "
            "Megatron's own optimizer clips fp32 copies"
        )
    for name, parameter in chunk.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise InvalidArgument(f"ebb.megatron has no parameters of {parameter.dtype}, as {name} is")
        if type(parameter.data) is not torch.Tensor and type(parameter.data) is not torch.nn.Parameter:
            raise InvalidArgument(f"ebb.megatron has no parameters of {type(parameter.data).__name__}, as {name} is (fp8, or a DTensor)")


# ---- inside of a distributed optimizer -------------------------------------------------------


class _Shards:
    """The streamed optimizer of a rank's shards, whose gradients Megatron leaves in `decoupled_grad`."""

    @staticmethod
    def gradient_of(shard: Any) -> Any:
        return getattr(shard, "decoupled_grad", None)


class _StreamedAdamW(_Shards, optim.StreamedAdamW):
    pass


class _StreamedAdam(_Shards, optim.StreamedAdam):
    pass


class _Inner:
    """What a distributed optimizer takes for its own inner optimizer. Its state dict has steps and options of groups
    only: the rest of a checkpoint Megatron asks for parameter by parameter."""

    def __init__(self, streamed: Any) -> None:
        self.streamed = streamed
        self.defaults = streamed.defaults
        self._loaded: Any = None  # steps of a checkpoint whose parameters come

    @property
    def param_groups(self) -> List[Dict[str, Any]]:
        groups: List[Dict[str, Any]] = self.streamed.param_groups
        return groups

    @property
    def state(self) -> Dict[Any, Dict[str, Any]]:
        """By shard. Never empty, so that Megatron makes none."""
        step = self._done()
        return {shard: {"step": torch.tensor(float(step))} for shard in self.streamed._parameters()}

    @property
    def steps(self) -> int:
        """Updates that the parameters had which are being loaded."""
        return self._done() if self._loaded is None else self._loaded

    def _done(self) -> int:
        """Updates of every shard, which Megatron makes together."""
        return max((piece.steps for bucket in self.streamed._buckets for piece in bucket.pieces), default=0)

    def step(self, closure: Any = None) -> Any:
        self._loaded = None
        return self.streamed.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for shard in self.streamed._parameters():
            shard.decoupled_grad = None

    def state_dict(self) -> Dict[str, Any]:
        step = self._done()
        groups = [{**group, "step": step} for group in self.streamed._packed_groups()]
        return {"state": {n: {"step": torch.tensor(float(step))} for g in groups for n in g["params"]}, "param_groups": groups}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise InvalidArgument(f"the checkpoint has {len(groups)} groups of parameters, this optimizer {len(self.param_groups)}")
        self.streamed._take_groups([{k: v for k, v in g.items() if k != "step"} for g in groups])
        steps = {int(g["step"]) for g in groups if g.get("step") is not None}
        if len(steps) > 1:
            raise InvalidArgument(f"the checkpoint has groups of {sorted(steps)} steps, and Megatron steps all of them together")
        self._loaded = steps.pop() if steps else None


def _stream(optimizer: Any, streaming: Dict[str, Any]) -> None:
    """Puts a streamed optimizer into a distributed one that has made no state yet."""
    core = _core()
    for models, shards in zip(optimizer.model_fp32_groups, optimizer.shard_fp32_groups):
        for n, shard in enumerate(shards):  # views that autograd knows: an optimizer takes leaves
            leaf = shard.detach()
            leaf.__dict__.update(shard.__dict__)
            shards[n] = leaf
    groups: List[Dict[str, Any]] = []
    numbers: Dict[Any, int] = {}
    for index, former in enumerate(optimizer.optimizer.param_groups):
        shards = [*optimizer.shard_fp32_groups[index], *optimizer.shard_float16_groups[index]]
        models = [*optimizer.model_fp32_groups[index], *optimizer.model_float16_groups[index]]
        for model, shard in zip(models, shards):
            numbers[model] = len(numbers)
        if not former.get("bias_correction", True):
            raise InvalidArgument("ebb.megatron has no bias_correction=False: it updates as PyTorch's Adam does")
        groups.append({**{k: v for k, v in former.items() if k not in _FLAVOUR}, "params": shards})
    config = optimizer.config
    kind = _StreamedAdamW if config.decoupled_weight_decay else _StreamedAdam
    streamed = kind(
        groups, lr=config.lr, betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_eps,
        weight_decay=config.weight_decay, **streaming,
    )
    if streaming.get("prefetch_in_backward", True):
        streamed.prefetch_in_backward_of(list(numbers))
    optimizer.optimizer = _Inner(streamed)
    optimizer._ebb_numbers, optimizer._ebb_saved, optimizer._ebb_loaded = numbers, None, None
    optimizer.__class__ = _streamed_class(core.DistributedOptimizer)


@functools.lru_cache(maxsize=None)
def _streamed_class(base: Any) -> Any:
    """Megatron's class, with the methods below in place of its own. Of one base, so that an object of it can become
    one of this."""

    class StreamedDistributedOptimizer(base):  # type: ignore[misc]  # Megatron is not there when types are checked
        """Megatron's DistributedOptimizer over streamed state: what reads and sets the state of a parameter, and what
        would have all of it on the GPU."""

        optimizer: Any
        _ebb_numbers: Dict[Any, int]
        """Of shards, by parameter of the model."""
        _ebb_saved: Optional[Dict[int, Dict[str, Any]]]
        """What a checkpoint is made from, while it is made."""
        _ebb_loaded: Optional[Dict[int, Dict[str, Any]]]
        """What has come of a checkpoint, by number of shard, while it is loaded."""

        # The state of one parameter, which all of Megatron's kinds of checkpoints are made of.

        def _get_main_param_and_optimizer_states(self, model_param: Any) -> Dict[str, Any]:
            tensors: Dict[str, Any] = self._ebb_saving(lambda: self._ebb_get(model_param))
            return tensors

        def _ebb_get(self, model_param: Any) -> Dict[str, Any]:
            number, streamed = self._ebb_numbers[model_param], self.optimizer.streamed
            shard = streamed._parameters()[number]
            assert self._ebb_saved is not None
            entry: Dict[str, Any] = self._ebb_saved.get(number, {})
            tensors = {name: _fp32(streamed, shard, entry.get(name)) for name in _MOMENTS}
            tensors["param"] = _fp32(streamed, shard, entry.get(_MASTER, shard.detach()))
            return tensors

        def _set_main_param_and_optimizer_states(self, model_param: Any, tensors: Dict[str, Any]) -> None:
            self._ebb_loading(lambda: self._ebb_set(model_param, tensors))

        def _ebb_set(self, model_param: Any, tensors: Dict[str, Any]) -> None:
            assert self._ebb_loaded is not None
            number = self._ebb_numbers[model_param]
            shard, value = self.optimizer.streamed._parameters()[number], tensors["param"].detach().reshape(-1)
            entry = {name: tensors[name].detach().reshape(-1) for name in _MOMENTS}
            if _tensors.needs_master(shard):
                entry[_MASTER] = value
            else:
                shard.copy_(value)
            self._ebb_loaded[number] = {"step": self.optimizer.steps, **entry}

        # Calls, and no contexts: what an interruption (Ctrl-C) left of one would be in the next checkpoint.

        def _ebb_saving(self, call: Callable[[], Any], empty: bool = False) -> Any:
            """The state is read once for a checkpoint, to files. empty: not at all, it is about to be loaded."""
            if self._ebb_saved is not None:  # Megatron's methods call each other
                return call()
            try:
                self._ebb_saved = {} if empty else self.optimizer.streamed.state_dict()["state"]
                return call()
            finally:
                self._ebb_saved = None

        def _ebb_loading(self, call: Callable[[], Any]) -> Any:
            """What comes of parameters is written when all is there, in one pass."""
            if self._ebb_loaded is not None:
                return call()
            loaded: Dict[int, Dict[str, Any]] = {}
            streamed = self.optimizer.streamed
            try:
                self._ebb_loaded = loaded
                result = call()
                missing = len(streamed._parameters()) - len(loaded)
                if loaded and missing:
                    raise InvalidArgument(
                        f"the checkpoint has no state of {missing} of {len(streamed._parameters())} parameters of this rank"
                    )
            except BaseException:
                if loaded:  # parameters of fp32 are those of the checkpoint, and the state is not
                    streamed._torn = "a checkpoint was loaded in part: load it again, or another one"
                raise
            finally:
                self._ebb_loaded = None
            if loaded:
                streamed.load_state_dict({"state": loaded, "param_groups": streamed._packed_groups()})
            return result

        # What saves and loads.

        def sharded_state_dict(
            self, model_sharded_state_dict: Any = None, is_loading: bool = False, *arguments: Any, **options: Any
        ) -> Any:
            wanted, own = {} if model_sharded_state_dict is None else model_sharded_state_dict, super().sharded_state_dict
            return self._ebb_saving(lambda: own(wanted, is_loading, *arguments, **options), empty=is_loading)

        def sharded_param_state_fsdp_dtensor(self, is_loading: bool = False) -> Any:
            raise InvalidArgument("ebb.megatron has no sharding type fsdp_dtensor: use dp_reshardable or fully_reshardable")

        def _init_optimizer_states_with_dummy_values(self) -> None:
            """The state is there."""

        # What changes parameters, or takes memory.

        def _copy_model_params_to_main_params(self, state_dict: Any = None) -> None:
            if state_dict is not None:
                raise InvalidArgument(
                    "ebb.megatron has no reload_model_params(state_dict): masters begin as the model's parameters are. Load a "
                    "checkpoint of the optimizer where they have more bits"
                )
            self.optimizer.streamed.take_parameters()

        def prepare_grads(self) -> bool:
            if self.optimizer.streamed.unfinished:
                raise WrongState(
                    "a step failed and is not done: call step_with_ready_grads() again first. step() would scale and clip the "
                    "gradients once more"
                )
            found: bool = super().prepare_grads()
            return found

        def offload_to_cpu(self) -> None:
            """The state is in files. What is on the GPU of it goes."""
            self.optimizer.streamed.release()

        def restore_from_cpu(self) -> None:
            """The next step takes its GPU memory again."""

    def within(name: str, around: str) -> Any:
        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            own = getattr(super(StreamedDistributedOptimizer, self), name)
            return getattr(self, around)(lambda: own(*arguments, **options))

        method.__name__ = name
        return method

    for around, names in (("_ebb_saving", _SAVE), ("_ebb_loading", _LOAD)):
        for name in names:
            setattr(StreamedDistributedOptimizer, name, within(name, around))
    return StreamedDistributedOptimizer


def _fp32(streamed: Any, shard: Any, value: Any) -> Any:
    """An fp32 tensor of a shard's elements in a mapped file; value None: of zeros."""
    if value is not None and value.dtype is torch.float32 and value.device.type == "cpu" and value is not shard:
        return value
    made = _tensors.mapped(None, streamed._directory(), shard.numel(), torch.float32)
    return made if value is None else made.copy_(value)
