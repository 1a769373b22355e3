"""Lists and runs a study: `python -m anytime_jax sweep --study=configs/studies/laptop.py --list`.

`--run` makes what is missing on this machine, each branch after its trunk, and resumes what was
interrupted; a finished study run again does nothing. Ctrl-C or SIGTERM lets every run save, and the
same line continues. Each run is a process of its own, with a log in STUDY/logs. Several of these
may work on one study, on hosts that share its directory. `--slurm=DIR` writes job arrays instead.

Exit status: 0 when everything that was asked for is there, 1 when a run broke, 2 bad input. A study
file is Python code and is executed: use those you trust.
"""

import argparse
import contextlib
import dataclasses
import fnmatch
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

from rich import box
from rich.console import Console
from rich.table import Table

from anytime_jax.checkpoints import run_directory
from anytime_jax.commands import command_line
from anytime_jax.data.dataset import METADATA_NAME
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count, format_duration
from anytime_jax.models import flops
from anytime_jax.study import plan, slurm
from anytime_jax.study.plan import Study, chain, grid, paired, values
from anytime_jax.study.tasks import Task, check, log_file

__all__ = ["chain", "check", "grid", "main", "paired", "values"]

_MFU = 0.38  # of the authors' 150M runs on one H100
_POLL_SECONDS = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return command_line.run(_parser(), _work, argv)


def _parser() -> argparse.ArgumentParser:
    parser = command_line.make_parser(
        "sweep", "List a study's runs and their cost, or make what is missing."
    )
    add = parser.add_argument
    add("--study", required=True, metavar="FILE", help="a file of configs/studies/")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="print the runs and their cost")
    what.add_argument("--run", action="store_true", help="run what is missing on this machine")
    what.add_argument("--slurm", metavar="DIR", help="write job arrays for what is missing")
    add("--only", default="*", metavar="PATTERN", help="these runs only, such as 'cosine-*'")
    add("--jobs", type=int, default=1, metavar="N", help="runs at once (default: 1)")
    add("--fleet", type=int, default=1, metavar="N", help="runs of one shape as one program")
    add("--device", default="H100", help="for the hours of --list (default: H100)")
    add("--mfu", type=float, default=_MFU, help=f"its utilisation (default: {_MFU})")
    add("--tokens_per_s", type=float, help="a measured speed, in place of --device and --mfu")
    return parser


def _work(arguments: argparse.Namespace) -> int:
    console = command_line.open_console(width=140)
    study = plan.load(arguments.study, to_run=True)
    jobs = _choose(study, arguments.only)
    if arguments.slurm:
        console.print(slurm.write(study, arguments.study, jobs, arguments.slurm), markup=False)
        return 0
    if arguments.run:
        if arguments.fleet < 1:
            raise InputError(f"--fleet={arguments.fleet}: give a number of runs from 1")
        shares = share_machine(arguments.jobs)
        return _Sweep(study, arguments.study, jobs, shares, arguments.fleet, console).run()
    console.print(_table(study, jobs, _speed(arguments, jobs), arguments))
    return 0


def _choose(study: Study, pattern: str) -> list[Task]:
    """The jobs whose names match; their trunks must match too, or be there."""
    every = {job.run.name: job for job in check(study)}
    jobs = [job for name, job in every.items() if fnmatch.fnmatch(name, pattern)]
    if not jobs:
        raise InputError(f"--only={pattern} matches no run of {study.name}: see --list")
    for job in jobs:
        trunk = every.get(job.run.trunk or "")
        if trunk and trunk not in jobs and trunk.step < job.start and not job.is_finished:
            raise InputError(
                f"--only={pattern} leaves out {trunk.run.name}, which {job.run.name} begins from "
                "and which has not come so far yet: run that first"
            )
    return jobs


def _speed(arguments: argparse.Namespace, jobs: Sequence[Task]) -> float:
    """FLOP/s for the hours of a list."""
    if arguments.tokens_per_s is not None:
        if not 0 < arguments.tokens_per_s < math.inf:
            raise InputError(f"--tokens_per_s={arguments.tokens_per_s:g}: give a speed above 0")
        return arguments.tokens_per_s * jobs[0].flops / jobs[0].tokens
    peak = flops.peak_flops(SimpleNamespace(device_kind=arguments.device))
    if peak is None:
        known = ", ".join(flops.PEAK_FLOPS)
        raise InputError(
            f"--device={arguments.device}: its peak is not known; give one of {known}, or a "
            "measured --tokens_per_s"
        )
    if not 0 < arguments.mfu <= 1:
        raise InputError(f"--mfu={arguments.mfu:g}: give a fraction above 0, at most 1")
    return peak * arguments.mfu


def _table(
    study: Study, jobs: Sequence[Task], speed: float, arguments: argparse.Namespace
) -> Table:
    at = f"at {arguments.mfu:.0%} of the peak of one {arguments.device}"
    if arguments.tokens_per_s is not None:
        at = f"at {arguments.tokens_per_s:,.0f} tokens/s"
    title = f"{study.name}: {study.title} Hours {at}, training only."
    table = Table(title=title, box=box.SIMPLE, title_justify="left", show_footer=True)
    total = [sum(getattr(job, x) for job in jobs) for x in ("tokens", "flops", "disk_bytes")]
    finished = f"{sum(job.is_finished for job in jobs)} finished"
    for name, footer in (
        ("run", f"{len(jobs)} runs"),
        ("state", finished),
        ("stops at", ""),
        ("tokens", format_count(total[0])),
        ("FLOPs", f"{total[1]:.2e}"),
        ("disk", format_bytes(total[2])),
        ("hours", f"{total[1] / speed / 3600:.4g}"),
    ):
        is_text = name in ("run", "state")
        table.add_column(name, footer, justify="left" if is_text else "right", no_wrap=True)
    for job in jobs:
        table.add_row(
            job.run.name,
            _state(job),
            f"{job.config.clock.multiple(job.goal):g}x",
            format_count(job.tokens),
            f"{job.flops:.2e}",
            format_bytes(job.disk_bytes),
            f"{job.flops / speed / 3600:.3g}",
        )
    return table


def _state(job: Task) -> str:
    if job.is_finished:
        return "finished"
    if job.step > job.start:
        return f"at {job.config.clock.multiple(job.step):.3g}x"
    return "missing"


def share_machine(jobs: int) -> list[dict[str, str]]:
    """Returns for each of some jobs at once the environment that gives it its part of the machine.

    Args:
      jobs: how many run at once. With several GPUs each gets its own; the cores are shared out.

    Raises:
      InputError: if there are more jobs than cores or GPUs.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 1 <= jobs <= len(cores):
        raise InputError(f"--jobs={jobs}: give 1 to {len(cores)}, the cores of this machine")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else []
    if visible is None:
        gpus = [str(i) for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    if gpus and jobs > len(gpus):
        raise InputError(f"--jobs={jobs}: this machine has {len(gpus)} GPUs, one for each job")
    shares = []
    for slot in range(jobs):
        share = {"CORES": ",".join(str(core) for core in cores[slot::jobs])}
        if gpus and jobs > 1:
            share["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot::jobs])
        shares.append(share)
    return shares


@dataclasses.dataclass
class _Under:
    """A process that makes a run, or several as a fleet."""

    jobs: list[Task]
    process: subprocess.Popen[bytes]
    logs: dict[str, tuple[Path, int]]  # of each run: the file, and where in it this begins
    slot: int
    began: float


class _Sweep:
    """Runs the jobs of a study that are missing, several at once, trunks first."""

    def __init__(
        self,
        study: Study,
        file: str,
        jobs: Sequence[Task],
        shares: Sequence[dict[str, str]],
        together: int,
        console: Console,
    ):
        self._study, self._file, self._console = study, file, console
        self._shares, self._together = shares, together
        self._waiting = [job for job in jobs if not job.is_finished]
        self._count, self._done = len(jobs), len(jobs) - len(self._waiting)
        self._under_way: list[_Under] = []
        self._failed: dict[str, str] = {}
        self._asked: list[int] = []
        self._refusals: set[str] = set()
        self._gave_up = False

    def run(self) -> int:
        """Returns the exit status."""
        if not self._waiting:
            self._say(f"all {self._count} runs of {self._study.name} are finished")
            return 0
        plan.write(self._study, self._study.root)
        began = time.monotonic()
        with self._interruptible():
            try:
                while self._under_way or (self._waiting and not self._is_over()):
                    self._reap()
                    while not self._is_over() and self._start_one():
                        pass
                    self._drop_orphans()
                    time.sleep(_POLL_SECONDS)
            finally:  # whatever went wrong here, no run is left behind
                self._pass_on(signal.SIGTERM)
                for under in self._under_way:
                    under.process.wait()
        spent = format_duration(time.monotonic() - began)
        self._say(
            f"interrupted after {spent}; the same line goes on"
            if self._asked
            else f"{self._done} of {self._count} runs are finished, after {spent}"
        )
        for name, why in self._failed.items():
            self._say(f"  {name}: {why}")
        if self._waiting and not self._asked:
            self._say(f"  {len(self._waiting)} more were not begun, for the same would be said")
        return 1 if self._failed else 130 if self._asked else 0

    def _is_over(self) -> bool:
        """Whether nothing more is to be started."""
        return bool(self._asked) or self._gave_up

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False)

    def _start_one(self) -> bool:
        """Starts the first run that can be, with others of its shape; False if there is no room."""
        taken = {under.slot for under in self._under_way}
        free = [slot for slot in range(len(self._shares)) if slot not in taken]
        if not free or not (jobs := self._choose_fleet()):
            return False
        names = [job.run.name for job in jobs]
        share = dict(self._shares[free[0]])
        cores = {int(core) for core in share.pop("CORES").split(",")}
        # Large pages make a CPU train faster; elsewhere they change nothing.
        tuned = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **os.environ, **share}
        logs = {x: (log := log_file(self._study, x), _length(log)) for x in names}
        with logs[names[0]][0].open("ab") as file:
            process = subprocess.Popen(
                command(self._file, *names),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=tuned,
                start_new_session=True,  # a Ctrl-C is passed on once, by us
            )
        under = _Under(jobs, process, logs, free[0], time.monotonic())
        self._under_way.append(under)
        with contextlib.suppress(OSError):  # it may have ended
            os.sched_setaffinity(process.pid, cores)  # JAX starts its threads later
        if self._asked:  # while it was started
            self._pass_on(self._asked[-1])
        for job in jobs:
            self._waiting.remove(job)
            begun = f"from {job.config.clock.multiple(job.step):.3g}x"
            goal = f"{job.config.clock.multiple(job.goal):.3g}x"
            fellows = f", with {len(jobs) - 1} others" if len(jobs) > 1 else ""
            self._say(f"begun    {job.run.name}, {begun} to {goal}{fellows}")
        return True

    def _choose_fleet(self) -> list[Task]:
        """The first run that can be started, and as many of its shape as go together."""
        ready = [job for job in self._waiting if self._is_ready(job)]
        if not ready or self._together == 1 or ready[0].shape is None:
            return ready[:1]
        return [job for job in ready if job.shape == ready[0].shape][: self._together]

    def _is_ready(self, job: Task) -> bool:
        """Whether its trunk is there, and nobody holds it or is preparing its data."""
        unfinished = [x.run.name for x in self._waiting]
        under_way = [job for under in self._under_way for job in under.jobs]
        unfinished += [job.run.name for job in under_way]
        data = job.config.data.path
        shared = any(other.config.data.path == data for other in under_way)
        prepared = (Path(data) / METADATA_NAME).exists()
        held = run_directory.is_locked(job.run.run_dir)
        return job.run.trunk not in unfinished and (prepared or not shared) and not held

    def _reap(self) -> None:
        """Takes note of the runs that have ended, here or in another process."""
        for job in [x for x in self._waiting if x.is_finished]:
            self._waiting.remove(job)
            self._finished(job, "elsewhere")
        for under in list(self._under_way):
            status = under.process.poll()
            if status is None:
                continue
            self._under_way.remove(under)
            for job in under.jobs:
                self._take_note(job, under, status)

    def _take_note(self, job: Task, under: _Under, status: int) -> None:
        """Takes note of a run whose process has ended with a status."""
        spent = format_duration(time.monotonic() - under.began)
        if job.is_finished:
            self._finished(job, f"in {spent}")
        elif run_directory.is_locked(job.run.run_dir):
            self._waiting.append(job)  # another process was first
        elif status or not self._asked:
            how = f"exit status {status}" if status >= 0 else f"signal {-status}"
            log, _ = under.logs[job.run.name]
            said = _last_line(under, job)
            self._failed[job.run.name] = f"{said} ({how}; the whole of it: {log})"
            self._say(f"FAILED   {job.run.name}, after {spent}: {self._failed[job.run.name]}")
            if status == 2 and said in self._refusals:
                self._gave_up = True  # as good as certain to be said by every other run too
            self._refusals.add(said)

    def _finished(self, job: Task, how: str) -> None:
        self._done += 1
        self._say(f"finished {job.run.name}, {how} ({self._done} of {self._count})")

    def _drop_orphans(self) -> None:
        """Gives up the branches of trunks that failed."""
        for job in [x for x in self._waiting if x.run.trunk in self._failed]:
            self._waiting.remove(job)
            self._failed[job.run.name] = f"its trunk {job.run.trunk} failed"

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Passes the first SIGINT or SIGTERM on to every run, which then saves."""

        def ask(number: int, frame: object) -> None:
            del frame
            self._asked.append(number)
            self._pass_on(number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int) -> None:
        """Sends a signal to every run under way; a run saves at either of the first two."""
        number = signal.SIGTERM if number == signal.SIGHUP else number
        for under in self._under_way:
            with contextlib.suppress(OSError):
                under.process.send_signal(number)


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def command(file: str, name: str, *others: str) -> list[str]:
    """Returns the command line of a run of a study, or of several as a fleet."""
    if others:
        return [sys.executable, "-m", "anytime_jax", "fleet", f"--study={file}", name, *others]
    return [sys.executable, "-m", "anytime_jax.main", f"--config={file}:{name}"]


def _last_line(under: _Under, job: Task) -> str:
    """What a run said last, in this start of it."""
    first = under.jobs[0].run.name  # what is said of all goes there
    for log, begin in (under.logs[job.run.name], under.logs[first]):
        said = log.read_bytes()[begin:].decode("utf-8", errors="replace") if log.exists() else ""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if lines:
            return lines[-1][:300]
    return "it said nothing"


if __name__ == "__main__":
    sys.exit(main())
