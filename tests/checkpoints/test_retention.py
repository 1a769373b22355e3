"""Which checkpoints stay, counted and asked one by one."""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime_jax.checkpoints.retention import RetentionPolicy, checkpoint_bytes, free_bytes
from anytime_jax.config.clock import Clock


@given(
    st.integers(1, 50), st.one_of(st.none(), st.integers(1, 40)), st.integers(0, 300),
    st.integers(0, 300),
)  # fmt: skip
def test_what_is_counted_is_what_is_kept(chinchilla, every, start, further):
    policy = RetentionPolicy(Clock(1, 1, chinchilla), every, rolling=2)
    kept = [step for step in range(start + 1, start + further + 1) if policy.keeps_forever(step)]
    assert policy.count_kept(start, start + further) == len(kept)


def test_milestones_and_multiples_are_kept():
    policy = RetentionPolicy(Clock(1, 1, 10), every=25, rolling=2)
    kept = [step for step in range(1, 101) if policy.keeps_forever(step)]
    assert kept == [9, 10, 18, 20, 25, 36, 40, 50, 72, 75, 80, 100]


def test_a_run_of_any_length_is_counted_at_once():
    assert RetentionPolicy(Clock(1, 1, 10), 1, 2).count_kept(0, 2**31 - 1) == 2**31 - 1


def test_free_space_is_that_of_the_disk_of_a_directory_to_be(tmp_path):
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(free_bytes(tmp_path), rel=0.01)
    assert free_bytes(pathlib.Path("/")) > 0


def test_a_checkpoint_takes_a_little_more_than_its_arrays():
    assert 6.9e9 < checkpoint_bytes(6_900_000_000) < 7.1e9
