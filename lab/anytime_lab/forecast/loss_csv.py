"""Losses of a foreign run: a CSV file with a step, a learning rate and a loss in each row."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from anytime_jax.averaging import LIVE
from anytime_jax.checks import LARGEST_COUNT, read_times, require, require_count
from anytime_jax.errors import InputError, format_value
from anytime_jax.schedules import Schedule
from anytime_lab.forecast.loss_history import LossHistory, RecordedRates

_STEP = ("step", "_step", "global_step", "trainer/global_step", "train/global_step", "iter")
_RATE = ("lr", "learning_rate", "train/lr", "train/learning_rate", "optim/lr", "lr-adamw")
_LOSS = ("loss", "eval/last/loss", "eval/loss", "val/loss", "val_loss", "validation/loss")
_LOSS += ("train/loss", "train_loss", "train/cross_entropy_loss", "loss/train")
_TOLERANCE = 0.01  # tolerance of a recorded rate, relative to the schedule's


def read_csv(
    path: str | Path,
    schedule: Schedule | None = None,
    columns: Mapping[str, str] | None = None,
    warmup_steps: int | None = None,
) -> LossHistory:
    """Reads the losses of the live weights from a CSV file with columns step, lr and loss.

    The column names of common trackers are known, also behind `name - ` as WandB exports them;
    `columns` gives others, by "step", "lr" and "loss". Rows with an empty cell are skipped; of two
    rows with the same step, the later one counts. The warmup ends where the rate is first at its
    highest.

    Raises an InputError if the file lacks these columns or a value is not a number, or if the rates
    are missing in both the file and `schedule`, or differ.
    """
    names = {"step": _STEP, "lr": _RATE, "loss": _LOSS}
    columns = columns or {}
    require(isinstance(path, str | Path), "path", path, "the path of a file")
    ok = isinstance(columns, Mapping) and columns.keys() <= names.keys()
    ok = ok and all(isinstance(x, str) for x in columns.values())
    require(ok, "columns", columns, "names by step, lr and loss")
    path = Path(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next((row for row in reader if row), [])
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is not text with commas"
        raise InputError(f"{path} cannot be read as CSV ({reason}): give another file") from error
    if not header:
        raise InputError(f"{path} is empty: give a CSV file with the columns step, lr and loss")
    if len(header) == 1 and (found := re.search(r"[;\t|]", header[0])):
        raise InputError(
            f"{path} separates its columns by {found[0]!r}: write it with commas, and with points "
            "in numbers"
        )
    index = {x: _column(path, header, names[x], columns.get(x)) for x in names}
    for what, column in index.items():
        if column is None and (what != "lr" or schedule is None):
            name = "learning rates" if what == "lr" else f"the {what}"
            advice = "name it" + (" or give the schedule" if what == "lr" else "")
            first = ", ".join(header)
            raise InputError(
                f"{path} has no column of {name} in its first line ({first}): {advice}"
            )
    values: dict[int, tuple[float, float]] = {}
    for number, row in rows:
        cells = {x: row[i].strip() for x, i in index.items() if i is not None and i < len(row)}
        if "" in cells.values() or len(cells) < sum(i is not None for i in index.values()):
            continue
        try:
            step, rate, loss = (_number(cells.get(x, "nan")) for x in ("step", "lr", "loss"))
            if not (step.is_integer() and 0 <= step < LARGEST_COUNT):
                raise ValueError(f"{step:g} is not a number of updates below 2^31")
            values[int(step)] = loss, rate
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: {error}: correct that line, or leave it out"
            ) from error
    return from_columns(
        list(values),
        [loss for loss, _ in values.values()],
        [rate for _, rate in values.values()] if index["lr"] is not None else None,
        schedule,
        warmup_steps,
        name=str(path),
    )


def from_columns(
    steps: Sequence[int],
    losses: Sequence[float],
    rates: Sequence[float] | None = None,
    schedule: Schedule | None = None,
    warmup_steps: int | None = None,
    name: str = "the log",
) -> LossHistory:
    """Returns the history of live losses after `steps` updates, with recorded rates or a schedule.

    Raises an InputError if there are no losses, a loss or rate is not finite, or the rates differ
    from the schedule.
    """
    allowed = "one of anytime_jax.schedules, such as schedules.constant(3e-4)"
    require(isinstance(schedule, Schedule | None), "schedule", schedule, allowed)
    if warmup_steps is not None:
        require_count("warmup_steps", warmup_steps)
    try:
        values = np.fromiter(losses, float)
        recorded = None if rates is None else np.fromiter(rates, float)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: losses and rates must be numbers ({error})") from error
    try:
        at = read_times(list(steps))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: steps must be numbers from 0, each given once ({error})"
        ) from error
    lengths = {len(x) for x in (at, values, recorded) if x is not None}
    if lengths == {0}:
        raise InputError(f"{name} has no rows with a loss")
    if len(lengths) > 1:
        raise InputError(
            f"{name}: steps, losses and rates differ in number: give one of each a row"
        )
    order = np.argsort(at, kind="stable")
    at = at[order]
    if (np.diff(at) == 0).any():
        raise InputError(f"{name}: steps must be numbers from 0, each given once")
    end = schedule.end if schedule else None
    if end is not None and at[-1] > end:
        raise InputError(
            f"{name} has a loss at step {at[-1]:,}, after the end of the schedule at {end:,}: give "
            "the schedule of that run"
        )
    if recorded is not None:
        recorded = recorded[order]
        log_rates = RecordedRates(tuple(at.tolist()), tuple(recorded.tolist()))
        if schedule is None:
            schedule = log_rates
        else:
            _check_rates(name, schedule, at, recorded)
    if schedule is None:
        raise InputError(f"{name} has no learning rates: give a schedule")
    if warmup_steps is None:
        known = schedule.evaluate(at)
        warmup_steps = int(at[known >= known.max() * (1 - 1e-6)][0])
    return LossHistory(
        schedule,
        warmup_steps,
        np.maximum(at, 1),
        np.maximum(at, 1),
        values[order],
        (LIVE,) * len(at),
        np.zeros(len(at), bool),
    )


def _column(
    path: Path, header: Sequence[str], names: Sequence[str], name: str | None
) -> int | None:
    """Finds the column of `name`, or None; a WandB export has `run - ` before each name."""
    if name is not None:
        if name not in header:
            raise InputError(f"{path} has no column {name!r}: it has {', '.join(header)}")
        if header.count(name) > 1:
            raise InputError(f"{path} has several columns {name!r}: rename the others")
        return header.index(name)
    short = [cell.rpartition(" - ")[2].strip().lower() for cell in header]
    for known in names:
        found = [i for i, cell in enumerate(short) if cell == known]
        if len(found) > 1:
            columns = ", ".join(dict.fromkeys(header[i] for i in found))
            advice = "give one by name" if "," in columns else "rename the others"
            raise InputError(f"{path} has several columns of {known} ({columns}): {advice}")
        if found:
            return found[0]
    return None


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError as error:
        raise ValueError(f"{format_value(cell)} is not a number") from error


def _check_rates(name: str, schedule: Schedule, steps: np.ndarray, recorded: np.ndarray) -> None:
    """Raises unless the rates match the schedule before or after the step's update."""
    known = np.stack([schedule.evaluate(steps), schedule.evaluate(np.maximum(steps - 1, 0))])
    wrong = (np.abs(known - recorded) > _TOLERANCE * schedule.peak).all(0)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InputError(
            f"{name} has a learning rate of {recorded[i]:.4g} at step {steps[i]:,}, where the "
            f"schedule has {known[0, i]:.4g}: give the schedule of that run"
        )
