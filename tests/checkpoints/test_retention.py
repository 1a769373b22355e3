"""Retention of checkpoints."""

from hypothesis import given
from hypothesis import strategies as st

from anytime_jax.checkpoints.retention import RetentionPolicy
from anytime_jax.config.clock import Clock


@given(
    st.integers(1, 50), st.one_of(st.none(), st.integers(1, 40)), st.integers(0, 300),
    st.integers(0, 300),
)  # fmt: skip
def test_count_kept_counts_what_keeps_forever_accepts(chinchilla, every, start, further):
    policy = RetentionPolicy(Clock(1, 1, chinchilla), every, rolling=2)
    kept = [step for step in range(start + 1, start + further + 1) if policy.keeps_forever(step)]
    assert policy.count_kept(start, start + further) == len(kept)


def test_keeps_forever_accepts_milestones_and_multiples_of_every():
    policy = RetentionPolicy(Clock(1, 1, 10), every=25, rolling=2)
    kept = [step for step in range(1, 101) if policy.keeps_forever(step)]
    assert kept == [9, 10, 18, 20, 25, 36, 40, 50, 72, 75, 80, 100]


def test_count_kept_is_fast_for_long_runs():
    assert RetentionPolicy(Clock(1, 1, 10), 1, 2).count_kept(0, 2**31 - 1) == 2**31 - 1
