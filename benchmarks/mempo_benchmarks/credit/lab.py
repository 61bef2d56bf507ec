"""The credit lab: estimators of credit held against the true advantages of memory operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from mempo_benchmarks.credit.batch import open_run
from mempo_benchmarks.credit.estimators import code, own_rows, rows
from mempo_benchmarks.credit.results import FORMAT, JSON, PAGE, PLOT, Lab, Plan, Stage
from mempo_benchmarks.credit.stage import measure_stage
from mempo_benchmarks.toy.sweep import finished
from mempo_env.errors import ConfigError, ResultsError
from mempo_env.files import BAD_JSON, atomic_file, check_place, digest, file_digest
from mempo_trainers.config import Config
from mempo_trainers.run_files import CHECKPOINT, SETTINGS
from mempo_trainers.toy import Toy, train

STAGES = {"early": 22, "middle": 32, "late": 42}
"""Steps of the runs that the lab trains itself."""


def run_lab(plan: Plan, runs: Sequence[Path], out: Path, estimators: Sequence[str] = ()) -> Lab:
    """Measure some runs, or three that are trained here; goes on where an earlier call was killed.

    A stage that is done lies in `out`/stages; trained runs in `out`/runs.

    Args:
        plan: How much is measured.
        runs: Folders of toy runs.
        out: Folder of the results.
        estimators: Of one's own, as "module:function"; rows beside the others.

    Raises:
        ResultsError: if a folder holds no toy run, or `out` holds stages of another plan, run or estimator.
        ConfigError: if something that is no file lies where a result should, or an estimator can't be called.
        OSError: if nothing can be written there; all of these before anything is measured.
    """
    folders, stages = named(runs), []
    table, codes = {**rows(), **own_rows(estimators)}, code(estimators)
    restored = {name: open_run(folder) for name, folder in folders.items()}
    for result in (JSON, PAGE, PLOT):
        check_place(out / result)  # fails before the forks, not after them
    if not runs:
        folders = _trained(plan, out)
        restored = {name: open_run(folder) for name, folder in folders.items()}
    for name, (task, config, policy) in restored.items():
        trained = (file_digest(folders[name] / part) for part in (SETTINGS, CHECKPOINT))
        mark = digest(msgspec.json.encode([FORMAT, plan]), *trained, *codes)
        file = out / "stages" / f"{name}.json"
        stage = _read(file, mark)
        if stage is None:
            stage = measure_stage(plan, task, policy, table, name, mark, _told(task, config))
            with atomic_file(file) as to:
                to.write(msgspec.json.encode(stage))
        stages.append(stage)
    lab = Lab(format=FORMAT, plan=plan, stages=stages)
    with atomic_file(out / JSON) as to:
        to.write(msgspec.json.encode(lab))
    return lab


def named(runs: Sequence[Path]) -> dict[str, Path]:
    """Runs by the names of their folders; by their paths where two have one name."""
    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run).replace("/", "-") for run in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"--run: wanted different runs, got {', '.join(map(str, runs))}")
    return dict(zip(names, runs, strict=True))


def _trained(plan: Plan, out: Path) -> dict[str, Path]:
    """The toy task trained by the outcome alone, stopped at three steps: no estimator is at home there."""
    folders, task = {}, Toy(reward="em_mean")
    for name, steps in STAGES.items():
        folders[name] = out / "runs" / name
        config = Config(credit="grpo", learning_rate=0.01, steps=steps, seed=plan.seed)
        if not finished(folders[name], task, config):
            train(task, config, folders[name])
    return folders


def _told(task: Toy, config: Config) -> str:
    return (
        f"{config.steps} steps of {config.algo}, {config.credit} credit, {task.reward}, "
        f"{task.objectives} objectives of {task.hops} hop{'s' * (task.hops > 1)}, seed {config.seed}"
    )


def _read(file: Path, mark: str) -> Stage | None:
    """A stage that is done, None if there is none."""
    if not file.exists():
        return None
    try:
        stage = msgspec.json.decode(file.read_bytes(), type=Stage)
    except BAD_JSON as error:
        raise ResultsError(f"{file}: {error}; was it edited by hand? remove it to measure anew") from None
    if stage.mark != mark:
        raise ResultsError(
            f"{file}: wanted a stage of this run measured with these settings, got one of others; repeat the "
            "command that made it, or choose another --out"
        )
    return stage
