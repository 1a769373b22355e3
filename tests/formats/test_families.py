"""Llama, Mistral, Qwen and OLMo-2 as `transformers` saves them, against its numbers.

The weights are large enough that every setting shows (`tests/oracles/transformers_families.py`).
"""

import contextlib
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from paths import FIXTURES
from small_run import same_bits

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.config.model import MODELS, Llama, Olmo2, Qwen
from anytime_jax.distributed.sharding import make_mesh, parameter_shardings
from anytime_jax.errors import InputError
from anytime_jax.formats import model_format, model_reader, model_writer
from anytime_jax.formats.model_reader import WEIGHTS
from anytime_jax.models import decoder, sampling
from anytime_jax.training.objective import Objective

FAMILIES = ("llama", "smollm2", "mistral", "qwen2", "qwen3", "olmo2")
KINDS = {"llama": Llama, "qwen": Qwen, "olmo2": Olmo2}
TOLERANCE = 1e-4
PUBLIC = json.loads((FIXTURES / "public_models.json").read_text())
families = pytest.mark.parametrize("family", FAMILIES)


@functools.cache
def oracle(family):
    with np.load(FIXTURES / "families.npz", allow_pickle=False) as file:
        prefix = f"{family}/"
        return {x.removeprefix(prefix): file[x] for x in file.files if x.startswith(prefix)}


@functools.cache
def tensors(family):
    """The tensors that the oracle drew."""
    shapes = {x[5:]: y.shape for x, y in oracle(family).items() if x.startswith("grad/")}
    rng = np.random.RandomState(0)
    drawn = {name: 0.3 * rng.standard_normal(shapes[name]) for name in sorted(shapes)}
    return {name: (x + ("norm" in name)).astype(np.float32) for name, x in drawn.items()}


def write(folder, family, **changes):
    folder.mkdir(exist_ok=True)
    settings = {**json.loads(str(oracle(family)["config"])), **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    safetensors.numpy.save_file(tensors(family), folder / WEIGHTS)
    return folder


def configuration(folder):
    shape = dict(model_reader.read_description(folder).shape)
    options = {"dtype": "float32", "attention": "plain", "layer_loop": "scan"}
    return KINDS[shape.pop("kind")](**shape, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The configuration and the parameters of a family, as read from its files."""

    @functools.cache
    def read(family):
        folder = write(tmp_path_factory.mktemp(family), family)
        config = configuration(folder)
        params = model_reader.read_params(
            model_reader.read_description(folder), config, decoder.param_shapes(config)
        )
        return config, params

    return read


def logits(config, params, family):
    return jax.jit(decoder.apply, static_argnums=0)(
        config, params, jnp.asarray(oracle(family)["tokens"][:, :-1])
    )[0]


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        *(("llama", "plain"), ("smollm2", "xla"), ("mistral", "blocks"), ("qwen2", "plain")),
        *(("qwen3", "blocks"), ("olmo2", "xla")),
    ],
)
def test_logits_are_those_of_transformers(family, attention, model):
    config, params = model(family)
    config = dataclasses.replace(config, attention=attention)
    actual = logits(config, params, family)
    np.testing.assert_allclose(actual, oracle(family)["logits"], rtol=0, atol=TOLERANCE)


@families
def test_gradients_are_those_of_transformers(family, model):
    config, params = model(family)
    tokens = jnp.asarray(oracle(family)["tokens"])
    loss_and_gradient = jax.jit(Objective(config).loss_and_gradient)
    loss, gradient = loss_and_gradient(params, tokens)
    assert float(loss) == pytest.approx(float(oracle(family)["loss"]), abs=1e-5)
    layers = model_format.split_layers(jax.device_get(gradient))
    theirs = dict(model_format.layers_to_tensors(table(config), layers))
    assert theirs.keys() == tensors(family).keys()
    for name, tensor in theirs.items():
        expected = oracle(family)[f"grad/{name}"]
        np.testing.assert_allclose(tensor, expected, rtol=0, atol=TOLERANCE, err_msg=name)


def table(config):
    return model_reader.FORMATS[MODELS.name_of(type(config))].tensors(config)


@families
def test_greedy_text_is_that_of_transformers(family, model):
    config, params = model(family)
    expected = oracle(family)["greedy"].tolist()
    greedy = sampling.SamplingSettings(temperature=0.0, top_k=0, top_p=1.0, seed=0)
    unused = min(set(range(config.vocab_size)) - set(expected))
    found = sampling.generate_tokens(config, params, expected[:16], greedy, 32, [unused])
    assert [*expected[:16], *found] == expected


@pytest.mark.parametrize(
    ("family", "dtype"), [*zip(FAMILIES, 3 * ("float32", "bfloat16"), strict=True)]
)
def test_what_is_written_is_what_was_read(family, dtype, tmp_path):
    """The tensors bit for bit, and the configuration but for what training does not need."""
    folder = write(tmp_path / "theirs", family)
    theirs = {name: x.astype(dtype) for name, x in tensors(family).items()}
    safetensors.numpy.save_file(theirs, folder / WEIGHTS)
    config, output = configuration(folder), tmp_path / "ours"
    output.mkdir()
    params = model_reader.read_params(
        model_reader.read_description(folder), config, decoder.param_shapes(config)
    )
    chosen = model_reader.find_format(config)
    layers = model_format.split_layers(params)
    model_writer.write_model(output, chosen, config, layers, {"eos_token_id": 1}, dtype)
    assert same_bits(safetensors.numpy.load_file(output / WEIGHTS), theirs)
    assert configuration(output) == config
    before, after = (json.loads((x / "config.json").read_text()) for x in (folder, output))
    assert after["dtype"] == dtype
    differ = {name for name in after.keys() & before.keys() if after[name] != before[name]}
    renamed = {"model_type"} if family == "mistral" else set()
    assert differ <= {"architectures", "dtype", "eos_token_id"} | renamed


@pytest.fixture
def several(model, tmp_path, monkeypatch):
    """A model whose weights are in several files, as large ones are."""
    config, params = model("qwen2")
    monkeypatch.setattr(model_writer, "_MOST_BYTES", 20_000)
    chosen = model_reader.FORMATS["qwen"]
    layers = model_format.split_layers(params)
    model_writer.write_model(tmp_path, chosen, config, layers, {"eos_token_id": 1}, "float32")
    return tmp_path


def test_large_weights_are_several_files(model, several):
    config, params = model("qwen2")
    files = model_reader.weight_files(several)
    assert len(files) > 2
    assert all(file.stat().st_size < 30_000 for file in files)
    read = model_reader.read_params(
        model_reader.read_description(several), config, decoder.param_shapes(config)
    )
    jax.tree.map(np.testing.assert_array_equal, read, params)


def test_each_of_several_files_is_in_the_digest_and_is_needed(several):
    last, before = model_reader.weight_files(several)[-1], model_reader.weights_digest(several)
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    assert model_reader.weights_digest(several) != before
    last.unlink()
    with pytest.raises(InputError, match=last.name):
        model_reader.weight_files(several)


def test_each_device_reads_its_own_slices(tmp_path):
    """On eight devices, one of each kind of tensor: fused, in parts, a vector, the embedding."""
    mesh = make_mesh(MeshConfig(2, 2, 2), jax.devices()[:8])
    folder = write(tmp_path, "qwen3")
    config = configuration(folder)
    shapes = decoder.param_shapes(config)
    shardings = parameter_shardings(shapes, decoder.PARAMETER_AXES, mesh)
    abstract = jax.tree.map(
        lambda x, y: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=y), shapes, shardings
    )
    largest = 0

    class Tensor:
        def __init__(self, array):
            self.array = array

        def __getitem__(self, index):
            nonlocal largest
            part = self.array[index]
            largest = max(largest, part.size / self.array.size if self.array.ndim > 1 else 0)
            return part

    arrays = {name: Tensor(x) for name, x in tensors("qwen3").items()}
    params = model_format.read_params(table(config), arrays.__getitem__, abstract)
    whole = model_reader.read_params(model_reader.read_description(folder), config, shapes)
    jax.tree.map(np.testing.assert_array_equal, params, whole)
    assert largest == 0.25
    assert params["embedding"].sharding == shardings["embedding"]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_models_have_their_published_number_of_parameters(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLIC[name]["config"]))
    config = configuration(tmp_path)
    assert decoder.count_params(config)["all"] == PUBLIC[name]["parameters"]


@families
@pytest.mark.parametrize("place", ["model", "model.layers.0.self_attn"])
def test_frequencies_of_the_rotation_are_ignored(family, place, tmp_path):
    folder = write(tmp_path, family)
    more = {f"{place}.rotary_emb.inv_freq": np.ones(6, np.float32)}
    safetensors.numpy.save_file({**tensors(family), **more}, folder / WEIGHTS)
    model_reader.check_params(model_reader.read_description(folder), configuration(folder))


FULL = ["full_attention", "full_attention"]
LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize(
    ("family", "changes", "attended"),
    [
        ("mistral", {"sliding_window": 9}, 9),
        ("mistral", {"sliding_window": 10_000}, None),
        ("mistral", {"sliding_window": None}, None),
        ("mistral", {"sliding_window": None, **LAYERS}, None),
        ("qwen2", {"sliding_window": 9}, None),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}, 9),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 9}, None),
        ("qwen3", {"sliding_window": 9, "use_sliding_window": True, **LAYERS}, 9),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": True, "layer_types": FULL}, None),
        ("llama", {"sliding_window": 9, "use_sliding_window": True, **LAYERS}, None),
    ],
)
def test_windows_are_as_long_as_every_token_attends_to_all_before_it(
    family, changes, attended, tmp_path
):
    """As the classes of transformers 5.24 give their layers windows; Llama has none."""
    whole = configuration(write(tmp_path / "whole", family, sliding_window=None)).length
    changes = {"layer_types": None, **changes}
    assert configuration(write(tmp_path / "changed", family, **changes)).length == (
        attended or whole
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "olmo2"])
def test_null_heads_of_keys_are_those_of_queries(family, tmp_path):
    """As transformers 5.24 takes null; where they are missing, it takes its class's default."""
    config = configuration(write(tmp_path, family, num_key_value_heads=None))
    assert config.key_heads == config.heads


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_tied_head_that_is_stored_too_must_equal_the_embedding(change, tmp_path):
    folder = write(tmp_path, "smollm2")
    config, arrays = configuration(folder), tensors("smollm2")
    assert config.tied
    head = arrays["model.embed_tokens.weight"] + np.float32(change)
    safetensors.numpy.save_file({**arrays, "lm_head.weight": head}, folder / WEIGHTS)
    description = model_reader.read_description(folder)
    model_reader.check_params(description, config)
    with pytest.raises(InputError, match="lm_head") if change else contextlib.nullcontext():
        model_reader.check_values(description, config)


def test_tensor_is_read_from_the_file_that_the_index_names(model, several):
    """A later file has another copy of the first one's tensor, and one that nothing names."""
    first, *_, last = model_reader.weight_files(several)
    (name,) = list(safetensors.numpy.load_file(first))[:1]
    content = safetensors.numpy.load_file(last)
    content |= {name: np.zeros(3, np.float32), "old.weight": np.zeros(3, np.float32)}
    safetensors.numpy.save_file(content, last)
    config, params = model("qwen2")
    description = model_reader.read_description(several)
    model_reader.check_params(description, config)
    read = model_reader.read_params(description, config, decoder.param_shapes(config))
    jax.tree.map(np.testing.assert_array_equal, read, params)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_weights_that_can_run_code_are_not_read(name, tmp_path):
    folder = write(tmp_path, "llama")
    (folder / WEIGHTS).rename(folder / name)
    with pytest.raises(InputError, match="pytorch_model"):
        model_reader.weight_files(folder)


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "factor"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp"),
        ("qwen3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ("qwen3", {"layer_types": ["chunked_attention"]}, "layer_types"),
        ("olmo2", {"attention_bias": True}, "attention_bias"),
        ("olmo2", {"clip_qkv": 8.0}, "clip_qkv"),
        ("llama", {"num_key_value_heads": 3}, "kv_heads"),
        ("qwen3", {"model_type": "qwen3_moe"}, "model_type"),
    ],
)
def test_what_the_decoder_has_not_is_refused_by_name(family, changes, named, tmp_path):
    folder = write(tmp_path, family, **changes)
    with pytest.raises(ValueError, match=named):
        configuration(folder)
