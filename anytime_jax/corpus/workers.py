"""Worker processes: tasks in any order, and their progress."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from anytime_jax.errors import RunError

# Starting a process costs as much as a few tasks, so few tasks run in this process.
_TASKS_PER_WORKER = 4


class Progress(NamedTuple):
    """Number of finished tasks, including earlier starts, of all tasks, and their tokens.

    The activity is "tokenizing" or "verifying"; a task is a part of the text.
    """

    activity: str
    done: int
    total: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


def run_tasks(
    activity: str,
    tasks: Mapping[Any, Callable[[], Any]],
    finished: Mapping[Any, Any],
    workers: int | None,
    progress: ProgressCallback | None,
) -> dict[Any, Any]:
    """Runs the tasks that are not finished, and returns the results of all in order.

    Args:
      activity: name for the progress reports.
      tasks: functions, pickled if there are several workers. A result has the attribute `tokens`, a
        number for the progress reports.
      finished: results of an earlier start.
      workers: number of processes; by default one per core if there are enough tasks.
      progress: called in this process at the start and whenever a task is finished.

    Raises:
      RunError: a worker process died.
    """
    results = dict(finished)
    tokens = sum(result.tokens for result in results.values())
    left = {key: task for key, task in tasks.items() if key not in results}

    def finish(key: Any, result: Any) -> None:
        nonlocal tokens
        results[key] = result
        tokens += result.tokens
        report()

    def report() -> None:
        if progress:
            progress(Progress(activity, len(results), len(tasks), tokens))

    report()
    if workers is None:
        workers = min(os.cpu_count() or 1, len(left) // _TASKS_PER_WORKER)
    if min(workers, len(left)) <= 1:
        for key, task in left.items():
            finish(key, task())
    else:
        with _pool(min(workers, len(left))) as pool:
            # Workers inherit a blocked Ctrl-C: it is for this process, which ends them.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = {pool.submit(task): key for key, task in left.items()}
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for future in concurrent.futures.as_completed(futures):
                finish(futures[future], future.result())
    return {key: results[key] for key in tasks}


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[concurrent.futures.Executor]:
    """Yields processes that end at once if the block fails or this process dies."""
    # A process forked from one with threads, as any that imported jax has, may hang.
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    with theirs, ours:
        pool = concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=context, initializer=_end_with, initargs=(theirs,)
        )
        try:
            yield pool
        except BaseException as error:
            ours.close()
            if isinstance(error, concurrent.futures.BrokenExecutor):
                raise RunError(
                    "a worker process died, perhaps for lack of memory; if it happens again, use "
                    "fewer workers"
                ) from error
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with(parent: Connection) -> None:
    """Ends this worker as soon as the other end of a pipe is closed, by its owner or its death."""

    def wait() -> None:
        parent.poll(None)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
