"""Attention within documents: no path lets a token see another document."""

import dataclasses
import functools
import itertools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.extend.core import jaxprs_in_params

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.config.model import MODELS
from anytime_jax.data.dataset_info import Delimiters
from anytime_jax.distributed.sharding import UNCONSTRAINED, ShardingConstraint, make_mesh
from anytime_jax.errors import InputError, RunError
from anytime_jax.models import attention, decoder
from anytime_jax.models.attention import Documents, find_documents
from anytime_jax.training.objective import DocumentRules, Objective

END, LENGTH = 1, 256
DELIMITERS = Delimiters(None, END)
# Where documents end: within a block of 128, at its end, twice in a row, at the end of a window.
ENDS = ([9, 40, 41, 90, 127, 200], [0, 255], [127, 128])
PATHS = ("plain", "blocks", "xla", "splash")


@pytest.fixture(autouse=True)
def path_as_configured(monkeypatch):
    """Lets splash attention be interpreted, in blocks; a CPU would take "xla" in its place."""
    monkeypatch.setattr(attention, "_SPLASH_BLOCKS", (128,))
    monkeypatch.setattr(decoder, "choose_implementation", lambda config, *_: config.attention)


def make_tokens():
    tokens_BxL = np.random.default_rng(0).integers(2, 300, (len(ENDS), LENGTH)).astype(np.int32)
    for row, ends in zip(tokens_BxL, ENDS, strict=True):
        row[ends] = END
    return tokens_BxL


def random_model(path, **changes):
    changes = {f"model__{x}": y for x, y in changes.items()}
    config = small_run.config(
        "run", model__attention=path, model__length=LENGTH, eval__tokens="all", **changes
    ).model
    shapes = decoder.param_shapes(config)
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(shapes))))
    params = jax.tree.map(lambda x: 0.3 * jax.random.normal(next(keys), x.shape), shapes)
    return config, params


@functools.cache
def logits_of(path):
    """A jitted function of parameters and tokens, with and without a mask."""
    config, params = random_model(path, heads=4, kv_heads=2)

    @functools.partial(jax.jit, static_argnames="masked")
    def logits(tokens_BxL, masked=True):
        documents = find_documents(tokens_BxL == END, 64) if masked else None
        hidden = decoder.hidden(config, params, tokens_BxL, UNCONSTRAINED, documents)
        return hidden @ decoder.head(config, params)

    return config, params, logits


@pytest.mark.parametrize("path", PATHS)
def test_other_documents_change_no_bit(path):
    *_, logits = logits_of(path)
    tokens_BxL = make_tokens()
    changed = tokens_BxL.copy()
    changed[0, :9] = 7  # the first document
    changed[0, 42:90] = 8  # and the fourth
    before, after = np.asarray(logits(tokens_BxL)), np.asarray(logits(changed))
    same = [*range(10, 42), *range(91, LENGTH)]
    assert np.array_equal(before[0, same], after[0, same])
    assert np.array_equal(before[1:], after[1:])
    assert not np.isclose(before[0, 8], after[0, 8]).all()
    if path == "plain":  # without a mask, they do
        joined = [np.asarray(logits(x, masked=False)) for x in (tokens_BxL, changed)]
        assert np.abs(joined[0][0, same] - joined[1][0, same]).max() > 0.1


def logits_alone():
    """The logits of each document at the beginning of a window, by row, first and last token."""
    config, params, _ = logits_of("plain")
    tokens_BxL = make_tokens()
    spans = [
        (row, begin, end)
        for row, ends in enumerate(ENDS)
        for begin, end in itertools.pairwise([0, *(x + 1 for x in ends), LENGTH])
        if begin < end
    ]
    alone = np.zeros((len(spans), LENGTH), np.int32)
    for window, (row, begin, end) in zip(alone, spans, strict=True):
        window[: end - begin] = tokens_BxL[row, begin:end]
    logits = jax.jit(functools.partial(decoder.apply, config))(params, alone)
    return dict(zip(spans, np.asarray(logits), strict=True))


def test_documents_are_as_they_are_alone():
    """By the plain path, whose loss and gradients those of the others equal."""
    *_, logits = logits_of("plain")
    ours = np.asarray(logits(make_tokens()))
    for (row, begin, end), alone in logits_alone().items():
        alone = alone[: end - begin]
        # Rotary positions count from the window's beginning, which changes only rounding.
        largest = float(np.abs(alone).max())
        np.testing.assert_allclose(ours[row, begin:end], alone, atol=1e-5 * largest)


@functools.cache
def loss_and_gradients(path):
    tokens_BxT = np.concatenate([make_tokens(), make_tokens()[:, :1]], axis=1)
    rules = DocumentRules(DELIMITERS, masks=True, most=64, counts_boundaries=True)
    config, params = random_model(path, heads=4, kv_heads=2)
    objective = Objective(config, ShardingConstraint(), rules)
    return jax.jit(objective.loss_and_gradient)(params, tokens_BxT)


@pytest.mark.parametrize("path", PATHS[1:])
def test_gradients_are_those_of_the_plain_path(path):
    found = loss_and_gradients("plain"), loss_and_gradients(path)
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * float(jnp.abs(a).max()) + 1e-8)


@pytest.mark.parametrize("path", ["blocks", pytest.param("splash", marks=pytest.mark.slow)])
def test_devices_give_the_loss_and_gradients_of_one(path):
    """Rows, heads and the mean over the tokens that count are split over a mesh."""
    config, params = random_model(path, heads=4, kv_heads=2)
    rules = DocumentRules(DELIMITERS, masks=True, most=64, counts_boundaries=False)
    tokens_BxT = np.concatenate([make_tokens(), make_tokens()[:1]])
    tokens_BxT = np.concatenate([tokens_BxT, tokens_BxT[:, :1]], axis=1)
    found = []
    for mesh in (None, make_mesh(MeshConfig(2, 1, 2), jax.devices()[:4])):
        objective = Objective(config, ShardingConstraint(mesh), rules)
        compute = jax.jit(functools.partial(objective.loss_and_gradient, microbatches=2))
        found.append(jax.device_get(compute(params, tokens_BxT)))
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5 * np.abs(a).max())


def slow_packed(ids_L, most):
    starts, lengths = [], []
    for position, document in enumerate(ids_L):
        document = min(document, most - 1)
        if document == len(starts):
            starts.append(position)
            lengths.append(0)
        lengths[document] += 1
    rest = most - len(starts)
    return starts + [-1] * (rest + 1), lengths + [-1] * rest


@pytest.mark.parametrize("most", [3, 64])
def test_packed_layout_of_cudnn(most):
    documents = find_documents(jnp.asarray(make_tokens() == END), most)
    starts, lengths = documents.packed()
    assert starts.dtype == lengths.dtype == jnp.int32
    for row in range(len(ENDS)):
        slow = slow_packed(documents.ids_BxL[row].tolist(), most)
        assert (starts[row].tolist(), lengths[row].tolist()) == slow


@pytest.fixture(name="hopper")
def hopper_fixture(monkeypatch):
    """Lets programs be traced for a GPU that is not there."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 90_600)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda least: True)
    gpu = types.SimpleNamespace(platform="gpu", compute_capability="9.0")
    monkeypatch.setattr(ShardingConstraint, "device", gpu)


def test_kernels_of_cudnn_take_offsets_and_lengths(hopper):
    """With as many heads of keys as of queries: JAX 0.10.2 has other offsets wrong."""
    B, M = len(ENDS), 8
    documents = find_documents(jnp.asarray(make_tokens() == END), M)

    def loss(*heads):
        precision = decoder.Precision("bfloat16", "gpu")
        out = attention.causal_attention(*heads, precision, "cudnn", documents=documents)
        return out.astype(jnp.float32).sum()

    heads = [jax.ShapeDtypeStruct((B, LENGTH, n, 8), jnp.float32) for n in (4, 2, 2)]
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*heads)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = re.findall(r"custom_call @__cudnn\$(\w+)\(.*: \((.*?)\) ->", text)
    assert [name for name, _ in calls] == ["fmhaSoftmax", "fmhaSoftmaxBackward"]
    for _, operands in calls:
        types = re.findall(r"tensor<(\w+)>", operands)
        assert types[:3] == [f"{B}x{LENGTH}x4x8xbf16"] * 3
        packed = [x for x in types if x.endswith("i32")]
        assert packed == [f"{B}x{M}xi32"] * 2 + [f"{B}x{M + 1}xi32"] * 2


def test_each_device_packs_its_own_rows_for_cudnn(hopper):
    """The batch has 8 rows in 2 microbatches; JAX cannot map its kernel over parts of it."""
    config, params = random_model("cudnn", heads=4, kv_heads=2, head_size=8, dtype="bfloat16")
    rules = DocumentRules(DELIMITERS, masks=True, most=8, counts_boundaries=True)
    constrain = ShardingConstraint(make_mesh(MeshConfig(2, 2, 2)))
    tokens_BxT = jnp.ones((8, LENGTH + 1), jnp.int32)
    jaxpr = jax.make_jaxpr(
        lambda p: Objective(config, constrain, rules).loss_and_gradient(p, tokens_BxT, 2)
    )(params)
    found = [
        [x.aval.shape for x in equation.invars]
        for equation in all_equations(jaxpr.jaxpr)
        if "dot_product_attention" in equation.primitive.name
    ]
    assert len(found) >= 2
    for shapes in found:  # one of the four rows of a microbatch, and two of the four heads
        assert shapes.count((1, LENGTH, 2, 8)) >= 3
        assert shapes.count((1, 8)) == shapes.count((1, 9)) == 2


def all_equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from all_equations(inner)


def test_a_block_that_may_ignore_documents_is_refused():
    class Careless(decoder.Block):
        def attend(self, x_BxLxD, layer, cache):
            return x_BxLxD, cache

    class Model(MODELS.find("llama", ())):
        def block(self):
            return Careless

    config = Model(layers=1, heads=2, width=8, mlp_width=8, length=8, attention="plain")
    params = decoder.init_params(config, jax.random.key(0))
    documents = Documents(jnp.zeros((1, 8), jnp.int32), 4)
    tokens = jnp.ones((1, 8), jnp.int32)
    with pytest.raises(InputError, match="masks_documents"):
        decoder.hidden(config, params, tokens, documents=documents)
    Careless.masks_documents = True
    decoder.hidden(config, params, tokens, documents=documents)


def test_losses_of_ends_of_text_may_not_count():
    """In three microbatches, against the mean over the whole batch."""
    config, params = random_model("plain")
    tokens_BxT = np.concatenate([make_tokens(), make_tokens()[:, :1]], axis=1)

    def mean(params):
        documents = find_documents(jnp.asarray(tokens_BxT[:, :-1] == END), 64)
        hidden = decoder.hidden(config, params, tokens_BxT[:, :-1], documents=documents)
        logits = hidden @ decoder.head(config, params)
        chosen = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(chosen, tokens_BxT[:, 1:, None], -1)[..., 0]
        counts = tokens_BxT[:, :-1] != END
        return jnp.sum(losses * counts) / counts.sum()

    expected = jax.jit(jax.value_and_grad(mean))(params)
    rules = DocumentRules(DELIMITERS, masks=True, most=64, counts_boundaries=False)
    found = jax.jit(
        lambda p: Objective(config, ShardingConstraint(), rules).loss_and_gradient(
            p, jnp.asarray(tokens_BxT), 3
        )
    )(params)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for a, b in zip(*map(jax.tree.leaves, (found[1], expected[1])), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5 * float(jnp.abs(b).max()) + 1e-8)


def test_id_that_begins_and_ends_documents():
    """Documents of three tokens, one token, and none: their BOS is theirs."""
    tokens_BxT = np.array([[END, 7, 8, 9, END, END, 7, END, END, END, END, 7]])
    rules = DocumentRules(Delimiters(END, END), True, 3, counts_boundaries=False, refuses=True)
    documents = rules.find(jnp.asarray(tokens_BxT[:, :-1]))
    assert documents.ids_BxL.tolist() == [[0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]]
    np.testing.assert_allclose(rules.boundary_scale(jnp.asarray(tokens_BxT)), 11 / 8)
    with pytest.raises(RunError, match="4 documents"):
        rules.check(tokens_BxT, "the batch")
    dataclasses.replace(rules, most=4).check(tokens_BxT, "the batch")
