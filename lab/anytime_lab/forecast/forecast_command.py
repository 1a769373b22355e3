"""Forecast the losses of a run: live, averaged, decayed, and what each further 0.01 nats cost.

A law of the loss is fitted to the losses so far, of the live weights and of every average, and to
the learning rates behind them. It gives the losses at the next doublings with 80% intervals: of the
run as it is, of a decay that ends there, and of a cosine run of that length. Nothing is trained.
The run may be in progress; --study gives narrower intervals from runs of the same model and data.
Forecasts are calibrated up to four times the run so far.

--csv reads the log of a foreign run, such as an export of WandB: columns of steps, learning rates
and losses. For a log, "4x" is four times the run so far; for --run it is four Chinchilla budgets.

--calibrate forecasts the horizon-free runs of a study from 1x and 2x, and prints the differences to
their later losses, to the losses of their branches and to the cosines. A small study takes a
minute.
"""

import argparse
import json
from pathlib import Path

from rich.console import Console

from anytime_jax.commands import argument_parser, config_file
from anytime_jax.commands.rich_console import open_console
from anytime_jax.config import settings_reader
from anytime_jax.config.run_settings import SCHEDULES
from anytime_jax.errors import InputError, RunError
from anytime_jax.schedules import Schedule
from anytime_jax.storage.files import make_writable_directory
from anytime_jax.storage.paths import storage_path
from anytime_jax.training.signals import until_interrupted
from anytime_lab.forecast import (
    forecast_calibration,
    forecast_calibration_report,
    forecast_report,
    forecast_subject,
)
from anytime_lab.forecast.forecast_subject import Subject
from anytime_lab.forecast.run_forecast import DEFAULT_PLAN, DecayPlan
from anytime_lab.monitor.follow import follow
from anytime_lab.monitor.run_snapshot import Snapshot

EXAMPLES = (
    "--run=runs/quickstart",
    "--run=runs/quickstart --to=16x --decay=1-sqrt:0.2 --watch",
    "--csv=export.csv --to=2x --schedule=cosine:peak=3e-4,warmup=2000,horizon=50000",
    "--calibrate=lab/evidence/first_laptop --output=calibration",
)

_COLUMNS = ("step", "lr", "loss")
_EVERY = 5.0  # seconds between looks of --watch
_NEWS = 1.05  # forecast again at this multiple of the last step, even without an evaluation


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", metavar="DIR", help="run, in progress or not")
    source.add_argument("--csv", type=Path, metavar="FILE", help="log of another run")
    source.add_argument("--calibrate", metavar="STUDY", help="study, to forecast its runs")
    config_file.add_trust(parser)
    add = parser.add_argument
    add(
        "--to",
        metavar="POINT",
        help='last point, such as 4x, "20000 steps" or "3B tokens" (default: the last doubling up '
        "to four times the run so far)",
    )
    add(
        "--decay",
        type=_decay,
        default=DEFAULT_PLAN,
        metavar="SHAPE:FRACTION[:FLOOR]",
        help="decay over the last FRACTION of a run to FLOOR times the peak; SHAPE is linear, "
        "1-sqrt or cosine (default: linear:0.1:0.1)",
    )
    add("--study", metavar="PATH", help="study with runs of the model and data of --run")
    add(
        "--schedule",
        type=_schedule,
        metavar="KIND:NAME=VALUE,...",
        help="learning rate of --csv, as in anytime_jax.schedules (default: its column, the last "
        "rate held)",
    )
    add("--columns", type=_columns, metavar="step=NAME,lr=NAME,loss=NAME", help="of --csv")
    add(
        "--warmup",
        type=argument_parser.positive_int,
        metavar="STEPS",
        help="of --csv (default: to its highest rate)",
    )
    add(
        "--tokens-per-step",
        type=argument_parser.positive_int,
        metavar="N",
        help="of --csv, to count in tokens",
    )
    add(
        "--output",
        type=argument_parser.path,
        metavar="DIR",
        help="directory of files (default: RUN; else none are written)",
    )
    add("--watch", action="store_true", help="repeat it as the run trains, until Ctrl-C")
    add(
        "--every",
        type=argument_parser.seconds,
        metavar="SECONDS",
        help="how often --watch looks at the run (default: 5)",
    )
    add("--json", action="store_true", help="print a line of JSON, and draw only with --output")


def run(arguments: argparse.Namespace) -> int:
    """Forecasts a run or a log; returns the exit status."""
    _check(arguments)
    console = open_console()
    if arguments.output is not None:
        make_writable_directory(arguments.output, f"--output={arguments.output}")
    if arguments.calibrate is not None:
        _calibrate(arguments, console)
        return 0
    if arguments.watch:
        with until_interrupted():
            _watch(arguments, console)
        return 0
    _show(arguments, console)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    of_log = ("--schedule", "--columns", "--warmup", "--tokens-per-step")
    of_run = ("--study", "--watch", "--every")
    of_both = ("--to", "--decay", "--json")
    wrong = {"run": of_log, "csv": of_run, "calibrate": (*of_log, *of_run, *of_both)}
    source = next(name for name in wrong if getattr(arguments, name) is not None)
    argument_parser.refuse(arguments, wrong[source], f"with --{source}")
    if not arguments.watch:
        argument_parser.refuse(arguments, ["--every"], "without --watch")


def _calibrate(arguments: argparse.Namespace, console: Console) -> None:
    """Prints how far forecasts of a study's runs are off; writes them into --output."""
    outcomes = forecast_calibration.forecast_study(arguments.calibrate, trust=arguments.trust)
    for table in forecast_calibration_report.tables(outcomes):
        console.print(table)
    if arguments.output is not None:
        files = forecast_calibration_report.write(arguments.output, outcomes)
        console.print(f"every forecast: {files[0]}; figure: {files[1]}")


def _watch(arguments: argparse.Namespace, console: Console) -> None:
    """Shows a forecast at each evaluation, and whenever the run is 5% longer."""
    evaluated, step, problem = -1, 0, ""
    for snapshot in follow(arguments.run, arguments.every or _EVERY, arguments.trust):
        if not snapshot.rows:
            continue
        latest = _latest_evaluation(snapshot)
        if latest == evaluated and snapshot.rows[-1].step < _NEWS * step:
            continue
        evaluated, step = latest, snapshot.rows[-1].step
        try:
            _show(arguments, console)
            problem = ""
            if not snapshot.is_training:
                console.print("  no process trains it: waiting for one, until Ctrl-C")
        except InputError as error:  # the run is too short, or has ended
            if error.reason != problem:
                problem = error.reason
                console.print(f"no forecast yet: {error}" if snapshot.is_training else str(error))


def _latest_evaluation(snapshot: Snapshot) -> int:
    return snapshot.evaluated[-1][0].step if snapshot.evaluated else -1


def _show(arguments: argparse.Namespace, console: Console) -> None:
    warnings: list[str] = []
    subject = _open(arguments, warnings)
    forecast = forecast_subject.forecast(subject, arguments.to, arguments.decay)
    if arguments.json:
        console.print(json.dumps(forecast_report.to_json(subject, forecast)))
    else:
        for part in (*warnings, *forecast_report.describe(subject, forecast)):
            console.print(part)
    directory = arguments.output or (None if arguments.json else arguments.run)
    if directory is None:
        return
    from anytime_lab.forecast import forecast_figure  # Matplotlib takes half a second to import

    try:
        line = f"figure: {forecast_figure.draw(directory, subject, forecast)}"
    except OSError as error:  # the directory may not be writable; the numbers are printed already
        failure = f"the figure could not be drawn in {directory}: {error}"
        if arguments.output is not None:
            raise RunError(failure) from error
        line = f"{failure}: give --output"
    if not arguments.json:
        console.print(f"  {line}")


def _open(arguments: argparse.Namespace, warnings: list[str]) -> Subject:
    if arguments.run is not None:
        return forecast_subject.open_run(
            storage_path(arguments.run), arguments.study, warnings.append, arguments.trust
        )
    schedule, warmup = arguments.schedule or (None, None)
    return forecast_subject.open_log(
        arguments.csv,
        schedule,
        arguments.columns,
        arguments.warmup or warmup,
        arguments.tokens_per_step,
    )


def _decay(text: str) -> DecayPlan:
    shape, *numbers = text.split(":")
    try:
        if not 1 <= len(numbers) <= 2:
            raise ValueError("give SHAPE:FRACTION or SHAPE:FRACTION:FLOOR, as linear:0.1")
        values = (
            settings_reader.setting_type(float).read(name, settings_reader.Text(number))
            for name, number in zip(("fraction", "floor"), numbers, strict=False)
        )
        return DecayPlan(shape, *values)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def _schedule(text: str) -> tuple[Schedule, int]:
    """A schedule and its warmup, from the settings of a kind."""
    kind, _, rest = text.partition(":")
    settings: dict[str, str] = {"kind": kind}
    for part in filter(None, rest.split(",")):
        name, _, value = part.partition("=")
        if name in settings:
            raise argparse.ArgumentTypeError(f"{text} gives {name} twice: give it once")
        settings[name] = settings_reader.Text(value)
    try:
        schedule = settings_reader.read_kind(SCHEDULES, settings).build()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error
    return schedule, schedule.warmup_end


def _columns(text: str) -> dict[str, str]:
    columns: dict[str, str] = {}
    for part in text.split(","):
        name, _, column = part.partition("=")
        if name not in _COLUMNS or not column:
            allowed = "give pairs such as step=_step,lr=lr,loss=train/loss"
            raise argparse.ArgumentTypeError(f"{text}: {allowed}")
        if name in columns:
            raise argparse.ArgumentTypeError(f"{text} gives {name} twice: give it once")
        columns[name] = column
    return columns
