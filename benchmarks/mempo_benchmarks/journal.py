"""Writing the results of a run: by one process at a time, each row whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from mempo_benchmarks.results import (
    PLAN,
    RESULTS,
    FullRow,
    Plan,
    differences,
    encode_plan,
    encode_row,
    read_plan,
)
from mempo_benchmarks.sources import changed_files
from mempo_env.errors import ResultsError
from mempo_env.files import atomic_file
from mempo_env.viewer import SETTINGS

Append: TypeAlias = Callable[[FullRow], None]


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn a full disk, or a folder that can't be written, into a ResultsError that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResultsError(
            f"{path}: could not be written ({reason}); what was finished is kept, run the same command again "
            "after mending this, or choose another place"
        ) from None


@contextmanager
def open_run(run: Path, plan: Plan) -> Iterator[Append]:
    """Open a run to write to: begin it, or go on with what is there of the same plan.

    Yields a function that appends a row. What a killed process left of a line is cut off.

    Raises:
        ResultsError: if another process writes to it, it is of another plan (says what differs), or it can't
            be written.
    """
    path = run / RESULTS
    if (run / SETTINGS).exists():
        raise ResultsError(f"{run}: holds a training run ({SETTINGS}); choose another --out")
    with told(path):
        run.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        _lock(handle, run)
        _begin(run, plan, os.fstat(handle).st_size)
        with told(path):
            os.ftruncate(handle, _whole(path))
        yield partial(_append, path, handle)
        with told(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def _append(path: Path, handle: int, row: FullRow) -> None:
    """Write one row; on a full disk take back what was written of it."""
    line, size = encode_row(row), os.fstat(handle).st_size
    with told(path):
        try:
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, size)
            raise


def discard(run: Path) -> None:
    """Remove plan and results of a run, if there is one; a ResultsError if another process writes to it."""
    path = run / RESULTS
    if not path.exists():
        return
    with told(path):
        handle = os.open(path, os.O_RDWR)
    try:
        _lock(handle, run)
        path.unlink()
        (run / PLAN).unlink(missing_ok=True)
    finally:
        os.close(handle)


def _lock(handle: int, run: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ResultsError(
            f"{run}: another process is writing to this run; wait until it ends, or choose another --out"
        ) from None


def _begin(run: Path, plan: Plan, size: int) -> None:
    """Write the plan of a new run; refuse one that differs from what is there."""
    if not (run / PLAN).exists():
        if size:
            raise ResultsError(
                f"{run}: holds {RESULTS} without {PLAN}, so it is of nobody knows what; choose another --out"
            )
        with told(run / PLAN), atomic_file(run / PLAN) as file:
            file.write(encode_plan(plan))
        return
    begun = read_plan(run)
    others = _settings(begun, plan)
    if changes := [*_agents(begun, plan), *others]:
        new = {arm.agent for arm in plan.arms} - {arm.agent for arm in begun.arms}
        also = (
            f", with {', '.join(sorted(new))} alone, and report both together" if new and not others else ""
        )
        raise ResultsError(
            f"{run}: was begun with other settings ({'; '.join(changes)}); run it as it was begun, or choose "
            f"another --out{also}"
        )


def _agents(begun: Plan, plan: Plan) -> list[str]:
    """What other agents a run was begun with, and which of them have changed."""
    there, here = (
        {arm.agent: f"{arm.fingerprint} {arm.env_kwargs or ''}".rstrip() for arm in one.arms}
        for one in (begun, plan)
    )
    changes = [f"added: {name}" for name in here if name not in there]
    changes += [f"left out: {name}" for name in there if name not in here]
    if not changes and list(there) != list(here):
        changes = [f"agents in another order: {', '.join(there)}"]
    for name in (name for name in there if there[name] != here.get(name, there[name])):
        files = changed_files(there[name], here[name])
        changes += [f"agent {name}: {', '.join(files)} changed since"] if files else []
        changes += [] if files else differences({f"agent {name}": there[name]}, {f"agent {name}": here[name]})
    return changes


def _settings(begun: Plan, plan: Plan) -> list[str]:
    """What else must be equal for a run to be gone on with, and differs; where the data lies need not be."""
    there, here = ({"sampling": one.sampled, "seed": one.seed, **one.common()} for one in (begun, plan))
    changes = differences(there, here)
    return [f"there / here: {'; '.join(changes)}"] if changes else []


def _whole(path: Path) -> int:
    """Bytes of the file up to its last line end."""
    size = 0
    with path.open("rb") as lines:
        for line in lines:
            size += len(line) if line.endswith(b"\n") else 0
    return size
