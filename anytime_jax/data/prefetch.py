"""Batches read ahead: an iterator over consecutive samples, with sizes that may change.

A batch goes from a disk or bucket to the training loop through `Windows.batch`, the function `read`
of the example below, `read_ahead`, and `training.run_data.iterate_batches`.
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

    Threads read the next batches while the caller works on one. If a batch cannot be read, the
    iterator yields all batches before it and then raises the error. `close()`, or the end of the
    iterator, ends the threads.

    In this example, each process reads only its rows of a batch and puts them on its devices. A
    resumed run passes the number of samples consumed so far as `samples_seen`. A run whose batch
    grows passes increasing `sizes`:

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
