"""Models in the formats of other libraries, against tensors that those libraries made."""

import dataclasses
import itertools
import json
import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import yaml
from reference_decoders import CONFIGS, oracle

from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats import model_reader, model_writer
from anytime_jax.formats.model_reader import FORMATS, PARITY, PROVENANCE, WEIGHTS
from anytime_jax.models import decoder

BOTH = pytest.mark.parametrize("name", ["olmo", "olmo2"])
INDEX = f"{WEIGHTS}.index.json"
EOS = 1
SIZES = {
    "olmo": {
        "n_layers": 3,
        "n_heads": 4,
        "d_model": 32,
        "mlp_hidden_size": 128,
        "max_sequence_length": 16,
        "vocab_size": 90,
        "embedding_size": 96,
        "rope_theta": 10_000,
        "layer_norm_eps": 1e-5,
    },
    "olmo2": {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "hidden_size": 32,
        "intermediate_size": 96,
        "max_position_embeddings": 16,
        "vocab_size": 96,
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-6,
    },
}
# What ai2-olmo 0.6.0 has to be told of the paper's model, and its own defaults where it is not.
AI2 = {
    "activation_type": "gelu",
    "alibi": False,
    "attention_dropout": 0.0,
    "attention_layer_norm": True,
    "attention_layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_type": "sequential",
    "clip_qkv": None,
    "embedding_dropout": 0.0,
    "embedding_layer_norm": False,
    "eos_token_id": EOS,
    "flash_attention": False,
    "include_bias": False,
    "init_device": "cpu",
    "init_fn": "mitchell",
    "layer_norm_type": "default",
    "layer_norm_with_affine": True,
    "multi_query_attention": False,
    "pad_token_id": EOS,
    "residual_dropout": 0.0,
    "rope": True,
    "scale_logits": False,
    "weight_tying": False,
}


def tensors(name):
    """The parameters that the other library made, under its names."""
    arrays = oracle(name)[0]
    return {x.removeprefix("param/"): y for x, y in arrays.items() if x.startswith("param/")}


def settings(name, **changes):
    """What config.json has at least."""
    if name == "olmo2":
        return {"model_type": "olmo2", **SIZES[name], **changes}
    return {"model_type": "hf_olmo", **AI2, **SIZES[name], **changes}


def lay(folder, name, held=None, **changes):
    """A directory as the other library leaves it; a change to `...` takes a setting away."""
    folder.mkdir(exist_ok=True)
    held = tensors(name) if held is None else held
    safetensors.numpy.save_file(held, folder / WEIGHTS, {"format": "pt"})
    given = {x: y for x, y in settings(name, **changes).items() if y is not ...}
    (folder / "config.json").write_text(json.dumps(given))
    return folder


def read(folder, name):
    return model_reader.read_params(model_reader.describe(folder), CONFIGS[name])


def write(folder, name, dtype="float32", config=None):
    folder.mkdir(exist_ok=True)
    form, params = FORMATS[name], oracle(name)[1]
    model_writer.write_model(folder, form, config or CONFIGS[name], params, EOS, dtype)
    return folder


def equal(left, right):
    """Whether two trees are the same, bit by bit."""
    left, right = flatten_by_name(left), flatten_by_name(right)
    assert left.keys() == right.keys()
    return all(left[x].tobytes() == right[x].tobytes() for x in left)


# Weights


@BOTH
def test_what_is_written_are_the_other_library_s_tensors(name, tmp_path):
    found = safetensors.numpy.load_file(write(tmp_path, name) / WEIGHTS)
    assert equal(found, tensors(name))
    assert {name: x.shape for name, x in found.items()} == {
        name: x.shape for name, x in tensors(name).items()
    }
    assert {x.dtype for x in found.values()} == {np.dtype("float32")}


@BOTH
def test_what_is_read_is_our_tree(name, tmp_path):
    params = read(lay(tmp_path, name), name)
    assert equal(params, oracle(name)[1])
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, oracle(name)[1])
    arrays = oracle(name)[0]
    logits = decoder.apply(CONFIGS[name], params, arrays["tokens"][:, :-1])
    np.testing.assert_allclose(logits, arrays["logits"], rtol=0, atol=1e-5)


@BOTH
def test_there_and_back(name, tmp_path):
    write(tmp_path, name)
    (tmp_path / PROVENANCE).write_text(json.dumps({"vocab_size": 90}))
    described = model_reader.describe(tmp_path)
    assert equal(read(tmp_path, name), oracle(name)[1])
    shape = {x: getattr(CONFIGS[name], x) for x in described.shape}
    assert described.shape == shape
    whole = {x.name for x in dataclasses.fields(decoder.ModelConfig)}
    assert whole - shape.keys() == {"dtype", "attention", "layer_loop", "remat"}
    assert {type(x) for x in described.shape.values()} == {str, int, float}


@BOTH
def test_in_bfloat16_every_weight_is_rounded(name, tmp_path):
    write(tmp_path, name, "bfloat16")
    found = safetensors.numpy.load_file(tmp_path / WEIGHTS)
    rounded = {x: y.astype(ml_dtypes.bfloat16) for x, y in tensors(name).items()}
    assert equal(found, rounded)
    assert {x.dtype for x in found.values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    params = read(tmp_path, name)
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
    record = safetensors.numpy.load_file(tmp_path / PARITY)  # of these weights, not the exact ones
    logits = decoder.apply(CONFIGS[name], params, record["tokens"][None])[0]
    np.testing.assert_allclose(record["logits"], logits, rtol=0, atol=1e-6)
    assert np.abs(record["logits"] - model_writer.compute_logits(
        CONFIGS[name], oracle(name)[1], record["tokens"])).max() > 1e-4  # fmt: skip


@BOTH
def test_the_parity_record_is_in_float32_and_within_the_vocabulary(name, tmp_path):
    config = dataclasses.replace(CONFIGS[name], dtype="bfloat16", attention="xla", remat="full")
    record = safetensors.numpy.load_file(write(tmp_path, name, config=config) / PARITY)
    assert record["tokens"].shape == (16,)
    assert record["tokens"].max() < 90
    assert len(set(record["tokens"].tolist())) == 16
    logits = decoder.apply(CONFIGS[name], oracle(name)[1], record["tokens"][None])[0]
    np.testing.assert_allclose(record["logits"], logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_weights_of_16_bits_are_read(dtype, tmp_path):
    held = {x: y.astype(dtype) for x, y in tensors("olmo").items()}
    params = read(lay(tmp_path, "olmo", held), "olmo")
    exact = oracle("olmo")[1]["head"]
    np.testing.assert_array_equal(params["head"], exact.astype(dtype).astype(np.float32))


def split(folder, name, parts=3):
    """The weights in several files, as large models have them."""
    held = tensors(name)
    files = [f"model-{i:05d}-of-{parts:05d}.safetensors" for i in range(1, parts + 1)]
    weight_map = dict(zip(held, itertools.cycle(files)))
    for file in files:
        these = {x: held[x] for x in held if weight_map[x] == file}
        safetensors.numpy.save_file(these, folder / file)
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return files


@BOTH
def test_weights_in_several_files(name, tmp_path):
    files = split(lay(tmp_path, name), name)
    assert [x.name for x in model_reader.weight_files(tmp_path)] == files
    assert equal(read(tmp_path, name), oracle(name)[1])
    before = model_reader.weights_digest(tmp_path)
    held = safetensors.numpy.load_file(tmp_path / files[-1])
    safetensors.numpy.save_file({x: y + 1 for x, y in held.items()}, tmp_path / files[-1])
    assert model_reader.weights_digest(tmp_path) != before
    (tmp_path / files[1]).unlink()
    with pytest.raises(InputError, match=f"has no {files[1]}: copy the model again"):
        read(tmp_path, name)


def test_one_file_goes_before_an_index_as_in_transformers(tmp_path):
    lay(tmp_path, "olmo")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "old.safetensors"}}))
    assert [x.name for x in model_reader.weight_files(tmp_path)] == [WEIGHTS]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"weight_map": {"a": "../other"}}', r"has no \.\./other"),
        ('{"weight_map": {"a": "/etc/hostname"}}', "has no /etc/hostname"),
        ('{"weight_map": {"a": ".."}}', r"has no \.\.:"),
        ('{"weight_map": {"a": ""}}', "has no :"),
        ('{"weight_map": {"a": 3}}', "has no weight_map of files"),
        ('{"weight_map": ["a"]}', "has no weight_map of files"),
        ("{}", "has no weight_map of files"),
        ("[1]", "cannot be read"),
        ('{"weight_map": ', "cannot be read"),
        ('{"weight_map": {}}', "missing tensor transformer.*and 26 more"),
    ],
)
def test_a_bad_index_is_told(content, message, tmp_path):
    folder = lay(tmp_path / "model", "olmo")
    (folder / WEIGHTS).rename(tmp_path / "other")
    (folder / INDEX).write_text(content)
    with pytest.raises(InputError, match=message):
        read(folder, "olmo")


def changed(name, **changes):
    held = {**tensors(name), **changes}
    return {x: y for x, y in held.items() if y is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lm_head.weight": None}, "missing tensor lm_head.weight: copy"),
        (
            {"lm_head.weight": None, "model.layers.2.mlp.up_proj.weight": None},
            "missing tensor lm_head.weight and 1 more",
        ),
        (
            {"model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)},
            "unexpected tensor model.layers.0.self_attn.q_proj.bias",
        ),
        ({"model.layers.3.self_attn.q_proj.weight": np.zeros(2)}, "F64"),
        (
            {"lm_head.weight": np.zeros((32, 96), np.float32)},
            r"lm_head.weight has the shape \(32, 96\); its configuration requires \(96, 32\)",
        ),
        (
            {"model.norm.weight": np.zeros((), np.float32)},
            r"model.norm.weight has the shape \(\);",
        ),
        (
            {"lm_head.weight": np.zeros((96, 32), np.int8)},
            "lm_head.weight has the type I8, not one",
        ),
    ],
)
def test_other_tensors_are_told_before_any_is_read(changes, message, tmp_path):
    folder = lay(tmp_path, "olmo2", changed("olmo2", **changes))
    with pytest.raises(InputError, match=message) as told:
        model_reader.check_params(model_reader.describe(folder), CONFIGS["olmo2"])
    assert str(folder) in str(told.value)
    with pytest.raises(InputError, match=message):
        read(folder, "olmo2")


@pytest.mark.parametrize("kept", [0, 5, 1000, -1])
def test_a_file_that_was_cut_short_is_told(kept, tmp_path):
    file = lay(tmp_path, "olmo") / WEIGHTS
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read .*copy it again"):
        read(tmp_path, "olmo")


# Settings


def test_the_settings_that_ai2_olmo_is_told(tmp_path):
    write(tmp_path, "olmo")
    expected = {**AI2, **SIZES["olmo"]}
    said = yaml.safe_load((tmp_path / "config.yaml").read_text())
    tokenizer = {"identifier": "tokenizer.json", "truncate_direction": "right"}
    assert said == {"model": expected, "tokenizer": tokenizer}
    assert type(said["model"]["rope_theta"]) is int
    hub = {
        "architectures": ["OLMoForCausalLM"],
        "model_type": "hf_olmo",
        "torch_dtype": "float32",
        "use_cache": True,
    }
    assert json.loads((tmp_path / "config.json").read_text()) == {**hub, **expected}
    assert {x.name for x in tmp_path.iterdir()} == {"config.yaml", "config.json", WEIGHTS, PARITY}


def test_the_settings_that_transformers_is_told(tmp_path):
    write(tmp_path, "olmo2")
    assert json.loads((tmp_path / "config.json").read_text()) == {
        **SIZES["olmo2"],
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": None,
        "torch_dtype": "float32",
        "use_cache": True,
    }
    said = json.loads((tmp_path / "generation_config.json").read_text())
    assert said == {"eos_token_id": EOS}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("olmo2", {"num_key_value_heads": 2}, "num_key_value_heads = 2 .*num_attention_heads = 4"),
        ("olmo2", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
        ("olmo2", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type = 'yarn' .* 'default'"),
        (
            "olmo2",
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear"}},
            "rope_type = 'linear'",
        ),
        ("olmo2", {"rope_scaling": "linear"}, "rope_type = 'linear'"),
        ("olmo2", {"tie_word_embeddings": True}, "tie_word_embeddings = True .*must be False"),
        ("olmo2", {"attention_bias": True}, "attention_bias = True"),
        ("olmo2", {"hidden_act": "gelu"}, "hidden_act = 'gelu' .*must be 'silu'"),
        ("olmo2", {"rope_theta": ...}, "rope_theta is missing"),
        ("olmo2", {"rope_theta": "wide"}, "rope_theta = 'wide' is not allowed"),
        ("olmo2", {"rms_norm_eps": True}, "rms_norm_eps = True is not allowed"),
        ("olmo2", {"num_hidden_layers": "3"}, "num_hidden_layers = '3' is not allowed"),
        ("olmo2", {"num_hidden_layers": 3.0}, "num_hidden_layers = 3.0 is not allowed"),
        ("olmo2", {"hidden_size": -1}, "hidden_size = -1 is not allowed"),
        ("olmo2", {"hidden_size": None}, "hidden_size is missing"),
        ("olmo2", {"model_type": "olmo3"}, "model_type = 'olmo3' is none of 'hf_olmo', 'olmo2'"),
        ("olmo2", {"model_type": ["olmo2"]}, r"model_type = \['olmo2'\] is none of"),
        ("olmo", {"activation_type": "swiglu"}, "activation_type = 'swiglu' .*must be 'gelu'"),
        ("olmo", {"weight_tying": True}, "weight_tying = True .*must be False"),
        ("olmo", {"include_bias": True}, "include_bias = True"),
        ("olmo", {"bias_for_layer_norm": True}, "bias_for_layer_norm = True"),
        ("olmo", {"layer_norm_type": "rms"}, "layer_norm_type = 'rms'"),
        ("olmo", {"norm_after": True}, "norm_after = True"),
        ("olmo", {"n_kv_heads": 1}, "n_kv_heads = 1 .*n_heads = 4"),
        ("olmo", {"multi_query_attention": True}, "multi_query_attention = True"),
        ("olmo", {"clip_qkv": 8.0}, "clip_qkv = 8.0 .*must be None"),
        ("olmo", {"mlp_hidden_size": None, "mlp_ratio": "4"}, "mlp_hidden_size is missing"),
        ("olmo", {"n_layers": ...}, "n_layers is missing"),
        # What ai2-olmo takes these to be where they are not there.
        ("olmo", {"activation_type": ...}, "activation_type = 'swiglu'"),
        ("olmo", {"attention_layer_norm": ...}, "attention_layer_norm = False"),
        ("olmo", {"include_bias": ...}, "include_bias = True"),
        ("olmo", {"rope": ...}, "rope = False"),
        ("olmo", {"weight_tying": ...}, "weight_tying = True"),
    ],
)
def test_what_our_decoder_cannot_express_is_told(name, changes, message, tmp_path):
    folder = lay(tmp_path, name, {}, **changes)
    with pytest.raises(InputError, match=message) as told:
        model_reader.describe(folder)
    assert str(folder / "config.json") in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "changes", "ours", "value"),
    [
        ("olmo", {"mlp_hidden_size": None, "mlp_ratio": 3}, "mlp_width", 96),
        ("olmo", {"mlp_hidden_size": ..., "mlp_ratio": 4}, "mlp_width", 128),
        ("olmo", {"mlp_ratio": 7}, "mlp_width", 128),
        ("olmo", {"embedding_size": None, "n_kv_heads": 4}, "embedding_rows", 90),
        ("olmo", {"bias_for_layer_norm": None}, "vocab_size", 90),
        ("olmo", {"multi_query_attention": None}, "heads", 4),
        ("olmo", {"rope_theta": ...}, "rope_theta", 10_000.0),
        ("olmo", {"layer_norm_eps": ...}, "norm_epsilon", 1e-5),
        ("olmo2", {"rms_norm_eps": ...}, "norm_epsilon", 1e-5),
        ("olmo2", {"rope_scaling": None, "num_key_value_heads": 4}, "rope_theta", 500_000.0),
        # Where both are given, transformers 5 takes the second.
        ("olmo2", {"rope_parameters": {"rope_theta": 7}}, "rope_theta", 7.0),
        ("olmo2", {"rope_theta": ..., "rope_parameters": {"rope_theta": 5}}, "rope_theta", 5.0),
    ],
)
def test_other_ways_of_saying_it(name, changes, ours, value, tmp_path):
    shape = model_reader.describe(lay(tmp_path, name, {}, **changes)).shape
    assert shape[ours] == value
    assert type(shape[ours]) is type(value)


def test_config_yaml_alone_will_do(tmp_path):
    write(tmp_path, "olmo")
    (tmp_path / "config.json").unlink()
    assert equal(read(tmp_path, "olmo"), oracle("olmo")[1])
    assert model_reader.describe(tmp_path).shape["vocab_size"] == 90


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", "3"),
        ("config.json", "[" * 100_000),
        ("config.json", b"\xff"),
        ("config.yaml", "model: ["),
        ("config.yaml", "model: 3"),
        ("config.yaml", "- model"),
        ("config.yaml", ""),
        ("config.yaml", "model: !!python/object/apply:os.getpid []"),
        ("config.yaml", "model: {a: &a [x, x], b: &b [*a, *a], clip_qkv: [*b, *b]}"),
        ("config.yaml", "[" * 1_500),
    ],
)
def test_a_broken_description_is_told(file, content, tmp_path):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=f"{file} cannot be read .*copy it again"):
        model_reader.describe(tmp_path)


def test_no_model_is_told(tmp_path):
    with pytest.raises(InputError, match="contains no model"):
        model_reader.describe(tmp_path)
    with pytest.raises(InputError, match="is not a directory"):
        model_reader.describe(tmp_path / "not there")
    lay(tmp_path, "olmo")
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(InputError, match=f"has no {WEIGHTS}"):
        read(tmp_path, "olmo")


@BOTH
def test_a_model_of_another_kind_is_not_written(name):
    other = {"olmo": "olmo2", "olmo2": "olmo"}[name]
    with pytest.raises(InputError, match=f"architecture = '{other}' .* give --format={other}"):
        FORMATS[name].check(CONFIGS[other])
    FORMATS[name].check(CONFIGS[name])


def test_ai2_olmo_takes_whole_rope_theta_only():
    with pytest.raises(InputError, match=r"config.model.rope_theta = 10000.5 .* whole numbers"):
        FORMATS["olmo"].check(dataclasses.replace(CONFIGS["olmo"], rope_theta=10_000.5))
    FORMATS["olmo2"].check(dataclasses.replace(CONFIGS["olmo2"], rope_theta=10_000.5))


# The number of tokens


@pytest.mark.parametrize(
    ("files", "tokens"),
    [
        ({}, 96),
        ({"tokenizer.json": {"model": {"vocab": {"a": 0, "b": 70}}}}, 71),
        ({"tokenizer.json": {"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}}, 2),
        (
            {"tokenizer.json": {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 80}]}},
            81,
        ),
        ({"tokenizer.json": {"model": {"vocab": {"a": 0}}, "added_tokens": None}}, 1),
        ({"tokenizer.json": {}, PROVENANCE: {"vocab_size": 90}}, 90),
    ],
)
def test_the_vocabulary_says_how_many_tokens_exist(files, tokens, tmp_path):
    lay(tmp_path, "olmo2", {})
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content))
    assert model_reader.describe(tmp_path).shape["vocab_size"] == tokens


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", "{}", "has no number of tokens"),
        ("tokenizer.json", '{"model": {"vocab": {}}}', "has no number of tokens"),
        ("tokenizer.json", '{"model": {"vocab": {"a": "b"}}}', "has no number of tokens"),
        ("tokenizer.json", '{"model": {"vocab": 3}}', "has no number of tokens"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 96}}}', "has 97 tokens and the model 96"),
        (PROVENANCE, "{}", "has no number of tokens"),
        (PROVENANCE, '{"vocab_size": 1.5}', "has no number of tokens"),
    ],
)
def test_a_broken_vocabulary_is_told(file, content, message, tmp_path):
    lay(tmp_path, "olmo2", {})
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=message):
        model_reader.describe(tmp_path)


# All or nothing


def make(target, overwrite=False, content="new", fails=None):
    with model_writer.create_directory(target, overwrite) as part:
        (part / PROVENANCE).write_text(content)
        if fails:
            raise fails
    return (target / PROVENANCE).read_text()


def test_a_directory_is_there_when_it_is_whole(tmp_path):
    target = tmp_path / "deep" / "model"
    with model_writer.create_directory(target, False) as part:
        (part / PROVENANCE).write_text("new")
        assert not target.exists()
    assert [x.name for x in target.parent.iterdir()] == ["model"]
    assert make(target, overwrite=True, content="newer") == "newer"
    assert [x.name for x in target.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [RunError("x"), OSError("x"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", [False, True])
def test_a_failure_leaves_what_was_there(old, error, tmp_path):
    target = tmp_path / "model"
    if old:
        make(target, content="old")
    with pytest.raises(type(error)):
        make(target, overwrite=True, fails=error)
    assert [x.name for x in tmp_path.iterdir()] == (["model"] if old else [])
    assert not old or (target / PROVENANCE).read_text() == "old"


def test_a_failure_in_taking_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    target = tmp_path / "model"
    make(target, content="old")
    rename = pathlib.Path.rename

    def fails(self, to):
        if self.name.endswith(".part"):
            raise OSError("no")
        return rename(self, to)

    monkeypatch.setattr(pathlib.Path, "rename", fails)
    with pytest.raises(OSError, match="no"):
        make(target, overwrite=True)
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert (target / PROVENANCE).read_text() == "old"


def test_weights_that_cannot_be_written_are_told(tmp_path, monkeypatch):
    def full(*unused):
        raise safetensors.SafetensorError("no space left")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with (
        pytest.raises(RunError, match=r"model\.safetensors cannot be written \(no space left\)"),
        model_writer.create_directory(tmp_path / "model", False) as part,
    ):
        write(part, "olmo")
    assert list(tmp_path.iterdir()) == []


def test_only_an_export_is_overwritten(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match="exists: choose another, or --overwrite"):
        make(other)
    with pytest.raises(
        InputError, match=f"is not an exported model .no {PROVENANCE}. and is not overwri"
    ):
        make(other, overwrite=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="--output="):
            make(tmp_path / "dangling", overwrite)
        with pytest.raises(InputError, match="--output="):
            make(other / "thesis.tex", overwrite)
        with pytest.raises(InputError, match="cannot be created"):
            make(other / "thesis.tex" / "model", overwrite)
    assert (other / "thesis.tex").read_text() == "years"


def test_a_link_and_a_dot_stand_for_what_they_name(tmp_path, monkeypatch):
    make(tmp_path / "model", content="old")
    (tmp_path / "link").symlink_to("model")
    make(tmp_path / "link", overwrite=True, content="by the link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "model" / PROVENANCE).read_text() == "by the link"
    monkeypatch.chdir(tmp_path / "model")
    with model_writer.create_directory(pathlib.Path("."), overwrite=True) as part:
        (part / PROVENANCE).write_text("from inside")
    assert (tmp_path / "model" / PROVENANCE).read_text() == "from inside"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["link", "model"]


def test_what_appears_meanwhile_is_not_replaced(tmp_path):
    def create():
        with model_writer.create_directory(tmp_path / "model", overwrite=False) as part:
            (part / "file").touch()
            (tmp_path / "model").mkdir()
            (tmp_path / "model" / "theirs").touch()

    with pytest.raises(InputError, match="exists: choose another"):
        create()
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "theirs").is_file()


def test_names_as_transformers_writes_them_are_read(tmp_path):
    """`OLMoForCausalLM.save_pretrained` puts the package's model under `model.`."""
    held = {f"model.{name}": tensor for name, tensor in tensors("olmo").items()}
    assert equal(read(lay(tmp_path / "model", "olmo", held), "olmo"), oracle("olmo")[1])
