"""Snapshots of a run in training, until Ctrl-C or SIGTERM."""

import contextlib
import signal
import time
from collections.abc import Iterator

from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.errors import InputError, RunError
from anytime_lab.monitor import run_snapshot
from anytime_lab.monitor.run_snapshot import Snapshot

_RESIZE_SECONDS = 0.2  # seconds between checks of the terminal's size


def follow(run_dir: str, every: float, trust: Trust = NOBODY) -> Iterator[Snapshot | None]:
    """Yields a snapshot every `every` seconds, and None in between to check the terminal's size.

    `trust` says which packages are imported for the kinds that the run names.

    Raises an InputError if there is no run at first, a RunError if it disappears later.
    """
    snapshot = run_snapshot.take(run_dir, trust=trust)
    while True:
        yield snapshot
        end = time.monotonic() + every
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _RESIZE_SECONDS))
            yield None
        try:
            snapshot = run_snapshot.take(run_dir, snapshot, trust)
        except InputError as error:
            raise RunError(f"the run that was watched has gone: {error}") from error


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends the block at Ctrl-C or SIGTERM alike, so that the terminal gets its cursor back."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, previous)
