"""Exported models, against tensors and settings of the libraries they are for."""

import dataclasses
import json
import pathlib
import resource

import jax
import numpy as np
import pytest
import safetensors.numpy
import yaml
from exported_models import AI2, EOS, SIZES, read, tensors, write
from reference_decoders import CONFIGS, compiled, oracle
from small_run import same_bits

from anytime_jax.config.model import Llama
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats import model_reader, model_writer
from anytime_jax.formats.model_reader import FORMATS, PARITY, PROVENANCE, WEIGHTS


@pytest.mark.parametrize(("name", "dtype"), [("olmo", "float32"), ("olmo2", "bfloat16")])
def test_written_model_has_the_tensors_and_logits_of_the_library(name, dtype, tmp_path):
    config = dataclasses.replace(CONFIGS[name], dtype="bfloat16", attention="xla", remat="full")
    write(tmp_path, name, dtype, config)
    written = safetensors.numpy.load_file(tmp_path / WEIGHTS)
    rounded = {x: y.astype(dtype) for x, y in tensors(name).items()}
    assert same_bits(written, rounded)
    assert {x: (y.shape, y.dtype) for x, y in written.items()} == {
        x: (y.shape, y.dtype) for x, y in rounded.items()
    }
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["torch_dtype" if name == "olmo" else "dtype"] == dtype
    params = read(tmp_path, name)
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
    # The parity record is of these weights, in float32.
    record = safetensors.numpy.load_file(tmp_path / PARITY)
    assert record["tokens"].shape == (16,)
    assert len({x for x in record["tokens"].tolist() if x < 90}) == 16
    logits = compiled(name)(params, record["tokens"][None])[0]
    np.testing.assert_allclose(record["logits"], logits, rtol=0, atol=1e-6)
    exact = compiled(name)(oracle(name)[1], record["tokens"][None])[0]
    assert (np.abs(record["logits"] - exact).max() > 1e-4) == (dtype == "bfloat16")


def test_settings_for_ai2_olmo(tmp_path):
    write(tmp_path, "olmo")
    expected = {**AI2, **SIZES["olmo"]}
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    tokenizer = {"identifier": "tokenizer.json", "truncate_direction": "right"}
    assert content == {"model": expected, "tokenizer": tokenizer}
    assert type(content["model"]["rope_theta"]) is int
    hub = {"architectures": ["OLMoForCausalLM"], "model_type": "hf_olmo", "use_cache": True}
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings == {**hub, **expected, "torch_dtype": "float32"}
    assert {x.name for x in tmp_path.iterdir()} == {"config.yaml", "config.json", WEIGHTS, PARITY}


def test_settings_for_transformers(tmp_path):
    write(tmp_path, "olmo2")
    assert json.loads((tmp_path / "config.json").read_text()) == {
        **SIZES["olmo2"],
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "num_key_value_heads": 4,
        "head_dim": 8,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "pad_token_id": None,
        "dtype": "float32",
        "use_cache": True,
    }
    content = json.loads((tmp_path / "generation_config.json").read_text())
    assert content == {"eos_token_id": EOS}


class OwnKind(Llama):
    """A kind of a user's own, which no other library has."""


def test_kind_without_a_format_is_refused():
    with pytest.raises(InputError) as caught:
        model_reader.find_format(OwnKind())
    assert caught.value.setting == "config.model.kind"


def test_rope_theta_that_ai2_olmo_does_not_take_is_refused():
    with pytest.raises(InputError) as caught:
        model_reader.find_format(dataclasses.replace(CONFIGS["olmo"], rope_theta=10_000.5))
    assert (caught.value.setting, caught.value.value) == ("config.model.rope_theta", 10_000.5)
    other = dataclasses.replace(CONFIGS["olmo2"], rope_theta=10_000.5)
    assert model_reader.find_format(other) is FORMATS["olmo2"]


def create(target, overwrite=False, content="new"):
    with model_writer.create_directory(target, overwrite) as part:
        (part / PROVENANCE).write_text(content)


def test_full_disk_is_a_run_error(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # as a full disk, to a writer
    try:
        with (
            pytest.raises(RunError, match="cannot be written"),
            model_writer.create_directory(tmp_path / "model", False) as part,
        ):
            write(part, "olmo")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_exports_only(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match="--overwrite"):
        create(other)
    with pytest.raises(InputError, match=PROVENANCE):
        create(other, overwrite=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    file = other / "thesis.tex"
    targets = (tmp_path / "dangling", file, file / "model")
    for overwrite in (False, True):
        for target in targets:
            with pytest.raises(InputError, match="--output="):
                create(target, overwrite)
    assert (other / "thesis.tex").read_text() == "years"


def test_overwrite_keeps_what_no_export_wrote(tmp_path):
    model = tmp_path / "model"
    create(model)
    (model / "weights").touch()
    model_writer.write_provenance(model, {})
    create(model, overwrite=True)
    create(model / "another")
    with pytest.raises(InputError, match="another"):
        create(model, overwrite=True)
    (model / "another").rename(tmp_path / "another")
    (model / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"README\.md, which no export wrote"):
        create(model, overwrite=True)
    assert (model / "README.md").read_text() == "mine"


def test_output_may_be_a_link_or_a_dot(tmp_path, monkeypatch):
    create(tmp_path / "model", content="old")
    (tmp_path / "link").symlink_to("model")
    create(tmp_path / "link", overwrite=True, content="by the link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "model" / PROVENANCE).read_text() == "by the link"
    monkeypatch.chdir(tmp_path / "model")
    with model_writer.create_directory(pathlib.Path("."), overwrite=True) as part:
        (part / PROVENANCE).write_text("from inside")
    assert (tmp_path / "model" / PROVENANCE).read_text() == "from inside"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["link", "model"]


def test_directory_created_meanwhile_is_not_replaced(tmp_path):
    with (
        pytest.raises(InputError, match="--overwrite"),
        model_writer.create_directory(tmp_path / "model", overwrite=False),
    ):
        (tmp_path / "model" / "theirs").mkdir(parents=True)
    assert [x.name for x in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "theirs").is_dir()
