"""Changed settings through the door of `python -m anytime_jax.main`, without training.

In place of the training loop stands a probe that traces the run's programs on shapes alone, which
proves that they can be compiled without compiling them.

A process for each would take two seconds to import what it needs. So one process imports it, and
forks a child for every command line before JAX has opened any device.
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
from collections.abc import Callable

import jax
import jax.monitoring
import jax.numpy as jnp
import small_run  # noqa: F401  (what the configuration files import)
from forked_starts import leaving

from anytime_jax.commands import dispatch, train  # noqa: F401
from anytime_jax.data import dataset
from anytime_jax.data.dataset import DatasetInfo
from anytime_jax.data.windows import Windows
from anytime_jax.distributed.sharding import local_rows
from anytime_jax.errors import RunError
from anytime_jax.training import startup, trainer
from configs import quickstart  # noqa: F401

HELPERS = pathlib.Path(__file__).resolve().parent
MEMORY = 6 << 30  # bytes that a child may take: shapes need none of it
STANDS_IN = -1  # documents of a dataset that is not there


class Ugly:
    """Something that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("unspeakable")


@dataclasses.dataclass(frozen=True)
class Change:
    """What is done to a run's settings.

    Attributes:
      base: "tiny" or "quickstart".
      edits: of the file: each a dotted name and Python source, or None to leave the setting out.
      flags: arguments after `--config=...`.
      keeps_types: whether the file sets them as most do: then `ConfigDict` compares types.
    """

    base: str
    edits: tuple[tuple[str, str | None], ...] = ()
    flags: tuple[str, ...] = ()
    keeps_types: bool = False

    def file(self, data: dict[str, str]) -> str:
        """The configuration file."""
        given = {
            "tiny": f"small_run.settings('run', {data['tiny']!r})",
            "quickstart": "quickstart.get_config()",
        }[self.base]
        lines = [f"    given = {given}", "    given.run_dir = 'run'"]
        lines += [f"    given.data.path = {data[self.base]!r}"]
        loose = "given.unlocked()" if self.keeps_types else "given.ignore_type(), given.unlocked()"
        lines += [f"    with {loose}:"]
        for name, value in self.edits:
            *groups, last = name.split(".")
            place = "given" + "".join(f"[{key!r}]" for key in groups)
            if value is None:
                lines += [f"        del {place}[{last!r}]"]
            else:
                lines += [f"        {place}[{last!r}] = {value}"]
        head = [
            "import math",
            "import sys",
            "import numpy as np",
            "from ml_collections import ConfigDict, config_dict",
            f"sys.path.insert(0, {str(HELPERS)!r})",
            "import small_run",
            "from settings_attacks import Ugly",
            "from configs import quickstart",
            "",
            "def get_config():",
        ]
        return "\n".join([*head, *lines, "        pass", "    return given", ""])

    @property
    def names(self) -> set[str]:
        """The settings that are changed."""
        found = {name for name, _ in self.edits}
        return found | {flag[9:].split("=")[0] for flag in self.flags}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of it.

    Attributes:
      status: the exit status; negative for a signal.
      out: what it printed.
      err: what it complained of.
      valid: whether the training loop would have begun.
      prepared: whether text would have been prepared.
      compiled: programs compiled.
      left: whether it left anything on disk.
      seconds: to the answer, of the clock, after the imports.
      cpu_seconds: the same of the processor.
    """

    status: int
    out: str
    err: str
    valid: bool
    prepared: bool
    compiled: int
    left: bool
    seconds: float
    cpu_seconds: float


# The process behind the door


def serve() -> None:
    """Answers command lines: what `Door` starts."""
    print(json.dumps(time.process_time()), flush=True)
    for line in sys.stdin:
        folder, argv, data = json.loads(line)
        child = os.fork()
        if not child:
            _answer(pathlib.Path(folder), argv, data)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


def _answer(folder: pathlib.Path, argv: list[str], data: dict[str, str]) -> None:
    """In the child: goes through the door, and writes down what came of it."""
    signal.alarm(60)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    os.chdir(folder / "here")
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o600), stream)
    report = {"valid": False, "prepared": False, "compiled": 0}
    began, began_cpu = time.monotonic(), time.process_time()

    def answered() -> None:
        report.setdefault("seconds", time.monotonic() - began)
        report.setdefault("cpu_seconds", time.process_time() - began_cpu)

    _stand_in(report, answered, data)

    def report_it() -> None:
        answered()
        (folder / "report").write_text(json.dumps(report))

    with leaving(report_it):
        sys.exit(dispatch.run("train", "python -m anytime_jax.main", argv))


def _stand_in(report: dict, answered: Callable[[], None], data: dict[str, str]) -> None:
    """Puts stand-ins in the place of what would prepare text, compile and train."""

    def count(event, duration, **unused):
        report["compiled"] += event == "/jax/core/compile/backend_compile_duration"

    class Probe:
        def __init__(self, config, mesh, dataset, display, program, *unused):
            self.config, self.mesh, self.dataset, self.program = config, mesh, dataset, program
            self.given = config, mesh, dataset, program

        def take_state(self):
            return None

        def asks(self, interrupted):
            answered()
            name = self.given[0].name
            if name == "breaks":
                raise RunError("it broke")
            if name == "fault":
                raise KeyError(name)
            _trace(*self.given)
            report["valid"] = True
            return trainer.Outcome(0, "interrupted")
            yield

    def prepare_builtin(path, *, length, vocab_size, megabytes):
        report["prepared"] = True
        return _dataset(data["tiny"], path, length, vocab_size, megabytes)

    def load_dataset(path, hint):
        if path == data["quickstart"]:
            return _dataset(data["tiny"], path, 128, 1024, 70.0)
        return dataset.load_dataset(path, hint)

    jax.monitoring.register_event_duration_secs_listener(count)
    trainer.Run = Probe
    startup.prepare_builtin, startup.load_dataset = prepare_builtin, load_dataset


def _trace(config, mesh, data, program) -> None:
    """Traces all that a run would compile, and reads its first batch if there are data."""
    length = config.model.length
    state = program.abstract_state
    program.init.trace()
    tokens = [jax.ShapeDtypeStruct((size, length + 1), jnp.int32)
              for size in (config.batch_size, config.eval.batch_size)]  # fmt: skip
    weights = jax.ShapeDtypeStruct((config.eval.batch_size,), jnp.float32)
    jax.eval_shape(program.train_step, state, tokens[0])
    program.eval_step.trace(state.params, tokens[1], weights)
    rows = local_rows(mesh, config.batch_size)
    if data.splits["train"].documents != STANDS_IN and config.batch_size < 10_000:
        kinds = {"seed": config.data.seed, "repeat": config.data.repeat}
        Windows(data, "train", length=length, **kinds).batch(0, config.batch_size, rows)


def _dataset(like: str, path: str, length: int, vocab_size: int, megabytes: float) -> DatasetInfo:
    """What a preparation would give, without any data."""
    it = dataset.load_dataset(like)
    tokens = int(megabytes * 300_000)
    splits = {
        name: dataclasses.replace(
            it.splits[name],
            documents=STANDS_IN,
            tokens=tokens // part,
            windows=tokens // part // length,
        )
        for name, part in (("train", 1), ("validation", 20))
    }
    return dataclasses.replace(
        it,
        path=pathlib.Path(path),
        length=length,
        vocab_size=vocab_size,
        splits=splits,
        settings={"megabytes": megabytes},
    )


class Door:
    """Takes changed settings to `python -m anytime_jax.main`."""

    def __init__(self, folder: pathlib.Path, tiny_data: pathlib.Path):
        """Starts the process behind the door."""
        self._folder, self._count = folder, 0
        self.data = {"tiny": str(tiny_data), "quickstart": str(folder / "quickstart")}
        (folder / "quickstart").mkdir()
        (folder / "quickstart" / dataset.METADATA_NAME).touch()  # the child knows it by its path
        changes = {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "PYTHONPATH": f"{HELPERS.parents[1]}:{HELPERS}",
            "PYTHONWARNINGS": "ignore::RuntimeWarning",  # forking is what this is about
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import settings_attacks; settings_attacks.serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=folder, env=os.environ | changes,
        )  # fmt: skip
        self.import_seconds = float(self._process.stdout.readline())

    def ask(self, change: Change) -> Answer:
        """Goes through the door with changed settings."""
        self._count += 1
        folder = self._folder / str(self._count)
        (folder / "here" / "full").mkdir(parents=True)
        (folder / "here" / "full" / "notes.txt").write_text("mine")
        (folder / "here" / "file").write_text("mine")
        file = folder / "config.py"
        file.write_text(change.file(self.data), "utf-8")
        before = _tree(folder / "here")
        argv = [f"--config={file}", *change.flags]
        self._process.stdin.write(json.dumps([str(folder), argv, self.data]) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        report = folder / "report"
        blank = {"valid": False, "prepared": False, "compiled": -1}
        blank |= {"seconds": math.inf, "cpu_seconds": math.inf}
        return Answer(
            status,
            *((folder / name).read_text() for name in ("out", "err")),
            left=_tree(folder / "here") != before,
            **(json.loads(report.read_text()) if report.exists() else blank),
        )

    def close(self) -> None:
        """Ends the process behind the door."""
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


def _tree(folder: pathlib.Path) -> dict[str, bytes]:
    files = {str(p): p for p in folder.rglob("*")}
    return {name: p.read_bytes() if p.is_file() else b"" for name, p in files.items()}
