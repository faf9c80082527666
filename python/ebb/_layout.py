"""How parameters are packed into the buckets of streamed state. Counts are elements."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Tuple

MASTER = "master"
"""The segment with fp32 values of parameters that are not fp32."""
ALIGN = 64
"""Parameters begin at multiples of it in their bucket, so that kernels find them aligned."""


class Piece:
    """Elements [begin, end) of a parameter, in the order in which they lie in memory, at `at` of its bucket."""

    def __init__(self, number: int, parameter: Any, begin: int, end: int, at: int) -> None:
        self.number, self.parameter = number, parameter
        self.begin, self.end, self.at = begin, end, at
        self.steps = 0
        """Updates whose state is in the files."""
        self.has_master = False
        """The files hold its master values. Before the first update they are the parameter's own."""

    @property
    def elements(self) -> int:
        return self.end - self.begin

    @property
    def has_state(self) -> bool:
        """Whether the files hold something of it: it had an update, or a master was loaded before its first one."""
        return self.steps > 0 or self.has_master


class Bucket:
    """What is read, updated and written together. All of one group; either all or none have masters."""

    def __init__(self, group: int, masters: bool) -> None:
        self.group, self.masters = group, masters
        self.pieces: List[Piece] = []
        self.elements = 0
        self.segments: Dict[str, int] = {}
        """The number of each of its segments in the state."""

    def add(self, number: int, parameter: Any, begin: int, end: int) -> None:
        self.pieces.append(Piece(number, parameter, begin, end, self.elements))
        self.elements = aligned(self.elements + max(end - begin, 1))

    def filled(self, piece: Piece) -> List[str]:
        """The segments that hold something of a piece that has state."""
        return [name for name in self.segments if name != MASTER or piece.has_master]


def aligned(elements: int) -> int:
    return -(-elements // ALIGN) * ALIGN


def pack(groups: Sequence[Sequence[Any]], needs_master: Any, limit: int) -> List[Bucket]:
    """Buckets of at most limit elements, in the order of groups and of parameters in them. Within a group, first
    come the parameters with masters. A parameter that is larger than a bucket is divided.

    needs_master: tells it of a parameter.
    """
    limit = aligned(limit)
    buckets: List[Bucket] = []
    number = 0
    for index, parameters in enumerate(groups):
        numbered = list(enumerate(parameters, number))
        number += len(numbered)
        for masters in (True, False):
            bucket = None
            for n, parameter in numbered:
                if needs_master(parameter) != masters:
                    continue
                size, begin = parameter.numel(), 0
                while True:
                    if bucket is None or bucket.elements + min(size - begin, limit) > limit:
                        bucket = Bucket(index, masters)
                        buckets.append(bucket)
                    end = min(size, begin + limit)
                    bucket.add(n, parameter, begin, end)
                    begin = end
                    if begin >= size:
                        break
    return buckets


def overlaps(bucket: Bucket, begin: int, count: int) -> Iterator[Tuple[Piece, slice, slice]]:
    """Which elements of pieces are among `count` of the bucket from `begin` on: (piece, place in the parameter, place
    among them)."""
    for piece in bucket.pieces:
        first, last = max(piece.at, begin), min(piece.at + piece.elements, begin + count)
        if first < last:
            shift = piece.begin - piece.at
            yield piece, slice(first + shift, last + shift), slice(first - begin, last - begin)
