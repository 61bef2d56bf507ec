"""A training run on disk: its settings, a row of metrics a step, and the checkpoint it goes on from."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from mempo_env.errors import ResultsError, TrainingError
from mempo_env.files import atomic_file, digest
from mempo_env.progress import progress
from mempo_trainers import board, checkpoint
from mempo_trainers.interrupt import held
from mempo_trainers.policies.base import Policy
from mempo_trainers.run_files import (
    BENCH,
    CHECKPOINT,
    METRICS,
    RESULT,
    SETTINGS,
    as_object,
    begun,
    read_rows,
    read_settings,
)
from mempo_trainers.run_settings import ENDS, differences, endless, flat
from mempo_trainers.trackers import check_trackers, tracked

FORMAT = 4

Watch: TypeAlias = Callable[[int], Mapping[str, float]]
"""Further metrics of a step that is done; for a policy that is evaluated now and then."""


WATCHED = "dev_seconds"
"""The metric that tells how long the watch took: seconds of the step in which nothing was learned from."""


def no_watch(step: int) -> Mapping[str, float]:
    """Tells nothing more."""
    return {}


TOLD = ("loss", "reward", "em", "kl")
"""The metrics that the line of progress shows."""

MOST_SKIPPED = 10
"""Steps in a row without an update, for want of a finite loss or gradient, after which a run ends."""


class Run:
    """Writes a run, or goes on with one: same settings, from its last checkpoint, bit for bit.

    Everything random in step s is drawn from (seed, s), so a checkpoint is the policy and a number. Metrics
    of steps after the checkpoint are of steps that will be made again: they are cut off.

    `config.steps` among the settings says where a run ends, and must decide nothing else: a run goes on to
    another end as if it had been meant from the start (of `sft.steps`: with the new end's learning rate).

    Args:
        folder: Of the run; made if there is none.
        settings: All that decides what comes out; plain values.
        tensorboard: Write the metrics for TensorBoard too, where it is installed.
        start: Folder of the saved policy that the run begins with, if it is no new one; there by the first
            step at the latest, and always the same.
        track: Names of further trackers, see `mempo_trainers.trackers.TRACKERS`.

    Where no step was ever finished, other settings begin it anew.

    Ctrl-C lets the step end, and saves; a second one leaves at once. A step that fails before the policy has
    learned from it, as one without any rollout does, ends the run when the steps before it are saved.

    Raises:
        ConfigError: for an unknown tracker; MissingExtra for one that is not installed.
        ResultsError: if another process writes to the run, or it was begun with other settings, or from
            another policy, or has done more steps, or what is there cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        tensorboard: bool = False,
        start: Path | None = None,
        track: Sequence[str] = (),
    ) -> None:
        check_trackers(track)
        self.folder, self._from, self._use = folder, start, ExitStack()
        try:
            self._open(msgspec.json.format(msgspec.json.encode({"format": FORMAT, **settings})), tensorboard)
            self._track = self._use.enter_context(tracked(track, folder, settings))
        except BaseException:
            self._use.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if isinstance(error, Exception) and self._unsaved is not None:
                policy, step, updates = self._unsaved
                if policy.updates == updates:
                    self._rescue(policy, step)
        finally:
            self._use.close()

    def _open(self, settings: bytes, tensorboard: bool) -> None:
        try:
            _make(self.folder)
            self._metrics = self._use.enter_context((self.folder / METRICS).open("a+b", 0))
            fcntl.flock(self._metrics, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultsError(
                f"{self.folder}: another process trains here; wait until it ends, or choose another --out"
            ) from None
        file = self.folder / SETTINGS
        if (self.folder / RESULT).exists() and not (self.folder / CHECKPOINT).exists():
            raise _lost(self.folder, "that is finished")
        if file.exists():
            _go_on(self.folder, file.read_bytes(), settings, self._from)
        elif self._metrics.tell():
            raise ResultsError(
                f"{self.folder}: holds {METRICS} without {SETTINGS}, so it is of nobody knows what; choose "
                "another --out"
            )
        else:
            with atomic_file(file) as out:
                out.write(settings)
        self._events = board.event_file(self.folder / "tensorboard") if tensorboard else None
        self._late: Exception | None = None
        self._unsaved: tuple[Policy, int, int] | None = None  # a step that is done, and its count of updates
        self._told, self._skipped = "", 0

    def steps(self, policy: Policy, total: int, every: int, label: str = "training") -> Iterator[int]:
        """Yield the numbers of the steps that are left, from 1 on; checkpoint the policy on the way."""
        done, self._began = self._resume(policy, every), _content(self._from)
        if 0 < done < total:
            print(f"{self.folder}: goes on from step {done:,} to {total:,}", file=sys.stderr)  # noqa: T201
        saying = "interrupted: this step ends, and is saved; interrupt once more to leave at once"
        with progress(label, total, done, unit="steps") as advance, held(saying) as interrupted:
            for step in range(done + 1, total + 1):
                self._start = time.perf_counter()
                yield step
                if self._late is not None:
                    self._rescue(policy, step)
                    raise self._late
                self._unsaved = policy, step, policy.updates
                if step % every == 0 or step == total or interrupted():
                    self._save(policy, step)
                advance(1, self._told)
                if interrupted():
                    raise KeyboardInterrupt

    def log(self, step: int, watch: Watch = no_watch, /, **metrics: float | int | str) -> None:
        """Append the row of a step, with what a watch tells; adds the seconds it took so far.

        What is not finite is null. A watch that fails ends the run when the step is in the checkpoint.
        """
        try:
            metrics |= watch(step)
        except Exception as error:  # as where a server is gone, or a disk is full
            self._late = error
        row = {"step": step, **metrics, "seconds": round(time.perf_counter() - self._start, 4)}
        self._append(msgspec.json.encode(row) + b"\n")
        shown = {name: metrics[name] for name in TOLD if name in metrics}
        if tokens := metrics.get("completion_tokens"):
            learning = float(row["seconds"]) - float(metrics.get(WATCHED, 0.0))
            shown["tokens/s"] = float(tokens) / max(learning, 1e-9)
        self._told = ", ".join(f"{name} {value:.3g}" for name, value in shown.items())
        self._skipped = self._skipped + 1 if row.get("skipped_updates") else 0
        if self._skipped >= MOST_SKIPPED:
            raise TrainingError(
                f"{self.folder}: wanted finite losses and gradients, got none for {self._skipped} steps in a "
                "row: lower the learning rate, or start from weights that are finite"
            )
        if self._events is not None:
            try:
                board.append(self._events, step, {**metrics, "seconds": row["seconds"]})
            except OSError as error:  # raised once the step is in the checkpoint
                self._late = self._late or error
        self._track(step, {**metrics, "seconds": row["seconds"]})

    def _append(self, line: bytes) -> None:
        try:
            while line:
                line = line[self._metrics.write(line) :]
        except OSError as error:
            error.filename = str(self.folder / METRICS)  # a full disk names no file
            raise

    def _rescue(self, policy: Policy, step: int) -> None:
        """Save before an error is raised; one of this is told, and does not hide it."""
        try:
            self._save(policy, step)
        except Exception as error:
            told = f"the steps since the last checkpoint are not saved ({_told(error)})"
            print(f"{self.folder}: {told}", file=sys.stderr)  # noqa: T201

    def _save(self, policy: Policy, step: int) -> None:
        self._unsaved = None
        os.fsync(self._metrics.fileno())
        state = {
            "format": FORMAT,
            "step": step,
            "settings": endless(read_settings(self.folder)),
            "start": self._began,
            "rows": digest(*read_rows(self.folder, whole=True)[:step]),
            "policy": policy.state_dict(),
        }
        checkpoint.write(self.folder / CHECKPOINT, state)

    def _resume(self, policy: Policy, every: int) -> int:
        """Load the checkpoint, if there is one; cut off the metrics of steps that come after it."""
        done, rows = 0, read_rows(self.folder, whole=False)
        if (self.folder / CHECKPOINT).exists():
            done = load(self.folder, policy, self._from)
            self._check(rows[:done], done)
        elif len(rows) > every:
            raise _lost(self.folder, f"of which {len(rows):,} steps are done")
        self._metrics.truncate(sum(len(line) for line in rows[:done]))
        self._metrics.seek(0, os.SEEK_END)
        return done

    def _check(self, rows: list[bytes], done: int) -> None:
        """Refuse rows that are not those from which the checkpoint came."""
        state = checkpoint.read(self.folder / CHECKPOINT)
        if len(rows) < done or digest(*rows) != state.get("rows"):
            raise ResultsError(
                f"{self.folder / METRICS}: wanted the rows of {done} steps as they were written, found "
                f"{len(rows)}, or others; it was truncated or edited by hand: start anew in another folder"
            )


def _make(folder: Path) -> None:
    """The folder of a run; a ResultsError for one of another kind, or a file."""
    if (folder / BENCH).exists():
        raise ResultsError(f"{folder}: holds a run of mempo bench ({BENCH}); choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ResultsError(
            f"{folder}: wanted a folder for the run, found a file; choose another --out"
        ) from None


def load(folder: Path, policy: Policy, start: Path | None = None) -> int:
    """Load the checkpoint of a run into a policy; returns the number of its step.

    Args:
        folder: Of the run.
        policy: Of the run's kind.
        start: As in `Run`.

    Raises:
        ResultsError: if there is none, or it is damaged, or of another policy, or its weights are not finite,
            or it was not made under the settings that lie beside it, or did not begin with that start.
    """
    file = folder / CHECKPOINT
    if not file.exists():
        rows = len(read_rows(folder, whole=False))
        done = f"{rows:,} steps were done since it began" if rows else "no step was done"
        raise ResultsError(
            f"{file}: wanted a checkpoint, found none, for {done}; let the run go on: mempo train toy --out "
            f"{folder}"
        )
    weights, step = _checkpoint(folder, start)
    try:
        policy.load_state_dict(weights)
    except Exception as error:  # of other names, of other shapes, not of tensors at all
        raise _refused(file, _told(error)) from None
    return step


def _checkpoint(folder: Path, start: Path | None) -> tuple[Any, int]:
    """The state of the policy and the number of its step; a ResultsError where they are not of the run."""
    file = folder / CHECKPOINT
    try:
        state = checkpoint.read(file)
        weights, step, made = state["policy"], int(state["step"]), dict(state["settings"])
    except (ValueError, KeyError, TypeError) as error:  # no checkpoint, or one without these parts
        raise _refused(file, _told(error)) from None
    if told := differences(made, endless(read_settings(folder))):
        raise _refused(file, f"one of another run, or {SETTINGS} was edited (there / in {SETTINGS}: {told})")
    if start is not None and start.exists() and state.get("start") != _content(start):
        raise ResultsError(
            f"{start}: wanted the policy that {folder} began with, found another; put that one back, or "
            "start anew in another folder"
        )
    if not checkpoint.finite(weights):
        raise _refused(file, "weights that are not finite: it learned too fast")
    return weights, step


def _content(start: Path | None) -> str:
    """A digest of the files of a saved policy."""
    files = [] if start is None else sorted(path for path in start.iterdir() if path.is_file())
    return digest(*(part for file in files for part in (file.name, file.read_bytes())))


def _lost(folder: Path, run: str) -> ResultsError:
    return ResultsError(
        f"{folder / CHECKPOINT}: wanted the checkpoint of a run {run}, found none; put it back, or choose "
        "another --out"
    )


def _refused(file: Path, got: str) -> ResultsError:
    return ResultsError(
        f"{file}: wanted a checkpoint of this policy, got {got}; start anew in another folder"
    )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'nothing'}"


def _go_on(folder: Path, before: bytes, now: bytes, start: Path | None) -> None:
    """Let a run go on to another end, or begin anew where no step was done.

    Other settings are refused by their names, and so are fewer steps than are done.
    """
    there, here = (as_object(str(folder / SETTINGS), text) for text in (before, now))
    told, end = differences(there, here), next(filter(None, map(flat(here).get, ENDS)), None)
    if not told:  # though it may be written in another form
        return
    if end is None or differences(endless(there), endless(here)):
        if begun(folder):
            raise ResultsError(
                f"{folder}: was begun with other settings (there / here: {told}); run it as it was begun, or "
                "choose another --out"
            )
        print(  # noqa: T201
            f"{folder}: no step was done, so it begins anew with other settings (there / here: {told})",
            file=sys.stderr,
        )
    elif end < (done := _checkpoint(folder, start)[1] if (folder / CHECKPOINT).exists() else 0):
        raise ResultsError(
            f"{folder}: wanted at least the {done:,} steps that are done, got {end:,}; choose another --out"
        )
    if any(flat(there).get(name) != flat(here).get(name) for name in ENDS):
        (folder / RESULT).unlink(missing_ok=True)  # of the other end
    with atomic_file(folder / SETTINGS) as out:
        out.write(now)
