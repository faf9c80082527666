"""How parameters are packed into the buckets of streamed state. Counts are elements."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

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
