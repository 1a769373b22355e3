"""Models of other libraries, against tensors that those libraries wrote."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from exported_models import BOTH, read, tensors, write, write_reference
from reference_decoders import CONFIGS, compiled, oracle
from small_run import same_bits

from anytime_jax.errors import InputError
from anytime_jax.formats import model_reader, model_writer
from anytime_jax.formats.model_reader import PROVENANCE, WEIGHTS
from anytime_jax.models import decoder

INDEX = f"{WEIGHTS}.index.json"


@BOTH
def test_read_params_equal_the_oracle(name, tmp_path):
    params = read(write_reference(tmp_path, name), name)
    assert same_bits(params, oracle(name)[1])
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, oracle(name)[1])
    arrays = oracle(name)[0]
    logits = compiled(name)(params, arrays["tokens"][:, :-1])
    np.testing.assert_allclose(logits, arrays["logits"], rtol=0, atol=1e-5)


@BOTH
def test_export_round_trips(name, tmp_path):
    write(tmp_path, name)
    (tmp_path / PROVENANCE).write_text(json.dumps({"vocab_size": 90}))
    model = model_reader.read_description(tmp_path)
    assert same_bits(read(tmp_path, name), oracle(name)[1])
    assert model.shape.items() <= {"kind": name, **dataclasses.asdict(CONFIGS[name])}.items()
    whole = {x.name for x in dataclasses.fields(decoder.ModelConfig)}
    arithmetic = {
        "dtype",
        "residual_dtype",
        "attention",
        "kernels",
        "layer_loop",
        "remat",
        "z_loss",
    }
    arithmetic |= {"parametrization", "base_width"}  # an export has the standard one
    fixed = {"kv_heads", "head_size", "tied", "rope_scaling"} if name == "olmo" else set()
    assert whole - model.shape.keys() == arithmetic | fixed


def test_16_bit_weights_are_read(tmp_path):
    arrays = {x: y.astype(np.float16) for x, y in tensors("olmo").items()}
    params = read(write_reference(tmp_path, "olmo", arrays), "olmo")
    exact = oracle("olmo")[1]["head"]
    np.testing.assert_array_equal(params["head"], exact.astype(np.float16).astype(np.float32))


def test_tensor_names_with_prefix_are_read(tmp_path):
    """`OLMoForCausalLM.save_pretrained` puts the package's model under `model.`."""
    arrays = {f"model.{name}": tensor for name, tensor in tensors("olmo").items()}
    folder = write_reference(tmp_path, "olmo", arrays)
    assert same_bits(read(folder, "olmo"), oracle("olmo")[1])


def test_single_file_takes_precedence_over_index(tmp_path):
    write_reference(tmp_path, "olmo")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "old.safetensors"}}))
    assert [x.name for x in model_reader.weight_files(tmp_path)] == [WEIGHTS]


@pytest.mark.parametrize("weight_map", [{"a": "../other"}, {"a": 3}, None])
def test_damaged_index_is_rejected(weight_map, tmp_path):
    folder = write_reference(tmp_path / "model", "olmo")
    (folder / WEIGHTS).rename(tmp_path / "other")
    content = json.dumps({"weight_map": weight_map})
    (folder / INDEX).write_text(content if weight_map is not None else '{"weight_map": ')
    with pytest.raises(InputError, match=str(folder)):
        read(folder, "olmo")


HEAD = "lm_head.weight"


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        (HEAD, None),
        ("q_proj.bias", np.zeros(32, np.float32)),
        (HEAD, np.zeros((32, 96), np.float32)),
        (HEAD, np.zeros((96, 32), np.int8)),
    ],
)
def test_wrong_tensors_are_rejected_before_reading(name, tensor, tmp_path):
    arrays = {x: y for x, y in {**tensors("olmo2"), name: tensor}.items() if y is not None}
    folder = write_reference(tmp_path, "olmo2", arrays)
    with pytest.raises(InputError, match=rf"{folder}.*{name}"):
        read(folder, "olmo2")


def test_truncated_weights_are_rejected(tmp_path):
    file = write_reference(tmp_path, "olmo") / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read(tmp_path, "olmo")


# A setting of another library that the decoder has not; ... is one that is missing.
UNSUPPORTED = [
    ("olmo2", "rope_type", {"rope_scaling": "linear"}),
    ("olmo2", "rope_theta", {"rope_theta": "wide"}),
    ("olmo2", "num_hidden_layers", {"num_hidden_layers": 3.0}),
    ("olmo2", "model_type", {"model_type": "olmo3"}),
    ("olmo", "activation_type", {"activation_type": "swiglu"}),
    ("olmo", "norm_after", {"norm_after": True}),
    ("olmo", "n_kv_heads", {"n_kv_heads": 1}),
    ("olmo", "mlp_hidden_size", {"mlp_hidden_size": None, "mlp_ratio": "4"}),
    # Some of ai2-olmo's defaults are other settings than ours.
    *(
        ("olmo", name, {name: ...})
        for name in (
            *("n_layers", "activation_type", "attention_layer_norm", "include_bias", "rope"),
            "weight_tying",
        )
    ),
]


@pytest.mark.parametrize(("name", "named", "changes"), UNSUPPORTED)
def test_unsupported_setting_is_named(name, named, changes, tmp_path):
    folder = write_reference(tmp_path, name, {}, **changes)
    with pytest.raises(InputError, match=rf"{folder}/config\.json.*{named}"):
        model_reader.read_description(folder)


@pytest.mark.parametrize(
    ("name", "changes", "ours", "value"),
    [
        ("olmo", {"mlp_hidden_size": None, "mlp_ratio": 3}, "mlp_width", 96),
        ("olmo", {"mlp_ratio": 7}, "mlp_width", 128),
        ("olmo", {"embedding_size": None, "n_kv_heads": 4}, "embedding_rows", 90),
        ("olmo", {"bias_for_layer_norm": None}, "vocab_size", 90),
        ("olmo", {"multi_query_attention": None}, "heads", 4),
        ("olmo", {"rope_theta": ...}, "rope_theta", 10_000.0),
        ("olmo", {"layer_norm_eps": ...}, "norm_epsilon", 1e-5),
        ("olmo2", {"rms_norm_eps": ...}, "norm_epsilon", 1e-5),
        # transformers 5 prefers the second where both exist.
        ("olmo2", {"rope_parameters": {"rope_theta": 7}}, "rope_theta", 7.0),
        ("olmo2", {"rope_theta": ..., "rope_parameters": {"rope_theta": 5}}, "rope_theta", 5.0),
    ],
)
def test_alternative_spellings_of_settings(name, changes, ours, value, tmp_path):
    shape = model_reader.read_description(write_reference(tmp_path, name, {}, **changes)).shape
    assert shape[ours] == value
    assert type(shape[ours]) is type(value)


def test_config_yaml_is_read_without_config_json(tmp_path):
    shape = model_reader.read_description(write(tmp_path, "olmo")).shape
    (tmp_path / "config.json").unlink()
    assert model_reader.read_description(tmp_path).shape == shape


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", b"\xff"),
        ("config.yaml", "- model"),
        ("config.yaml", "model: !!python/object/apply:os.getpid []"),
        ("config.yaml", "model: {a: &a [x, x], b: &b [*a, *a], clip_qkv: [*b, *b]}"),
    ],
)
def test_damaged_configuration_is_rejected(file, content, tmp_path):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=file):
        model_reader.read_description(tmp_path)


def test_missing_model_is_rejected(tmp_path):
    for folder in (tmp_path, tmp_path / "not there"):
        with pytest.raises(InputError, match=str(folder)):
            model_reader.read_description(folder)
    write_reference(tmp_path, "olmo")
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(InputError, match=WEIGHTS):
        read(tmp_path, "olmo")


def rules(pieces, *special):
    """A tokenizer.json, as its library writes it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, []))
    tokenizer.add_special_tokens(list(special))
    return json.loads(tokenizer.to_str())


def renumbered(parsed, number):
    """The same, with another number of its last special token, which the library does not take."""
    parsed["added_tokens"][-1]["id"] = number
    return parsed


@pytest.mark.parametrize(
    ("files", "tokens"),
    [
        ({}, 96),
        ({"tokenizer.json": rules({"a": 0, "b": 70})}, 71),
        ({"tokenizer.json": rules({"a": 0}, "<x>", "<y>")}, 3),
        ({"tokenizer.json": renumbered(rules({"a": 0}, "<x>"), 80)}, 2),
        ({"tokenizer.json": {}, PROVENANCE: {"vocab_size": 90}}, 90),
    ],
)
def test_number_of_tokens_comes_from_the_vocabulary(files, tokens, tmp_path):
    write_reference(tmp_path, "olmo2", {})
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content))
    assert model_reader.read_description(tmp_path).shape["vocab_size"] == tokens


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{}"),
        (PROVENANCE, '{"vocab_size": 1.5}'),
    ],
)
def test_damaged_vocabulary_is_rejected(file, content, tmp_path):
    write_reference(tmp_path, "olmo2", {})
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=file):
        model_reader.read_description(tmp_path)


def test_tokenizer_may_have_more_tokens_than_the_model(tmp_path):
    write_reference(tmp_path, "olmo2", {})
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules({"a": 96})))
    assert model_reader.read_description(tmp_path).shape["vocab_size"] == 96


def written(folder):
    """An export with its provenance and a vocabulary."""
    write(folder, "olmo2")
    (folder / "vocabulary.model").write_bytes(b"a vocabulary")
    model_writer.write_provenance(folder, {"vocab_size": 90})
    return folder


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "vocabulary.model"])
def test_flipped_bit_of_an_export_is_named(name, tmp_path):
    folder = written(tmp_path)
    model_reader.check_digests(folder)
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        model_reader.check_digests(folder)


def test_models_of_other_origin_have_no_digests(tmp_path):
    folder = written(tmp_path)
    (folder / "parity.safetensors").unlink()  # not read
    model_reader.check_digests(folder)
    (folder / PROVENANCE).write_text("{}")
    model_reader.check_digests(folder)
    (folder / PROVENANCE).unlink()
    model_reader.check_digests(folder)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.nan, np.float32), (-np.inf, ml_dtypes.bfloat16)],
)
def test_nan_and_infinity_are_named(value, dtype, tmp_path):
    arrays = {x: y.astype(dtype) for x, y in tensors("olmo2").items()}
    model = model_reader.read_description(write_reference(tmp_path, "olmo2", arrays))
    model_reader.check_values(model, CONFIGS["olmo2"])
    arrays["model.norm.weight"][5] = value
    write_reference(tmp_path, "olmo2", arrays)
    with pytest.raises(InputError, match=r"model\.norm\.weight"):
        model_reader.check_values(model, CONFIGS["olmo2"])
