"""Parameters as flat arrays: in which order their elements lie in memory, and which of them share it. Needs PyTorch."""

from __future__ import annotations

import errno
import importlib
import os
import tempfile
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ._errors import DiskError, InvalidArgument, NoSpace, UnsafeConfiguration

try:
    torch: Any = importlib.import_module("torch")
except ImportError as err:
    raise UnsafeConfiguration(f"ebb.optim needs PyTorch, which cannot be imported: {err}") from err


def mark(parameter: Any) -> Tuple[int, int]:
    """Another one where the parameter was assigned to, or changed in place."""
    return parameter.data_ptr(), parameter._version


def needs_master(parameter: Any) -> bool:
    return bool(parameter.dtype is not torch.float32)


def one_device(parameters: Sequence[Any]) -> Any:
    devices = {p.device for p in parameters}
    if len(devices) > 1:
        raise InvalidArgument(
            f"the parameters are on {', '.join(sorted(map(str, devices)))}: make an optimizer for those of each device"
        )
    return devices.pop() if devices else torch.device("cpu")


def check_apart(parameters: Sequence[Any], known: List[int]) -> List[int]:
    """Raises InvalidArgument: an element is of two parameters, or twice of one. Each would have a state of its own and
    be updated from what it was before the step, so that one of the updates is lost. Gives their places, which are known
    where they are those of the latest check."""
    addresses = [p.data_ptr() for p in parameters]
    if addresses == known:
        return known
    places: List[Tuple[int, int, int]] = []
    strided: Dict[Any, int] = {}
    for number, parameter in enumerate(parameters):
        if parameter.numel() == 0 or addresses[number] == 0:
            continue
        if dense(parameter):
            begin = parameter.data_ptr()
            places.append((begin, begin + parameter.numel() * parameter.element_size(), number))
            continue
        if any(stride == 0 and size > 1 for stride, size in zip(parameter.stride(), parameter.shape)):
            raise InvalidArgument(f"parameter {number} has elements that share memory (it was expanded): it cannot be updated")
        other = strided.setdefault((parameter.data_ptr(), parameter.shape, parameter.stride()), number)
        if other != number:
            raise InvalidArgument(_SHARED.format(other, number))
    places.sort()
    for (_, end, one), (begin, _, other) in zip(places, places[1:]):
        if begin < end:
            raise InvalidArgument(_SHARED.format(min(one, other), max(one, other)))
    return addresses


_SHARED = (
    "parameters {} and {} share memory, or are the same: one of their updates would be lost. Give the optimizer one of them, "
    "as where weights are tied"
)


def dense(tensor: Any) -> bool:
    """Whether its elements fill a range of memory, each once."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def order(parameter: Any) -> List[int]:
    """In which order flattened() numbers elements, as strides."""
    told = parameter if dense(parameter) else torch.empty(parameter.shape, device="meta")
    return [stride if size != 1 else 0 for stride, size in zip(told.stride(), told.shape)]


def lies(parameter: Any) -> List[Any]:
    """What must not change while files hold its state: type, shape and order of elements, as JSON."""
    return [type_name(parameter.dtype), list(parameter.shape), order(parameter)]


def described(how: List[Any]) -> str:
    """What lies() gave, for people."""
    kind, shape, strides = how
    return f"{kind} of shape {tuple(shape)} with strides {tuple(strides)}"


def flattened(parameter: Any, tensor: Any) -> Any:
    """A tensor of the parameter's shape, flat, in the order of the parameter's elements in memory (where it has
    holes, of its indices). A view where the tensor lies like that."""
    if not dense(parameter):
        return tensor.reshape(-1)
    if tensor.stride() != parameter.stride():
        tensor = torch.empty_strided(parameter.shape, parameter.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def set_flattened(parameter: Any, begin: int, end: int, values: Any) -> None:
    """Sets elements of a parameter, as flattened() numbers them."""
    flat = flattened(parameter, parameter.detach())
    flat[begin:end].copy_(values)
    if not dense(parameter) and not parameter.is_contiguous():  # flat is a copy
        parameter.detach().copy_(flat.view(parameter.shape))


def shaped(parameter: Any, flat: Any) -> Any:
    """The reverse of flattened()."""
    if not dense(parameter):
        return flat.view(parameter.shape)
    return flat.as_strided(parameter.shape, parameter.stride())


def mapped(path: Optional[str], folder: str, elements: int, kind: Any) -> Any:
    """A tensor of zeros in a mapped file, all of whose room is there. path None: one without a name in folder."""
    size = elements * width(kind)
    if size == 0:
        return torch.zeros(0, dtype=kind)
    try:
        with open(path, "x+b") if path is not None else tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=True, size=elements, dtype=kind)
    except (OSError, RuntimeError) as err:  # PyTorch's, where there may be no more maps of files
        kind_of_error = NoSpace if getattr(err, "errno", 0) in (errno.ENOSPC, errno.EDQUOT) else DiskError
        raise kind_of_error(
            f"no file of {size} bytes for a tensor of the state dict in {folder!r}: {getattr(err, 'strerror', err)}. All of it is as large as the "
            "state: give another directory (to=), or save()"
        ) from err


def type_name(kind: Any) -> str:
    return str(kind).replace("torch.", "")


def width(kind: Any) -> int:
    """Bytes of an element."""
    return int(torch.empty((), dtype=kind).element_size())
