"""Processes of our commands, forked from one parent to import modules only once.

Run as a program, this is the parent: it imports everything, opens no device, and forks a child for
every line of its standard input. Tests use `Starts`. A child can kill itself at one of `MOMENTS`,
which are too short to hit with a timer.
"""

import contextlib
import dataclasses
import importlib
import itertools
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
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import compiled_programs
from paths import HELPERS, REPOSITORY

# Compiles four times faster, since tests compile much and run little: without LLVM's optimization,
# with the older emitters of loops, and one module a program. The arithmetic is the same but for
# fused multiply-adds. An XLA without the extra option ignores it.
COMPILED_QUICKLY = (
    "--xla_backend_optimization_level=0"
    " --xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    " --xla_cpu_parallel_codegen_split_count=1"
)

# The phase of a process, as one byte of a file that outlives it.
PHASES = ("starting", "preparing", "updating", "saving", "evaluating")
# Moments at which a process can kill itself.
MOMENTS = ("update", "save", "evaluation", "preparation")


def environment(devices: int = 1) -> dict[str, str]:
    """Returns variables of a process with fake devices and the cached programs of the tests."""
    flags = f"--xla_force_host_platform_device_count={devices} {COMPILED_QUICKLY}"
    changes = {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{REPOSITORY}:{HELPERS}",
        "PYTHONUNBUFFERED": "1",
    }
    return os.environ | changes | compiled_programs.variables(flags)


@dataclasses.dataclass
class Start:
    """One start of a run, in its own process."""

    pid: int
    number: int
    folder: pathlib.Path
    starts: "Starts"
    began: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def phase(self) -> str:
        """The last of PHASES that the process reached."""
        return PHASES[(self.folder / f"{self.number}.phase").read_bytes()[0]]

    @property
    def output(self) -> str:
        """Standard output, and standard error unless that is separate."""
        return (self.folder / f"{self.number}.log").read_text(errors="replace")

    @property
    def errors(self) -> str:
        """Standard error, if it is separate."""
        return (self.folder / f"{self.number}.err").read_text(errors="replace")

    @property
    def has_ended(self) -> bool:
        return self.number in self.starts.ended

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = 1_200) -> int:
        """Waits for the end and returns the exit status, negative for a signal."""
        ended = self.starts.ended
        with self.starts.news:
            assert self.starts.news.wait_for(lambda: self.number in ended, seconds), (
                "it never ended"
            )
        return ended[self.number]


class Starts:
    """Handle of the parent process for tests."""

    def __init__(self, folder: pathlib.Path, devices: int = 1):
        """Starts the parent in a folder, which receives the logs."""
        self._folder = folder
        self._parent = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=folder, env=environment(devices),
        )  # fmt: skip
        self.ended: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._count = 0
        self.news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def launch(
        self,
        *argv: str,
        moment: str = "",
        skip: int = 0,
        folder: str | pathlib.Path = ".",
        separate_errors: bool = False,
        probe: Sequence[Any] = (),
        command: str = "train",
    ) -> Start:
        """Starts `anytime COMMAND ARGV`, in a working directory.

        With a moment, the process kills itself there, after skipping `skip` such moments; the first
        argument must then be --config=FILE, in the folder of run and data. With a probe (module,
        function, arguments), the process calls that before, and what it returns at its end.
        """
        self._count += 1
        number = self._count
        (self._folder / f"{number}.phase").write_bytes(b"\0")
        for suffix in ("log", "err"):  # a signal may end the process before it opens them
            (self._folder / f"{number}.{suffix}").touch()
        order = {"number": number, "argv": argv, "moment": moment, "skip": skip, "probe": probe}
        order |= {"folder": str(folder), "separate_errors": separate_errors, "command": command}
        print(json.dumps(order), file=self._parent.stdin, flush=True)
        with self.news:
            assert self.news.wait_for(lambda: number in self._pids, 600)
        return Start(self._pids[number], number, self._folder, self)

    def close(self) -> None:
        """Ends the parent, and starts that a failed test has left running."""
        for number in self._pids.keys() - self.ended.keys():
            os.kill(self._pids[number], signal.SIGKILL)
        self._parent.stdin.close()
        self._parent.wait(60)
        self._parent.stdout.close()

    def _listen(self) -> None:
        for line in self._parent.stdout:
            event, number, value = line.split()
            with self.news:
                (self._pids if event == "started" else self.ended)[int(number)] = int(value)
                self.news.notify_all()


def serve() -> None:
    """Runs the parent: forks a child for every order, and reports its start and its end."""
    from anytime_jax.commands import (
        loss_figure,  # noqa: F401  (drawn at the end of a run)
        train,  # noqa: F401
    )

    warnings.filterwarnings("ignore", message=".*fork")  # while JAX has threads

    def report(event: str, number: int, value: int) -> None:
        os.write(1, f"{event} {number} {value}\n".encode())  # whole, beside other threads

    def reap(number: int, child: int) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        report("ended", number, status)

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _run(order)
        report("started", order["number"], child)
        threading.Thread(target=reap, args=(order["number"], child)).start()


def _run(order: dict) -> NoReturn:
    """Runs the command line in the child, and ends it with the command's exit status."""
    from anytime_jax.commands import dispatch

    number, errors = order["number"], "err" if order["separate_errors"] else "log"
    for stream, suffix in ((1, "log"), (2, errors)):
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        os.dup2(os.open(f"{number}.{suffix}", flags, 0o600), stream)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup makes the tests ignore
    status, at_exit = 1, None
    try:
        if order["probe"]:
            module, function, *arguments = order["probe"]
            at_exit = getattr(importlib.import_module(module), function)(*arguments)
        else:
            _watch(f"{number}.phase", order["argv"], order["moment"], order["skip"])
        os.chdir(order["folder"])
        program = f"anytime {order['command']}"
        if order["command"] == "train":
            program = "python -m anytime_jax.main"
        status = dispatch.run_command(order["command"], program, order["argv"])
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        if at_exit:
            at_exit()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _watch(file: str, argv: list[str], moment: str, skip: int) -> None:
    """Writes the phase of the process to a file, and kills the process at a moment."""
    from wrapped_step import WrappedStep

    from anytime_jax.checkpoints.manager import CheckpointManager
    from anytime_jax.corpus import preparation
    from anytime_jax.training import plan, run_data
    from anytime_jax.training.evaluator import Evaluator

    with open(file, "r+b") as opened:
        byte = mmap.mmap(opened.fileno(), 1)
    left = itertools.count(skip, -1)

    def reach_moment() -> None:
        if next(left) <= 0:
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

    def make_program(config, mesh, rules, *, make=plan.make_program, **options):
        program = make(config, mesh, rules, **options)

        def train_step(state, tokens, rate):
            byte[0] = PHASES.index("updating")  # until the next save or evaluation
            result = program.train_step(state, tokens, rate)
            if moment == "update":
                reach_moment()  # the device is computing the update
            return result

        def eval_step(params, tokens, weights):
            if moment == "evaluation":
                reach_moment()
            return program.eval_step(params, tokens, weights)

        return dataclasses.replace(program, train_step=WrappedStep(train_step), eval_step=eval_step)

    plan.make_program = make_program
    run_data.prepare = phase("preparing", run_data.prepare)
    CheckpointManager.save = phase("saving", CheckpointManager.save)
    Evaluator.position_losses = phase("evaluating", Evaluator.position_losses)
    if moment == "preparation":  # its parts are written, and are no dataset yet
        check_splits = preparation._check_splits

        def check(*args):
            reach_moment()
            check_splits(*args)

        preparation._check_splits = check
    if moment == "save":
        folder = pathlib.Path(argv[0].removeprefix("--config=")).parent
        arguments = (folder, "**/*.orbax-checkpoint-tmp", reach_moment)
        threading.Thread(target=_watch_files, args=arguments, daemon=True).start()


def _watch_files(folder: pathlib.Path, pattern: str, reach_moment: Callable[[], None]) -> None:
    """Calls `reach_moment` for every file that matches a pattern as soon as it exists."""
    seen = set(folder.glob(pattern))
    while True:
        with contextlib.suppress(FileNotFoundError):  # files are deleted during the search
            for path in set(folder.glob(pattern)) - seen:
                seen.add(path)
                reach_moment()
        time.sleep(0.001)


if __name__ == "__main__":
    serve()
