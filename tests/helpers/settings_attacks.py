"""Starts of the training command with changed settings, which end where the training would start.

A probe replaces training: it traces the run's programs on shapes alone, which shows that they can
be compiled without compiling them. One process imports everything, and forks a child for every
command line before JAX has opened any device; a new process for each would take seconds.
"""

import dataclasses
import json
import math
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import jax
import jax.monitoring
import jax.numpy as jnp
import small_run  # noqa: F401  (imported by the configuration files)
from forked_starts import exiting

from anytime_jax.commands import command_line, train  # noqa: F401
from anytime_jax.data import dataset
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed.sharding import local_rows
from anytime_jax.training import startup, trainer
from configs import quickstart  # noqa: F401

HELPERS = pathlib.Path(__file__).resolve().parent
MEMORY_LIMIT = 6 << 30  # bytes available to a child: tracing shapes needs none of them
NO_FILES = -1  # documents of a dataset without files

CONFIG_FILE = """\
import math
import sys
import numpy as np
from ml_collections import ConfigDict, config_dict
sys.path.insert(0, {helpers!r})
import small_run
from settings_attacks import Unprintable
from configs import quickstart

def get_config():
    config = {base}
    config.run_dir = 'run'
    config.data.path = {data!r}
    with {unlocked}:
        {edits}
    return config
"""
BASES = {"tiny": "small_run.settings('run', 'data')", "quickstart": "quickstart.get_config()"}


class Unprintable:
    """An object whose `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of a run's settings.

    Attributes:
      base: "tiny" or "quickstart".
      edits: changes of the file: Python source by dotted name, or None to omit the setting.
      overrides: arguments after `--config=FILE`.
      typed: whether `ConfigDict` checks types, as it does in most files.
    """

    base: str
    edits: tuple[tuple[str, str | None], ...] = ()
    overrides: tuple[str, ...] = ()
    typed: bool = False

    def file(self, data: dict[str, str]) -> str:
        """Returns the text of the configuration file."""
        lines = ["pass"]
        for name, value in self.edits:
            path = "config" + "".join(f"[{key!r}]" for key in name.split("."))
            lines.append(f"del {path}" if value is None else f"{path} = {value}")
        return CONFIG_FILE.format(
            helpers=str(HELPERS),
            base=BASES[self.base],
            data=data[self.base],
            unlocked="config.unlocked()"
            if self.typed
            else "config.ignore_type(), config.unlocked()",
            edits="\n        ".join(lines),
        )

    @property
    def names(self) -> set[str]:
        """The changed settings."""
        overridden = {x.removeprefix("--config.").split("=")[0] for x in self.overrides}
        return overridden | {name for name, _ in self.edits}


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a start.

    Attributes:
      status: exit status; negative for a signal.
      trains: whether the training would have started.
      prepares: whether text would have been prepared.
      compiled: number of programs compiled.
      wrote: whether the start left anything on disk.
      cpu_seconds: processor time after the imports, without that of the probe.
    """

    status: int
    out: str
    err: str
    trains: bool = False
    prepares: bool = False
    compiled: int = -1
    wrote: bool = False
    cpu_seconds: float = math.inf


# The child process


def serve() -> None:
    """Starts a child for every line of standard input, and prints its exit status."""
    print(time.process_time(), flush=True)
    for line in sys.stdin:
        folder, argv, data = json.loads(line)
        child = os.fork()
        if not child:
            _start(pathlib.Path(folder), argv, data)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _start(folder: pathlib.Path, argv: list[str], data: dict[str, str]) -> None:
    signal.alarm(60)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    os.chdir(folder / "work")
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o600), stream)
    report = {"trains": False, "prepares": False, "compiled": 0}
    started = time.process_time()

    def stop_clock() -> None:
        report.setdefault("cpu_seconds", time.process_time() - started)

    def write_report() -> None:
        stop_clock()
        (folder / "report").write_text(json.dumps(report))

    _replace_training(report, stop_clock, data)
    with exiting(write_report):
        sys.exit(command_line.start("train", "python -m anytime_jax.main", argv))


def _replace_training(report: dict, stop_clock, data: dict[str, str]) -> None:
    """Replaces the functions that prepare text, compile and train."""

    def count(event, duration, **unused):
        report["compiled"] += event == "/jax/core/compile/backend_compile_duration"

    class Probe(trainer.TrainingRun):
        def _restore_or_init(self, *unused):
            stop_clock()
            _trace(self.config, self._mesh, self._dataset, self.program)
            report["trains"] = True
            sys.exit(0)

    def prepare(source, path, *, length, vocabulary):
        report["prepares"] = True
        return _dataset(data["tiny"], path, length, vocabulary, source.megabytes)

    def load_dataset(path, hint):
        if path == data["quickstart"]:
            return _dataset(data["tiny"], path, 128, 1024, 70.0)
        return dataset.load_dataset(path, hint)

    jax.monitoring.register_event_duration_secs_listener(count)
    trainer.TrainingRun = Probe
    startup.prepare, startup.load_dataset = prepare, load_dataset


def _trace(config, mesh, data, program) -> None:
    """Traces all that a run would compile, and reads its first batch if the dataset has files."""
    length = config.model.length
    state = program.abstract_state
    train_tokens, eval_tokens = (
        jax.ShapeDtypeStruct((size, length + 1), jnp.int32)
        for size in (config.batch_size, config.eval.batch_size)
    )
    weights = jax.ShapeDtypeStruct((config.eval.batch_size,), jnp.float32)
    program.init.trace()
    jax.eval_shape(program.train_step, state, train_tokens)
    program.eval_step.trace(state.params, eval_tokens, weights)
    if data.splits["train"].documents != NO_FILES and config.batch_size < 10_000:
        order = {"seed": config.data.seed, "repeat": config.data.repeat}
        windows = Windows(data, "train", length=length, **order)
        windows.batch(0, config.batch_size, local_rows(mesh, config.batch_size))


def _dataset(like: str, path: str, length: int, vocab_size: int, megabytes: float) -> DatasetInfo:
    """Returns the metadata of a prepared built-in corpus, without its files."""
    info = dataset.load_dataset(like)
    tokens = int(megabytes * 300_000)
    splits = {
        name: dataclasses.replace(
            info.splits[name],
            documents=NO_FILES,
            tokens=tokens // part,
            windows=tokens // part // length,
        )
        for name, part in (("train", 1), ("validation", 20))
    }
    return dataclasses.replace(
        info,
        path=pathlib.Path(path),
        length=length,
        vocab_size=vocab_size,
        splits=splits,
        settings={"megabytes": megabytes},
    )


# The test's side


class Starter:
    """A process that starts the training command with changed settings."""

    def __init__(self, folder: pathlib.Path, tiny_data: pathlib.Path):
        """Starts the process."""
        self._folder, self._count = folder, 0
        self.data = {"tiny": str(tiny_data), "quickstart": str(folder / "quickstart")}
        (folder / "quickstart").mkdir()
        (folder / "quickstart" / dataset.METADATA_NAME).touch()
        environment = {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "PYTHONPATH": f"{HELPERS.parents[1]}:{HELPERS}",
            "PYTHONWARNINGS": "ignore::RuntimeWarning",  # of a fork with threads
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import settings_attacks; settings_attacks.serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=folder, env=os.environ | environment,
        )  # fmt: skip
        self.import_seconds = float(self._process.stdout.readline())

    def start(self, change: Change) -> Result:
        """Starts the command with changed settings, in its own directory."""
        self._count += 1
        folder = self._folder / str(self._count)
        work, config = folder / "work", folder / "config.py"
        (work / "full").mkdir(parents=True)
        (work / "full" / "notes.txt").write_text("mine")
        (work / "file").write_text("mine")
        config.write_text(change.file(self.data), "utf-8")
        before = _contents(work)
        argv = [f"--config={config}", *change.overrides]
        self._process.stdin.write(json.dumps([str(folder), argv, self.data]) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        out, err = ((folder / name).read_text() for name in ("out", "err"))
        report = folder / "report"
        reported = json.loads(report.read_text()) if report.exists() else {}
        return Result(status, out, err, wrote=_contents(work) != before, **reported)

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}
