"""The command `ebb`: where it is, and asking it."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
from typing import Any, List, Mapping, Optional, Sequence, Union

from ._errors import Error, InvalidArgument, NotLoaded

# How long a command may take that only looks and composes, in seconds. A disk that gives no answer ends it before.
_LIMIT_S = 300.0

_USAGE, _DIRECTORY, _INSTALL = 2, 73, 74  # docs/exit-codes.md


def find(given: Union[None, str, "os.PathLike[str]"] = None) -> str:
    """Absolute path of the command: the one that was named, that of this installation of the package (the
    wheel, a checkout that was built), or that of PATH. Raises NotLoaded."""
    if given is not None:
        path = os.path.abspath(os.fspath(given))
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise NotLoaded(f"{path} is no program: name the command ebb, or leave it out to have it looked for")
        return path
    package = pathlib.Path(__file__).resolve().parent
    for candidate in (package / "bin" / "ebb", package.parents[1] / "dist" / "bin" / "ebb"):
        if os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which("ebb")
    if found is None:
        raise NotLoaded(
            "the command ebb is neither in this installation of the Python package nor in PATH: install the wheel "
            "that `make wheel` builds, add the folder dist/bin of a build to PATH, or name it with command="
        )
    return os.path.abspath(found)


def ask(command: str, arguments: Sequence[str], environment: Mapping[str, str], warnings: List[str]) -> Any:
    """What the command prints as JSON. What it says beside that is added to the warnings.

    Raises InvalidArgument where it calls that wrong usage, NotLoaded where its installation is incomplete, and
    Error otherwise."""
    try:
        done = subprocess.run(
            [command, *arguments], env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, errors="surrogateescape", timeout=_LIMIT_S,
        )
    except OSError as err:
        raise NotLoaded(f"cannot start {command}: {err}") from err
    except subprocess.TimeoutExpired as err:
        raise Error(f"{command} {arguments[0]} gave no answer in {_LIMIT_S:.0f} s: look at the disk that it was asked about") from err
    # What the loader says of libraries that are preloaded on other nodes is not the command's.
    said = [_bare(line) for line in done.stderr.splitlines() if line.strip() and not line.startswith("ERROR: ld.so")]
    if done.returncode == _USAGE:
        raise InvalidArgument("; ".join(said) or f"{command} {arguments[0]} refused its arguments")
    if done.returncode == _INSTALL:
        raise NotLoaded("; ".join(said) or f"the installation of {command} is incomplete")
    try:
        answer = json.loads(done.stdout)
    except ValueError as err:
        raise Error(f"{command} {arguments[0]} ended with status {done.returncode}: {'; '.join(said) or done.stdout[:200]!r}") from err
    if done.returncode not in (0, _DIRECTORY):  # ebb gc: what could not be removed is in its answer
        raise Error(f"{command} {arguments[0]} ended with status {done.returncode}: {'; '.join(said)}")
    warnings += said
    return answer


def _bare(line: str) -> str:
    return line[len("ebb: "):] if line.startswith("ebb: ") else line


def paths(value: Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]) -> List[str]:
    """One path or several, as a list of texts."""
    if isinstance(value, (str, os.PathLike)):
        return [os.fspath(value)]
    return [os.fspath(one) for one in value]


def without_ebb(environment: Mapping[str, str], keep: Optional[Mapping[str, str]] = None) -> dict[str, str]:
    """An environment without what tells of a rank or decides about its memory: what is left is fit for asking
    about another process's."""
    ours = ("EBB_", "TMS_", "LD_", "RAY_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "MPI_")
    exact = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "JOB_COMPLETION_INDEX")
    plain = {name: value for name, value in environment.items() if name not in exact and not name.startswith(ours)}
    return {**plain, **(keep or {})}
