"""What a checkpoint of a streamed optimizer has in its manifest beside the segments: what it was, and how far it came."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Sequence

from ._errors import InvalidArgument
from ._layout import Bucket
from ._state import Path

FORMAT = 1  # of "extra"


def read(folder: Path) -> Dict[str, Any]:
    """A checkpoint's manifest, with what save() put into it under "extra"."""
    path = os.path.join(folder, "manifest.json")
    try:
        with open(path, encoding="utf-8") as file:
            manifest: Dict[str, Any] = json.load(file)
        extra = manifest.get("extra")
    except (OSError, ValueError, AttributeError) as err:
        raise InvalidArgument(f"{os.fspath(folder)!r} is no checkpoint of streamed state: {err}") from err
    if not isinstance(extra, dict):
        raise InvalidArgument(f"the checkpoint {os.fspath(folder)!r} is not of an optimizer: its manifest has no such entry")
    return manifest


def check_progress(folder: Path, extra: Dict[str, Any], buckets: Sequence[Bucket], groups: Sequence[Any]) -> None:
    """Of what need not be equal: steps by piece, options by group. Raises InvalidArgument: they fit nothing here."""
    pieces, options = extra.get("pieces"), extra.get("groups")
    sound = (
        isinstance(pieces, list) and [len(p) if isinstance(p, list) else -1 for p in pieces] == [len(b.pieces) for b in buckets]
        and all(
            isinstance(p, list) and len(p) == 2 and type(p[0]) is int and p[0] >= 0 and isinstance(p[1], bool)
            for bucket in pieces for p in bucket
        )
        and isinstance(options, list) and len(options) == len(groups) and all(isinstance(o, dict) for o in options)
    )
    if not sound:
        raise InvalidArgument(f"the manifest of the checkpoint {os.fspath(folder)!r} was changed: its steps or groups make no sense")


def compare(folder: Path, what: str, theirs: Any, mine: Any) -> None:
    """Raises InvalidArgument: an entry of the manifest is not what the optimizer has, which are both named."""
    if theirs == mine:
        return
    if isinstance(theirs, list) and isinstance(mine, list) and what in ("parameters", "buckets"):
        if len(theirs) == len(mine):
            number = next(i for i, (a, b) in enumerate(zip(theirs, mine)) if a != b)
            what, theirs, mine = f"{what}[{number}]", theirs[number], mine[number]
        else:
            what, theirs, mine = f"number of {what}", len(theirs), len(mine)
    raise InvalidArgument(f"the checkpoint {os.fspath(folder)!r} has {what} {theirs}, this optimizer {mine}")
