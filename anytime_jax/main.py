"""Trains a model: `python -m anytime_jax.main --config=configs/quickstart.py`.

Run again, it goes on from the latest checkpoint. Ctrl-C or SIGTERM saves, and the same line
continues. Exit status: 0 when it stopped where it should or was interrupted and saved, 2 when
something it was given cannot be used, 1 when it broke in flight. `--fall_back` sets a damaged
checkpoint aside and goes on from the newest good one; `--debug` shows tracebacks.

A configuration file is Python code and is executed: use those you trust.
"""

import gc
import os
import signal
import sys

if __name__ == "__main__":  # Ctrl-C during the imports, which take seconds, ends it without a word
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    gc.disable()  # what imports make, stays: to look through it for garbage takes 0.3 s of a start

import itertools
import math
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from absl import app, flags, logging

from anytime_jax.checkpoints.records import read_records
from anytime_jax.commands.command_line import complain, open_console
from anytime_jax.commands.config_file import CONFIG, parse
from anytime_jax.config import schema
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.distributed import processes, runtime
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_duration
from anytime_jax.study import loss_table
from anytime_jax.training import preflight, startup, trainer
from anytime_jax.training.progress import Display

_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Of several processes: HOST:PORT of the first, where it will listen."
)
_PROCESSES = flags.DEFINE_integer("processes", None, "Of several processes: how many.")
_PROCESS = flags.DEFINE_integer("process", None, "Of several processes: the number of this one.")
_CLUSTER = flags.DEFINE_bool(
    "cluster", False, "Find those three in what SLURM, Open MPI, a TPU slice or GKE say."
)
# Flags that tell a process its place, on a command line; and those whose value stands apart.
_PLACE = re.compile(r"--?(coordinator|processes|process|cluster)(=|$)")
_PLACE_APART = re.compile(r"--?(coordinator|processes|process)$")
_FALL_BACK = flags.DEFINE_bool(
    "fall_back", False, "Set a damaged checkpoint aside and go on from the newest good one."
)


def main(argv: Sequence[str]) -> None:
    """Runs the command line; leaves through `sys.exit`."""
    sys.exit(processes.exit_together(run(argv)))


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit status."""
    try:
        if len(argv) > 1:
            raise InputError(f"unexpected argument {argv[1]!r}: settings are --config.NAME=VALUE")
        return _run()
    except (InputError, RunError, OSError) as error:
        return complain(error, 2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        print(f"\ninterrupted: nothing that was saved is lost. To go on: {_command()}")
        return 130
    except Exception as error:
        what = f"unexpected {type(error).__name__}: {error} (--debug shows where)"
        return complain(error, 1, what)


def _run() -> int:
    if CONFIG.value is None:
        raise InputError("which run? Give --config=configs/quickstart.py, or another file there")
    settings = schema.build(CONFIG.value.to_dict())
    runtime.configure()
    processes.initialize(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _CLUSTER.value)
    display = Display(settings.clock, open_console(quiet=not processes.is_primary()))
    with processes.fail_together():
        startup.check_paths(settings)
        mesh = startup.make_mesh(settings)
        prepared = startup.prepare(settings, mesh, display) if processes.is_primary() else None
    with processes.fail_together():
        dataset = prepared or startup.load(settings)
        preflight.check_data(settings, dataset)
    began = time.monotonic()
    with startup.interruptible() as interrupted:
        outcome = trainer.train(settings, mesh, dataset, display, interrupted, _FALL_BACK.value)
    if processes.is_primary():
        _report(settings, dataset, display, outcome, time.monotonic() - began)
    return 0


def _report(
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
        display.say(f"interrupted, {state}. To go on: {_command()}")
        return
    rows = loss_table.eval_losses(read_records(run_dir, display.say))
    doublings = [(row, losses) for row, losses in rows if clock.is_doubling(row.step)]
    if doublings or rows:
        display.console.print(loss_table.table(clock, doublings or rows[-1:]))
    from anytime_jax.study import run_figure  # half a second: not before the first update

    drawn = run_figure.draw(run_dir, f"{settings.name}: validation loss, live weights and averages")
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
    _say_next(settings, dataset, display, outcome)


def _say_next(
    settings: schema.Config, dataset: DatasetInfo, display: Display, outcome: trainer.Outcome
) -> None:
    """Says how to go on to the next doubling, if the schedule and the data reach that far."""
    clock, horizon = settings.clock, settings.schedule.horizon_steps
    following = clock.next_doubling(outcome.step)
    there = f"{2 ** round(math.log2(clock.multiple(following))):g}x"  # it may end a little later
    windows = dataset.splits["train"].windows
    needed = outcome.samples + clock.samples(following) - clock.samples(outcome.step)
    again = not settings.data.repeat and needed > windows
    given = None if settings.stop.doubles else there
    if horizon is not None and outcome.step >= horizon:
        free = settings.branch.from_run or "a constant or inverse_sqrt run"
        display.say(f"the schedule ends here; {free} can go on")
    elif horizon is not None and following > horizon:
        display.say(f"to go on to the schedule's end: {_command('horizon')}")
    elif again:
        display.say(
            f"the data end before {there}. To go over them again: "
            f"{_command(given, '--config.data.repeat=True')}"
        )
    else:
        display.say(f"this run has no horizon. To go on to {there}: {_command(given)}")
    display.say("to read on: README.md (what the averages are), docs/ (data, architecture)")


def _command(stop: str | None = None, *more: str) -> str:
    """The line that runs this again, to another stop if one is given, with more arguments."""
    arguments = [*sys.argv[1:], *more]
    if stop is not None:
        kept = [given for given in arguments if not given.startswith("--config.stop=")]
        arguments = [*kept, f"--config.stop={stop}"]
    here = os.path.relpath(sys.executable)
    python = "python" if here.startswith("..") else here
    if not processes.is_single():
        pairs = itertools.pairwise(["", *arguments])
        arguments = [
            x for before, x in pairs if not (_PLACE.match(x) or _PLACE_APART.match(before))
        ]
    line = shlex.join([python, "-m", "anytime_jax.main", *arguments])
    return line if processes.is_single() else f"{line} (in every process, started as before)"


def _parse(argv: list[str]) -> list[str]:
    return parse(argv, f"{__doc__}\nEvery setting: configs/base.py")


def _without_stragglers(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Says nothing of writes that were still under way when the first of a save failed."""
    if not (kind is RuntimeError and str(error) == "Event loop is closed"):
        sys.__excepthook__(kind, error, trace)


def cli() -> None:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.excepthook = _without_stragglers
    logging.set_verbosity(logging.FATAL)  # what libraries log besides, with tracebacks, they raise
    try:
        app.run(main, flags_parser=_parse)
    except KeyboardInterrupt:  # before there was anything to save
        sys.exit(130)


if __name__ == "__main__":
    gc.freeze()  # later collections pass over it too
    gc.enable()
    cli()
