"""Training actors of Ray whose GPU memory can be parked: the runtime_env of each rank, what an actor calls,
and a group of actors that is paused and resumed as one.

    trainers = [
        Trainer.options(runtime_env=ebb.ray.runtime_env(rank=rank, world_size=8, target="disk", disk_dir="/nvme/ebb")).remote()
        for rank in range(8)
    ]                                       # class Trainer(ebb.ray.Parkable): ...
    group = ebb.ray.ActorGroup(trainers)
    with group.paused(timeout=120):
        generate()                          # the rollout engine has the GPUs

Importing this needs no ray; only runtime_env without a job's name, and ActorGroup, do. Sizes are bytes, times
are seconds. docs/clusters/ray.md says who removes files, and what was tested.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import os
import shlex
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _command, _memory
from ._abi import Tags
from ._errors import Error, InvalidArgument, NotLoaded, Timeout
from ._result import Result

__all__ = [
    "ActorGroup",
    "Answer",
    "AsyncParkable",
    "GroupError",
    "GroupReport",
    "Parkable",
    "RankReport",
    "check",
    "job_name",
    "pause_here",
    "reclaim_here",
    "resume_here",
    "runtime_env",
    "status_here",
]

Path = Union[str, "os.PathLike[str]"]

_log = logging.getLogger("ebb.ray")

# Set in a worker that `ebb exec` refused to start: what it said. The worker runs without ebb, so that the actor
# can tell; Ray would start one that does not come up again and again, and its caller would wait for ever.
_REFUSED = "EBB_RAY_REFUSED"

# How long a worker waits for the supervisor of the process before it, which may still be removing files.
# Ray waits 60 s for a worker by default (worker_register_timeout_seconds).
_CLAIM_WAIT_S = 40

# How long bring_back waits before it asks a rank again that Ray does not reach.
_ASK_AGAIN_S = 0.2

# What Ray runs as Python in a supervised worker; %(ebb)s is `ebb exec … --`, "$@" are Ray's arguments. The first
# run, of `true`, finds out whether ebb takes the rank here. 73: its directory is still another process's.
_WORKER = """\
until why=$(%(ebb)s true 2>&1); do
	status=$?
	if [ $status -ne 73 ] || [ $SECONDS -ge %(wait)d ]; then
		export %(refused)s="$why"
		exec %(python)s "$@"
	fi
	sleep 1
done
[ -z "$why" ] || echo "$why" >&2
exec %(ebb)s %(python)s "$@"
"""


def runtime_env(
    *,
    rank: int,
    role: str = "actor",
    cell: int = 0,
    world_size: Optional[int] = None,
    job: Optional[str] = None,
    target: Optional[str] = None,
    disk_dir: Union[None, Path, Sequence[Path]] = None,
    chunk_mb: Optional[int] = None,
    device: str = "auto",
    flags: Sequence[str] = (),
    env_vars: Optional[Mapping[str, str]] = None,
    supervised: bool = True,
    python: Optional[str] = None,
    command: Optional[Path] = None,
) -> Dict[str, Any]:
    """The runtime_env of one training actor, for `Actor.options(runtime_env=…)`. Each rank needs its own.

    rank: from 0 on, different for each actor of a role and cell. world_size: number of ranks; None: not told.
    role, cell: as for `ebb run`.
    job: name of the job; None: that of the Ray job and cluster (ray.init() must have been called).
    target: "cpu", "disk" or "auto"; None: EBB_OFFLOAD_TRAIN_TARGET of the worker's environment (when not supervised: of
        env_vars), else "cpu".
    disk_dir: directory on a local disk of the actor's node, or several. None: the default of `ebb run` on that node;
        only when supervised.
    chunk_mb: at most this much pinned staging memory, in MiB; None: that of the environment, else 256.
    device: "auto", "cuda" or "soft".
    flags: more flags of `ebb exec`, as ["--discard"].
    env_vars: more variables of the actor. LD_PRELOAD and LD_LIBRARY_PATH go behind ebb's.

    supervised: the worker is started by `ebb exec` (runtime_env's py_executable), which takes the directory of
        the rank on the node where the actor runs, and removes its files however the actor ends. Where it refuses,
        the actor starts without ebb, and check() says why.
        False: only env_vars, for software that passes no more than these on. Nobody removes the files of an
        actor that is killed until its next process, on the same node, or `ebb gc` does.
    python: interpreter of a supervised worker, as a shell reads it: it may have arguments; None: this process's.
    command: path of the command ebb; None: that of this installation of the package, else that of PATH. Where this
        process and the actor's node differ, all paths are those of the actor's node; the command must be on both.

    What is wrong with the arguments is found out here, what is wrong on the node there. Raises InvalidArgument;
    NotLoaded: the command is not there, or its libraries.
    """
    _whole("rank", rank)
    _whole("cell", cell)
    own = _variables(env_vars)
    if world_size is not None:
        _whole("world_size", world_size, least=1)
        if rank >= world_size:
            raise InvalidArgument(f"rank {rank} is not below world_size {world_size}")
        own["WORLD_SIZE"] = str(world_size)
    arguments = _flags(rank, role, cell, job if job is not None else job_name(), target, disk_dir, chunk_mb, device, flags)
    to = target or own.get("EBB_OFFLOAD_TRAIN_TARGET") or "cpu"
    if not supervised and to != "cpu" and disk_dir is None and not own.get("EBB_OFFLOAD_TRAIN_DISK_DIR"):
        raise InvalidArgument(
            "without a supervisor the disk directory must be named, since the actor's node is not asked: give disk_dir="
        )
    path = _command.find(command)
    said: List[str] = []
    settings = _command.ask(path, ["env", *arguments, "--json"], _command.without_ebb(os.environ, own), said)
    if supervised:
        interpreter = python if python is not None else shlex.quote(sys.executable)
        return {"env_vars": {**own, "RANK": str(rank)}, "py_executable": _worker(path, arguments, interpreter)}
    for line in said:
        _log.warning("rank %d, as seen from this node: %s", rank, line)
    composed = {**own, **{str(name): str(value) for name, value in settings.items()}}
    if "LD_PRELOAD" not in own:
        composed["LD_PRELOAD"] += ":${LD_PRELOAD}"  # Ray puts in what the node's workers have
    for name, value in composed.items():
        if "$" in value and name not in own and not value.endswith(":${LD_PRELOAD}"):
            raise InvalidArgument(f"{name}={value} has a $ in it, which Ray would replace: use a path without one")
    return {"env_vars": composed}


def job_name() -> str:
    """The name of this Ray job for ebb, which no other job of this or another cluster has. Raises NotLoaded
    where ray is not there, InvalidArgument where ray.init() was not called."""
    ray = _ray()
    if not ray.is_initialized():
        raise InvalidArgument("which job? call ray.init() first, or give job=")
    context = ray.get_runtime_context()
    if hasattr(context, "get_session_name"):
        session = context.get_session_name()
    else:
        session = ray._private.worker.global_worker.node.session_name
    session = str(session)
    if session.startswith("session_"):
        session = session[len("session_"):]
    return f"ray-{session}-{context.get_job_id()}"


def _flags(
    rank: int, role: str, cell: int, job: str, target: Optional[str], disk_dir: Union[None, Path, Sequence[Path]],
    chunk_mb: Optional[int], device: str, more: Sequence[str],
) -> List[str]:
    if isinstance(more, str):
        raise InvalidArgument(f"flags is a list of flags, not the text {more!r}")
    flags = ["--offload-train", "--role", role, "--cell", str(cell), "--job", job, "--rank", str(rank), "--device", device]
    if target is not None:
        flags += ["--offload-train-target", target]
    if disk_dir is not None:
        directories = _command.paths(disk_dir)
        for directory in directories:
            if not os.path.isabs(directory):
                raise InvalidArgument(f"disk_dir {directory!r} is not an absolute path: which folder a worker runs in is Ray's to say")
        flags += ["--offload-train-disk-dir", ",".join(directories)]
    if chunk_mb is not None:
        flags += ["--offload-train-disk-chunk-mb", str(chunk_mb)]
    flags += more
    for flag in flags:
        if not isinstance(flag, str) or "\0" in flag:
            raise InvalidArgument(f"{flag!r} is no text for a command line")
    return flags


def _worker(command: str, arguments: Sequence[str], python: str) -> str:
    """What Ray puts in front of the arguments of a worker; a shell reads it."""
    script = _WORKER % {
        "ebb": shlex.join([command, "exec", *arguments, "--"]),
        "python": python,  # for the shell: it may have arguments, as Ray allows
        "refused": _REFUSED,
        "wait": _CLAIM_WAIT_S,
    }
    return shlex.join(["bash", "-c", script, "ebb"])


def _variables(given: Optional[Mapping[str, str]]) -> Dict[str, str]:
    own = dict(given or {})
    for name, value in own.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgument(f"env_vars are texts, not {name!r}: {value!r}")
    return own


def _whole(name: str, value: Any, least: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidArgument(f"{name} is a whole number from {least} on, not {value!r}")


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as err:
        raise NotLoaded(f"the Python package ray is not there: install it (pip install ray), or start no actors: {err}") from err


# ---------------------------------------------------------------------------------------------- in the actor


class Answer(NamedTuple):
    """What a rank says after it was asked for something: who it is and what it has where."""

    process: str
    """Of the actor: pid and start time. Another one after a restart."""
    pid: int
    node: str
    """Ray's id of the node; "" outside of Ray."""
    bytes_active: Optional[int]
    """Managed memory on the device. None: not known, since it could not be asked for."""
    bytes_paused: Optional[int]
    directories: Tuple[str, ...]
    """The disk directories of its job, for `ebb gc`."""
    result: Optional[Result] = None
    """Of a pause or resume that was done."""
    error: Optional[Error] = None
    """Why it was not."""


def check() -> None:
    """Raises NotLoaded where this process should have been started with ebb and was not, with the reason. An
    actor calls it when it starts, to fail there and not at its first pause. Any thread."""
    _memory.version()


def pause_here(tags: Tags = None, skip_unused: bool = False, expires: Optional[float] = None) -> Answer:
    """ebb.pause in an actor, for ActorGroup: errors of ebb are in the answer. On any thread; nothing may use the
    memory meanwhile, as between two method calls of an actor without concurrency.

    expires: as time.time(); after that nothing is done, and the error is a Timeout: nobody waits any more. (The
    clocks of the nodes should agree to a second or so.)"""

    def pause() -> Result:
        _still_wanted(expires, "pause")
        check()
        reclaim_here()
        _still_wanted(expires, "pause")  # that may have taken a while
        return _memory.pause(tags, skip_unused)

    return _answer(pause)


def resume_here(tags: Tags = None, timeout: Optional[float] = None, expires: Optional[float] = None) -> Answer:
    """ebb.resume in an actor, for ActorGroup. timeout: seconds to wait for device memory. expires: as for
    pause_here. Any thread."""

    def resume() -> Result:
        _still_wanted(expires, "resume")
        check()
        return _memory.resume(tags, timeout)

    return _answer(resume)


def status_here() -> Answer:
    """What the actor has where, without doing anything. Any thread."""

    def look() -> None:
        check()

    return _answer(look)


def _still_wanted(expires: Optional[float], what: str) -> None:
    late = 0.0 if expires is None else time.time() - expires
    if late > 0:
        raise Timeout(f"the {what} was wanted {late:.1f} s ago at the latest: nothing was done")


def _answer(do: Callable[[], Optional[Result]]) -> Answer:
    result, error = None, None
    try:
        result = do()
    except Error as err:
        error = err.with_traceback(None)
    active: Optional[int] = None
    paused: Optional[int] = None
    try:
        state = _memory.status()
        active, paused = int(state.get("bytes_active", 0)), int(state.get("bytes_paused", 0))
    except NotLoaded as err:  # nothing is managed
        active, paused = 0, 0
        error = error or err.with_traceback(None)
    except Error as err:
        error = error or err.with_traceback(None)
    return Answer(_process(), os.getpid(), _node(), active, paused, tuple(_directories()), result, error)


def _process() -> str:
    with open("/proc/self/stat", "rb") as stat:
        started = stat.read().rpartition(b")")[2].split()[19].decode()
    return f"{os.getpid()}-{started}"


def _node() -> str:
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    return str(ray.get_runtime_context().get_node_id())


def _directories() -> List[str]:
    """The disk directories, above <job>/<rank directory>."""
    several = os.environ.get("EBB_DISK_DIRS") or os.environ.get("TMS_DISK_BACKUP_DIR") or ""
    if os.environ.get("TMS_INIT_ENABLE_DISK_BACKUP") != "1" or not os.environ.get("EBB_JOB"):
        return []
    return [os.path.dirname(os.path.dirname(rank)) for rank in several.split(":") if rank]


_reclaimed = threading.Lock()
_reclaimed_by: Optional[int] = None  # pid; guarded by the lock


def reclaim_here() -> None:
    """Removes what dead processes left in this rank's disk directories on this node (`ebb gc`), once in a process.
    A supervised rank has nothing to do: `ebb exec` has done it. pause_here calls it. What cannot be removed is
    logged: it is no reason not to pause. Any thread."""
    global _reclaimed_by
    with _reclaimed:
        if _reclaimed_by == os.getpid() or os.environ.get("EBB_LEASE"):
            return
        directories = [directory for directory in _directories() if os.path.isdir(directory)]
        if directories:
            try:
                for line in _collect(directories):
                    _log.warning("%s", line)
            except Error as err:
                _log.warning("cannot look for files of dead processes in %s: %s", ", ".join(directories), err)
        _reclaimed_by = os.getpid()


def _collect(directories: Sequence[str]) -> List[str]:
    """Runs `ebb gc`; lines that say what was removed and what could not be."""
    said: List[str] = []
    environment = _command.without_ebb(os.environ)
    for name in ("EBB_RUNTIME_DIR", "EBB_IO_TIMEOUT"):
        if name in os.environ:
            environment[name] = os.environ[name]
    answer = _command.ask(_command.find(), ["gc", "--json", "--disk-dir", ",".join(directories)], environment, said)
    if answer["files"]:
        said.insert(0, f"removed {answer['files']} files, {answer['bytes']} bytes, of dead processes in {', '.join(directories)}")
    return said


class Parkable:
    """Methods by which an ActorGroup reaches an actor: a base of its class. Ray runs the method calls of such an
    actor one after the other, so a pause finds no other at work. (An actor with async methods: AsyncParkable. One
    with max_concurrency above 1 keeps the calls that use the memory and a pause apart by itself.)"""

    def ebb_pause(self, tags: Tags = None, skip_unused: bool = False, expires: Optional[float] = None) -> Answer:
        """pause_here."""
        return pause_here(tags, skip_unused, expires)

    def ebb_resume(self, tags: Tags = None, timeout: Optional[float] = None, expires: Optional[float] = None) -> Answer:
        """resume_here."""
        return resume_here(tags, timeout, expires)

    def ebb_status(self) -> Answer:
        """status_here."""
        return status_here()


# One thread, so that pauses and resumes of an async actor come in the order in which they were asked for.
_thread: Optional[concurrent.futures.ThreadPoolExecutor] = None
_thread_lock = threading.Lock()


def _own_thread() -> concurrent.futures.ThreadPoolExecutor:
    global _thread
    with _thread_lock:
        if _thread is None:
            _thread = concurrent.futures.ThreadPoolExecutor(1, "ebb-ray")
        return _thread


class AsyncParkable:
    """Parkable for actors with async methods: the event loop goes on meanwhile. Such an actor runs several calls at
    a time. It holds `ebb_resting`, an asyncio.Lock, while it uses the memory (`async with self.ebb_resting()`): a
    pause waits for it, and keeps it until the resume."""

    def ebb_resting(self) -> asyncio.Lock:
        """The lock: held by what uses the memory, and while it is paused. For the event loop of the actor."""
        return self._ebb_lock("rest")

    async def ebb_pause(self, tags: Tags = None, skip_unused: bool = False, expires: Optional[float] = None) -> Answer:
        """pause_here, when nobody uses the memory."""
        async with self._ebb_lock("order"):
            if not self.__dict__.get("_ebb_holds", False):
                limit = None if expires is None else max(0.0, expires - time.time())
                try:
                    await asyncio.wait_for(self.ebb_resting().acquire(), limit)
                except asyncio.TimeoutError:
                    return _answer(_never_rested)
                self.__dict__["_ebb_holds"] = True
            answer = await _in_thread(lambda: pause_here(tags, skip_unused, expires))
            self._ebb_settle(answer)
            return answer

    async def ebb_resume(self, tags: Tags = None, timeout: Optional[float] = None, expires: Optional[float] = None) -> Answer:
        """resume_here."""
        async with self._ebb_lock("order"):
            answer = await _in_thread(lambda: resume_here(tags, timeout, expires))
            self._ebb_settle(answer)
            return answer

    async def ebb_status(self) -> Answer:
        """status_here."""
        return status_here()

    def _ebb_lock(self, name: str) -> asyncio.Lock:
        locks: Dict[str, asyncio.Lock] = self.__dict__.setdefault("_ebb_locks", {})
        if name not in locks:
            locks[name] = asyncio.Lock()
        return locks[name]

    def _ebb_settle(self, answer: Answer) -> None:
        """Lets the others use the memory when it is known that none of it is paused."""
        if answer.bytes_paused == 0 and self.__dict__.pop("_ebb_holds", False):
            self.ebb_resting().release()


def _never_rested() -> None:
    raise Timeout("nothing was paused: what uses the memory held ebb_resting until the deadline")


async def _in_thread(do: Callable[[], Answer]) -> Answer:
    """Runs a call to its end, whether somebody still waits for it or not."""
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(_own_thread(), do))


# ---------------------------------------------------------------------------------------------- the group


class RankReport(NamedTuple):
    """What became of an operation on one rank."""

    rank: int
    outcome: str
    """"done"; "failed": it said why, and its memory is as `state` says; "late": no answer by the deadline;
    "unavailable": Ray does not reach it at present: it may live, and may have done it; "dead": its process ended;
    "refused": it could not be asked."""
    state: str
    """Its memory: "active", "paused", "part" of it paused, "none" managed, "unknown", "lost" (dead)."""
    node: str
    """Ray's id of the node, as last heard of; "" when never."""
    result: Optional[Result]
    """Of a pause or resume that was done."""
    error: Optional[BaseException]
    """ebb's, or Ray's. None where it was done."""
    restarts: int
    """How often this group has found another process of the rank than before: restarted, with new memory."""
    left_on: Tuple[str, ...]
    """Ray's ids of other nodes, where former processes of the rank ran: files may have been left there, until
    ActorGroup.reclaim has looked."""

    def __str__(self) -> str:
        text = f"rank {self.rank}: {self.outcome}, memory {self.state}"
        if self.result is not None:
            text += f", {self.result.bytes} bytes in {self.result.seconds:.2f} s"
        if self.restarts:
            text += f", restarts {self.restarts}"
        if self.left_on:
            text += f", files may be left on node {', '.join(self.left_on)} (group.reclaim)"
        if self.error is not None:
            text += f": {_one_line(self.error)}"
        return text


class GroupReport(NamedTuple):
    """What became of an operation on a group."""

    operation: str
    """"pause", "resume", "bring back" or "status"."""
    ranks: Tuple[RankReport, ...]
    seconds: float

    @property
    def done(self) -> bool:
        """It was done on every rank."""
        return bool(self.ranks) and all(rank.outcome == "done" for rank in self.ranks)

    @property
    def bytes(self) -> int:
        """Logical bytes of all ranks that were paused or resumed."""
        return sum(rank.result.bytes for rank in self.ranks if rank.result is not None)

    def of(self, outcome: str) -> List[int]:
        """The ranks with an outcome."""
        return [rank.rank for rank in self.ranks if rank.outcome == outcome]

    def __str__(self) -> str:
        head = f"{self.operation} {'done' if self.done else 'NOT done: done'} on {len(self.of('done'))} of {len(self.ranks)} ranks in {self.seconds:.2f} s"
        lines = [head] + [str(rank) for rank in self.ranks if rank.outcome != "done" or rank.left_on]
        if not self.done and self.operation == "pause":
            lines.append("to bring the others back: group.bring_back(timeout=SECONDS)")
        return "\n".join(lines)


class GroupError(Error):
    """An operation of a group was not done on every rank.

    report: what became of it. brought_back: what the resume of the others came to, where there was one.
    """

    def __init__(self, report: GroupReport, brought_back: Optional[GroupReport] = None) -> None:
        text = str(report)
        if brought_back is not None:
            text = text.replace("\nto bring the others back: group.bring_back(timeout=SECONDS)", "") + f"\n{brought_back}"
        super().__init__(text)
        self.report = report
        self.brought_back = brought_back

    def __reduce__(self) -> Tuple[Any, ...]:
        return (GroupError, (self.report, self.brought_back))


class ActorGroup:
    """Training actors that are paused and resumed together. Rank R is the R-th actor.

    actors: handles of Ray actors whose classes have the methods of Parkable, or methods of other names that do
        the same (methods=: of pause, resume and status), with the same arguments and answers.

    Every operation asks all actors at the same time and returns at the latest at its deadline (in seconds),
    whatever becomes of single ones; it raises nothing about them. All can be repeated: a rank that is paused
    already has nothing to do. Any thread; one operation at a time, others wait for it.

    Raises InvalidArgument; NotLoaded: ray is not there.
    """

    def __init__(self, actors: Sequence[Any], methods: Tuple[str, str, str] = ("ebb_pause", "ebb_resume", "ebb_status")) -> None:
        self._ray = _ray()
        handle = self._ray.actor.ActorHandle
        self._actors = list(actors)
        if not self._actors:
            raise InvalidArgument("a group has at least one actor")
        for rank, actor in enumerate(self._actors):
            if not isinstance(actor, handle):
                raise InvalidArgument(f"rank {rank} of the group is no handle of a Ray actor, but {type(actor).__name__}")
        if len(methods) != 3 or not all(isinstance(name, str) for name in methods):
            raise InvalidArgument(f"methods are the names of three methods, not {methods!r}")
        self._methods = tuple(methods)
        self._lock = threading.Lock()  # guards what follows; held during an operation
        self._last: Dict[int, Answer] = {}
        self._restarts: Dict[int, int] = {}
        self._left: Dict[int, List[str]] = {}  # rank: nodes of its former processes that reclaim has not seen to
        self._places: Dict[str, List[str]] = {}  # node: disk directories that ranks have had there

    def __len__(self) -> int:
        return len(self._actors)

    def pause(self, timeout: float, tags: Tags = None, skip_unused: bool = False) -> GroupReport:
        """Takes the memory of all ranks off their GPUs. Done only when it is done on every rank. A rank that comes
        to it after the deadline does nothing; one that was at it by then finishes, and its state is unknown here
        until it is asked again. bring_back resumes the others."""
        return self._all("pause", self._methods[0], timeout, {"tags": _listed(tags), "skip_unused": skip_unused})

    def resume(self, timeout: float, tags: Tags = None, wait: Optional[float] = None) -> GroupReport:
        """Brings the memory of all ranks back. wait: seconds that a rank waits for GPU memory that others hold; None:
        EBB_RESUME_WAIT of the rank, or 0."""
        return self._all("resume", self._methods[1], timeout, {"tags": _listed(tags), "timeout": wait})

    def bring_back(self, timeout: float, wait: Optional[float] = None) -> GroupReport:
        """After a pause that was not done: resumes everything on every rank that lives, also where a late pause is
        still under way. A rank that cannot be reached is asked again until the deadline: it may live, and be paused.
        The report leaves dead ranks out: it is done when all others have their memory back."""
        report = self._all("bring back", self._methods[1], timeout, {"tags": None, "timeout": wait}, insist=True)
        return report._replace(ranks=tuple(rank for rank in report.ranks if rank.outcome != "dead"))

    def status(self, timeout: float) -> GroupReport:
        """Asks every rank what it has where. Not done where one should run with ebb and does not: to be
        called once when the actors were made."""
        return self._all("status", self._methods[2], timeout, {})

    @contextlib.contextmanager
    def paused(self, timeout: float, tags: Tags = None, skip_unused: bool = False, wait: Optional[float] = None) -> Iterator[GroupReport]:
        """pause on entry, resume on exit, also after an exception. timeout: of each. Raises GroupError where one is
        not done; after a pause that was not, the others are brought back first."""
        named = _listed(tags)
        report = self.pause(timeout, named, skip_unused)
        if not report.done:
            raise GroupError(report, self.bring_back(timeout, wait))
        try:
            yield report
        finally:
            back = self.resume(timeout, named, wait)
            if not back.done:
                raise GroupError(back)

    def reclaim(self, timeout: float) -> Dict[str, str]:
        """Removes what dead processes of ranks left on the nodes where ranks of this group have been (`ebb gc` in a
        task on each; the package must be importable there). Gives what was said by node, "" where nothing was left. A
        node that is gone or late is named with what to do there. Live ranks are left alone."""
        seconds = _deadline(timeout)
        ray = self._ray
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        with self._lock:
            places = {node: list(directories) for node, directories in self._places.items() if node and directories}
        task = ray.remote(num_cpus=0, max_retries=0)(_collect_lines)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        said = {}
        asked = {}
        for node, directories in places.items():
            if node in alive:
                asked[task.options(scheduling_strategy=strategy(node, soft=False)).remote(directories)] = node
            else:
                said[node] = f"the node is not in the cluster: when it is back, run there: {_gc(directories)}"
        ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=seconds) if asked else ([], [])
        for ref in ready:
            try:
                said[asked[ref]] = str(ray.get(ref))
                self._seen_to(asked[ref])
            except Exception as err:  # whatever became of the task is this node's alone
                said[asked[ref]] = f"{_one_line(err)}; run there: {_gc(places[asked[ref]])}"
        for ref in late:
            said[asked[ref]] = f"no answer in {seconds:g} s; run there: {_gc(places[asked[ref]])}"
        return said

    def _seen_to(self, node: str) -> None:
        with self._lock:
            for left in self._left.values():
                if node in left:
                    left.remove(node)

    def _all(self, operation: str, method: str, timeout: float, arguments: Dict[str, Any], insist: bool = False) -> GroupReport:
        """insist: asks ranks that are unavailable again, until the deadline."""
        seconds = _deadline(timeout)
        with self._lock:
            begin = time.monotonic()
            if method != self._methods[2]:
                arguments = {**arguments, "expires": time.time() + seconds}
            reports: Dict[int, RankReport] = {}
            ranks = list(range(len(self._actors)))
            while ranks:
                self._ask(ranks, operation, method, arguments, begin + seconds, seconds, reports)
                ranks = [rank for rank in ranks if reports[rank].outcome == "unavailable"]
                left = begin + seconds - time.monotonic()
                if not insist or left <= 0:
                    break
                if ranks:
                    time.sleep(min(_ASK_AGAIN_S, left))
            return GroupReport(operation, tuple(reports[rank] for rank in range(len(self._actors))), time.monotonic() - begin)

    def _ask(
        self, ranks: Sequence[int], operation: str, method: str, arguments: Dict[str, Any], end: float, seconds: float,
        reports: Dict[int, RankReport],
    ) -> None:
        """Asks some ranks once, all at the same time, and waits until `end` (time.monotonic())."""
        asked: Dict[Any, int] = {}
        for rank in ranks:
            try:
                asked[getattr(self._actors[rank], method).remote(**arguments)] = rank
            except AttributeError:
                names = InvalidArgument(f"the actor has no method {method}: make ebb.ray.Parkable a base of its class, or give methods=")
                reports[rank] = self._report(rank, "refused", error=names)
            except Exception as err:  # Ray's many ways to refuse a call
                reports[rank] = self._report(rank, "refused", error=err)
        left = max(0.0, end - time.monotonic())
        ready, late = self._ray.wait(list(asked), num_returns=len(asked), timeout=left) if asked else ([], [])
        for ref in ready:
            reports[asked[ref]] = self._heard(asked[ref], ref, method)
        for ref in late:
            said = Timeout(f"no answer to the {operation} within {seconds:g} s: the actor is busy, starting or restarting")
            reports[asked[ref]] = self._report(asked[ref], "late", error=said)

    def _heard(self, rank: int, ref: Any, method: str) -> RankReport:
        """The report of an actor that answered, or will not."""
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(ref)
        except errors.RayActorError as err:
            # Without ActorDiedError the process may live, and may have done what it was asked for. Old Ray has only the base.
            died = isinstance(err, getattr(errors, "ActorDiedError", errors.RayActorError))
            return self._report(rank, "dead" if died else "unavailable", error=err)
        except errors.RayTaskError as err:
            return self._report(rank, "failed", error=getattr(err, "cause", None) or err)
        except Exception as err:
            return self._report(rank, "failed", error=err)
        if not isinstance(answer, Answer):
            wrong = InvalidArgument(f"{method} of the actor returned {type(answer).__name__}, not what ebb.ray.pause_here and its like return")
            return self._report(rank, "failed", error=wrong)
        return self._report(rank, "done" if answer.error is None else "failed", answer, answer.error)

    def _report(self, rank: int, outcome: str, answer: Optional[Answer] = None, error: Optional[BaseException] = None) -> RankReport:
        before, left = self._last.get(rank), self._left.setdefault(rank, [])
        if answer is None:
            node, state = before.node if before is not None else "", "lost" if outcome == "dead" else "unknown"
            return RankReport(rank, outcome, state, node, None, error, self._restarts.get(rank, 0), tuple(left))
        self._last[rank] = answer
        known = self._places.setdefault(answer.node, [])
        known += [directory for directory in answer.directories if directory not in known]
        if before is not None and (before.process, before.node) != (answer.process, answer.node):
            self._restarts[rank] = self._restarts.get(rank, 0) + 1
            if before.node != answer.node and before.node not in left:
                left.append(before.node)
        return RankReport(
            rank, outcome, _state(answer), answer.node, answer.result, error, self._restarts.get(rank, 0), tuple(left))


def _collect_lines(directories: List[str]) -> str:
    """The task of ActorGroup.reclaim."""
    there = [directory for directory in directories if os.path.isdir(directory)]
    return "; ".join(_collect(there)) if there else ""


def _gc(directories: Sequence[str]) -> str:
    """The command that a person runs on a node."""
    return shlex.join(["ebb", "gc", "--disk-dir", ",".join(directories)])


def _state(answer: Answer) -> str:
    if answer.bytes_paused is None or answer.bytes_active is None:
        return "unknown"
    if answer.bytes_paused:
        return "part" if answer.bytes_active else "paused"
    return "active" if answer.bytes_active else "none"


def _deadline(timeout: Any) -> float:
    if timeout is None:
        raise InvalidArgument("timeout is a number of seconds: without one a rank that hangs would be waited for without end")
    return _memory._seconds(timeout)


def _listed(tags: Tags) -> Tags:
    """Tags as what can be sent twice."""
    return tags if tags is None or isinstance(tags, str) else list(tags)


def _one_line(err: BaseException) -> str:
    text = " ".join(str(err).split())
    return f"{type(err).__name__}: {text[:400]}"
