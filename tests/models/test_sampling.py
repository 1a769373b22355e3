"""Sampling: the distribution of a token, and generated text."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_decoders import OLMO, oracle
from scipy import stats

from anytime_jax.models import decoder
from anytime_jax.models.sampling import SamplingSettings, generate_tokens, sample_token

GREEDY = SamplingSettings(temperature=0.0, top_k=0, top_p=1.0, seed=0)
PLAIN = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, seed=0)
NARROW = SamplingSettings(temperature=0.8, top_k=11, top_p=0.9, seed=0)
EOS = 1
W = OLMO.vocab_size


@functools.cache
def weights():
    """The oracle's, with large logits for the rows beyond the vocabulary."""
    _, params, _ = oracle("olmo")
    head = np.array(params["head"])
    head[:, W:] = 100 * head[:, :1]
    return jax.device_put({**params, "head": head})


APPLY = jax.jit(functools.partial(decoder.apply, OLMO))


def logits_at(ids):
    padded = np.pad(np.asarray(ids), (0, OLMO.length - len(ids)))
    return np.asarray(APPLY(weights(), padded[None]))[0, len(ids) - 1, :W]


def sample(prompt, sampling, count, end_ids=(EOS,), params=None, config=OLMO):
    return list(generate_tokens(config, params or weights(), prompt, sampling, count, end_ids))


# One token


def exact(sampling, logits):
    """The distribution in float64, as documented by `SamplingSettings`."""
    p = np.exp(np.asarray(logits, np.float64) / sampling.temperature)
    likely_first = sorted(range(len(p)), key=lambda i: (-p[i], i))
    kept = likely_first[: sampling.top_k] if sampling.top_k else likely_first
    if sampling.top_p < 1:
        whole = sum(p[i] for i in kept)
        smallest, total = [], 0.0
        while total < sampling.top_p:
            smallest.append(kept[len(smallest)])
            total += p[smallest[-1]] / whole
        kept = smallest
    left = np.zeros_like(p)
    left[kept] = p[kept]
    return left / left.sum()


def check_distribution(ids, expected):
    """No token of probability 0, and a chi-square below that of one in 10,000."""
    counts = np.bincount(np.asarray(ids), minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    inside = expected > 0
    if inside.sum() > 1:
        assert stats.chisquare(counts[inside], len(ids) * expected[inside]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (0.5, 0, 1.0),
        (1.0, 7, 1.0),
        (1.5, 9, 0.6),
        (1.0, 0, 1e-6),
        (1.0, 1000, 0.95),
    ],
)
def test_sample_token_has_the_exact_distribution(temperature, top_k, top_p):
    sampling = SamplingSettings(temperature, top_k, top_p, seed=0)
    logits = np.random.default_rng(1).normal(size=40).astype(np.float32)
    logits[[3, 8, 20]] = logits.max()  # ties are ordered by id
    keys = jax.random.split(jax.random.key(5), 20_000)
    draw = jax.jit(jax.vmap(functools.partial(sample_token, sampling, jnp.asarray(logits))))
    ids = draw(keys)
    assert ids.dtype == jnp.int32
    check_distribution(ids, exact(sampling, logits))


def test_first_token_over_seeds_has_the_exact_distribution():
    """Through `generate_tokens`, with the logits of `decoder.apply`."""
    prompt, stop, ids = [5, 17, 3], W - 1, []
    sharp = {**weights(), "head": 4 * weights()["head"]}  # else temperature hardly matters
    for seed in range(120):
        text = sample(prompt, dataclasses.replace(NARROW, seed=seed), 1, [stop], params=sharp)
        ids.append(text[0] if text else stop)  # the stop id is a sample too
    check_distribution(ids, exact(NARROW, 4 * logits_at(prompt)))


def test_tokens_of_a_text_are_independent_and_in_the_vocabulary():
    uniform = {**weights(), "head": jnp.zeros_like(weights()["head"])}
    ids = []
    for seed in range(12):  # each ends at a token of probability 1/90
        ids += sample([], dataclasses.replace(PLAIN, seed=seed), 400, params=uniform)
    expected = np.full(W, 1 / (W - 1))
    expected[EOS] = 0
    assert len(ids) > 600
    check_distribution(ids, expected)
    pairs = np.corrcoef(ids[:-1], ids[1:])[0, 1]
    assert abs(pairs) < 5 / np.sqrt(len(ids))


# A text


def continue_greedily(prompt, count):
    """The most likely token, `count` times, each from the full context."""
    context, ids = list(prompt), []
    for _ in range(count):
        if len(context) > OLMO.length:
            context = context[-OLMO.length // 2 :]
        ids.append(int(logits_at(context).argmax()))
        context.append(ids[-1])
    return ids


@pytest.mark.parametrize("length", [1, 16, 40])
def test_greedy_equals_argmax_over_the_full_context(length):
    prompt = np.random.default_rng(length).integers(2, W, length)
    expected = continue_greedily(prompt, 45)
    never = next(i for i in range(W) if i not in expected)
    assert sample(prompt, GREEDY, 45, [never]) == expected


def test_text_depends_on_seed_and_ends_before_end_ids_or_at_count():
    prompt = [5, 17, 3]
    whole = sample(prompt, PLAIN, 60, [0])
    assert len(set(whole)) > 20
    end = whole[9]
    for ends in ([end], [0, end], [end, whole[30]]):
        assert sample(prompt, PLAIN, 60, ends) == whole[: whole.index(end)]
    assert sample(prompt, PLAIN, 5, [0]) == whole[:5]
    assert sample(prompt, PLAIN, 0, [0]) == []
    assert sample(prompt, dataclasses.replace(PLAIN, seed=1), 60, [0]) != whole


def test_empty_prompt_starts_after_eos():
    assert sample([], GREEDY, 12) == continue_greedily([EOS], 12)
    assert sample([50], GREEDY, 12) != continue_greedily([EOS], 12)


def test_tokens_prompts_and_seeds_compile_nothing(compilations):
    sample([5, 6], NARROW, 2, [0])
    with compilations() as count:
        for length in (1, 3, 11, 16, 30):
            given = dataclasses.replace(NARROW, seed=length)
            assert sample(range(2, 2 + length), given, 40, [0])
        assert count() == 0


# Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", x) for x in (1e-9, float("nan"), 1e300)),
        *(("top_k", 0.5), ("top_p", 0.0), ("top_p", 1.5), ("seed", -1)),
    ],
)
def test_settings_are_validated(name, value):
    with pytest.raises(ValueError, match=f"^{name} = "):
        dataclasses.replace(PLAIN, **{name: value})


@pytest.mark.parametrize(
    ("prompt", "count", "eos_id", "named"),
    [
        ([W], 1, EOS, "prompt_ids = 90"),
        ([5], 1, W, "EOS = 90"),
        ([5], -1, EOS, "count = -1"),
    ],
)
def test_ids_are_validated_before_generating(prompt, count, eos_id, named):
    with pytest.raises(ValueError, match=named):
        generate_tokens(OLMO, weights(), prompt, PLAIN, count, [eos_id])
