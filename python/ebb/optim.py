"""Optimizers whose state never sits on the GPU as a whole: it lives in files and passes through the step, bucket
by bucket. While one bucket is updated the next ones are read and the last ones written.

    import ebb.optim
    optimizer = ebb.optim.StreamedAdamW(model.parameters(), lr=1e-4)

They are used as those of torch.optim, and give the same bits as these do over fp32 masters: of a parameter that
is not fp32, the fp32 master value is part of the streamed state, too. StreamedOptimizer is the base for others
(docs/streaming.md). Needs PyTorch. Sizes are bytes, unless they are called elements.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import itertools
import json
import os
import sys
import tempfile
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _device, _manifest, _memory, _tensors
from ._errors import (
    CorruptBackup, DiskError, Error, ForkedChild, InternalError, InvalidArgument, StateError, UnsafeConfiguration, WrongState,
)
from ._layout import MASTER, Bucket, aligned, overlaps, pack
from ._slots import Pass, Slot, Slots, Traffic, check_not_paused
from ._state import Path, State
from ._step import Hooks, Step, overflowed, scaling, set_scaling, unscaled

__all__ = ["Pass", "StreamedAdam", "StreamedAdamW", "StreamedOptimizer", "StreamedSGD", "requested"]

torch: Any = _tensors.torch

BUCKET_ELEMENTS = 200_000_000
_MOMENTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PARAMETERS = (torch.float32, torch.bfloat16, torch.float16)
_HOST_PART = 16 << 20  # of a segment, for one copy between files and host memory
_names = itertools.count(1)


def requested() -> bool:
    """Whether the program was started to stream optimizer state (`ebb run --optimizer-state-nvme-dir`, or
    `--stream-optimizer-state-to-disk`)."""
    return any(os.environ.get(name) for name in ("EBB_OPTIMIZER_STATE_NVME_DIR", "EBB_STREAM_OPTIMIZER_STATE_TO_DISK"))


class StreamedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # PyTorch is not there when types are checked
    """Base of optimizers whose state is streamed. A subclass names its state in `segments`, one fp32 value of each
    for every element of a parameter, and gives `update`.

    params: as for torch.optim: fp32, bf16 and fp16 parameters of one device.
    defaults: options of groups.
    moments_dtype: how the segments are stored: "fp32"; "bf16"; or "fp16", which has no values below 6e-8 and above
        65504. They are fp32 while they are updated. None: EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE, or "fp32".
    bucket_elements: at most so many elements to a bucket; larger parameters are divided.
    buckets_in_flight: GPU memory is taken for so many buckets: one is read, one updated, one written. 1: one after
        the other.
    prefetch_in_backward: the first buckets are read when a backward makes the first gradient. False: only when
        prefetch() is called, or by the step.

    All room on disk is taken here, or none. A master value is made at the first step that updates the parameter.
    One thread at a time uses the optimizer. Closed with close(), or when the object goes.

    Raises NoSpace, DiskError, NotLoaded, ForkedChild; InvalidArgument: what cannot be streamed.
    """

    segments: Tuple[str, ...] = ()
    _counts_steps = False
    """State dicts of torch.optim's optimizer of this kind tell how many updates there were."""

    def __init__(
        self,
        params: Any,
        defaults: Dict[str, Any],
        moments_dtype: Optional[str] = None,
        bucket_elements: int = BUCKET_ELEMENTS,
        buckets_in_flight: int = 3,
        prefetch_in_backward: bool = True,
    ) -> None:
        self.moments_dtype = _moments(moments_dtype)
        self.bucket_elements = _whole("bucket_elements", bucket_elements)
        self.buckets_in_flight = _whole("buckets_in_flight", buckets_in_flight)
        self._made = False
        self._process = os.getpid()
        super().__init__(params, defaults)
        for group in self.param_groups:
            self.check_group(group)
        self._device = _tensors.one_device(self._parameters())
        self._places = _tensors.check_apart(self._parameters(), [])
        self._laid_out = [_tensors.lies(p) for p in self._parameters()]
        self._groups_made = [list(g["params"]) for g in self.param_groups]
        self._buckets = pack([g["params"] for g in self.param_groups], _tensors.needs_master, self.bucket_elements)
        self._types = {MASTER: torch.float32, **{name: _MOMENTS[self.moments_dtype] for name in self.segments}}
        sizes: List[int] = []
        for bucket in self._buckets:
            for name in ((MASTER,) if bucket.masters else ()) + self.segments:
                bucket.segments[name] = len(sizes)
                sizes.append(bucket.elements * _tensors.width(self._types[name]))
        self._state_name, self._segment_bytes = f"{type(self).__name__} {next(_names)}", sizes or [1]
        self._state = self._make_state()
        self._closed = False
        # Guards all below against a pause's release_for_pause, which another thread may call.
        self._lock = threading.RLock()
        self._slots: Optional[Slots] = None
        self._traffic = Traffic()
        self._former: List[_device.Memory] = []  # that is to be given back
        self._behind: Optional[Step] = None  # a step that failed, and is to go on
        self._marks: Dict[int, Any] = {}  # of parameters as the latest step that updated each left it
        self._at_work = False  # a step uses the slots: a pause on its own thread does not free them
        self._torn = ""  # why the state is not to be used
        self._told_of_changes = False
        self._hooks = Hooks()
        self._made = True
        self.last = Pass()
        """What the latest step moved."""
        _memory.let_go_before_pauses(weakref.WeakMethod(self._release_for_pause))
        if prefetch_in_backward:
            self.prefetch_in_backward_of(self._parameters())

    # ---- for subclasses ----------------------------------------------------------------------

    def update(
        self,
        group: Dict[str, Any],
        values: List[Any],
        gradients: List[Any],
        state: Dict[str, List[Any]],
        steps: List[int],
    ) -> None:
        """Updates flat fp32 tensors in place: values, and state by the names in `segments`, the lists as long as
        gradients, which are not to be changed. state is zero before a parameter's first update. It may be called with
        part of a parameter, so that elements must not depend on each other, and again with the same values after a failure.

        group: the options. steps: how many updates each one had before.
        """
        raise NotImplementedError

    def check_group(self, group: Dict[str, Any]) -> None:
        """Raises InvalidArgument for options and parameters that cannot be streamed."""
        for option, why in (
            ("amsgrad", "it keeps a third moment, which is not streamed"),
            ("capturable", "a CUDA graph holds no transfers of files"),
            ("differentiable", "an update in files has no gradient"),
        ):
            if group.get(option):
                raise InvalidArgument(f"{type(self).__name__} has no {option}: {why}")
        for parameter in group["params"]:
            if parameter.dtype not in _PARAMETERS or parameter.layout is not torch.strided:
                raise InvalidArgument(
                    f"{type(self).__name__} takes dense parameters of fp32, bf16 and fp16, "
                    f"not {parameter.dtype} of layout {parameter.layout}, shape {tuple(parameter.shape)}"
                )

    def gradient_of(self, parameter: Any) -> Any:
        """The gradient that a step is made with, or None: its `grad`. Of the parameter's shape, and of any type."""
        return parameter.grad

    # ---- the step ----------------------------------------------------------------------------

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One update of all parameters that have a gradient, as torch.optim does it. Gives what the closure gave.

        After a StateError, or an interruption, some buckets are updated and others not, and those whose write failed
        keep their new values on the GPU. Make room or wait for the disk, leave gradients as they are, and call step()
        again: it continues where it stopped, without the closure, and with what a GradScaler left. (It is
        optimizer.step() that is called again then, not scaler.step(), which may change gradients.)

        Raises StateError; WrongState: the memory is paused, the optimizer is closed, a parameter has another type,
        shape or order of elements in memory than when the optimizer was made, or gradients changed since a
        StateError; InvalidArgument: a sparse gradient.
        """
        with self._entered(), torch.no_grad():
            self._check_usable()
            check_not_paused()
            if self._behind is None:
                loss = None
                if closure is not None:
                    if self._hooks.are_there():  # its backward, on another thread, finds the optimizer in use
                        self._prefetch_early()
                    with torch.enable_grad():
                        loss = closure()
                    self._check_usable()  # it may have changed parameters, or paused them
                    check_not_paused()
                if overflowed(self):
                    return loss
                step = Step(self, loss)
                self._tell_of_changes(step)
                self._traffic.clear()
            else:
                step = self._behind
                step.check_unchanged()
            slots = self._slots_now()
            slots.look_for_pauses()
            self._behind = step
            left_now = scaling(self)
            try:
                self._at_work = True
                # What a GradScaler had left when the step began. (It changes its tensors in place, and leaves them only
                # for the step's first try.)
                set_scaling(self, step.scaling)
                self._carry_on(step, slots)
            except Exception as err:
                slots.drain()
                slots.check_none_lost()
                raise StateError(
                    f"{self._state.name}: {len(step.left())} of {step.buckets} buckets are not updated in the files: {err}. "
                    "Remove the cause, leave the gradients as they are, and call step() again, the optimizer's own also where there "
                    "is a GradScaler: it continues there",
                ) from err
            except BaseException:  # interrupted: step() continues, too
                slots.drain()
                raise
            finally:
                self._at_work = False
                set_scaling(self, left_now)
            self._marks.update(step.marks)
            self._hooks.armed = True
            self.last = self._traffic.told(step.buckets)
            self._behind = None  # the last thing: now it is done
            return step.loss

    @property
    def unfinished(self) -> bool:
        """Whether a step was stopped amid its buckets, and step() goes on with it. After an interruption (Ctrl-C) that is
        otherwise not known: where it is False, the step is done, or was not begun."""
        return self._behind is not None

    def prefetch(self) -> None:
        """Begins to read the first buckets, so that the next step finds them on the GPU: the reads are then hidden
        behind what comes before it. Does nothing where they are on the way already. The first backward before a
        step does it by itself (prefetch_in_backward); called before the forward pass, more is hidden.

        Raises what step raises, but for StateError.
        """
        with self._entered(), torch.no_grad():
            self._check_usable()
            check_not_paused()
            if self._behind is None:
                self._hooks.armed = False
                slots = self._slots_now()
                slots.look_for_pauses()
                # Where none requires a gradient they come from elsewhere (gradient_of), and may come for all.
                wanted = [b for b in self._buckets if any(p.parameter.requires_grad for p in b.pieces)] or self._buckets
                for bucket in wanted[: self.buckets_in_flight]:
                    if slots.of(bucket) is None and slots.free_one():
                        slots.read(bucket)

    def prefetch_in_backward_of(self, tensors: Sequence[Any]) -> None:
        """The first gradient that a backward makes of one of the tensors begins prefetch(), where the last step is
        done. The parameters' own, unless the optimizer was made with prefetch_in_backward=False; this is for
        parameters that no backward reaches, such as parts of a model's."""
        early = weakref.WeakMethod(self._prefetch_early)
        hooks, process = self._hooks, self._process

        def made(*_: Any) -> None:
            if hooks.armed and os.getpid() == process:
                prefetch = early()
                if prefetch is not None:
                    prefetch()

        hooks.add(tensors, made)

    def _prefetch_early(self) -> None:
        """prefetch() amid a backward, on whatever thread: without a wait for the step, and without an error: what is
        wrong the step tells."""
        entered: List[bool] = []
        try:
            self._enter_now(entered)
            if entered != [True]:
                return
            self._hooks.armed = False
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return  # memory cannot be made now; and a graph that is replayed calls nothing of this
            with contextlib.suppress(Error, RuntimeError):
                self.prefetch()
        finally:
            if entered == [True]:
                self._lock.release()

    def _tell_of_changes(self, step: Step) -> None:
        """Warns of parameters that others changed and whose masters, which the step updates, know nothing of it. Once."""
        changed = [
            p.number for b in step.left() for p in b.pieces
            if p.has_master and p.number in step.marks and self._marks.get(p.number, step.marks[p.number]) != step.marks[p.number]
        ]
        if changed and not self._told_of_changes:
            self._told_of_changes = True
            warnings.warn(
                f"{self._state.name}: parameter {changed[0]} was changed or moved by others since the last step (of {len(set(changed))} "
                "such parameters this is the first). This step sets it from its fp32 master. Call take_parameters() after a change "
                "that is to stay", RuntimeWarning, stacklevel=4,
            )

    def take_parameters(self) -> None:
        """Parameters were changed by others: the masters begin as they are now, at the next step. Moments stay.

        Raises WrongState after a StateError.
        """
        with self._entered():
            self._check_current()
            self._marks.clear()
            for bucket in self._buckets:
                for piece in bucket.pieces:
                    piece.has_master = False

    def release(self) -> None:
        """Gives the GPU memory of the buckets in flight back; the next step takes it again. ebb.pause() does it too, and
        a pause that comes from elsewhere takes that memory with the rank's other managed memory. Raises WrongState where a failed write is to be repeated."""
        with self._entered():
            if self._slots is not None and self._slots.has_new():
                raise WrongState(f"{self._state.name}: GPU memory holds values whose write failed: call step() again first")
            self._give_back()

    def close(self) -> None:
        """Gives up GPU memory and files, and with them the state. Closing again does nothing."""
        with self._entered():
            self._hooks.remove()
            self._closed = True
            with contextlib.ExitStack() as all_of_it:  # the last one first
                all_of_it.callback(self._state.close)
                all_of_it.callback(self._give_back)
                all_of_it.callback(self._drop)

    def __del__(self) -> None:
        if getattr(self, "_made", False) and self._process == os.getpid() and not sys.is_finalizing():
            with contextlib.suppress(Error):
                self.close()

    def _carry_on(self, step: Step, slots: Slots) -> None:
        """Brings all buckets that are behind to the step. Reads go ahead of updates, writes trail behind."""
        slots.write_again()
        order = [b for b in step.left() if not slots.is_new(b)]
        slots.keep_only(order)
        for i, bucket in enumerate(order):
            ahead = order[i + 1 : i + self.buckets_in_flight]
            while True:
                slot = slots.of(bucket) or slots.read(bucket)
                slots.read_ahead(ahead, slot)
                slots.arrive(slot)
                slot.sound = False
                updated = self._update(bucket, slot, slots, step)
                if not slots.taken(slot):
                    break
                slots.again(slot)
            slots.write(slot, *updated)
            slots.read_ahead(ahead, slot)
        slots.settle()

    def _update(
        self, bucket: Bucket, slot: Slot, slots: Slots, step: Step
    ) -> Tuple[Callable[[], None], Callable[[], None]]:
        """Queues the update of a bucket that is on the GPU: in its slot, not yet of the parameters. What is to be
        called for these, and when the files hold the new values. Both may be called again."""
        pieces = [p for p in bucket.pieces if p.number in step.gradients]
        moments, work = slot.areas, slots.shared["work"]
        if self.moments_dtype != "fp32":
            moments = {**moments, **slots.shared}
            for name in self.segments:
                moments[name][: bucket.elements].copy_(slot.areas[name][: bucket.elements])
        values, gradients = [], []
        for piece in pieces:
            place = slice(piece.at, piece.at + piece.elements)
            own = _tensors.flattened(piece.parameter, piece.parameter.detach())[piece.begin : piece.end]
            # .data: PyTorch counts gradients as changed by fused functions, and a retry compares.
            gradient = _tensors.flattened(piece.parameter, step.gradients[piece.number].data)[piece.begin : piece.end]
            if bucket.masters:
                value = slot.areas[MASTER][place]
                if not piece.has_master:
                    value.copy_(own)
                gradient = work[place].copy_(gradient)
            else:
                value = work[place].copy_(own)
                gradient = gradient.float()
            values.append(value)
            gradients.append(gradient)
        state = {name: [moments[name][p.at : p.at + p.elements] for p in pieces] for name in self.segments}
        options = step.options[bucket.group]
        before = [g._version for g in gradients]
        self.update(options, values, gradients, state, [p.steps for p in pieces])
        # Fused functions count gradients as changed that they read only.
        if not options.get("fused") and not bucket.masters and before != [g._version for g in gradients]:
            raise InvalidArgument(
                f"{type(self).__name__}.update() changed gradients in place, which are the parameters' own: where a bucket is "
                "updated again it would get others. Copy them first"
            )
        if self.moments_dtype != "fp32":
            for name in self.segments:
                slot.areas[name][: bucket.elements].copy_(moments[name][: bucket.elements])

        def set_parameters() -> None:
            for piece, value in zip(pieces, values):
                step.marks.pop(piece.number, None)
                _tensors.set_flattened(piece.parameter, piece.begin, piece.end, value)
                step.marks[piece.number] = _tensors.mark(piece.parameter)

        return set_parameters, functools.partial(step.written, bucket, [(p, p.steps + 1) for p in pieces])

    # ---- state dict and checkpoints ----------------------------------------------------------

    def state_dict(self, to: Optional[Path] = None) -> Dict[str, Any]:
        """As that of torch.optim's optimizer of this kind, which can load it, with the fp32 masters under "master"
        (of parameters that have one by now: after load_state_dict() without it, from the next step on).
        The tensors lie in files that are mapped into memory, so that no more of the state is in memory at a time
        than is in use.

        to: a new directory for these files; None: files without a name beside the state's own, which go with the
            tensors. They need as much room as the state.

        Raises WrongState after a StateError; NoSpace, DiskError, CorruptBackup: nothing is left of it.
        """
        with self._entered(), torch.no_grad(), contextlib.ExitStack() as undo:
            self._check_current()
            if to is not None:
                os.makedirs(to)
                undo.callback(_remove, os.rmdir, to)
            folder = os.fspath(to) if to is not None else self._directory()
            state: Dict[int, Dict[str, Any]] = {}
            flat: Dict[Tuple[int, str], Any] = {}
            for bucket in self._buckets:
                for piece in bucket.pieces:
                    if not piece.has_state or piece.number in state:
                        continue
                    entry: Dict[str, Any] = {"step": torch.tensor(float(piece.steps))}
                    for name in bucket.filled(piece):
                        path = None
                        if to is not None:
                            path = os.path.join(folder, f"{piece.number}.{name}")
                            undo.callback(_remove, os.unlink, path)
                        array = _tensors.mapped(path, folder, piece.parameter.numel(), self._types[name])
                        flat[piece.number, name] = array
                        entry[name] = _tensors.shaped(piece.parameter, array)
                    state[piece.number] = entry
            for bucket in self._buckets:
                for name in bucket.segments:
                    for part, begin in self._host_parts(bucket, name, read=True):
                        for piece, inside, place in overlaps(bucket, begin, part.numel()):
                            if piece.has_state and name in bucket.filled(piece):
                                flat[piece.number, name][inside].copy_(part[place])
            undo.pop_all()
            return {"state": state, "param_groups": self._packed_groups()}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes the state dict of an optimizer of this kind, streamed or torch.optim's own, part by part. Where it
        has no "master", the masters begin as the parameters are at the next step.

        Raises InvalidArgument: it is of other parameters, and nothing was changed; DiskError, NoSpace: it can be
        loaded again.
        """
        with self._entered(), torch.no_grad():
            self._check_open()
            saved = self._check_state_dict(state_dict)
            self._torn = "load_state_dict() failed: load it again"
            self._drop()
            try:
                self._fill(saved)
            except (CorruptBackup, InternalError):  # files are gone, or others changed them: nothing in them is wanted
                self._give_back()
                self._state.close()
                self._fill(saved)
            self._take_groups(state_dict["param_groups"])
            self._torn = ""

    def _fill(self, saved: Dict[int, Dict[str, Any]]) -> None:
        """Has the files hold a saved state, which is by number of parameter."""
        self._make_lost_state()
        for bucket in self._buckets:
            for piece in bucket.pieces:
                entry = saved.get(piece.number, {})
                piece.steps, piece.has_master = entry.get("step", 0), bucket.masters and entry.get(MASTER) is not None
            for name in bucket.segments:
                flat = {
                    p.number: _tensors.flattened(p.parameter, saved[p.number][name])
                    for p in bucket.pieces
                    if saved.get(p.number, {}).get(name) is not None
                }
                for part, begin in self._host_parts(bucket, name, read=False):
                    for piece, inside, place in overlaps(bucket, begin, part.numel()):
                        if piece.number in flat:
                            part[place].copy_(flat[piece.number][inside])

    def save(self, folder: Path) -> None:
        """Writes a checkpoint of the streamed state (docs/streaming.md): a directory that is put in place as a
        whole, from one that is there already only when the new one is complete. Parameters are not in it.

        Raises WrongState after a StateError; NoSpace, DiskError: nothing was changed.
        """
        with self._entered():
            self._check_current()
            extra = {**self._layout(), "groups": self._packed_groups(), "pieces": [
                [[p.steps, p.has_master] for p in bucket.pieces] for bucket in self._buckets
            ]}
            try:
                json.dumps(extra, allow_nan=False)
            except (TypeError, ValueError) as err:
                raise InvalidArgument(f"options of groups that are no JSON cannot be saved: {err}; use state_dict()") from err
            self._settle()
            self._state.save(folder, extra)

    def load(self, folder: Path) -> None:
        """Takes a checkpoint that save() wrote, with the options of its groups.

        Raises InvalidArgument: it is of another optimizer, type, shape or layout, and nothing was changed;
        CorruptBackup, DiskError: the state is not usable until something is loaded.
        """
        with self._entered():
            self._check_open()
            manifest = _manifest.read(folder)
            extra = manifest["extra"]
            for key, mine in self._layout().items():
                _manifest.compare(folder, key, extra.get(key), mine)
            _manifest.check_progress(folder, extra, self._buckets, self.param_groups)
            self._settle()
            self._make_lost_state()
            former, self._torn = self._torn, f"load() of {os.fspath(folder)!r} failed: load it, or another checkpoint"
            try:
                self._state.load(folder)
            except InvalidArgument:  # the state is as it was: not usable, or amid a step that goes on
                self._torn = former
                raise
            except Error:
                self._drop()
                raise
            self._drop()
            if _manifest.read(folder) != manifest:
                raise DiskError(
                    f"the checkpoint {os.fspath(folder)!r} was replaced while it was loaded: steps and values may be of two. Load it again"
                )
            for bucket, pieces in zip(self._buckets, extra["pieces"]):
                for piece, (steps, has_master) in zip(bucket.pieces, pieces):
                    piece.steps, piece.has_master = steps, has_master
            self._take_groups(extra["groups"])
            self._torn = ""

    def _layout(self) -> Dict[str, Any]:
        """What a checkpoint and this optimizer must have in common, as JSON."""
        return {
            "format": _manifest.FORMAT,
            "optimizer": type(self).__name__,
            "segments": list(self.segments),
            "moments_dtype": self.moments_dtype,
            "parameters": self._laid_out,
            "bucket_elements": aligned(self.bucket_elements),
            "buckets": [[b.group, [[p.number, p.begin, p.end] for p in b.pieces]] for b in self._buckets],
        }

    def _host_parts(self, bucket: Bucket, name: str, read: bool) -> Iterator[Tuple[Any, int]]:
        """The segment in parts: (tensor in host memory, number of its first element). They are read before, or
        written afterwards; what is not filled in is zero."""
        kind = self._types[name]
        width, block = _tensors.width(kind), self._state.block
        step = max(_HOST_PART // block, 1) * block
        segment = bucket.segments[name]
        for offset in range(0, bucket.elements * width, step):
            buffer = bytearray(min(step, bucket.elements * width - offset))
            if read:
                self._state.read_host(segment, offset, buffer)
            yield torch.frombuffer(buffer, dtype=kind), offset // width
            if not read:
                self._state.write_host(segment, offset, buffer)

    def _packed_groups(self) -> List[Dict[str, Any]]:
        numbers = itertools.count()
        return [
            {**{k: v for k, v in g.items() if k != "params"}, "params": [next(numbers) for _ in g["params"]]}
            for g in self.param_groups
        ]

    def _take_groups(self, groups: Sequence[Dict[str, Any]]) -> None:
        for group, new in zip(self.param_groups, groups):
            for key, value in new.items():
                if key != "params":
                    # JSON has no tuples. A learning rate that is a tensor is the optimizer's own.
                    value = tuple(value) if isinstance(group.get(key), tuple) and isinstance(value, list) else value
                    group[key] = copy.deepcopy(value)

    def _check_state_dict(self, state_dict: Dict[str, Any]) -> Dict[int, Dict[str, Any]]:
        """The saved state by number of parameter, checked."""
        groups = state_dict["param_groups"]
        theirs, mine = [len(g["params"]) for g in groups], [len(g["params"]) for g in self.param_groups]
        if theirs != mine:
            raise InvalidArgument(f"the state dict has groups of {theirs} parameters, this optimizer of {mine}")
        for group, own in zip(groups, self.param_groups):
            self.check_group({**group, "params": own["params"]})
        saved: Dict[int, Dict[str, Any]] = {}
        keys = [key for g in groups for key in g["params"]]
        for number, (key, parameter) in enumerate(zip(keys, self._parameters())):
            entry = state_dict["state"].get(key)
            if not entry or all(entry.get(name, 0) is None for name in self.segments):
                continue  # it had no update
            for name in self.segments:
                if entry.get(name) is None:
                    raise InvalidArgument(f"the state dict has no {name!r} of parameter {number}: it is of another optimizer")
            for name in self.segments + (MASTER,):
                value = entry.get(name)
                if value is not None and tuple(value.shape) != tuple(parameter.shape):
                    raise InvalidArgument(
                        f"{name!r} of parameter {number} has shape {tuple(value.shape)} in the state dict, "
                        f"the parameter {tuple(parameter.shape)}"
                    )
            saved[number] = {**entry, "step": self._steps_of(number, entry)}
        return saved

    def _steps_of(self, number: int, entry: Dict[str, Any]) -> int:
        """The updates that a state dict tells of a parameter."""
        if "step" not in entry and not self._counts_steps:
            return 1
        try:
            steps = float(entry["step"])
            if steps >= 0 and steps == int(steps):
                return int(steps)
        except (KeyError, TypeError, ValueError, OverflowError):
            pass
        raise InvalidArgument(f"'step' of parameter {number} is {entry.get('step')!r} in the state dict, not a number of updates")

    # ---- the object --------------------------------------------------------------------------

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Refused once the optimizer is made: its files are laid out."""
        if self._made:
            raise WrongState(
                f"{type(self).__name__} takes no parameters after it was made, its files are laid out: make a new one with "
                "all groups"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled, its state is in files: use state_dict() or save()")

    def _entered(self) -> Any:
        """A context in which one thread is: the lock itself, which an interruption cannot leave locked. A forked child has no
        part in the files, and its lock may be another thread's for ever."""
        if self._process != os.getpid():
            raise ForkedChild(
                f"{type(self).__name__} was made before this process was forked (pid {self._process}), and its state is there: use it "
                "there, or make another one here"
            )
        return self._lock

    def _enter_now(self, entered: List[bool]) -> None:
        """Takes the lock where no other thread has it: `entered` tells. That is one call into C: where an interruption
        (Ctrl-C) comes, the list tells what became of it."""
        entered.extend(map(self._lock.acquire, (False,)))

    def _make_state(self) -> State:
        with _device.current(torch, self._device):  # a state is made for the current device
            return State(self._state_name, self._segment_bytes)

    def _make_lost_state(self) -> None:
        """Anew, where a load gave it up and was then interrupted."""
        if self._state.closed:
            self._state.close()  # which may have been interrupted
            self._state = self._make_state()

    def _parameters(self) -> List[Any]:
        return [p for group in self.param_groups for p in group["params"]]

    def _slots_now(self) -> Slots:
        if self._slots is None or self._slots.given_up:
            self._slots = Slots(
                self._state, self._device, self._buckets, self._types, self.segments, self.buckets_in_flight, self._traffic,
                self._former,
            )
        return self._slots

    def _settle(self) -> None:
        """No request is under way, and nothing that was read ahead is kept."""
        self._hooks.armed = True
        if self._slots is not None:
            self._slots.drain()

    def _drop(self) -> None:
        """Forgets a step that failed, and its new values."""
        self._behind = None
        self._marks.clear()
        self._hooks.armed = True
        if self._slots is not None:
            try:
                self._slots.drain()
            finally:
                self._slots.forget()

    def _give_back(self) -> None:
        """Gives the slots back, whatever is in them."""
        if self._slots is not None:
            self._slots.give_up()
            self._slots = None
        self._hooks.armed = True
        _device.free_all(self._former)

    def _release_for_pause(self) -> None:
        """release(), where nothing is under way and nothing would be lost."""
        if self._process != os.getpid():
            return
        entered: List[bool] = []
        try:
            self._enter_now(entered)
            if entered != [True] or self._at_work:
                return
            if self._slots is not None and self._slots.has_new():
                with contextlib.suppress(Error):  # values whose write fails again stay on the GPU
                    check_not_paused()  # parameters are set, too
                    self._slots.look_for_pauses()
                    self._slots.write_again()
                    self._slots.settle()
            if self._slots is None or not self._slots.has_new():
                self.release()  # of former memory, too, whose release was interrupted
        finally:
            if entered == [True]:
                self._lock.release()

    def _directory(self) -> str:
        for state in _memory.status().get("states", ()):
            if state["name"] == self._state.name and state["dirs"]:
                return str(state["dirs"][0])
        return tempfile.gettempdir()

    def _check_open(self) -> None:
        if self._closed:
            raise WrongState(f"{self._state.name} is closed")
        for number, (group, made) in enumerate(itertools.zip_longest(self.param_groups, self._groups_made)):
            if group is None or made is None or list(map(id, group["params"])) != list(map(id, made)):
                raise WrongState(
                    f"{self._state.name}: the parameters of group {number} are others than when the optimizer was made, or in "
                    "another order: its files are laid out for those. Parameters that are to stay as they are keep their place, "
                    "without a gradient; for others make a new optimizer"
                )
        for number, (parameter, before) in enumerate(zip(self._parameters(), self._laid_out)):
            if parameter.device != self._device:
                raise WrongState(
                    f"{self._state.name}: parameter {number} is on {parameter.device}, and the optimizer was made for "
                    f"{self._device}: bring it back, or make a new optimizer there, and give that the state dict from before"
                )
            now = _tensors.lies(parameter)
            if now != before:
                raise WrongState(
                    f"{self._state.name}: parameter {number} was {_tensors.described(before)} when the optimizer was made, and is {_tensors.described(now)}: "
                    "its state is laid out like that, element by element. Make it what it was, or a new optimizer, and give "
                    "that the state dict from before"
                )
        self._places = _tensors.check_apart(self._parameters(), self._places)

    def _check_usable(self) -> None:
        self._check_open()
        if self._torn:
            raise WrongState(f"{self._state.name}: {self._torn}")

    def _check_current(self) -> None:
        self._check_usable()
        if self._behind is not None:
            raise WrongState(f"{self._state.name}: a step failed and is not done: call step() again first")


# ---- kinds -----------------------------------------------------------------------------------


class _Adam(StreamedOptimizer):
    """What StreamedAdam and StreamedAdamW have in common."""

    segments = ("exp_avg", "exp_avg_sq")
    _counts_steps = True
    _plain: Any
    _function: Any

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: Optional[float] = None,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: Optional[bool] = None,
        fused: Optional[bool] = None,
        moments_dtype: Optional[str] = None,
        bucket_elements: int = BUCKET_ELEMENTS,
        buckets_in_flight: int = 3,
        prefetch_in_backward: bool = True,
    ) -> None:
        params = _listed(params)
        if amsgrad:
            self.check_group({"amsgrad": True, "params": ()})
        options = dict(lr=lr, betas=betas, eps=eps, maximize=maximize, foreach=foreach)
        if weight_decay is not None:
            options["weight_decay"] = weight_decay
        if fused is not None:
            options["fused"] = fused
        defaults = _defaults(self._plain, params, options)
        super().__init__(params, defaults, moments_dtype, bucket_elements, buckets_in_flight, prefetch_in_backward)
        if fused:
            self._step_supports_amp_scaling = True  # GradScaler then leaves found_inf and grad_scale here

    def check_group(self, group: Dict[str, Any]) -> None:
        super().check_group(group)
        decoupled = self._plain is torch.optim.AdamW
        if bool(group.get("decoupled_weight_decay", decoupled)) != decoupled:
            raise InvalidArgument(f"{type(self).__name__} has no decoupled_weight_decay={not decoupled}: that is the other kind's")

    def update(
        self,
        group: Dict[str, Any],
        values: List[Any],
        gradients: List[Any],
        state: Dict[str, List[Any]],
        steps: List[int],
    ) -> None:
        fused = bool(group.get("fused"))
        counts = torch.tensor(steps, dtype=torch.float32, device=values[0].device if fused else "cpu").unbind()
        options: Dict[str, Any] = dict(foreach=group["foreach"])
        if fused:
            if getattr(self, "grad_scale", None) is not None:
                gradients = [g.clone() for g in gradients]  # they are unscaled in place
            options.update(fused=True, grad_scale=getattr(self, "grad_scale", None), found_inf=getattr(self, "found_inf", None))
        else:
            gradients = unscaled(self, gradients)
            if group["weight_decay"] and self._plain is torch.optim.Adam:  # older PyTorch adds the decay in place
                gradients = [g.clone() for g in gradients]
        type(self)._function(
            values, gradients, state["exp_avg"], state["exp_avg_sq"], [], list(counts), **options, amsgrad=False,
            beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"],
            eps=group["eps"], maximize=group["maximize"],
        )


class StreamedAdamW(_Adam):
    """torch.optim.AdamW with streamed state. The options are those of torch.optim.AdamW, which see, but for amsgrad,
    and those of StreamedOptimizer."""

    _plain = torch.optim.AdamW
    _function = staticmethod(importlib.import_module("torch.optim.adamw").adamw)


class StreamedAdam(_Adam):
    """torch.optim.Adam with streamed state, likewise."""

    _plain = torch.optim.Adam
    _function = staticmethod(importlib.import_module("torch.optim.adam").adam)


class StreamedSGD(StreamedOptimizer):
    """torch.optim.SGD with streamed momentum."""

    segments = ("momentum_buffer",)

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-3,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: Optional[bool] = None,
        moments_dtype: Optional[str] = None,
        bucket_elements: int = BUCKET_ELEMENTS,
        buckets_in_flight: int = 3,
        prefetch_in_backward: bool = True,
    ) -> None:
        params = _listed(params)
        options = dict(
            lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
            maximize=maximize, foreach=foreach,
        )
        super().__init__(
            params, _defaults(torch.optim.SGD, params, options), moments_dtype, bucket_elements, buckets_in_flight,
            prefetch_in_backward,
        )

    def check_group(self, group: Dict[str, Any]) -> None:
        super().check_group(group)
        if not group["momentum"]:
            raise InvalidArgument("SGD without momentum has no state to stream: use torch.optim.SGD")

    def update(
        self,
        group: Dict[str, Any],
        values: List[Any],
        gradients: List[Any],
        state: Dict[str, List[Any]],
        steps: List[int],
    ) -> None:
        momentum = state["momentum_buffer"]
        # PyTorch makes the buffer from the first gradient.
        buffers = [buffer if done else None for buffer, done in zip(momentum, steps)]
        sgd = importlib.import_module("torch.optim.sgd").sgd
        gradients = unscaled(self, gradients)
        if group["nesterov"]:  # PyTorch adds the momentum in place
            gradients = [g.clone() for g in gradients]
        sgd(
            values, gradients, buffers, has_sparse_grad=False, foreach=group["foreach"],
            weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"], dampening=group["dampening"],
            nesterov=group["nesterov"], maximize=group["maximize"],
        )
        for mine, made, done in zip(momentum, buffers, steps):
            if not done:
                mine.copy_(made)


def _remove(how: Callable[[Path], None], path: Path) -> None:
    with contextlib.suppress(OSError):
        how(path)


# ---- options ---------------------------------------------------------------------------------


def _moments(name: Optional[str]) -> str:
    name = os.environ.get("EBB_STREAM_OPTIMIZER_STATE_MOMENT_DTYPE") or "fp32" if name is None else name
    if name == "fp8":
        raise InvalidArgument(
            "moments_dtype fp8 is refused: with 2 or 3 bits of mantissa an update smaller than 1/16 of a moment is lost, "
            "as nearly all are with betas near 1; bf16 halves the bytes"
        )
    if name not in _MOMENTS:
        raise InvalidArgument(f"moments_dtype is one of {', '.join(_MOMENTS)}, not {name!r}")
    return name


def _whole(name: str, value: Any) -> int:
    """A number of things, from 1 on: 2e8, too."""
    if isinstance(value, (int, float)) and value >= 1 and value == value // 1:
        return int(value)
    raise InvalidArgument(f"{name} is a whole number from 1 on, not {value!r}")


def _listed(params: Any) -> Any:
    """params, which may be an iterator, to be gone through twice."""
    return params if isinstance(params, torch.Tensor) else list(params)


def _defaults(plain: Any, params: Any, options: Dict[str, Any]) -> Dict[str, Any]:
    """The options as this PyTorch's own optimizer has them, checked by it."""
    accepted = inspect.signature(plain.__init__).parameters
    for name in ("foreach", "maximize", "fused"):
        if name in options and name not in accepted:
            if options[name]:
                raise UnsafeConfiguration(f"{plain.__name__} of PyTorch {torch.__version__} has no {name}")
            del options[name]
    example = params
    while not isinstance(example, torch.Tensor):  # groups, and pairs with a name
        example = list(example["params"] if isinstance(example, dict) else example)
        if not example:
            return dict(plain([torch.zeros(1)], **options).defaults)
        example = example[-1] if isinstance(example[0], str) else example[0]
    defaults: Dict[str, Any] = plain([torch.zeros(1, device=example.device)], **options).defaults
    return dict(defaults)
