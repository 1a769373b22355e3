"""What the time of a start goes into."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"


class Stopwatch:
    """Seconds since it was made, by what they went into; each second counts once.

    The time outside all blocks of `spent` went into updates. Of a block, the time in which JAX
    compiles counts as "compiling".
    """

    def __init__(self) -> None:
        self._totals: dict[str, float] = {"updates": 0.0}
        self._what, self._since = "updates", time.perf_counter()
        self._thread = threading.get_ident()
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def close(self) -> None:
        """Stops listening to JAX."""
        jax.monitoring.unregister_event_duration_listener(self._listen)

    @contextlib.contextmanager
    def spent(self, what: str) -> Iterator[None]:
        """Counts the time of the block as `what`, also within another block."""
        self._add()
        before, self._what = self._what, what
        try:
            yield
        finally:
            self._add()
            self._what = before

    def seconds(self) -> dict[str, float]:
        """Returns the seconds so far."""
        self._add()
        return dict(self._totals)

    def _add(self) -> None:
        now = time.perf_counter()
        self._count(self._what, now - self._since)
        self._since = now

    def _count(self, what: str, seconds: float) -> None:
        self._totals[what] = self._totals.get(what, 0.0) + seconds

    def _listen(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        del kwargs
        if event == _COMPILED and threading.get_ident() == self._thread:
            self._add()
            self._count(self._what, -duration_secs)
            self._count("compiling", duration_secs)
