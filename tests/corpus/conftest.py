"""Fixture of the tests of preparation."""

import pytest

from anytime_jax.corpus import file_source


@pytest.fixture
def part_per_file(monkeypatch):
    """Makes every file a part, so that a small text has several."""
    monkeypatch.setattr(file_source, "PART_BYTES", 1)
