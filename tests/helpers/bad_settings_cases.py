"""Starts of the training command with changed settings, which end where the training would start.

A probe replaces training: it traces the run's programs on shapes alone, which shows that they can
be compiled without compiling them.
"""

import dataclasses
import json
import math
import pathlib
import resource
import signal
import sys
import time
from collections.abc import Callable

import jax
import jax.monitoring
import jax.numpy as jnp
import small_run  # noqa: F401  (imported by the configuration files)
from forked_starts import Starts
from paths import HELPERS

from anytime_jax.data import dataset_info
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed.sharding import local_rows
from anytime_jax.training import run_data, step
from anytime_jax.training import start as start_lib
from anytime_jax.training.evaluator import Evaluator
from configs import quickstart  # noqa: F401

MEMORY_LIMIT = 6 << 30  # bytes available to a child: tracing shapes needs none of them
NO_FILES = -1  # documents of a dataset without files

CONFIG_FILE = """\
import math
import sys
import numpy as np
from ml_collections import ConfigDict, config_dict
sys.path.insert(0, {helpers!r})
import small_run
from bad_settings_cases import Unprintable
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
        unlocked = "config.unlocked()" if self.typed else "config.ignore_type(), config.unlocked()"
        values = {"base": BASES[self.base], "data": data[self.base], "unlocked": unlocked}
        edits = "\n        ".join(lines)
        return CONFIG_FILE.format(helpers=str(HELPERS), edits=edits, **values)

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


def replace_training(report_file: str, data: dict[str, str]) -> Callable[[], None]:
    """Replaces the functions that prepare text, compile and train; returns what writes a report."""
    signal.alarm(60)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    report = {"trains": False, "prepares": False, "compiled": 0}

    def stop_clock() -> None:
        report.setdefault("cpu_seconds", time.process_time())

    def write_report() -> None:
        stop_clock()
        pathlib.Path(report_file).write_text(json.dumps(report))

    def count(event, duration, **unused):
        report["compiled"] += event == "/jax/core/compile/backend_compile_duration"

    def print_summary(plan, evaluator, say, show=start_lib.print_summary):
        Evaluator.count_documents = lambda self: 1  # the datasets have no tokens to read
        show(plan, evaluator, say)
        stop_clock()
        _trace(plan.config, plan.mesh, plan.dataset, plan.program)
        report["trains"] = True
        sys.exit(0)

    def prepare(source, path, *, vocabulary):
        report["prepares"] = True
        return _dataset(data["tiny"], path, vocabulary, source.megabytes)

    def load_dataset(path, hint):
        if path == data["quickstart"]:
            return _dataset(data["tiny"], path, 1024, 65.0)
        return dataset_info.load_dataset(path, hint)

    jax.monitoring.register_event_duration_secs_listener(count)
    start_lib.print_summary = print_summary
    run_data.prepare, run_data.load_dataset = prepare, load_dataset
    return write_report


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
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    jax.eval_shape(program.train_step, state, train_tokens, step.Rates(rate, rate))
    program.eval_step.trace(state.params, eval_tokens, weights)
    if data.splits["train"].documents != NO_FILES and config.batch_size < 10_000:
        order = {"seed": config.data.seed, "repeat": config.data.repeat}
        windows = Windows(data, "train", length=length, **order)
        windows.batch(0, config.batch_size, local_rows(mesh, config.batch_size))


def _dataset(like: str, path: str, vocab_size: int, megabytes: float) -> DatasetInfo:
    """Returns the metadata of a prepared built-in corpus, without its files."""
    info = dataset_info.load_dataset(like)
    tokens = int(megabytes * 300_000)
    splits = {
        name: dataset_info.SplitInfo(NO_FILES, tokens // part)
        for name, part in (("train", 1), ("validation", 20))
    }
    size = {"vocab_size": vocab_size, "settings": {"megabytes": megabytes}}
    return dataclasses.replace(info, path=pathlib.Path(path), splits=splits, **size)


# The test's side


class Starter:
    """Starts of the training command with changed settings."""

    def __init__(self, folder: pathlib.Path, tiny_data: pathlib.Path):
        """Starts the parent process of all starts."""
        self._folder, self._count = folder, 0
        self.data = {"tiny": str(tiny_data), "quickstart": str(folder / "quickstart")}
        (folder / "quickstart").mkdir()
        (folder / "quickstart" / dataset_info.METADATA_NAME).touch()
        self._starts = Starts(folder, devices=8, preload="bad_settings_cases")
        self.close = self._starts.close

    def start(self, change: Change) -> Result:
        """Starts the command with changed settings, in its own directory."""
        self._count += 1
        folder = self._folder / f"start-{self._count}"
        work, config, report = folder / "work", folder / "config.py", folder / "report"
        (work / "full").mkdir(parents=True)
        (work / "full" / "notes.txt").write_text("mine")
        (work / "file").write_text("mine")
        config.write_text(change.file(self.data), "utf-8")
        before = _contents(work)
        probe = ("bad_settings_cases", "replace_training", str(report), self.data)
        argv = (f"--config={config}", *change.overrides)
        start = self._starts.launch(*argv, folder=work, separate_errors=True, probe=probe)
        status = start.wait()
        reported = json.loads(report.read_text()) if report.exists() else {}
        wrote = _contents(work) != before
        return Result(status, start.output, start.errors, wrote=wrote, **reported)


def _contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}
