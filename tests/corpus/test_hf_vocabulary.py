"""Tokenizers of public models: the library's own ids, whatever else their files ask for."""

import hashlib
import json
import sys

import numpy as np
import pytest
import tokenizers
from byte_level_tokenizer import EOS, write_byte_level
from decoded_ids import AWKWARD, SOURCE, decode_one_by_one

from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.errors import InputError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_byte_level(tmp_path_factory.mktemp("hub") / "model", [SOURCE])


def test_ids_are_those_of_the_library(path):
    vocabulary = load_vocabulary(path)
    oracle = tokenizers.Tokenizer.from_file(str(path))
    assert oracle.encode(SOURCE).ids != oracle.encode(SOURCE, add_special_tokens=False).ids
    assert len(oracle.encode(SOURCE).ids) == 4  # as the file asks
    oracle.no_truncation()
    oracle.no_padding()
    texts = [SOURCE, "", AWKWARD, "a   b", "    "]
    for ids, text in zip(vocabulary.encode(texts), texts, strict=True):
        assert ids.dtype == np.int32
        assert ids.tolist() == oracle.encode(text, add_special_tokens=False).ids
        assert vocabulary.decode(ids) == text
        assert "".join(decode_one_by_one(vocabulary, ids)) == text
    assert vocabulary.encode([]) == []
    assert vocabulary.size == oracle.get_vocab_size(with_added_tokens=True) == 601
    assert vocabulary.eos_id == oracle.token_to_id(EOS) == 1
    assert vocabulary.token_dtype == np.uint16
    cut = vocabulary.encode(["a😀"])[0][:-1]
    assert "".join(decode_one_by_one(vocabulary, cut)) == vocabulary.decode(cut)


def test_special_tokens_are_not_read_from_text_nor_decoded_into_it(path):
    vocabulary = load_vocabulary(path)
    (ids,) = vocabulary.encode([f"a {EOS} b"])
    assert vocabulary.eos_id not in ids
    assert vocabulary.decode(ids) == f"a {EOS} b"
    assert vocabulary.decode([*vocabulary.encode(["ab"])[0], vocabulary.eos_id, 0]) == "ab"


def test_tokenizer_by_itself_puts_its_token_before_a_text(path):
    vocabulary = load_vocabulary(path)
    (ids,) = vocabulary.encode([SOURCE])
    assert vocabulary.encode_by_itself(SOURCE) == [2, *ids]


@pytest.mark.parametrize(
    ("template", "config", "begin", "named"),
    [
        (f"<|begin|> $A {EOS}", {}, [2], None),
        (f"$A {EOS}", {"bos_token": "unknown"}, [], None),
        (f"{EOS} $A", {"bos_token": EOS}, [1], 1),
        (f"{EOS} <|begin|> $A", {"bos_token": {"content": "<|begin|>"}}, [1, 2], 2),
        ("$A", {"bos_token": EOS, "add_bos_token": True}, [1], 1),
        ("<|begin|> $A", {"add_bos_token": True}, [2], None),
        ("<|begin|> $A", {"bos_token": "<|begin|>", "add_bos_token": False}, [], 2),
    ],
)
def test_tokens_that_begin_a_text(tmp_path, template, config, begin, named):
    vocabulary = load_vocabulary(write_byte_level(tmp_path, [SOURCE], template=template, **config))
    assert (vocabulary.begin, vocabulary.named_bos_id) == (tuple(begin), named)
    assert (vocabulary.eos_id, vocabulary.eos_text) == (1, EOS)


def test_bundle_is_one_file(path, tmp_path):
    vocabulary = load_vocabulary(path)
    copy = tmp_path / "vocabulary.model"
    copy.write_bytes(vocabulary.model)
    assert load_vocabulary(copy).model == vocabulary.model
    assert vocabulary.sha256 == hashlib.sha256(vocabulary.model).hexdigest()
    other = write_byte_level(tmp_path / "other", [SOURCE], eos_token="<|padding|>")
    assert load_vocabulary(other).eos_id == 0
    assert load_vocabulary(other).sha256 != vocabulary.sha256


@pytest.mark.parametrize(
    ("name", "token"),
    [("tokenizer_config.json", EOS), ("special_tokens_map.json", {"content": EOS})],
)
def test_eos_is_named_by_either_file(path, tmp_path, name, token):
    copy = tmp_path / "tokenizer.json"
    copy.write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": null}')
    (tmp_path / name).write_text(json.dumps({"eos_token": token}))
    assert load_vocabulary(copy).eos_id == 1


def test_end_of_text_names_the_token(path, tmp_path):
    copy = tmp_path / "tokenizer.json"
    copy.write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|padding|>"}')
    chosen = load_vocabulary(copy, EOS)
    assert chosen.eos_id == 1
    bundled = tmp_path / "vocabulary.model"
    bundled.write_bytes(chosen.model)
    assert load_vocabulary(bundled).sha256 == chosen.sha256
    assert load_vocabulary(bundled, "<|padding|>").eos_id == 0
    with pytest.raises(InputError, match="--end-of-text"):
        load_vocabulary(copy, "<|nothing|>")


def test_tokenizer_without_an_end_of_text_names_the_option(path, tmp_path):
    copy = tmp_path / "tokenizer.json"
    copy.write_bytes(path.read_bytes())
    with pytest.raises(InputError, match="--end-of-text"):
        load_vocabulary(copy)


def test_hole_among_the_ids_counts(tmp_path):
    model = tokenizers.models.WordLevel({"a": 0, "b": 7}, "a")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "b"}')
    assert load_vocabulary(tmp_path / "tokenizer.json").size == 8


def test_merges_are_not_left_out_at_random(path, tmp_path):
    rules = json.loads(path.read_text("utf-8"))
    rules["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(rules))
    random = load_vocabulary(tmp_path / "tokenizer.json", end_of_text=EOS)
    np.testing.assert_array_equal(*random.encode([SOURCE]), *load_vocabulary(path).encode([SOURCE]))


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("added_tokens.json", {"new": 300}),
        ("added_tokens.json", {EOS: 300}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"300": {"content": "new"}}}),
    ],
)
def test_token_that_another_file_adds_is_named(path, tmp_path, name, added):
    """transformers adds it; the library's own ids, which a dataset would have, lack it."""
    for file in path.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    known = {"added_tokens_decoder": {str(load_vocabulary(path).eos_id): {"content": EOS}}}
    about = {"eos_token": EOS, **known}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    load_vocabulary(tmp_path)
    (tmp_path / name).write_text(json.dumps(about | added if "config" in name else added))
    with pytest.raises(InputError, match="300"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", '{"version": "1.0"', r"tokenizer\.json"),
        ("tokenizer.json", '{"model": {}}', r"tokenizer\.json"),
        ("tokenizer_config.json", "\udcff", r"tokenizer_config\.json"),
        ("tokenizer_config.json", '{"eos_token": "<eos>"}', "'<eos>'"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
    ],
)
def test_broken_file_is_named(path, tmp_path, name, content, message):
    for file in path.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_text(content, "utf-8", errors="surrogateescape")
    with pytest.raises(InputError, match=message):
        load_vocabulary(tmp_path / "tokenizer.json")


def test_missing_library_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"tokenizers .*\[export\]"):
        load_vocabulary(path)
