"""Snapshots of a run in training."""

import time
from collections.abc import Iterator

from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.errors import InputError, RunError
from anytime_lab.monitor import run_snapshot
from anytime_lab.monitor.run_snapshot import Snapshot


def follow(run_dir: str, every: float, trust: Trust = NOBODY) -> Iterator[Snapshot]:
    """Yields a snapshot of a run every `every` seconds.

    `trust` says which packages are imported for the kinds that the run names.

    Raises an InputError if there is no run at first, a RunError if it disappears later.
    """
    snapshot = run_snapshot.take(run_dir, trust=trust)
    while True:
        yield snapshot
        time.sleep(every)
        try:
            snapshot = run_snapshot.take(run_dir, snapshot, trust)
        except InputError as error:
            raise RunError(f"the run that was watched has gone: {error}") from error
