"""Worker processes that do jobs in any order, and leave with the process that started them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from anytime_jax.errors import RunError

# Starting a process costs about as much as a few jobs: fewer are done right here.
_JOBS_PER_WORKER = 4


class Job(Protocol):
    """Work whose result is a file and a record of it."""

    def finished(self) -> dict[str, Any] | None:
        """The record, if the job was done before."""
        ...

    def __call__(self) -> dict[str, Any]:
        """Does the job and returns its record."""
        ...


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a preparation is.

    Attributes:
      stage: "tokenising" (done and total count parts) or "writing" (they count shards).
      done: finished, those of earlier runs included.
      total: of all.
      tokens: tokens in the finished ones.
    """

    stage: str
    done: int
    total: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


def run_jobs(
    jobs: Sequence[Job],
    workers: int | None,
    stage: str,
    tokens_of: Callable[[dict[str, Any]], int],
    report: ProgressCallback,
) -> list[dict[str, Any]]:
    """Does what an earlier run has left of the jobs.

    Args:
      jobs: picklable, in any number.
      workers: number of processes; None for as many as pay off.
      stage: what to call the work in the progress reports.
      tokens_of: number of tokens a record stands for.
      report: called in this process whenever a job is done.

    Returns:
      The records of all jobs, in their order.

    Raises:
      RunError: a worker process died.
    """
    records = {index: record for index, job in enumerate(jobs) if (record := job.finished())}
    left = {index: job for index, job in enumerate(jobs) if index not in records}
    tokens = sum(map(tokens_of, records.values()))
    report(Progress(stage, len(records), len(jobs), tokens))
    with contextlib.closing(_results(left, workers)) as results:
        for index, record in results:
            records[index] = record
            tokens += tokens_of(record)
            report(Progress(stage, len(records), len(jobs), tokens))
    return [records[index] for index in range(len(jobs))]


def _results(jobs: dict[int, Job], workers: int | None) -> Generator[tuple[int, dict[str, Any]]]:
    """Yields (index, record) as jobs end, in any order."""
    if workers is None:
        workers = min(os.cpu_count() or 1, len(jobs) // _JOBS_PER_WORKER)
    if min(workers, len(jobs)) <= 1:
        for index, job in jobs.items():
            yield index, job()
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        min(workers, len(jobs)),
        # Forking a process that has threads, as any that has imported jax, may hang the child.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    try:
        # Workers start with Ctrl-C held back, until `_start_worker` says what it does to them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = {pool.submit(job): index for index, job in jobs.items()}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    except concurrent.futures.BrokenExecutor as error:
        raise RunError(
            "a worker process died, perhaps for lack of memory; if it happens again, ask for "
            "fewer workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Makes a worker end when Ctrl-C is pressed or its parent is gone, without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
