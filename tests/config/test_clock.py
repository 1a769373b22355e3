"""Tests of the clock, against the paper's numbers and plain arithmetic."""

import bisect
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anytime_jax.config.clock import Clock, read_growth
from anytime_jax.formatting import format_count

PAPER = 3_276_800_000
SMALL = Clock(256, 1024, PAPER)  # 150M
MEDIUM = Clock(512, 1024, 2 * PAPER)  # 300M
LARGE = Clock(4096, 1024, PAPER)  # 150M at batch 4096


def test_budgets_of_the_paper():
    assert (SMALL.chinchilla_steps, MEDIUM.chinchilla_steps) == (12_500, 12_500)
    assert SMALL.tokens_per_step == 262_144
    assert SMALL.tokens(12_500) == PAPER
    assert LARGE.chinchilla_steps == 782  # 781.25 rounded up
    assert [LARGE.step_at(f"{m}x") for m in (1, 2, 4, 8, 16)] == [782, 1564, 3128, 6256, 12_512]
    assert [SMALL.step_at(f"{2**i}x") for i in range(6)] == [12_500 * 2**i for i in range(6)]
    assert [SMALL.branch_step(step) for step in (12_500, 25_000)] == [11_250, 22_500]
    assert LARGE.branch_step(782) == 704  # 703.8 rounded up


POINTS = {
    0: ("0 steps",),
    1: ("1 step", "0.5 steps", "1 token", "262144 tokens", "0.00001x"),
    2: ("262145 tokens",),
    7: ("7steps", "  7   steps "),
    2000: ("2e3 steps",),
    3125: ("0.25x",),
    12_500: (
        *("12500 steps", "12_500 steps", "12.5K steps", "12500 STEPS", "12500 Steps", "1x", "1X"),
        *("3_276_800_000 tokens", "3.2768e9 tokens", "3.2768e+9 tokens", "3.2768B tokens"),
        *("3276.8 M tokens", "3.2768b TOKENS"),
    ),
    25_000: ("2 x",),
    50_000: ("4x",),
    125_000: ("1e1x",),
    3_814_698: ("1T tokens",),
}


@pytest.mark.parametrize("step", POINTS)
def test_point_is_a_step(step):
    assert [SMALL.step_at(point) for point in POINTS[step]] == [step] * len(POINTS[step])


UNREADABLE = [
    *("", "4", "-1x", "1e-3x", "4x steps", "1.x", "1 epoch", "1,000 steps", "nan steps"),
    *("٣ steps", "1__0 steps", "9" * 5000 + " steps", None),
    *("2147483648 steps", "1e99 tokens"),  # beyond 2^31 updates
]


@pytest.mark.parametrize("point", UNREADABLE)
def test_unreadable_point_is_named(point):
    with pytest.raises(ValueError, match=r"^stop = "):
        SMALL.step_at(point, "stop")


clocks = st.builds(Clock, st.integers(1, 8192), st.integers(1, 4096), st.integers(1, 10**13))


@given(clocks, st.integers(0, 10**9))
def test_step_is_its_own_point(clock, step):
    assert clock.step_at(f"{step} steps") == step
    assert clock.step_at(f"{step:_} steps") == step
    assert clock.step_at(f"{clock.tokens(step)} tokens") == step
    assert clock.multiple(step) == pytest.approx(step / clock.chinchilla_steps, rel=1e-15)


@given(clocks, st.decimals(0, 10_000, places=3))
def test_multiples_count_whole_updates(clock, multiple):
    exact = Fraction(multiple) * clock.chinchilla_steps
    assume(exact < 2**31)
    assert clock.step_at(f"{multiple:f}x") == math.ceil(exact)
    one = clock.chinchilla_steps
    assert (one - 1) * clock.tokens_per_step < clock.chinchilla_tokens
    assert one * clock.tokens_per_step >= clock.chinchilla_tokens


@given(clocks, st.integers(0, 10**12))
def test_next_doubling(clock, step):
    following = clock.next_doubling(step)
    powers = [clock.chinchilla_steps * 2**i for i in range(60)]
    assert following == min(p for p in powers if p > step)
    assert clock.is_doubling(following)
    assert clock.is_doubling(step) == (step in powers)


@given(st.integers(1, 12))
def test_milestones_are_doublings_and_their_branch_points(one):
    clock = Clock(1, 1, one)
    end = 40 * one
    doublings = [one * 2**i for i in range(8)]
    branches = [math.ceil(Fraction(9 * d, 10)) for d in doublings]
    expected = {s for s in (*doublings, *branches) if s <= end}
    assert {s for s in range(end + 1) if clock.is_milestone(s)} == expected


def test_describe():
    assert [format_count(x) for x in (999, 999_499, 999_501)] == ["999", "999K", "1M"]
    assert SMALL.describe(3125) == "3,125 steps (0.25x, 819M tokens)"


# A batch that grows


GROWTH = (("2x", 64), ("1920 steps", 128), ("40M tokens", 192))
GROWN = read_growth(GROWTH, Clock(32, 128, 480 * 32 * 128))


def test_grown_batch_counts_samples():
    samples = [0]
    for step in range(6000):
        samples.append(samples[-1] + 32 * GROWN.span(step))
    times = [x // 32 for x in samples]
    assert [GROWN.time(step) for step in range(6001)] == times
    assert GROWN.times(6000).tolist() == times[1:]
    assert [x.step for x in GROWN.phases[:3]] == [0, 960, 1920]
    assert samples[GROWN.phases[3].step] * 128 >= 40e6 > samples[GROWN.phases[3].step - 1] * 128
    for time in range(times[-1]):
        assert GROWN.steps_within(time) == bisect.bisect_right(times, time) - 1
    one = 480 * 32  # samples of 1x
    for step in range(0, 6000, 7):
        assert GROWN.tokens(step) == 128 * samples[step]
        assert GROWN.multiple(step) == samples[step] / one
        assert GROWN.step_at(f"{samples[step] * 128} tokens") == step
    for number in (1, 2, 3.5, 4, 8, 16):
        assert GROWN.step_at(f"{number}x") == bisect.bisect_left(samples, number * one)


def test_doublings_and_branches_of_grown_batch():
    assert [step for step in range(1, 3000) if GROWN.is_doubling(step)] == [480, 960, 1440, 2160]
    assert [GROWN.multiple(step) for step in (480, 960, 1440, 2160)] == [1, 2, 4, 8]
    for step in range(1, 4000):
        horizon = GROWN.horizon_of_branch(step)
        assert GROWN.branch_step(horizon) <= step < GROWN.branch_step(horizon + 1)
        assert 10 * GROWN.time(GROWN.branch_step(step)) >= 9 * GROWN.time(step)
    milestones = list(itertools.takewhile(lambda x: x < 2900, GROWN.milestones()))
    assert milestones == [432, 480, 864, 960, 1344, 1440, 2064, 2160]


def test_times_of_points():
    assert GROWN.time_at("960 steps") == GROWN.time_at("2x") == GROWN.time_at(960) == 960
    assert GROWN.time_at("961 steps") == 962  # twice the first batch
    assert GROWN.time_at("2.001x") == 962  # on a whole update
    assert [GROWN.step_of(time) for time in (960, 961, 962, 963)] == [960, 961, 961, 962]
    assert [GROWN.phase_of_batch(size).step for size in (32, 64, 128)] == [0, 960, 1920]
    with pytest.raises(ValueError, match=r"^warmup = -1"):
        GROWN.time_at(-1, "warmup")
