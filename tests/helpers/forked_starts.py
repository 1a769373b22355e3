"""Starts of `python -m anytime_jax.main`, each a process of its own, without the price of imports.

Run as a program, this is the parent: it has imported everything and opened no device, and forks a
child for every line on its standard input. `Starts` is what tests use. A child can be told to kill
itself at a moment that no clock would hit: `MOMENTS`.
"""

import contextlib
import dataclasses
import json
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

HELPERS = pathlib.Path(__file__).resolve().parent
REPOSITORY = HELPERS.parents[1]

# Four times faster than XLA compiles by itself, since tests compile much and run little: without
# LLVM's optimisation, with the older emitters of loops, and one module a program. The arithmetic is
# the same but for fused multiply-adds. An XLA without the extra option passes over it.
COMPILED_QUICKLY = (
    "--xla_backend_optimization_level=0"
    " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    " --xla_cpu_parallel_codegen_split_count=1"
)

# What a process was doing, as one byte of a file that outlives it.
PHASES = ("starting", "preparing", "updating", "saving", "evaluating")
# Where a process kills itself: (what it waits for, how often it lets that pass).
MOMENTS = ("update", "save", "evaluation", "preparation")


def environment(folder: pathlib.Path) -> dict[str, str]:
    """What a process of `anytime_jax.main` finds around it; what it compiles goes to a folder."""
    changes = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": COMPILED_QUICKLY,
        "PYTHONPATH": f"{REPOSITORY}:{HELPERS}",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONUNBUFFERED": "1",
    }
    return os.environ | changes


@contextlib.contextmanager
def leaving(last: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Leaves this process, a forked child, with the exit status of what runs inside.

    Args:
      last: called before it goes.
    """
    status = 0
    try:
        yield
    except SystemExit as left:
        status = left.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        last()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@dataclasses.dataclass
class Start:
    """One start of a run, in a process that is already there."""

    pid: int
    number: int
    folder: pathlib.Path
    starts: "Starts"

    @property
    def phase(self) -> str:
        """What it was last doing."""
        return PHASES[(self.folder / f"{self.number}.phase").read_bytes()[0]]

    @property
    def said(self) -> str:
        """Its standard output and error, or its output alone where they are apart."""
        return (self.folder / f"{self.number}.log").read_text()

    @property
    def complained(self) -> str:
        """Its standard error, where that is apart."""
        return (self.folder / f"{self.number}.err").read_text()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.starts.has_ended(self.number)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kills it, or sends it another signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = 120) -> int:
        """Waits for its end and returns its exit status, negative for a signal."""
        return self.starts.wait(self.number, seconds)


class Starts:
    """A parent process that starts runs."""

    def __init__(self, folder: pathlib.Path):
        """Starts the parent in a folder, where logs go."""
        self._folder = folder
        self._parent = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=folder, env=environment(folder),
        )  # fmt: skip
        self._ended: dict[int, int] = {}
        self._begun: dict[int, int] = {}
        self._count = 0
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def begin(
        self,
        *argv: str,
        moment: str = "",
        passes: int = 0,
        folder: str | pathlib.Path = ".",
        apart: bool = False,
    ) -> Start:
        """Starts `python -m anytime_jax.main ARGV`.

        Args:
          argv: its arguments; where a moment is given, first --config=FILE, beside which lie its
            run and data.
          moment: one of MOMENTS at which it kills itself.
          passes: how often it lets that moment pass.
          folder: where it works.
          apart: whether to keep its standard error by itself.
        """
        self._count += 1
        number = self._count
        (self._folder / f"{number}.phase").write_bytes(b"\0")
        (self._folder / f"{number}.log").touch()
        order = {"number": number, "argv": argv, "moment": moment, "passes": passes}
        order |= {"folder": str(folder), "apart": apart}
        print(json.dumps(order), file=self._parent.stdin, flush=True)
        with self._news:
            assert self._news.wait_for(lambda: number in self._begun, 60)
        return Start(self._begun[number], number, self._folder, self)

    def wait(self, number: int, seconds: float) -> int:
        """Waits for a start's end; returns its exit status."""
        with self._news:
            assert self._news.wait_for(lambda: number in self._ended, seconds), "it never ended"
        return self._ended[number]

    def has_ended(self, number: int) -> bool:
        """Whether a start has ended."""
        with self._news:
            return number in self._ended

    def close(self) -> None:
        """Ends the parent, and what a test that failed has left running."""
        for number in self._begun.keys() - self._ended.keys():
            os.kill(self._begun[number], signal.SIGKILL)
        self._parent.stdin.close()
        self._parent.wait(60)
        self._parent.stdout.close()

    def _listen(self) -> None:
        for line in self._parent.stdout:
            what, number, value = line.split()
            with self._news:
                (self._begun if what == "begun" else self._ended)[int(number)] = int(value)
                self._news.notify_all()


def serve() -> None:
    """The parent: forks a child for every order, and says when it began and how it ended."""
    import warnings

    from anytime_jax.commands import train  # noqa: F401

    warnings.simplefilter("ignore")  # forking while JAX has threads is what this is about

    def reap(number: int, child: int) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("ended", number, status, flush=True)

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _run(order)
        print("begun", order["number"], child, flush=True)
        threading.Thread(target=reap, args=(order["number"], child)).start()


def _run(order: dict) -> None:
    """The child: the command line, watched."""
    from anytime_jax.commands import dispatch

    number = order["number"]
    log = os.open(f"{number}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    if order["apart"]:
        log = os.open(f"{number}.err", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    with leaving():
        _watch(f"{number}.phase", order["argv"], order["moment"], order["passes"])
        os.chdir(order["folder"])
        sys.exit(dispatch.run("train", "python -m anytime_jax.main", order["argv"]))


def _watch(file: str, argv: list[str], moment: str, passes: int) -> None:
    """Writes down what the process does, and kills it at the moment asked for."""
    from anytime_jax.checkpoints.manager import CheckpointManager
    from anytime_jax.training import preflight, startup
    from anytime_jax.training.evaluator import Evaluator

    with open(file, "r+b") as opened:
        byte = mmap.mmap(opened.fileno(), 1)
    seen = {"count": 0}

    def met() -> None:
        seen["count"] += 1
        if seen["count"] > passes:
            os.kill(os.getpid(), signal.SIGKILL)

    def phase(name, function):
        def wrapped(*args, **keywords):
            before = byte[0]
            byte[0] = PHASES.index(name)
            try:
                return function(*args, **keywords)
            finally:
                byte[0] = before

        return wrapped

    def make_program(config, mesh, make=preflight.make_program):
        program = make(config, mesh)

        def train_step(state, tokens, update_averages=True):
            byte[0] = PHASES.index("updating")  # and so until the next save or evaluation
            made = program.train_step(state, tokens, update_averages)
            if moment == "update":
                met()  # the update is under way on the device
            return made

        def eval_step(params, tokens, weights):
            if moment == "evaluation":
                met()
            return program.eval_step(params, tokens, weights)

        return dataclasses.replace(program, train_step=train_step, eval_step=eval_step)

    preflight.make_program = make_program
    startup.prepare_builtin = phase("preparing", startup.prepare_builtin)
    CheckpointManager.save = phase("saving", CheckpointManager.save)
    Evaluator.losses = phase("evaluating", Evaluator.losses)
    if moment in ("save", "preparation"):
        pattern = "**/*.orbax-checkpoint-tmp" if moment == "save" else "**/.preparing/tokens/*"
        folder = pathlib.Path(argv[0].removeprefix("--config=")).parent
        threading.Thread(target=_look_for, args=(folder, pattern, met), daemon=True).start()


def _look_for(folder: pathlib.Path, pattern: str, met) -> None:
    """Calls `met` for every file of a pattern, as soon as it is there."""
    there = set(folder.glob(pattern))
    while True:
        with contextlib.suppress(FileNotFoundError):  # what is looked through comes and goes
            for path in set(folder.glob(pattern)) - there:
                there.add(path)
                met()
        time.sleep(0.001)


if __name__ == "__main__":
    serve()
