"""The parametrization by width, against the package `mup` and by the coordinate check."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
import small_run
from paths import FIXTURES
from small_run import same_bits

from anytime_jax import optimizers
from anytime_jax.config.model import Llama, Olmo, Olmo2
from anytime_jax.errors import InputError
from anytime_jax.formats import model_format, model_reader, model_writer
from anytime_jax.formats.model_reader import WEIGHTS
from anytime_jax.models import decoder
from anytime_jax.models.loss import token_losses
from benchmarks.coordinate_check import measure

SHAPE = {"layers": 2, "heads": 4, "width": 64, "mlp_width": 96, "vocab_size": 64}
SHAPE |= {"embedding_rows": 64, "length": 32, "dtype": "float32", "attention": "plain"}


def info(config, rate=0.01):
    return optimizers.RunInfo(
        optax.constant_schedule(rate),
        matrix_axes=decoder.matrix_axes(config),
        width_growth=config.width_growth,
        growing_matrices=decoder.growing_matrices(config),
    )


@functools.cache
def oracle(head):
    with np.load(FIXTURES / "mup.npz", allow_pickle=False) as file:
        return {x.partition("/")[2]: file[x] for x in file.files if x.startswith(f"{head}/")}


def read_tensors(folder, head, tensors):
    """The tensors of the oracle as parameters here, and the model."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(str(oracle(head)["config"]))
    safetensors.numpy.save_file(tensors, folder / WEIGHTS)
    description = model_reader.read_description(folder)
    shape = dict(description.shape)
    del shape["kind"]
    config = Llama(**shape, dtype="float32", attention="plain", layer_loop="scan")
    return model_reader.read_params(description, config, decoder.param_shapes(config)), config


def drawn(head):
    """The initial tensors of the oracle."""
    shapes = {x[6:]: y.shape for x, y in oracle(head).items() if x.startswith("final/")}
    rng = np.random.RandomState(0)
    values = {name: 0.3 * rng.standard_normal(shapes[name]) for name in sorted(shapes)}
    return {name: (x + ("norm" in name)).astype(np.float32) for name, x in values.items()}


@pytest.mark.parametrize("head", ["untied", "tied"])
def test_training_equals_that_of_the_package(head, tmp_path):
    params, config = read_tensors(tmp_path / "start", head, drawn(head))
    config = dataclasses.replace(config, parametrization="mup", base_width=16)
    optimizer = optimizers.AdamW(epsilon=1e-12 * 4, weight_decay=0.1).transform(info(config))
    state = optimizer.init(params)

    @jax.jit
    def update(params, state, tokens):
        def loss(params):
            return token_losses(decoder.apply(config, params, tokens[:, :-1]), tokens[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return value, optax.apply_updates(params, updates), state

    losses = []
    for tokens in oracle(head)["tokens"]:
        value, params, state = update(params, state, tokens)
        losses.append(float(value))
    np.testing.assert_allclose(losses, oracle(head)["losses"], rtol=2e-5)
    final = {x[6:]: y for x, y in oracle(head).items() if x.startswith("final/")}
    expected, _ = read_tensors(tmp_path / "end", head, final)
    for (path, ours), theirs in zip(
        jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(expected), strict=True
    ):
        # A gradient near 0 has a sign that rounding decides, and Adam moves by the sign.
        close = np.isclose(ours, theirs, atol=2e-4)
        assert close.mean() > 0.999, path


def test_initial_scales_and_rates_are_those_of_the_package():
    config = Llama(**{**SHAPE, "heads": 8}, kv_heads=4, parametrization="mup", base_width=16)
    growing = decoder.growing_matrices(config)
    assert growing == {"q", "kv", "attn_out", "mlp_in", "mlp_out"}
    wide = Llama(
        **{**SHAPE, "heads": 64, "width": 512, "mlp_width": 768},
        kv_heads=32,
        parametrization="mup",
        base_width=128,
    )
    params = jax.jit(functools.partial(decoder.init_params, wide))(jax.random.key(0))
    flat = {path[-1].key: x for path, x in jax.tree_util.tree_leaves_with_path(params)}
    names = {
        "q_proj": "q", "k_proj": "kv", "v_proj": "kv", "o_proj": "attn_out", "gate_proj": "mlp_in",
        "up_proj": "mlp_in", "down_proj": "mlp_out", "embed_tokens": "embedding", "lm_head": "head",
    }  # fmt: skip
    for name, std in oracle("untied").items():
        if name.startswith("std/"):
            theirs = re.sub(r"^std/|\.weight$", "", name).rpartition(".")[2]
            ours, rate = names[theirs], oracle("untied")[name.replace("std/", "rate/")]
            # Ours are truncated at three standard deviations.
            np.testing.assert_allclose(np.std(flat[ours]), 0.9866 * std, rtol=0.03)
            assert (ours in growing) == (rate == 0.01 / 4), name
            assert rate in (0.01, 0.01 / 4)


@pytest.mark.parametrize(("kind", "tied"), [(Olmo2, True), (Llama, False)])
def test_at_the_base_width_it_is_the_standard_one_bit_for_bit(kind, tied):
    shape = {**SHAPE, "layers": 1, "width": 16, "mlp_width": 24}
    standard = kind(**shape, tied=tied)
    mup = kind(**shape, tied=tied, parametrization="mup", base_width=16)

    def params_and_logits(config):
        @jax.jit
        def compute(key, tokens):
            params = decoder.init_params(config, key)
            return params, decoder.apply(config, params, tokens)

        return compute(jax.random.key(3), np.arange(32)[None] % 64)

    assert same_bits(*map(params_and_logits, (standard, mup)))


def test_activations_and_their_changes_do_not_depend_on_the_width():
    slopes = measure(Olmo, optimizers.AdamW(), "mup", 2e-3, (64, 256), seeds=1, updates=3)
    assert slopes.largest < 0.06


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "optimizer", "rate"),
    [
        (Llama, optimizers.AdamW(), 5e-4),
        (Olmo, optimizers.ScheduleFreeAdamW(), 2e-3),
        (Olmo, optimizers.Muon(scale="fans"), 2e-3),
    ],
)
def test_the_same_up_to_a_width_of_1024(kind, optimizer, rate):
    # The first change of Llama's logits has a slope of -0.057 (lab/evidence/width.md).
    assert measure(kind, optimizer, "mup", rate).largest < (0.06 if kind is Llama else 0.05)


@pytest.mark.slow
def test_the_standard_rules_let_changes_grow_with_the_width():
    adamw = optimizers.AdamW()
    slopes = measure(Olmo, adamw, "standard", 1e-2, (64, 256), seeds=1, updates=3)
    assert slopes.changes["block 1"][-1] > 0.3


def logits(config, params, tokens):
    return jax.jit(functools.partial(decoder.apply, config))(params, tokens)


@pytest.mark.parametrize("head", ["untied", pytest.param("tied", marks=pytest.mark.slow)])
def test_exported_model_has_the_same_logits(head, tmp_path):
    """The reader is held against `transformers`; what divides the logits is in the final norm."""
    params, config = read_tensors(tmp_path / "start", head, drawn(head))
    config = dataclasses.replace(config, parametrization="mup", base_width=16)
    output = tmp_path / "exported"
    output.mkdir()
    layers = model_format.split_layers(params)
    chosen = model_reader.FORMATS["llama"]
    model_writer.write_model(output, chosen, config, layers, {"eos_token_id": 1}, "float32")
    shape = dict(model_reader.read_description(output).shape)
    del shape["kind"]
    read_config = Llama(**shape, dtype="float32", attention="plain")
    description = model_reader.read_description(output)
    shapes = decoder.param_shapes(read_config)
    read = model_reader.read_params(description, read_config, shapes)
    tokens = oracle(head)["tokens"][0]
    ours, theirs = (logits(*x, tokens) for x in ((config, params), (read_config, read)))
    assert float(jnp.std(ours)) > 0.1
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    parity = safetensors.numpy.load_file(output / model_reader.PARITY)
    expected = logits(config, params, parity["tokens"][None])[0]
    np.testing.assert_allclose(parity["logits"], expected, atol=1e-4)


def test_optimizer_without_a_rule_for_the_width_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"^config\.optimizer\.kind"):
        small_run.config(
            tmp_path,
            model__parametrization="mup",
            model__base_width=16,
            optimizer__kind="optimizer_kinds:Plain",
        )


def test_own_parameters_grow_by_the_names_of_their_axes(monkeypatch):

    axes = {"gate": ("width", "mlp"), "router": ("width", None)}
    shapes = {"blocks": {x: jax.ShapeDtypeStruct((2, 8, 8), jnp.float32) for x in axes}}
    monkeypatch.setattr(decoder, "param_shapes", lambda config: shapes)
    monkeypatch.setattr(Olmo, "parameter_axes", axes)
    assert decoder.growing_matrices(Olmo(**SHAPE)) == {"gate"}
    monkeypatch.setattr(Olmo, "parameter_axes", {"gate": ("width", "mlp")})
    with pytest.raises(InputError, match=r"parameter_axes of Olmo.*router"):
        decoder.growing_matrices(Olmo(**SHAPE))
