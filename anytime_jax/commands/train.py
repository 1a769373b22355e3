"""Train a model, or resume its training.

The same command resumes a run from its latest checkpoint. Ctrl-C or SIGTERM saves first. A run
without a horizon can be continued to a later config.stop at any time.

A configuration file is Python code and is executed, so use only files you trust.
"""

import argparse
import asyncio
import contextlib
import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from anytime_jax import plugins
from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.checkpoint_listing import describe_latest
from anytime_jax.checkpoints.metric_records import Row, read_records, read_trunk
from anytime_jax.checkpoints.save_event_loop import EventLoopPolicy
from anytime_jax.commands import config_file, config_help, loss_table, standard_streams
from anytime_jax.commands.rich_console import open_console
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import jax_settings, lost_process_exit, processes
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_duration
from anytime_jax.storage.files import can_append
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import loop, preflight
from anytime_jax.training.loop import Outcome
from anytime_jax.training.plan import make_plan
from anytime_jax.training.plan_summary import print_summary
from anytime_jax.training.profiler import StepRange
from anytime_jax.training.trackers import TENSORBOARD

EXAMPLES = (
    "--config=quickstart",
    "--config=quickstart --plan",
    "--config=quickstart --config.name=mine --config.seed=1 --config.stop=8x",
)
# Options of a process among several; the value may be a separate argument.
_PROCESS_OPTION = re.compile(r"--(coordinator|processes|process|cluster)(=|$)")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    config_file.add_option(parser)
    config_file.add_trust(parser)
    config_help.add_options(parser)
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print all settings as a configuration file that can be run, with a comment where "
        "the file or the command line gives one, and exit",
    )
    parser.add_argument(
        "--fall-back",
        action="store_true",
        help="set a damaged checkpoint aside and resume from the newest good one",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="print what a start would do and all that it has found, and exit; nothing is written",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print all that the start has found: schedule, fingerprints, evaluations, memory",
    )
    parser.add_argument(
        "--profile",
        type=_step_range,
        metavar="FIRST:LAST",
        help="trace the updates from step FIRST to step LAST, for XProf (docs/performance.md)",
    )
    add = parser.add_argument_group("several processes").add_argument
    add("--coordinator", metavar="HOST:PORT", help="address at which the first process listens")
    add("--processes", type=int, metavar="N", help="number of processes")
    add("--process", type=int, metavar="I", help="index of this process, from 0")
    add(
        "--cluster", action="store_true", help="take these from Slurm, Open MPI, a TPU slice or GKE"
    )


def _step_range(text: str) -> StepRange:
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text, re.ASCII)
    steps = StepRange(*map(int, match.groups())) if match else StepRange(0, 0)
    if steps.first >= steps.last:
        raise argparse.ArgumentTypeError(f"{text} is not FIRST:LAST with FIRST < LAST")
    return steps


def run(arguments: argparse.Namespace) -> int:
    """Trains a run."""
    if arguments.list:
        print(config_help.list_files(*plugins.folders()))
        return 0
    if arguments.help_settings:
        values = config_file.load(arguments).to_dict() if arguments.config else {}
        print(config_help.explain(values))
        return 0
    asyncio.set_event_loop_policy(EventLoopPolicy())
    config = config_file.load(arguments)
    if arguments.print_config:
        config_file.print_config(config, arguments)
        return 0
    with standard_streams.lossy_stdout():  # a closed terminal must not end the training
        return _train(config, arguments)


def _train(config: Config, arguments: argparse.Namespace) -> int:
    jax_settings.configure()
    processes.initialize(
        arguments.coordinator,
        arguments.processes,
        arguments.process,
        arguments.cluster,
        lambda: describe_latest(config.directory),
    )
    jax_settings.find_devices()
    is_primary = processes.is_primary()
    console = open_console(quiet=not is_primary)
    if arguments.plan:
        mesh = preflight.check_start(config, fall_back=arguments.fall_back)
        plan = make_plan(config, mesh, fall_back=arguments.fall_back, say=console.print)
        print_summary(plan, console.print, verbose=True)
        return 0
    try:
        outcome = loop.train(
            config,
            console,
            fall_back=arguments.fall_back,
            profile=arguments.profile,
            verbose=arguments.verbose,
        )
        if is_primary and outcome.reason == "interrupted":
            step = config.clock.describe(outcome.step)
            state = f"saved at {step}" if outcome.step else "nothing to save yet"
            console.print(f"interrupted, {state}. To resume: {_command(arguments)}")
        elif is_primary:
            _report(config, console, outcome)
            console.print(_next_command(arguments, config, outcome))
    except KeyboardInterrupt:
        print(f"\nended at once, without a save. To resume: {_command(arguments)}", flush=True)
        raise
    except Exception as error:
        if not processes.is_sign_of_loss(error):
            if is_primary and config.layer_steps and isinstance(error, RunError):
                _print_files(console, _draw_figures(config, read_records(config.directory)))
            raise
        raise lost_process_exit.make_error(error) from error
    return 0


def _report(config: Config, console: Console, outcome: Outcome) -> None:
    """Prints the losses and files of a stopped run, and draws its curves."""
    clock, run_dir = config.clock, storage_path(config.directory)
    rows = read_records(run_dir, console.print)
    evaluated = loss_table.evaluated_rows(rows)
    begin = [x for x in evaluated[:1] if x[0].step == 0]  # of a model that is continued
    doublings = [(row, losses) for row, losses in evaluated if clock.is_doubling(row.step)]
    runs = _runs_to_compare(config, rows)
    if evaluated and len(runs) == 1:
        console.print(loss_table.loss_table(clock, begin + (doublings or evaluated[-1:])))
    if table := loss_table.set_table(clock, runs):
        console.print(table)
    if table := loss_table.score_table(rows):
        console.print(table)
    reason = "the data are used up" if outcome.reason == "data" else "reached its stop"
    stop = config.stop_rule.after(outcome.step - 1, clock)
    if stop is not None and outcome.step > stop:
        reason = f"past config.stop = {config.stop!r}, so there is nothing to do"
    console.print(
        f"at {clock.describe(outcome.step)}: {reason}, after {format_duration(outcome.seconds)}"
    )
    files = _draw_figures(config, rows) | {"records": run_dir / "records"}
    if TENSORBOARD in dict(config.log.trackers) and can_append(run_dir):
        files["TensorBoard"] = run_dir / TENSORBOARD
    _print_files(console, files | {"checkpoints": run_dir / "checkpoints"})


def _print_files(console: Console, files: Mapping[str, Path]) -> None:
    for name, path in files.items():
        console.print(f"  {name:12} {path}")


def _runs_to_compare(config: Config, rows: Sequence[Row]) -> dict[str, Sequence[Row]]:
    """Returns the records of a run by its directory, of a branch after its trunk's up to that step.

    The trunk's are those with the same validation sets and weights as the branch's, and the losses
    that a branch on other data has before its first update.
    """
    own_dir, trunk_dir = config.directory, config.branch.from_run
    runs = {own_dir: rows}
    with contextlib.suppress(InputError, RunError):  # the trunk may be gone or replaced
        own, trunk = (run_json.read_run_file(storage_path(x)) for x in (own_dir, trunk_dir))
        if rows and own and own.branch and trunk and trunk.id == own.branch.run_id:
            step, start = rows[-1].step, own.branch.step
            known = [y for x in (own, trunk) if (y := x.evaluation_at(step))]
            is_same = len(known) == 2 and run_json.is_same_evaluation(known)
            others = [x for x in read_records(trunk_dir) if x.step <= step] if is_same else []
            begin = [x for x in rows if x.step == start]
            theirs = sorted([*begin, *others], key=lambda x: x.step)
            if loss_table.evaluated_rows(theirs):
                return {trunk_dir: theirs, **runs}
    return runs


def _next_command(
    arguments: argparse.Namespace,
    config: Config,
    outcome: Outcome,
) -> str:
    """Returns advice on continuing to the next doubling, within the schedule and the data."""
    clock, horizon = config.clock, config.horizon
    step = clock.next_doubling(outcome.step)
    # A whole number of steps may exceed it slightly.
    multiple = f"{2 ** round(math.log2(clock.multiple(step))):g}x"
    stop = None if config.stop_rule.doubles else multiple
    if horizon is not None and outcome.step >= horizon:
        run = config.branch.from_run or "a constant or inverse_sqrt run"
        return f"the schedule ends here; {run} can be continued"
    if horizon is not None and step >= horizon:
        return f"to continue to the end of the schedule: {_command(arguments, 'horizon')}"
    if not outcome.has_data_to(step):
        command = _command(arguments, stop, "--config.data.repeat=True")
        return f"the data end before {multiple}. To repeat them: {command}"
    return f"this run has no horizon. To continue to {multiple}: {_command(arguments, stop)}"


def _command(arguments: argparse.Namespace, stop: str | None = None, *more: str) -> str:
    """Returns the command line of this start, with another stop and more arguments."""
    if stop is not None:
        more = (*more, f"--config.stop={stop}")
    replaced = tuple(f"{word.partition('=')[0]}=" for word in more)
    words = [*(x for x in arguments.argv if not x.startswith(replaced)), *more]
    if processes.is_single():
        return f"{arguments.program} {shlex.join(words)}"
    values = ("--coordinator", "--processes", "--process")
    pairs = itertools.pairwise(["", *words])
    words = [x for before, x in pairs if not (_PROCESS_OPTION.match(x) or before in values)]
    return f"{arguments.program} {shlex.join(words)} (in every process, started as before)"


def _draw_figures(config: Config, rows: Sequence[Row]) -> dict[str, Path]:
    """Draws the figures for which there are records; returns them by name."""
    try:
        # Matplotlib takes half a second to import, which the first update need not wait.
        from anytime_jax.commands import layer_figure, loss_figure

        run_file = run_json.read_run_file(storage_path(config.directory))
        trunk = read_trunk(run_file.branch) if run_file else []
        draws = {"curves": loss_figure.draw, "layers": layer_figure.draw}
        paths = {x: draw(config.directory, config, rows, trunk) for x, draw in draws.items()}
        return {name: path for name, path in paths.items() if path is not None}
    except Exception as error:  # Matplotlib or the disk failed; how the run ended is known
        reason = f"{type(error).__name__}: {error}"
        print(f"the curves could not be drawn in {config.directory}: {reason}", flush=True)
        return {}
