"""One step of a streamed optimizer: its gradients and options, what a GradScaler left, and which buckets are behind."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from . import _tensors
from ._errors import InvalidArgument, WrongState
from ._layout import Bucket, Piece

torch: Any = _tensors.torch
_SCALING = ("grad_scale", "found_inf")  # attributes that a GradScaler sets for the time of a step


class Hooks:
    """What is called when a backward has made a gradient. Each call costs a look at `armed`, and hooks keep no
    optimizer."""

    def __init__(self) -> None:
        self.armed = True  # nothing was read ahead since the last step. A race about it costs a look, or a prefetch
        self._handles: List[Any] = []

    def add(self, tensors: Sequence[Any], made: Callable[..., None]) -> None:
        for tensor in tensors:
            if tensor.requires_grad and tensor.is_leaf:
                # Older PyTorch has only hooks that may change the gradient, and these do not.
                register = getattr(tensor, "register_post_accumulate_grad_hook", tensor.register_hook)
                self._handles.append(register(made))

    def are_there(self) -> bool:
        return bool(self._handles)

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()


class Step:
    """A step under way: its gradients and options, and which buckets are behind."""

    def __init__(self, optimizer: Any, loss: Any) -> None:
        self.loss = loss
        for group in optimizer.param_groups:  # options may have been set since
            optimizer.check_group(group)
        # Schedulers change a learning rate that is a tensor in place.
        self.options = [{k: copied(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        parameters = optimizer._parameters()
        self._parameters, self._gradient_of = parameters, optimizer.gradient_of
        self.gradients = self._now()
        for number, gradient in self.gradients.items():
            if gradient.layout is not torch.strided:
                raise InvalidArgument(f"{type(optimizer).__name__} takes no sparse gradient: parameter {number} has one")
            if gradient.shape != parameters[number].shape:
                raise InvalidArgument(
                    f"{type(optimizer).__name__}: the gradient of parameter {number} has shape {tuple(gradient.shape)}, the "
                    f"parameter {tuple(parameters[number].shape)}"
                )
        self.scaling = {name: copied(value) for name, value in scaling(optimizer).items()}
        self._versions = {n: g._version for n, g in self.gradients.items()}
        self.marks = {n: _tensors.mark(parameters[n]) for n in self.gradients}
        """Of parameters as the step found or left them; of one that is being set there is none."""
        self._left = [b for b in optimizer._buckets if any(p.number in self.gradients for p in b.pieces)]
        self.buckets = len(self._left)

    def left(self) -> List[Bucket]:
        """Buckets that are behind."""
        return list(self._left)

    def written(self, bucket: Bucket, steps: List[Tuple[Piece, int]]) -> None:
        """The files hold the new values of a bucket, after so many steps of its pieces."""
        for piece, count in steps:
            piece.steps, piece.has_master = count, bucket.masters
        self._left = [b for b in self._left if b is not bucket]

    def _now(self) -> Dict[int, Any]:
        """Gradients by number of parameter."""
        told = ((number, self._gradient_of(p)) for number, p in enumerate(self._parameters))
        return {number: gradient for number, gradient in told if gradient is not None}

    def check_unchanged(self) -> None:
        now = self._now()
        same = now.keys() == self.gradients.keys() and all(
            gradient is self.gradients[n] and gradient._version == self._versions[n] for n, gradient in now.items()
        )
        if not same:
            raise WrongState(
                "gradients have changed since the step that failed, which is applied to some parameters and not to others: "
                "load the last checkpoint of model and optimizer"
            )
        changed = self.changed(self.gradients)
        if changed:
            raise WrongState(
                f"parameter {changed[0]} was changed or moved since the step that failed, which is applied to some parameters and not "
                "to others: load the last checkpoint of model and optimizer"
            )

    def changed(self, numbers: Iterable[int]) -> List[int]:
        """Parameters that others have changed since the step set them, as far as that shows: not where it was done
        through `.data` in place."""
        return [n for n in numbers if n in self.marks and self.marks[n] != _tensors.mark(self._parameters[n])]


def overflowed(optimizer: Any) -> bool:
    """Whether a GradScaler found infinities, as a fused optimizer is told: then nothing is updated."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def scaling(optimizer: Any) -> Dict[str, Any]:
    """What a GradScaler left."""
    return {name: getattr(optimizer, name) for name in _SCALING if hasattr(optimizer, name)}


def set_scaling(optimizer: Any, values: Dict[str, Any]) -> None:
    for name in _SCALING:
        if name in values:
            setattr(optimizer, name, values[name])
        elif hasattr(optimizer, name):
            delattr(optimizer, name)


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def unscaled(optimizer: Any, gradients: List[Any]) -> List[Any]:
    scale = getattr(optimizer, "grad_scale", None)
    return gradients if scale is None else [g / scale for g in gradients]
