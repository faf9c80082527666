"""Settings of a process under which ebb could not do what it promises."""

from __future__ import annotations

import os
import re
from typing import Mapping

from ._errors import UnsafeConfiguration

_ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_EXPANDABLE = re.compile(r"\bexpandable_segments\s*:\s*(true|1)\b", re.IGNORECASE)


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Raises UnsafeConfiguration for expandable segments of PyTorch's allocator: their memory does
    not come from cudaMalloc, so a pause would free none of it."""
    for name in _ALLOCATOR_VARIABLES:
        value = environment.get(name, "")
        if _EXPANDABLE.search(value):
            raise UnsafeConfiguration(
                f"{name}={value!r} turns on expandable_segments, whose memory ebb cannot park: "
                f"take expandable_segments out of {name}"
            )
