"""Train a model, or resume its training.

The same command resumes a run from its latest checkpoint. Ctrl-C or SIGTERM saves first. A run
without a horizon can be continued to a later config.stop at any time.

With --study and --runs, runs of a study are trained as one program, each with a log in
STUDY/logs; `sweep --fleet=N` starts such programs.

A configuration file is Python code and is executed, so use only files you trust.
"""

import argparse
import asyncio
import contextlib
import itertools
import math
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console

from anytime_jax.checkpoints.checkpoint_listing import describe_latest
from anytime_jax.checkpoints.metric_records import Row, read_records
from anytime_jax.checkpoints.orbax_event_loop import EventLoopPolicy
from anytime_jax.commands import command_line, config_file, standard_streams
from anytime_jax.commands.console import open_console
from anytime_jax.config import schema
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.distributed import jax_settings, lost_process_exit, processes
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_duration
from anytime_jax.storage.paths import storage_path
from anytime_jax.study import run_losses, study_files
from anytime_jax.study.tasks import StudyTask, log_file, make_tasks
from anytime_jax.training import signals, startup, trainer
from anytime_jax.training.progress import Display

EXAMPLES = (
    "--config=quickstart",
    "--config=quickstart --config.name=mine --config.seed=1 --config.stop=8x",
)
# Options of a process among several; the value may be a separate argument.
_PROCESS_OPTION = re.compile(r"--(coordinator|processes|process|cluster)(=|$)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    config_file.add_option(parser, schema.SETTINGS)
    parser.add_argument(
        "--fall-back",
        action="store_true",
        help="set a damaged checkpoint aside and resume from the newest good one",
    )
    parser.add_argument("--fall_back", action="store_true", help=argparse.SUPPRESS)
    add = parser.add_argument_group("several processes").add_argument
    add("--coordinator", metavar="HOST:PORT", help="address at which the first process listens")
    add("--processes", type=int, metavar="N", help="number of processes")
    add("--process", type=int, metavar="I", help="index of this process, from 0")
    add(
        "--cluster", action="store_true", help="take these from Slurm, Open MPI, a TPU slice or GKE"
    )
    add = parser.add_argument_group("several runs as one program").add_argument
    add("--study", metavar="FILE", help="study, by file or name")
    add("--runs", nargs="+", metavar="NAME", help="runs of the study, all of one shape")


def run(arguments: argparse.Namespace) -> int:
    """Trains a run, or several as one program."""
    asyncio.set_event_loop_policy(EventLoopPolicy())
    with standard_streams.lossy_stdout():  # a closed terminal ends no training
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    if not (arguments.study or arguments.runs):
        return _train(arguments)
    if arguments.config or not (arguments.study and arguments.runs):
        raise InputError("--study and --runs go together, without --config")
    return _train_fleet(arguments)


def _train(arguments: argparse.Namespace) -> int:
    config = schema.build(config_file.load(arguments))
    jax_settings.configure()
    processes.initialize(
        arguments.coordinator,
        arguments.processes,
        arguments.process,
        arguments.cluster,
        lambda: describe_latest(config.run_dir),
    )
    is_primary = processes.is_primary()
    display = Display(config.clock, open_console(quiet=not is_primary))
    try:
        with processes.fail_together():
            startup.check_paths(config)
            mesh = startup.make_mesh(config)
        dataset = startup.open_dataset(config, mesh, display)
        start = time.monotonic()
        with signals.interruptible() as interrupted:
            outcome = trainer.train(
                config, mesh, dataset, display, interrupted, arguments.fall_back
            )
        if is_primary and outcome.reason == "interrupted":
            step = config.clock.describe(outcome.step)
            state = f"saved at {step}" if outcome.step else "nothing to save yet"
            display.say(f"interrupted, {state}. To resume: {_command(arguments)}")
        elif is_primary:
            _report(config, display, outcome, time.monotonic() - start)
            display.say(_next_command(arguments, config, dataset, outcome))
    except KeyboardInterrupt:
        print(f"\nno saved step is lost. To resume: {_command(arguments)}", flush=True)
        raise
    except Exception as error:
        if not processes.is_sign_of_loss(error):
            raise
        raise lost_process_exit.make_error(error) from error
    return 0


def _report(
    config: schema.Config, display: Display, outcome: trainer.Outcome, seconds: float
) -> None:
    """Prints the losses and files of a stopped run, and draws its curves."""
    clock, run_dir = config.clock, storage_path(config.run_dir)
    rows = read_records(run_dir, display.say)
    evaluated = run_losses.evaluations(rows)
    doublings = [(row, losses) for row, losses in evaluated if clock.is_doubling(row.step)]
    if evaluated:
        display.console.print(run_losses.loss_table(clock, doublings or evaluated[-1:]))
    reason = "the data are used up" if outcome.reason == "data" else "its stop"
    stop = config.stop_rule.after(outcome.step - 1, clock)
    if stop is not None and outcome.step > stop:
        reason = f"past config.stop = {config.stop!r}, so there is nothing to do"
    display.say(f"at {clock.describe(outcome.step)}: {reason}, after {format_duration(seconds)}")
    files = {"curves": _draw_curves(config, rows), "records": run_dir / "records"}
    if config.log.tensorboard:
        files["TensorBoard"] = run_dir / "tensorboard"
    for name, path in (files | {"checkpoints": run_dir / "checkpoints"}).items():
        if path is not None:
            display.say(f"  {name:12} {path}")


def _next_command(
    arguments: argparse.Namespace,
    config: schema.Config,
    dataset: DatasetInfo,
    outcome: trainer.Outcome,
) -> str:
    """Returns advice on continuing to the next doubling, within the schedule and the data."""
    clock, horizon = config.clock, config.learning_rate.horizon_steps
    step = clock.next_doubling(outcome.step)
    multiple = f"{2 ** round(math.log2(clock.multiple(step))):g}x"  # a step may round it up
    stop = None if config.stop_rule.doubles else multiple
    if horizon is not None and outcome.step >= horizon:
        run = config.branch.from_run or "a constant or inverse_sqrt run"
        return f"the schedule ends here; {run} can be continued"
    if horizon is not None and step >= horizon:
        return f"to continue to the end of the schedule: {_command(arguments, 'horizon')}"
    windows = outcome.samples + clock.samples(step) - clock.samples(outcome.step)
    if not config.data.repeat and windows > dataset.splits["train"].windows:
        command = _command(arguments, stop, "--config.data.repeat=True")
        return f"the data end before {multiple}. To repeat them: {command}"
    return f"this run has no horizon. To continue to {multiple}: {_command(arguments, stop)}"


def _command(arguments: argparse.Namespace, stop: str | None = None, *more: str) -> str:
    """Returns the command line of this start, with another stop and more arguments."""
    if stop is not None:
        more = (*more, f"--config.stop={stop}")
    words = command_line.join_overrides([*arguments.argv, *more])
    if processes.is_single():
        return f"{arguments.program} {shlex.join(words)}"
    values = ("--coordinator", "--processes", "--process")
    pairs = itertools.pairwise(["", *words])
    words = [x for before, x in pairs if not (_PROCESS_OPTION.match(x) or before in values)]
    return f"{arguments.program} {shlex.join(words)} (in every process, started as before)"


def _train_fleet(arguments: argparse.Namespace) -> int:
    """Trains runs of a study as one program; returns 1 if any of them failed."""
    study = study_files.load_file(arguments.study)
    tasks = {task.run.name: task for task in make_tasks(study)}
    selected = [tasks[study.run(name).name] for name in dict.fromkeys(arguments.runs)]
    _check_fleet(selected)
    configs = [task.config for task in selected]
    jax_settings.configure()
    console = open_console()
    with contextlib.ExitStack() as stack:
        displays = []
        for config in configs:
            startup.check_paths(config)
            log = stack.enter_context(log_file(study, config.name).open("a", encoding="utf-8"))
            displays.append(Display(config.clock, Console(file=log, width=140, highlight=False)))
        mesh = startup.make_mesh(configs[0], jax.devices()[:1])
        dataset = startup.open_dataset(configs[0], mesh, Display(configs[0].clock, console))
        start = time.monotonic()
        with signals.interruptible() as interrupted:
            outcomes = trainer.train_fleet(configs, mesh, dataset, displays, interrupted)
        duration = format_duration(time.monotonic() - start)
        for config, display, outcome in zip(configs, displays, outcomes, strict=True):
            line = _fleet_line(config, outcome, duration)
            display.say(line)
            console.print(f"{config.name}: {line}")
    return _fleet_status(outcomes)


def _check_fleet(tasks: Sequence[StudyTask]) -> None:
    for task in tasks:
        if task.fleet_key is None:
            raise InputError(
                f"{task.run.name} cannot be in a fleet: its batch grows, its averages are in host "
                "memory, or its mesh has several devices: train it alone, with --config"
            )
        if task.fleet_key != tasks[0].fleet_key:
            raise InputError(
                f"{tasks[0].run.name} and {task.run.name} cannot be one fleet: give runs that "
                "differ in seeds, schedule, stop, branch, b1, b2 and epsilon alone"
            )


def _fleet_line(config: schema.Config, outcome: trainer.Outcome | Exception, duration: str) -> str:
    """Draws the curves of a run and returns a line about its outcome."""
    if isinstance(outcome, Exception):
        return f"error: {outcome}"
    if outcome.reason != "interrupted":
        _draw_curves(config, read_records(config.run_dir))
    return f"at {config.clock.describe(outcome.step)}: {outcome.reason}, after {duration}"


def _fleet_status(outcomes: Sequence[trainer.Outcome | Exception]) -> int:
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if errors:
        return 2 if all(isinstance(error, InputError) for error in errors) else 1
    reasons = {outcome.reason for outcome in outcomes if isinstance(outcome, trainer.Outcome)}
    return 130 if "interrupted" in reasons else 0


def _draw_curves(config: schema.Config, rows: Sequence[Row]) -> Path | None:
    try:
        from anytime_jax.study import run_figure  # half a second: not before the first update

        return run_figure.draw(config.run_dir, config.name, rows)
    except Exception as error:  # of Matplotlib or of the disk: the run itself has ended well
        reason = f"{type(error).__name__}: {error}"
        print(f"the curves could not be drawn in {config.run_dir}: {reason}", flush=True)
        return None
