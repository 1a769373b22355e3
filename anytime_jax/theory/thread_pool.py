"""Thread pool on all cores, with the progress of all tasks as one fraction."""

import concurrent.futures
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Progress = Callable[[float], None]  # takes the fraction that is done


def run_in_parallel(
    tasks: Sequence[Callable[[Progress], T]], sizes: Sequence[float], progress: Progress
) -> list[T]:
    """Runs tasks in threads and returns their results in order; an error or Ctrl-C ends them all.

    Each task is called with a function that reports its own progress, from 0 to 1; `sizes` weigh
    the tasks. `progress` is called in this thread, several times a second.

    Examples:
      >>> tasks = [lambda progress: 2, lambda progress: 3]
      >>> theory.thread_pool.run_in_parallel(tasks, [1, 1], lambda fraction: None)
      [2, 3]
    """
    stopped = threading.Event()
    done = np.zeros(len(tasks))

    def run(k: int) -> T:
        def report(fraction: float) -> None:
            done[k] = fraction
            if stopped.is_set():
                raise KeyboardInterrupt

        return tasks[k](report)

    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        futures = [pool.submit(run, k) for k in range(len(tasks))]
        pending = set(futures)
        while pending:
            finished, pending = concurrent.futures.wait(
                pending, 0.2, concurrent.futures.FIRST_COMPLETED
            )
            for future in finished:
                future.result()  # the first error ends the rest
            progress(float(done @ np.asarray(sizes) / np.sum(sizes)))
        return [future.result() for future in futures]
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
