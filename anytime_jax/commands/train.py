"""Train a model, or resume its training.

The same command resumes a run from its latest checkpoint. Ctrl-C or SIGTERM saves first. A run
stops at config.stop; most runs can then be continued to a later one.

With --study and --runs, runs of a study are trained as one program; what each of them prints goes
to STUDY/logs/RUN.log. `sweep --fleet=N` starts such programs.

A configuration file is Python code and is executed: use those you trust.
"""

import argparse
import itertools
import math
import re
import shlex
import sys
import time
from pathlib import Path
from types import TracebackType

from anytime_jax.checkpoints.records import read_records
from anytime_jax.commands import command_line, config_file
from anytime_jax.commands.console import open_console
from anytime_jax.config import schema
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.distributed import processes, runtime
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_duration
from anytime_jax.study import loss_table
from anytime_jax.training import startup, trainer
from anytime_jax.training.progress import Display

EXAMPLES = (
    "--config=configs/quickstart.py",
    "--config=configs/quickstart.py --config.name=mine --config.seed=1 --config.stop=8x",
)
# Options that tell a process its place, on a command line; and those whose value stands apart.
_PLACE = re.compile(r"--(coordinator|processes|process|cluster)(=|$)")
_PLACE_APART = re.compile(r"--(coordinator|processes|process)$")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    config_file.add_option(parser)
    add = parser.add_argument
    add(
        "--fall-back",
        action="store_true",
        help="set a damaged checkpoint aside and resume from the newest good one",
    )
    add("--fall_back", action="store_true", dest="fall_back", help=argparse.SUPPRESS)
    group = parser.add_argument_group("several processes")
    add = group.add_argument
    add("--coordinator", metavar="HOST:PORT", help="of the first process, where it will listen")
    add("--processes", type=int, metavar="N", help="number of processes")
    add("--process", type=int, metavar="I", help="number of this one, from 0")
    add("--cluster", action="store_true", help="take these three from SLURM, Open MPI, TPU or GKE")
    group = parser.add_argument_group("several runs as one program")
    add = group.add_argument
    add("--study", metavar="FILE", help="a file of configs/studies/")
    add("--runs", nargs="+", metavar="NAME", help="names of its runs, all of one shape")


def run(arguments: argparse.Namespace) -> int:
    """Trains a run, or several as one program; returns the exit status."""
    sys.excepthook = _hide_stragglers
    if arguments.study or arguments.runs:
        if not (arguments.study and arguments.runs) or arguments.config:
            raise InputError("--study and --runs go together, without --config")
        from anytime_jax.commands import fleet

        return fleet.run(arguments)
    status = command_line.exit_status(lambda: _train(arguments), arguments.debug)
    return processes.exit_together(status)


def _train(arguments: argparse.Namespace) -> int:
    settings = schema.build(config_file.load(arguments))
    runtime.configure()
    processes.initialize(
        arguments.coordinator, arguments.processes, arguments.process, arguments.cluster
    )
    try:
        display = Display(settings.clock, open_console(quiet=not processes.is_primary()))
        with processes.fail_together():
            startup.check_paths(settings)
            mesh = startup.make_mesh(settings)
        dataset = startup.open_dataset(settings, mesh, display)
        began = time.monotonic()
        with startup.interruptible() as interrupted:
            outcome = trainer.train(
                settings, mesh, dataset, display, interrupted, arguments.fall_back
            )
        if processes.is_primary():
            _report(arguments, settings, dataset, display, outcome, time.monotonic() - began)
    except KeyboardInterrupt:
        print(f"\nnothing that was saved is lost. To go on: {_command(arguments)}", flush=True)
        raise
    return 0


def _report(
    arguments: argparse.Namespace,
    settings: schema.Config,
    dataset: DatasetInfo,
    display: Display,
    outcome: trainer.Outcome,
    seconds: float,
) -> None:
    """Ends a start of the run: the table, the picture, and what to do next."""
    clock, run_dir = settings.clock, Path(settings.run_dir)
    where = clock.describe(outcome.step)
    if outcome.reason == "interrupted":
        state = f"saved at {where}" if outcome.step else "nothing to save yet"
        display.say(f"interrupted, {state}. To go on: {_command(arguments)}")
        return
    rows = loss_table.evaluations(read_records(run_dir, display.say))
    doublings = [(row, losses) for row, losses in rows if clock.is_doubling(row.step)]
    if doublings or rows:
        display.console.print(loss_table.loss_table(clock, doublings or rows[-1:]))
    from anytime_jax.study import run_figure  # half a second: not before the first update

    drawn = run_figure.draw(run_dir, settings.name)
    why = "the data are used up" if outcome.reason == "data" else "its stop"
    display.say(f"at {where}: {why}, after {format_duration(seconds)}")
    for what, path in (
        ("curves", drawn),
        ("records", run_dir / "records"),
        ("TensorBoard", run_dir / "tensorboard" if settings.log.tensorboard else None),
        ("checkpoints", run_dir / "checkpoints"),
    ):
        if path is not None:
            display.say(f"  {what:12} {path}")
    _say_next(arguments, settings, dataset, display, outcome)


def _say_next(
    arguments: argparse.Namespace,
    settings: schema.Config,
    dataset: DatasetInfo,
    display: Display,
    outcome: trainer.Outcome,
) -> None:
    """Says how to go on to the next doubling, if the schedule and the data reach that far."""
    clock, horizon = settings.clock, settings.learning_rate.horizon_steps
    following = clock.next_doubling(outcome.step)
    there = f"{2 ** round(math.log2(clock.multiple(following))):g}x"  # it may end a little later
    windows = dataset.splits["train"].windows
    needed = outcome.samples + clock.samples(following) - clock.samples(outcome.step)
    again = not settings.data.repeat and needed > windows
    given = None if settings.stop_rule.doubles else there
    if horizon is not None and outcome.step >= horizon:
        free = settings.branch.from_run or "a constant or inverse_sqrt run"
        display.say(f"the schedule ends here; {free} can go on")
    elif horizon is not None and following > horizon:
        display.say(f"to go on to the schedule's end: {_command(arguments, 'horizon')}")
    elif again:
        display.say(
            f"the data end before {there}. To go over them again: "
            f"{_command(arguments, given, '--config.data.repeat=True')}"
        )
    else:
        display.say(f"this run has no horizon. To go on to {there}: {_command(arguments, given)}")
    display.say("to read on: README.md (what the averages are), docs/ (data, architecture)")


def _command(arguments: argparse.Namespace, stop: str | None = None, *more: str) -> str:
    """The line that runs this again, to another stop if one is given, with more arguments."""
    words = [*arguments.argv, *more]
    if stop is not None:
        words = [word for word in words if not word.startswith("--config.stop=")]
        words.append(f"--config.stop={stop}")
    if processes.is_single():
        return f"{arguments.program} {shlex.join(words)}"
    pairs = itertools.pairwise(["", *words])
    words = [x for before, x in pairs if not (_PLACE.match(x) or _PLACE_APART.match(before))]
    return f"{arguments.program} {shlex.join(words)} (in every process, started as before)"


def _hide_stragglers(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Says nothing of writes that were still under way when the first of a save failed."""
    if not (kind is RuntimeError and str(error) == "Event loop is closed"):
        sys.__excepthook__(kind, error, trace)
