"""The order of several sources: exact shares, counters through changes, and bad weights."""

import itertools

import numpy as np
import pytest

from anytime_jax.data.mixture import DataStage, Mixture, interleave, whole_weights
from anytime_jax.errors import InputError


def random_weights(rng, sources):
    """Weights of a random mixture, multiples of 1/10,000 of which some are 0."""
    parts = rng.multinomial(10_000, rng.dirichlet(np.full(sources, 0.5)))
    return {f"s{i}": float(part) / 10_000 for i, part in enumerate(parts)}


@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_has_its_shares(seed):
    rng = np.random.default_rng(seed)
    given = random_weights(rng, int(rng.integers(2, 9)))
    whole = np.array(list(whole_weights(given).values()))
    np.testing.assert_allclose(whole / whole.sum(), list(given.values()), atol=1e-12)
    order = interleave(whole.tolist())
    counts = np.cumsum(order[:, None] == np.arange(len(whole)), axis=0)
    exact = np.arange(1, len(order) + 1)[:, None] * (whole / whole.sum())
    sources = np.count_nonzero(whole)
    assert np.abs(counts - exact).max() <= (1 - 1 / (2 * sources - 2) if sources > 1 else 0) + 1e-9
    assert counts[-1].tolist() == whole.tolist()


def test_order_of_weights_never_changes():
    """Runs resume on the samples that follow, whatever the version."""
    assert interleave([5, 3, 2]).tolist() == [0, 1, 0, 2, 0, 1, 0, 2, 1, 0]


def read_slowly(stages, end):
    """Yields source and index of each sample: the order of its stage again and again, counted."""
    counters, length = {}, None
    for stage, stop in zip(stages, [*(x.first for x in stages[1:]), end], strict=True):
        if stage.length != length:
            counters, length = {}, stage.length
        order = itertools.cycle(interleave(list(stage.weights.values())))
        for source in itertools.islice(order, stop - stage.first):
            name = list(stage.weights)[source]
            yield name, counters.get(name, 0)
            counters[name] = counters.get(name, 0) + 1


@pytest.mark.parametrize("seed", range(3))
def test_sources_and_indices_are_those_of_a_slow_reader(seed):
    rng = np.random.default_rng(100 + seed)
    stages, first = [], 0
    for length in rng.choice([8, 16], size=4):
        here = rng.permutation(list("abcd"))[: rng.integers(1, 5)].tolist()
        parts = rng.multinomial(20, rng.dirichlet(np.ones(len(here))))
        weights = whole_weights({x: float(p) / 20 for x, p in zip(here, parts, strict=True)})
        stages.append(DataStage(first, int(length), weights))
        first += int(rng.integers(1, 90))
    expected, mixture = list(read_slowly(stages, first)), Mixture(stages)

    def located(samples):
        where, sources, indices = mixture.locate(samples)
        names = list(stages[where].weights)
        return where, list(zip([names[i] for i in sources], indices.tolist(), strict=True))

    ends = [*(x.first for x in stages[1:]), first]
    for number, (stage, end) in enumerate(zip(stages, ends, strict=True)):
        assert located(np.arange(stage.first, end)) == (number, expected[stage.first : end])
    # Any part of a stage, as a host or a resumed run reads it, is that part of the whole.
    some = np.sort(rng.choice(ends[0], size=min(5, ends[0])))
    assert located(some) == (0, [expected[i] for i in some])


def test_a_far_sample_needs_no_replay():
    weights = whole_weights({"a": 0.1234, "b": 0.4321, "c": 0.4445})
    mixture = Mixture([DataStage(0, 8, {"a": 1}), DataStage(10**9, 8, weights)])
    far = 10**10
    _, sources, indices = mixture.locate(np.arange(far, far + 1000))
    for name, number in (("a", 0), ("b", 1), ("c", 2)):
        of_source = indices[sources == number]
        assert (np.diff(of_source) == 1).all()
        share = weights[name] / sum(weights.values())
        before = 10**9 if name == "a" else 0
        assert abs(of_source[0] - before - share * (far - 10**9)) <= 1
    assert sum(mixture.counts(far).values()) == far


@pytest.mark.parametrize(
    "weights",
    [(0.7, 0.2), (1.2, -0.2), (0.99999, 0.00001), ("half", 0.5)],
)
def test_bad_weights(weights):
    with pytest.raises(InputError):
        whole_weights(dict(zip("ab", weights, strict=True)))


def test_thirds_are_rounded_to_a_sum_of_one():
    assert whole_weights(dict.fromkeys("abc", 1 / 3)) == {"a": 3334, "b": 3333, "c": 3333}
