"""GPU memory for the buckets in flight, and the requests that fill it from files and empty it."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from . import _device, _memory, _tensors
from ._errors import Error, InvalidArgument, WrongState
from ._layout import Bucket
from ._state import Done, Part, State, Ticket

torch: Any = _tensors.torch
_AREA = 256  # areas of a slot begin at multiples of it


class Pass(NamedTuple):
    """What one step moved."""

    buckets: int = 0
    """That were read, updated and written."""
    read_bytes: int = 0
    """Of the state, with its zeros, which are not read from files."""
    written_bytes: int = 0
    """Likewise."""
    read_wait_seconds: float = 0.0
    """That the step waited for reads."""
    write_wait_seconds: float = 0.0


class Slot:
    """GPU memory for the streamed segments of one bucket.

    An interruption (Ctrl-C) comes between any two operations of Python, so that what is said here is said before
    it is so, and is taken back after: what may be new is kept, what may be half is read again. The tickets are set
    by the function that begins the request, and are 0 where none is under way.
    """

    def __init__(self, memory: Room) -> None:
        self.memory = memory
        self.bucket: Optional[Bucket] = None  # whose values are here, or on the way
        self.sound = False  # they are those of the files, once they are read; otherwise an update has begun
        self.reading, self.writing = Ticket(), Ticket()
        self.set_parameters: Optional[Callable[[], None]] = None  # to be called before new values are written
        self.written: Optional[Callable[[], None]] = None  # called when new values that are here are in the files
        self.failed = False  # their write did, and so no pause takes them
        self.pauses = 0  # that there were when the read began

    @property
    def areas(self) -> Dict[str, Any]:
        return self.memory.areas


class Traffic(Dict[str, List[Done]]):
    """What requests did, since it was cleared."""

    def __missing__(self, way: str) -> List[Done]:
        return self.setdefault(way, [])

    def told(self, buckets: int) -> Pass:
        reads, writes = self["read"], self["write"]
        return Pass(
            buckets, sum(d.bytes for d in reads), sum(d.bytes for d in writes),
            sum(d.wait_seconds for d in reads), sum(d.wait_seconds for d in writes),
        )


class Slots:
    """The slots, the requests that fill and empty them, and memory for the bucket that is being updated."""

    def __init__(
        self,
        state: State,
        device: Any,
        buckets: List[Bucket],
        types: Dict[str, Any],
        moments: Sequence[str],
        count: int,
        traffic: Traffic,
        former: List[_device.Memory],
    ) -> None:
        self._state, self._device, self._traffic, self._former = state, device, traffic, former
        most = max((b.elements for b in buckets), default=0)
        streamed = {name: kind for name, kind in types.items() if any(name in b.segments for b in buckets)}
        own: Dict[str, Any] = {"work": torch.float32}
        if any(types[name] is not torch.float32 for name in moments):
            own.update({name: torch.float32 for name in moments})
        self._most, self._streamed, self._own = most, streamed, own
        self._slots: List[Slot] = []
        self._shared: Optional[Room] = None  # for the update
        try:
            self._shared = Room(device, own, most)
            for _ in range(min(count, max(len(buckets), 1))):
                self._slots.append(Slot(Room(device, streamed, most)))
        except BaseException:
            self.give_up()
            with contextlib.suppress(Error):  # that why there is none says more; the rest is tried again
                _device.free_all(former)
            raise

    @property
    def given_up(self) -> bool:
        return self._shared is None

    @property
    def shared(self) -> Dict[str, Any]:
        """Areas for the update of one bucket: "work", and those of moments where they are stored in another type."""
        assert self._shared is not None
        return self._shared.areas

    def of(self, bucket: Bucket) -> Optional[Slot]:
        return next((s for s in self._slots if s.bucket is bucket), None)

    def free_one(self) -> Optional[Slot]:
        return next((s for s in self._slots if s.bucket is None), None)

    def is_new(self, bucket: Bucket) -> bool:
        """Whether new values of the bucket are here that are not in the files."""
        slot = self.of(bucket)
        return slot is not None and slot.written is not None

    def has_new(self) -> bool:
        return any(s.written is not None for s in self._slots)

    def read(self, bucket: Bucket) -> Slot:
        """Begins to read a bucket, to a slot that is free, or is when its write is done."""
        slot = self.free_one()
        if slot is None:
            slot = self._oldest_write()
            self._wait_written(slot)
        slot.sound, slot.bucket, slot.failed = False, bucket, False
        slot.pauses = pauses_so_far()
        try:
            self._state.read(self._parts(bucket, slot), slot.reading)
        except Error:
            slot.bucket = None
            raise
        slot.sound = True
        return slot

    def read_ahead(self, buckets: Sequence[Bucket], current: Slot) -> None:
        """Begins to read what fits, waiting for writes, but not for that of the current slot."""
        for bucket in buckets:
            if self.of(bucket) is None:
                if self.free_one() is None and not any(s.writing.value and s is not current for s in self._slots):
                    return
                self.read(bucket)

    def arrive(self, slot: Slot) -> None:
        """Waits until a bucket is in its slot."""
        if slot.reading.value:
            sound, slot.sound = slot.sound, False  # where the wait is interrupted, nobody knows how the read ended
            try:
                self._wait("read", slot.reading)
            except Error:
                slot.bucket = None
                raise
            slot.sound = sound

    def write(self, slot: Slot, set_parameters: Callable[[], None], written: Callable[[], None]) -> None:
        """Sets the parameters of a bucket, and begins to write it from its slot, after the work that is in the
        current stream."""
        slot.set_parameters = set_parameters
        slot.written = written
        self._write(slot)

    def write_again(self) -> None:
        """Begins those writes again that failed."""
        for slot in self._slots:
            if slot.written is not None and not slot.writing.value:
                self._write(slot)

    def settle(self) -> None:
        """Waits for all writes."""
        for slot in sorted(self._slots, key=lambda s: s.writing.value):
            if slot.writing.value:
                self._wait_written(slot)

    def keep_only(self, buckets: Sequence[Bucket]) -> None:
        """Gives slots up whose buckets are not wanted, or whose update was interrupted, unless they hold new
        values."""
        for slot in self._slots:
            if slot.written is None and slot.bucket is not None and not (slot.sound and slot.bucket in buckets):
                if not slot.sound:
                    self._synchronize()
                self._give_up(slot)

    def taken(self, slot: Slot) -> bool:
        """Whether a pause may have taken what was in a slot, or the work on it, since its read began. A write that
        has begun is safe: a pause waits for it."""
        assert self._shared is not None
        return (slot.memory.managed or self._shared.managed) and slot.pauses != pauses_so_far()

    def again(self, slot: Slot) -> None:
        """Gives up a bucket that is in its slot, and was perhaps updated: it is to be read again."""
        self._synchronize()
        self._give_up(slot)

    def look_for_pauses(self) -> None:
        """Gives slots up whose content a pause has taken since they were read, and takes other memory for those that
        are still paused.

        Raises WrongState: they held new values; OutOfDeviceMemory.
        """
        for slot in self._slots:
            if slot.writing.value:  # a wait for it was interrupted, and the pause did wait
                with contextlib.suppress(Error):
                    self._wait_written(slot)
            if slot.bucket is not None and slot.written is None and self.taken(slot):
                self._give_up(slot)
        self.check_none_lost()
        if some_paused():
            self._renew()

    def check_none_lost(self) -> None:
        """Raises WrongState: a pause took new values."""
        for slot in self._slots:
            if slot.written is not None and not slot.writing.value and not slot.failed and self.taken(slot):
                raise WrongState(
                    f"{self._state.name}: a pause took GPU memory with new values of a step before they were written: load the "
                    "last checkpoint of model and optimizer. Pauses come between steps: at a safe point, or after step() returned"
                )

    def _renew(self) -> None:
        """Takes other memory in place of what may be paused, but for new values. A program may resume some tags of its
        own, and know nothing of this one. What is paused is not on the GPU, so that it goes last."""
        pauses = pauses_so_far()
        assert self._shared is not None
        if self._shared.pauses != pauses:
            former, self._shared = self._shared, Room(self._device, self._own, self._most)
            self._former.append(former)
            _device.free_all(self._former)
        for slot in self._slots:
            if slot.bucket is None and slot.memory.pauses != pauses:
                former, slot.memory = slot.memory, Room(self._device, self._streamed, self._most)
                self._former.append(former)
                _device.free_all(self._former)

    def drain(self) -> None:
        """Waits for all requests and for the device, whatever they say. New values whose write failed stay."""
        for slot in self._slots:
            if slot.writing.value:
                with contextlib.suppress(Error):
                    self._wait_written(slot)
            elif slot.written is None:
                self._give_up(slot)
        self._synchronize()

    def forget(self) -> None:
        """Gives up new values, and what was read."""
        for slot in self._slots:
            slot.written = slot.set_parameters = None
            slot.failed = slot.sound = False
            if not slot.reading.value and not slot.writing.value:  # else it is not free yet: drain() was interrupted
                slot.bucket = None

    def give_up(self) -> None:
        """Has the memory given back as former memory, now that nothing uses it. No use of the slots after that."""
        self.drain()
        former = [s.memory for s in self._slots] + ([self._shared] if self._shared is not None else [])
        self._slots, self._shared = [], None
        self._former += former

    def _give_up(self, slot: Slot) -> None:
        with contextlib.suppress(Error):
            self.arrive(slot)
        slot.bucket = None

    def _oldest_write(self) -> Slot:
        return min((s for s in self._slots if s.writing.value), key=lambda s: s.writing.value)

    def _synchronize(self) -> None:
        """Waits for the device: an update that failed may be under way in part."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _write(self, slot: Slot) -> None:
        assert slot.bucket is not None
        if slot.set_parameters is not None:
            slot.set_parameters()
            slot.set_parameters = None
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        self._state.write(self._parts(slot.bucket, slot), stream, slot.writing)
        # A pause may have come and gone just before. One that comes now waits.
        if not slot.failed and self.taken(slot):
            with contextlib.suppress(Error):
                self._wait("write", slot.writing)
            self.check_none_lost()

    def _wait_written(self, slot: Slot) -> None:
        try:
            self._wait("write", slot.writing)
        except InvalidArgument:  # somebody has waited for it: an interruption came in between
            raise
        except Error:
            slot.failed = True
            raise
        if slot.written is not None:  # else it was given up
            slot.written()
        slot.written = None
        slot.bucket = None

    def _wait(self, way: str, ticket: Ticket) -> None:
        """Where it is interrupted the request counts as under way. The next call then waits for it, or is told that
        somebody has."""
        try:
            self._traffic[way].append(self._state.wait(ticket.value))
        except Error:
            ticket.value = 0
            raise
        ticket.value = 0

    @staticmethod
    def _parts(bucket: Bucket, slot: Slot) -> List[Part]:
        return [
            Part(number, 0, bucket.elements * _tensors.width(slot.areas[name].dtype), slot.areas[name].data_ptr())
            for name, number in bucket.segments.items()
        ]


class Room(_device.Memory):
    """Device memory with an area for each name: a flat tensor of so many elements."""

    def __init__(self, device: Any, types: Dict[str, Any], elements: int) -> None:
        sizes = {name: -(-elements * _tensors.width(kind) // _AREA) * _AREA for name, kind in types.items()}
        super().__init__(torch, device, max(sum(sizes.values()), _AREA))
        self.areas: Dict[str, Any] = {}
        begin = 0
        for name, kind in types.items():
            self.areas[name] = self.bytes[begin : begin + elements * _tensors.width(kind)].view(kind)
            begin += sizes[name]


def pauses_so_far() -> int:
    """How many there were that took memory of slots. Those of other tags leave it."""
    return _memory.pause_count(_device.TAG)


def some_paused() -> bool:
    """Whether memory that was made here is paused."""
    return any(tag["tag"] == _device.TAG and tag["discarded"] > 0 for tag in _memory.status().get("tags", ()))


def check_not_paused() -> None:
    status = _memory.status()
    left = sum(tag["active"] for tag in status.get("tags", ()) if tag["tag"] == _device.TAG)
    left += sum(kept["bytes"] for kept in status.get("kept", ()) if kept["reason"] != "unwritten")  # those are of slots
    if status["bytes_paused"] > 0 and status["bytes_active"] <= left:
        raise WrongState("step called while paused: the rank's memory is off the GPU, resume it first")
