"""Profiler of a run: a trace of the updates between two steps, for XProf and TensorBoard.

A trace names every update (`train`, with its number). On the host it names the parts of an update:
`Run.read_batch` (how long the loop waits for data), `Run.update`, `Run.record`, `Run.save` and
`Run.evaluate`. On the device it names each operation by the part of the program it comes from:
`attend`, `mlp`, `loss`, `optimizer` or `averages`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from anytime_jax.distributed import processes
from anytime_jax.errors import InputError
from anytime_jax.storage.failures import storage_errors
from anytime_jax.storage.files import local_directory

DIRECTORY = "profile"
MEMORY_FILE = "memory.prof"


@dataclasses.dataclass(frozen=True)
class StepRange:
    """The updates from step `first` to step `last`."""

    first: int
    last: int


def check_steps(steps: StepRange, step: int, stop: int | None) -> None:
    """Raises an InputError if a run that is at `step` stops before the last step of the range.

    A stop of None is never. A run that is at its stop already passes, because the command that
    started a run also resumes it.
    """
    if stop is not None and step < stop < steps.last:
        raise InputError(
            f"--profile={steps.first}:{steps.last}: the run stops at step {stop:,}: give two steps "
            "before that, or set a later config.stop"
        )


class Profiler:
    """Traces the updates of a range of steps, in the primary process alone.

    All processes run the same program, so one trace shows where the time goes.
    """

    def __init__(self, run_dir: Path, steps: StepRange | None, say: Callable[[str], None]):
        self._path, self._say = run_dir / DIRECTORY, say
        self._steps = steps if processes.is_primary() else None  # None once it is traced
        self._folder: Path | None = None  # None unless it traces
        self._open = contextlib.ExitStack()  # the folder, until the trace is written

    def begins(self, step: int) -> bool:
        """Whether to start before the update after `step`.

        A resumed run may begin inside the range, and starts the trace there.
        """
        steps = self._steps
        return steps is not None and self._folder is None and steps.first <= step < steps.last

    def ends(self, step: int) -> bool:
        """Whether to stop at `step`."""
        return self._steps is not None and self._folder is not None and step >= self._steps.last

    def start(self) -> None:
        """Starts the trace; all updates so far have to be done."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # an event for every call of Python would slow the loop
        with self._report_failure(), contextlib.ExitStack() as stack:
            folder = stack.enter_context(local_directory(self._path))
            jax.profiler.start_trace(folder, profiler_options=options)
            self._folder, self._open = folder, stack.pop_all()

    def stop(self) -> None:
        """Writes the trace and a list of the arrays on the devices; says how to open both."""
        folder, self._folder, self._steps = self._folder, None, None
        if folder is None:
            return
        with self._report_failure():
            with self._open:
                jax.profiler.stop_trace()
                jax.profiler.save_device_memory_profile(str(folder / MEMORY_FILE))
            self._say(
                f"profile  in {self._path}: pip install xprof, then xprof --logdir={self._path}"
            )

    def close(self) -> None:
        """Stops the trace if the run ends inside the range; says so if nothing was traced."""
        if self._folder is None and self._steps is not None:
            first, last = self._steps.first, self._steps.last
            self._say(f"profile  none: no update from step {first:,} to {last:,} was made")
        self.stop()

    @contextlib.contextmanager
    def _report_failure(self) -> Iterator[None]:
        """Prints an error of the profiler or the disk, which must not end the run."""
        try:
            yield
        except (RuntimeError, *storage_errors()) as error:
            self._steps = None
            self._say(f"profile  failed, the run goes on: {' '.join(str(error).split())}")
