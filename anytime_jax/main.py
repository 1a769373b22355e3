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

import contextlib
import errno
import itertools
import math
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from absl import app, flags, logging
from jax.sharding import Mesh

from anytime_jax import compilation, config, hosts, identity, preflight, sharding, train
from anytime_jax.checks import shown
from anytime_jax.command_line import complain, open_console
from anytime_jax.config_file import CONFIG, parse
from anytime_jax.data.dataset import RECORD_NAME, DatasetInfo, load_dataset
from anytime_jax.data.files import refuse_address
from anytime_jax.data.preparation import prepare_builtin
from anytime_jax.errors import InputError, RunError
from anytime_jax.progress import Display
from anytime_jax.records import read_records
from anytime_jax.study import curves
from anytime_jax.units import duration, human

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
    sys.exit(hosts.leave(run(argv)))


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
    settings = config.build(CONFIG.value.to_dict())
    compilation.set_up()
    hosts.start(_COORDINATOR.value, _PROCESSES.value, _PROCESS.value, _CLUSTER.value)
    display = Display(settings.clock, open_console(quiet=not hosts.is_first()))
    with hosts.together():
        _check_paths(settings)
        mesh = _mesh(settings)
        prepared = _prepare(settings, mesh, display) if hosts.is_first() else None
    with hosts.together():
        dataset = prepared or _load(settings)
        preflight.check_data(settings, dataset)
    began = time.monotonic()
    with _interruptible() as interrupted:
        outcome = train.train(settings, mesh, dataset, display, interrupted, _FALL_BACK.value)
    if hosts.is_first():
        _report(settings, dataset, display, outcome, time.monotonic() - began)
    return 0


def _mesh(settings: config.Config) -> Mesh:
    """The device mesh, which fits the configuration."""
    with _named("config.mesh"):
        mesh = sharding.make_mesh(settings.mesh)
    shards, tensor = sharding.batch_shards(mesh), mesh.shape["tensor"]
    platform = mesh.devices.flat[0].platform
    there = sharding.has_host_memory(mesh)
    config.check_layout(settings, mesh.size, shards, tensor, platform, there)
    with _named("config.mesh"):
        sharding.local_rows(mesh, settings.batch_size)
    return mesh


def _check_paths(settings: config.Config) -> None:
    """Checks that nothing else is where directories are wanted."""
    for name, path in (("run_dir", settings.run_dir), ("data.path", settings.data.path)):
        with _named(f"config.{name}"):
            refuse_address(path)
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is a file")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(
                f"config.{name} = {shown(path)} cannot be a directory ({error.strerror}): choose "
                "another"
            ) from error


def _load(settings: config.Config) -> DatasetInfo:
    """The prepared dataset."""
    data = settings.data
    hint = (
        "prepare it: python -m anytime_jax.prepare --source=json "
        "--input='c4/en/c4-train.*.json.gz' "
        "--validation-input='c4/en/c4-validation.*.json.gz' --vocabulary=t5.model "
        f"--length={settings.model.length} --output={shlex.quote(data.path)} (see docs/data.md)"
    )
    if data.builtin_megabytes and not hosts.is_first():
        hosts.see((Path(data.path) / RECORD_NAME).exists)
    with _named("config.branch.data" if settings.branch.data else "config.data.path"):
        return _of_that_size(load_dataset(data.path, hint), data.builtin_megabytes)


def _prepare(settings: config.Config, mesh: Mesh, display: Display) -> DatasetInfo | None:
    """Prepares the built-in corpus where the configuration says so and it is not there yet."""
    data, model = settings.data, settings.model
    if not data.builtin_megabytes or (Path(data.path) / RECORD_NAME).exists():
        return None
    _check_without_data(settings, mesh)
    display.say(f"preparing the built-in corpus at {data.path} (once) ...")
    began = time.monotonic()
    with _named("config.data"):
        dataset = prepare_builtin(
            data.path,
            length=model.length,
            vocab_size=model.vocab_size,
            megabytes=data.builtin_megabytes,
        )
    seconds = duration(time.monotonic() - began)
    tokens = human(dataset.splits["train"].tokens)
    display.say(f"prepared {tokens} tokens of Python source text in {seconds}")
    return dataset


def _check_without_data(settings: config.Config, mesh: Mesh) -> None:
    """Checks what needs no data, before a minute goes into preparing them."""
    run_dir = Path(settings.run_dir)
    if not (run_dir / identity.FILE).exists():
        identity.check(run_dir, {})
    preflight.checked_program(settings, mesh)


@contextlib.contextmanager
def _named(setting: str) -> Iterator[None]:
    """Turns a ValueError raised inside into an InputError that names a setting."""
    try:
        yield
    except ValueError as error:
        named = str(error).startswith("config.")
        raise InputError(str(error) if named else f"{setting}: {error}") from error


def _of_that_size(dataset: DatasetInfo, megabytes: float) -> DatasetInfo:
    """Refuses a built-in corpus that was prepared in another size than the one asked for."""
    held = dataset.settings.get("megabytes")
    if megabytes and held is not None and held != megabytes:
        raise InputError(
            f"config.data.builtin_megabytes = {megabytes:g}, but {dataset.path} holds {held:g}: "
            "ask for that, or give another config.data.path"
        )
    return dataset


def _report(
    settings: config.Config,
    dataset: DatasetInfo,
    display: Display,
    outcome: train.Outcome,
    seconds: float,
) -> None:
    """Ends a start of the run: the table, the picture, and what to do next."""
    clock, run_dir = settings.clock, Path(settings.run_dir)
    where = clock.describe(outcome.step)
    if outcome.reason == "interrupted":
        state = f"saved at {where}" if outcome.step else "nothing to save yet"
        display.say(f"interrupted, {state}. To go on: {_command()}")
        return
    rows = curves.eval_losses(read_records(run_dir, display.say))
    doublings = [(row, losses) for row, losses in rows if clock.is_doubling(row.step)]
    if doublings or rows:
        display.console.print(curves.table(clock, doublings or rows[-1:]))
    from anytime_jax.study import picture  # half a second: not before the first update

    drawn = picture.draw(run_dir, f"{settings.name}: validation loss, live weights and averages")
    why = "the data are used up" if outcome.reason == "data" else "its stop"
    display.say(f"at {where}: {why}, after {duration(seconds)}")
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
    settings: config.Config, dataset: DatasetInfo, display: Display, outcome: train.Outcome
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


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turns the first SIGINT or SIGTERM into a request to save and end; a second SIGINT kills."""
    if not hosts.is_alone():
        yield hosts.Preempted()
        return
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        del frame
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)
        os.write(1, b"\nfinishing this update, then saving ...\n")  # print may be interrupted

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _command(stop: str | None = None, *more: str) -> str:
    """The line that runs this again, to another stop if one is given, with more arguments."""
    arguments = [*sys.argv[1:], *more]
    if stop is not None:
        kept = [given for given in arguments if not given.startswith("--config.stop=")]
        arguments = [*kept, f"--config.stop={stop}"]
    here = os.path.relpath(sys.executable)
    python = "python" if here.startswith("..") else here
    if not hosts.is_alone():
        pairs = itertools.pairwise(["", *arguments])
        arguments = [
            x for before, x in pairs if not (_PLACE.match(x) or _PLACE_APART.match(before))
        ]
    line = shlex.join([python, "-m", "anytime_jax.main", *arguments])
    return line if hosts.is_alone() else f"{line} (in every process, started as before)"


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
