"""A tracker of one's own that takes down what it is called with, and fails where it is told to."""

import dataclasses

from anytime_jax.training.trackers import Mirror, Tracker

calls: list[tuple] = []


@dataclasses.dataclass(frozen=True)
class Recording(Tracker):
    """Appends to `calls`.

    Attributes:
      fails: name of the method that fails.
    """

    fails: str = ""

    def open(self, run):
        """Opens a mirror."""
        return _RecordingMirror(self.fails, run.step)


class _RecordingMirror(Mirror):
    def __init__(self, fails, step):
        self._fails = fails
        self._call("open", step)

    def _call(self, name, *arguments):
        calls.append((name, *arguments))
        if name == self._fails:
            raise SystemExit("no connection")

    def write(self, step, tokens, values):
        self._call("write", step, tokens, dict(values))

    def tell(self, event, step, text):
        self._call("tell", event, step, text)

    def sync(self):
        self._call("sync")

    def close(self):
        self._call("close")
