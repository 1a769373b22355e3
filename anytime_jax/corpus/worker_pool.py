"""Worker processes that run tasks in any order and end with their parent."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from anytime_jax.errors import RunError

# Starting a process costs as much as a few tasks, so few tasks run in this process.
_TASKS_PER_WORKER = 4


class Task(Protocol):
    """A picklable unit of work, whose result may be on disk already.

    A result has the attribute `tokens`, a number for the progress reports.
    """

    def load_result(self) -> Any | None:
        """Returns the result of an earlier start, if it is complete."""
        ...

    def run(self) -> Any:
        """Does the work and returns the result."""
        ...


class Progress(NamedTuple):
    """Number of finished tasks, including earlier starts, of all tasks, and their tokens.

    The stage is "tokenizing" or "verifying"; a task is a part of the text.
    """

    stage: str
    done: int
    total: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


def run_tasks(
    tasks: Sequence[Task], workers: int | None, stage: str, progress: ProgressCallback | None
) -> list[Any]:
    """Runs the tasks that have no result yet, and returns the results of all in order.

    Args:
      tasks: pickled if there are several workers.
      workers: number of processes; by default one per core if there are enough tasks.
      stage: name for the progress reports.
      progress: called in this process at the start and whenever a task is finished.

    Raises:
      RunError: a worker process died.
    """
    results = {i: result for i, task in enumerate(tasks) if (result := task.load_result())}
    tokens = sum(result.tokens for result in results.values())

    def report() -> None:
        if progress:
            progress(Progress(stage, len(results), len(tasks), tokens))

    report()
    remaining = {i: task for i, task in enumerate(tasks) if i not in results}
    if workers is None:
        workers = min(os.cpu_count() or 1, len(remaining) // _TASKS_PER_WORKER)
    workers = min(workers, len(remaining))
    if workers > 1:
        finished = _run_in_pool(remaining, workers)
    else:
        finished = ((i, task.run()) for i, task in remaining.items())
    with _ended_by_sigterm(), contextlib.closing(finished):
        for i, result in finished:
            results[i] = result
            tokens += result.tokens
            report()
    return [results[i] for i in range(len(tasks))]


def _run_in_pool(tasks: Mapping[int, Task], workers: int) -> Generator[tuple[int, Any]]:
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        # A process forked from one with threads, as any that imported jax has, may hang.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_initialize_worker,
    )
    try:
        # Workers start with Ctrl-C blocked, until `_initialize_worker` sets its handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = {pool.submit(task.run): i for i, task in tasks.items()}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    except concurrent.futures.BrokenExecutor as error:
        raise RunError(
            "a worker process died, perhaps for lack of memory; if it happens again, use fewer "
            "workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the workers and this work as Ctrl-C does.

    If it killed this process, the semaphores of the pool would stay, with a warning of Python's.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(*signal_and_frame: object) -> NoReturn:
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _initialize_worker() -> None:
    """Makes this worker exit silently at Ctrl-C or when its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()
