"""Batches read ahead: an iterator over consecutive samples, with sizes that may change.

On its way from a disk or bucket to the training loop, a batch passes `Windows.batch`, `read` below,
`read_ahead`, and `training.run_data.iterate_batches`.
"""

from __future__ import annotations

import collections
import concurrent.futures
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Batch = TypeVar("Batch")

# Number of batches ahead, each read in its own thread: a bucket takes some 30 ms to answer.
_AHEAD = 8


def read_ahead(
    read: Callable[[int, int], Batch], first: int, sizes: Iterable[int]
) -> Generator[Batch]:
    """Yields `read(first, size)` for each size in turn, where `first` grows by the sizes before.

    Threads read the next batches meanwhile. If one cannot be read, its error is raised in its
    place, after all batches before it. `close()`, or the end of the iterator, ends the threads.

    In the example, each process reads only its rows of a batch and puts them on its devices. To
    resume, pass the number of samples consumed so far; to grow the batch, pass increasing sizes:

        def read(first, size):
            rows = windows.batch(first, size, sharding.local_rows(mesh, size))
            return sharding.put_batch(mesh, rows, size)

        batches = read_ahead(read, samples_seen, sizes)

    Args:
      read: called in several threads at a time, with the first sample of a batch and its size.
      first: number of samples before the first batch.
      sizes: number of samples of each batch, over all processes; the iterator ends after the last.
    """
    pool = concurrent.futures.ThreadPoolExecutor(_AHEAD, "batches")
    pending = collections.deque[concurrent.futures.Future[Batch]]()
    try:
        for size in sizes:
            pending.append(pool.submit(read, first, size))
            first += size
            if len(pending) > _AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
