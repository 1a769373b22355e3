"""Tests of likelihoods and continuations in batches, against one text at a time."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import small_run

from anytime_jax.distributed import sharding
from anytime_jax.models import decoder
from anytime_jax.models.sampling import SamplingSettings, generate_tokens
from anytime_jax.training import text_scorer
from anytime_jax.training.text_scorer import TextScorer

CONFIG = small_run.config("run", model__length=24)
LENGTH, WORDS = CONFIG.model.length, CONFIG.model.vocab_size
GREEDY = SamplingSettings(temperature=0.0, top_k=0, top_p=1.0, seed=0)
PLAIN = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, seed=3)
MESHES = pytest.mark.parametrize(
    ("size", "axes"),
    [(1, {}), pytest.param(8, {"data": 2, "fsdp": 2, "tensor": 2}, marks=pytest.mark.slow)],
)


@pytest.fixture(scope="module", name="params")
def params_fixture():
    """Weights that are large enough for every token to matter."""
    params = decoder.init_params(CONFIG.model, jax.random.key(1))
    return jax.tree.map(lambda x: np.asarray(1.5 * x), params)


@pytest.fixture(scope="module", name="logits_of")
def logits_of_fixture(params):
    """The logits after each token of one text, float64."""
    apply = jax.jit(functools.partial(decoder.apply, CONFIG.model))

    def logits_of(ids):
        padded = np.pad(np.asarray(ids, np.int32), (0, LENGTH - len(ids)))
        return np.asarray(apply(params, padded[None])[0, : len(ids)], np.float64)

    return logits_of


def scorer_on(devices, batch_size, params, **axes):
    mesh = small_run.mesh(devices, **axes)
    scorer = TextScorer(CONFIG.model, small_run.program(CONFIG, mesh), mesh, batch_size)
    places = sharding.parameter_shardings(params, decoder.parameter_axes(CONFIG.model), mesh)
    return scorer, jax.device_put(params, places)


def random_texts(count, least, most):
    random = np.random.default_rng(0)
    return [
        random.integers(0, WORDS, random.integers(least, most + 1)).tolist() for _ in range(count)
    ]


def likelihood(logits_of, context, continuation):
    """The log-likelihood of one continuation by the textbook, and whether it is greedy."""
    text = [*context, *continuation][-(LENGTH + 1) :]
    logits = logits_of(text[:-1])[-len(continuation) :]
    top = logits.max(axis=1, keepdims=True)
    log_p = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    hits = logits.argmax(axis=1) == continuation
    return log_p[np.arange(len(continuation)), continuation].sum(), bool(hits.all())


@MESHES
def test_log_likelihoods_are_those_of_single_texts(params, logits_of, size, axes):
    contexts, rest = random_texts(21, 1, 2 * LENGTH), random_texts(21, 1, 6)
    rest[5] = random_texts(1, LENGTH, LENGTH)[0]  # as long as the model reads
    for at in range(0, 21, 2):  # greedy ones, the last of which breaks at its end
        likeliest = [int(logits_of([*contexts[at], *rest[at]][-LENGTH:])[-1].argmax())]
        contexts[at], rest[at] = [*contexts[at], *rest[at]], likeliest
    rest[20] = [*rest[20], (rest[20][0] + 1) % WORDS]
    pairs, done = list(zip(contexts, rest, strict=True)), []
    scorer, placed = scorer_on(size, 8, params, **axes)
    scores = scorer.log_likelihoods(placed, pairs, done.append)
    expected = [likelihood(logits_of, *pair) for pair in pairs]
    np.testing.assert_allclose([x for x, _ in scores], [x for x, _ in expected], rtol=1e-4)
    assert [hit for _, hit in scores] == [hit for _, hit in expected]
    assert {hit for _, hit in scores} == {True, False}
    assert sum(done) == len(pairs)


def test_lengths_share_few_programs(params, compilations):
    scorer, placed = scorer_on(1, 4, params)
    scorer.log_likelihoods(placed, [([1], [2])] * 2)
    with compilations() as count:
        scorer.log_likelihoods(placed, [([1] * n, [2]) for n in range(1, 17)])
    assert count() == 0


@MESHES
def test_continuations_are_those_of_single_texts(params, monkeypatch, size, axes):
    monkeypatch.setattr(text_scorer, "_CHUNK", 4)
    prompts = random_texts(19, 1, LENGTH - 5)
    scorer, placed = scorer_on(size, 8, params, **axes)
    generated = scorer.continuations(placed, prompts, GREEDY, 5, lambda row, token: False)
    one = functools.partial(generate_tokens, CONFIG.model, jax.device_put(params))
    expected = [list(one(prompt, GREEDY, 5, [WORDS - 1])) for prompt in prompts]
    assert generated == expected
    assert len({tuple(ids) for ids in generated}) > 15


def test_continuation_ends_after_the_token_that_ends_it(params):
    prompts = random_texts(11, 1, LENGTH - 8)
    scorer, placed = scorer_on(1, 4, params)
    whole = scorer.continuations(placed, prompts, GREEDY, 8, lambda row, token: False)
    ends = {row: ids[row % 8] for row, ids in enumerate(whole)}
    cut = scorer.continuations(placed, prompts, GREEDY, 8, lambda row, token: token == ends[row])
    assert cut == [ids[: ids.index(ends[row]) + 1] for row, ids in enumerate(whole)]
    assert len({len(ids) for ids in cut}) > 3


@pytest.mark.slow
def test_samples_do_not_depend_on_the_batch(params):
    prompts = [[7, 8]] * 6
    runs = []
    for batch_size in (2, 8):
        scorer, placed = scorer_on(1, batch_size, params)
        runs.append(scorer.continuations(placed, prompts, PLAIN, 4, lambda row, token: False))
    assert runs[0] == runs[1]
    assert len({tuple(ids) for ids in runs[0]}) > 3  # equal prompts are sampled anew
    other = dataclasses.replace(PLAIN, seed=4)
    assert scorer.continuations(placed, prompts, other, 4, lambda row, token: False) != runs[0]
