"""Loss history of a run for a forecast, from its records and settings."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from anytime_jax.averaging import LIVE, Late
from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import (
    Row,
    read_records,
    read_trunk,
    starts_of_averages,
)
from anytime_jax.checkpoints.run_json import Evaluation
from anytime_jax.commands.loss_table import evaluated_rows
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.run_config import Config
from anytime_jax.errors import InputError
from anytime_jax.storage.paths import storage_path
from anytime_lab.forecast.growing_batch import RateByUpdate, RuleByUpdate
from anytime_lab.forecast.loss_history import LossHistory
from anytime_lab.study import study_files
from anytime_lab.study.plan import StudyRun


class NoLossError(InputError):
    """A run without a recorded loss."""


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedRun:
    """A run with its settings, the fingerprint of its data, and its losses so far."""

    name: str
    config: Config
    data: str
    history: LossHistory


def read(
    run_dir: Path,
    warn: Callable[[str], None] = lambda text: None,
    trust: Trust = NOBODY,
) -> RecordedRun:
    """Reads a run; a branch includes the losses of its trunk, as far as they exist.

    Held-out losses are those of the validation sets, weights and tokens of the last evaluation.

    `trust` says which packages are imported for the kinds that the run names.

    Raises an InputError if `run_dir` is not the directory of a run that has recorded a loss.
    """
    config, run_file = run_json.read_run(str(run_dir), "--run", trust)
    recorded = [(row, run_file) for row in read_records(run_dir, warn)]
    if (branch := run_file.branch) and (before := read_trunk(branch, warn)):
        trunk_file = run_json.read_run_file(storage_path(branch.from_run))
        recorded = [*((row, trunk_file) for row in before), *recorded]
    last = run_file.evaluation_at(math.inf)
    rows = [_comparable(row, x.evaluation_at(row.step) if x else None, last) for row, x in recorded]
    total, left = len(evaluated_rows([row for row, _ in recorded])), len(evaluated_rows(rows))
    if left < total:
        warn(
            f"{total - left} of {total} evaluations are left out: their validation sets, weights "
            "or tokens were not those of the last one"
        )
    return RecordedRun(run_file.name, config, run_file.fingerprint, from_rows(config, rows))


def _comparable(row: Row, evaluated: Evaluation | None, last: Evaluation | None) -> Row:
    """Returns a row without its held-out losses if they are known to be of another text."""
    if run_json.is_same_evaluation([x for x in (evaluated, last) if x]):
        return row
    kept = {name: x for name, x in row.values.items() if not name.startswith("eval/")}
    return dataclasses.replace(row, values=kept)


def read_study(
    path: str,
    warn: Callable[[str], None] = lambda text: None,
    option: str = "study",
    trust: Trust = NOBODY,
) -> list[tuple[RecordedRun, StudyRun]]:
    """Reads the runs of a study that have recorded a loss; a branch has only its own losses.

    Raises the errors of `study_files.open_study`, which name the `option`.
    """
    runs = []
    with study_files.open_study(path, option, trust) as study:
        for run in study.runs:
            run_file = run_json.read_run_file(run.run_dir, "take it out of the study")
            config = run.build()
            with contextlib.suppress(NoLossError):
                history = from_rows(config, read_records(run.run_dir, warn))
                data = run_file.fingerprint if run_file else ""
                runs.append((RecordedRun(run.name, config, data, history), run))
    return runs


def from_rows(config: Config, rows: Sequence[Row]) -> LossHistory:
    """Returns the held-out losses and the mean training losses since the row before, without NaN.

    Raises a NoLossError if there are none.
    """
    found: list[tuple[int, int, float, str, bool]] = []
    before = 0
    for row in rows:
        if "train/loss" in row.values:
            found.append((max(before, 1), row.step, row.values["train/loss"], LIVE, True))
            before = row.step
    clock, rate, rules = config.clock, config.learning_rate, dict(config.averaging_rules)
    evaluated = evaluated_rows(rows)
    starts = {x: starts_of_averages(row).get(x, 0) for row, losses in evaluated for x in losses}
    for row, losses in evaluated:
        of_row = starts_of_averages(row)
        found += [
            (row.step, row.step, x, label, False)
            for label, x in losses.items()
            # An average that was dropped and added again is another one from there on.
            if label in {LIVE, *rules} and of_row.get(label, 0) == starts[label]
        ]
    late = {label: since for label, since in starts.items() if since and label in rules}
    rules |= {label: Late(rules[label], clock.time(since)) for label, since in late.items()}
    found = [x for x in found if x[1] > 0 and math.isfinite(x[2])]
    if not found:
        raise NoLossError(f"{config.name} has recorded no loss yet: train on")
    first, last, losses, labels, training = zip(*found, strict=True)
    if clock.grows:
        rate = RateByUpdate(rate, clock)
        rules = {label: RuleByUpdate(rule, clock) for label, rule in rules.items()}
    return LossHistory(
        rate,
        clock.step_of(config.learning_rate.warmup_end),
        np.array(first),
        np.array(last),
        np.array(losses, float),
        tuple(labels),
        np.array(training, bool),
        rules,
    )
