"""Loss history of a run, from its records and settings, to forecast it."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints import run_directory
from anytime_jax.checkpoints.metric_records import Row, read_records
from anytime_jax.config import schema
from anytime_jax.config.schema import Config
from anytime_jax.errors import InputError
from anytime_jax.forecast.loss_history import LossHistory
from anytime_jax.study.run_losses import evaluations


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run with its settings and its losses so far; those of a branch begin with its trunk's."""

    name: str
    config: Config
    history: LossHistory


def read(run_dir: Path, warn: Callable[[str], None] = lambda text: None) -> RecordedRun:
    """Reads a run, and the trunk of a branch as far as it is there.

    Raises an InputError if `run_dir` is not the directory of a run that has recorded a loss.
    """
    about = run_directory.read_run_file(run_dir, "give another run")
    if about is None:
        raise InputError(f"--run={run_dir} is not a run directory: give one that was trained")
    try:
        config = schema.build(about["config"])
        name = str(about["name"])
        branch = about.get("branch")
        rows = read_records(run_dir, warn)
        if branch is not None:
            trunk = read_records(branch["from_run"], warn)
            rows = [row for row in trunk if row.step <= branch["step"]] + rows
    except (ValueError, KeyError, TypeError) as error:
        file = run_dir / run_directory.RUN_FILE
        raise InputError(f"{file} is damaged ({error!r}): give another run") from error
    return RecordedRun(name, config, from_rows(config, rows))


def from_rows(config: Config, rows: Sequence[Row]) -> LossHistory:
    """Returns the training losses, means since the row before, and the held-out losses.

    Raises an InputError if there are none.
    """
    found: list[tuple[int, int, float, str, bool]] = []
    before = 0
    for row in rows:
        if "train/loss" in row.values:
            found.append((max(before, 1), row.step, row.values["train/loss"], LIVE, True))
            before = row.step
    known = {LIVE, *config.averaging_rules}
    for row, losses in evaluations(rows):
        found += [
            (row.step, row.step, x, label, False) for label, x in losses.items() if label in known
        ]
    found = [x for x in found if x[1] > 0]
    if not found:
        raise InputError(f"{config.name} has recorded no loss yet: train on")
    first, last, losses, labels, training = zip(*found, strict=True)
    return LossHistory(
        config.learning_rate,
        config.clock.step_at(config.schedule.warmup, "warmup"),
        np.array(first),
        np.array(last),
        np.array(losses, float),
        tuple(labels),
        np.array(training, bool),
        config.averaging_rules,
    )
