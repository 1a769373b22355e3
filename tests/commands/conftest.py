"""A source of text of one's own, as somebody else may have it."""

import sys

import pytest

SOURCE = '''"""A source of one's own."""
import dataclasses
from anytime_jax.corpus.source_interface import Source

@dataclasses.dataclass(frozen=True)
class Numbers:
    validation_fraction: float
    identity = ["numbers"]

    def documents(self):
        yield from map(str, range(300))

@dataclasses.dataclass(frozen=True)
class Counter(Source):
    fraction: float
    times: int = 1

    def parts(self):
        return [Numbers(self.fraction)] * self.times
'''


@pytest.fixture
def counter(tmp_path, monkeypatch):
    """The working directory, with a module in it that has a class of a source."""
    (tmp_path / "counter.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("counter", None)
