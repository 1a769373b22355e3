"""What `log.layers` records: against NumPy in float64, on meshes, and in runs."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from training_runs import after, bits, records, start

from anytime_jax.config.model import Llama, Olmo, Olmo2, Qwen
from anytime_jax.data.dataset_info import Delimiters
from anytime_jax.errors import RunError
from anytime_jax.models import decoder
from anytime_jax.training.objective import JOINED, DocumentRules, Objective
from anytime_jax.training.step import measure_layers

END, LENGTH, ROWS = 1, small_run.LENGTH, 4
SHAPE = {
    "layers": 2, "heads": 2, "head_size": 4, "width": 6, "mlp_width": 10, "length": LENGTH,
    "vocab_size": 20, "embedding_rows": 20, "dtype": "float32",
}  # fmt: skip
MODELS = {
    "olmo": Olmo(**SHAPE, layer_loop="unroll", remat="full"),
    "olmo2": Olmo2(**SHAPE, layer_loop="scan", attention="plain"),
    "qwen": Qwen(**SHAPE, kv_heads=1, tied=True),
}
MASKED = DocumentRules(Delimiters(None, END), masks=True, most=3, counts_boundaries=True)
RULES = {"olmo": JOINED, "olmo2": MASKED, "qwen": MASKED}
PARTS, SAME = ("attn", "mlp"), [np.asarray] * 2
SCALARS = ("embedding/weights", "embedding/gradients", "head/weights", "head/gradients")


def random_params(model):
    shapes = decoder.param_shapes(model)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype("f4"), shapes)


def random_tokens():
    tokens_BxT = np.random.default_rng(1).integers(2, 20, (ROWS, LENGTH + 1)).astype(np.int32)
    tokens_BxT[[0, 0, 0, 1, 3], [1, 2, 5, 0, 7]] = END  # four documents in the first window
    return tokens_BxT


def rms(*arrays):
    return math.sqrt(sum((x**2).sum() for x in arrays) / sum(x.size for x in arrays))


# The decoder in NumPy, of the families above.


def numpy_norm(model, x, norm):
    if model.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + model.norm_epsilon) * norm["scale"]


def numpy_rotate(model, x):
    first, second = np.split(x, 2, axis=-1)
    channels = np.arange(first.shape[-1])
    turns = model.rope_theta ** (-2 * channels / x.shape[-1])
    angles = (np.arange(x.shape[1])[:, None] * turns)[:, None]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def numpy_attention(model, block, x, documents):
    """Returns what attention gives, and its largest score."""
    B, L, K = *x.shape[:2], model.head_width
    names = ("qkv",) if "qkv" in block else ("q", "kv")
    parts = [part for name in names for part in np.einsum("bld,dce->cble", x, block[name])]
    norms = [functools.partial(numpy_norm, model, norm=block[f"{x}_norm"]) for x in "qk"]
    if model.qk_norm == "width":
        parts[:2] = (norm(y) for norm, y in zip(norms, parts, strict=False))
    q, k, v = (y.reshape(B, L, -1, K) for y in parts)
    if model.qk_norm == "head":
        q, k = norms[0](q), norms[1](k)
    q, k = numpy_rotate(model, q), numpy_rotate(model, k)
    k, v = (np.repeat(y, model.heads // y.shape[2], axis=2) for y in (k, v))
    scores = np.einsum("blhk,bmhk->bhlm", q, k) / math.sqrt(K)
    seen = np.tril(np.ones((L, L), bool)) & (documents[:, :, None] == documents[:, None])
    scores = np.where(seen[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("bhlm,bmhk->blhk", weights, v).reshape(B, L, -1)
    return out @ block["attn_out"], scores.max()


def numpy_mlp(model, block, x):
    h = np.einsum("bld,dcf->cblf", x, block["mlp_in"])
    h = h[0] / (1 + np.exp(-h[0])) * h[1] if model.gated else numpy_gelu(h[0])
    return h @ block["mlp_out"]


def numpy_gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def numpy_loss_and_measures(model, rules, params, tokens):
    inputs, targets, found = tokens[:, :-1], tokens[:, 1:], []
    ends = np.cumsum(inputs == END, axis=1) - (inputs == END)
    documents = np.minimum(ends, rules.most - 1) if rules.masks else 0 * ends
    x = params["embedding"][inputs]
    for layer in range(model.layers):
        block = jax.tree.map(lambda leaf, i=layer: leaf[i], params["blocks"])
        norms = [functools.partial(numpy_norm, model, norm=block[f"{y}_norm"]) for y in PARTS]
        befores, afters = (norms, SAME) if model.norm_first else (SAME, norms)
        attended, logit = numpy_attention(model, block, befores[0](x), documents)
        attended = afters[0](attended)
        x = x + attended
        added = afters[1](numpy_mlp(model, block, befores[1](x)))
        x = x + added
        sizes = {"attention": rms(attended), "mlp": rms(added), "residual": rms(x)}
        found.append(sizes | {"logit": logit})
    x = numpy_norm(model, x, params["final_norm"])
    logits = x @ (params["embedding"].T if model.tied else params["head"])
    target = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    loss = (np.log(np.exp(logits).sum(-1)) - target).mean()
    return loss, {name: [x[name] for x in found] for name in found[0]}


def numpy_gradient(model, rules, params, tokens, matrix):
    """By differences in each element of an array of `params`, which is changed and restored."""
    gradient, flat = np.zeros(matrix.size), matrix.reshape(-1)
    for i, x in enumerate(flat):
        losses = []
        for flat[i] in (x + 1e-5, x - 1e-5):
            losses.append(numpy_loss_and_measures(model, rules, params, tokens)[0])
        flat[i], gradient[i] = x, (losses[0] - losses[1]) / 2e-5
    return gradient.reshape(matrix.shape)


def measure(model, rules, params, tokens, mesh=None, microbatches=1):
    config = small_run.config("unused", batch_size=ROWS, microbatches=microbatches)
    if mesh is None:
        measured = functools.partial(measure_layers, config, Objective(model, rules=rules))
        return jax.jit(functools.partial(measured, rows=ROWS // microbatches))(params, tokens)
    program = small_run.program(config, mesh, rules, model=model)
    return program.measure_layers(params, jnp.asarray(tokens))


@pytest.mark.parametrize("kind", MODELS)
def test_measures_match_numpy(kind):
    """The gradients of the whole batch, and the activations of its first microbatch."""
    model, rules, tokens = MODELS[kind], RULES[kind], random_tokens()
    float32 = random_params(model)
    found = measure(model, rules, float32, tokens, microbatches=2)
    params = jax.tree.map(lambda x: x.astype(np.float64), float32)
    expected = numpy_loss_and_measures(model, rules, params, tokens[::2])[1]
    matrices = [x for x in params["blocks"].values() if not isinstance(x, dict)]
    gradients = [numpy_gradient(model, rules, params, tokens, x) for x in matrices]
    for name, arrays in (("weights", matrices), ("gradients", gradients)):
        expected[name] = [rms(*of_layer) for of_layer in zip(*arrays, strict=True)]
    for part in ("embedding", "head"):
        if part in params:
            gradient = numpy_gradient(model, rules, params, tokens, params[part])
            expected[f"{part}/weights"], expected[f"{part}/gradients"] = (
                rms(params[part]),
                rms(gradient),
            )
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-5, err_msg=name)


@pytest.mark.parametrize("axes", [{"data": 2}, {"data": 1, "fsdp": 2}, {"data": 1, "tensor": 2}])
def test_measures_are_the_same_on_two_devices(axes):
    model = dataclasses.replace(MODELS["qwen"], kv_heads=2)
    params, tokens = random_params(model), random_tokens()
    alone, shared = (
        measure(model, MASKED, params, tokens, mesh, microbatches=2)
        for mesh in (small_run.mesh(), small_run.mesh(2, **axes))
    )
    for name, values in alone.items():
        np.testing.assert_allclose(shared[name], values, rtol=2e-5, err_msg=name)


class Routed(decoder.Block):
    """A block of one's own, whose MLP measures something."""

    def mlp(self, x_BxLxD, layer):
        self.measure("router", jnp.max, x_BxLxD)
        return super().mlp(x_BxLxD, layer)


class Silent(decoder.Block):
    """A block of one's own that measures nothing."""

    def measure(self, name, function, *arrays):
        pass


@pytest.mark.parametrize("block", [Routed, Silent])
def test_own_block_measures_what_it_likes(block, monkeypatch):
    model = Llama(**SHAPE)
    monkeypatch.setattr(Llama, "block", lambda self: block)
    found = decoder.measure_layers(model, random_params(model), random_tokens()[:, :-1])
    assert set(found) == ({*MEASURES, "router"} if block is Routed else set())
    assert all(x.shape == (model.layers,) for x in found.values())


# Runs.

MEASURES = ("attention", "logit", "mlp", "residual")
OFTEN = {"log__layers": "2 steps", "log__every": "3 steps"}
OF_LAYERS = {f"layers/{i}/{x}" for i in range(2) for x in (*MEASURES, "weights", "gradients")}
OF_LAYERS |= {f"layers/{x}" for x in SCALARS}


def split(rows):
    """Returns, by step, the values that are not of layers and the names of those that are."""
    others, layers = {}, {}
    for step, _, values in rows:
        layers[step] = {name for name in values if name.startswith("layers/")}
        others[step] = {name: x for name, x in values.items() if name not in layers[step]}
    return {step: x for step, x in others.items() if x}, {s: x for s, x in layers.items() if x}


def test_run_has_the_same_bits_and_the_layers_too(dataset, tmp_path):
    """Also of a run that was interrupted between the rows of its layers."""
    start(tmp_path / "without", dataset, log__every="3 steps")
    start(tmp_path / "with", dataset, **OFTEN)
    start(tmp_path / "resumed", dataset, interrupted=after(5), **OFTEN)
    start(tmp_path / "resumed", dataset, **OFTEN)
    without, whole, resumed = (records(tmp_path / x) for x in ("without", "with", "resumed"))
    assert split(whole) == (split(without)[0], dict.fromkeys((2, 4, 6, 8, 10), OF_LAYERS))
    assert resumed == whole
    assert bits(tmp_path / "without", 10) == bits(tmp_path / "with", 10)


def test_layers_of_the_update_that_ends_a_run_are_recorded(dataset, tmp_path):
    with pytest.raises(RunError) as error:
        start(tmp_path, dataset, log__layers="1 steps", schedule__peak=1e30)
    last = int(re.search(r"update (\d+)", str(error.value))[1])
    assert split(records(tmp_path))[1] == dict.fromkeys(range(1, last + 1), OF_LAYERS)
