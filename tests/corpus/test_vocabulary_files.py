"""Vocabularies: files that are none are refused; ids fit the type they are stored in."""

import shutil

import numpy as np
import pytest
import tokenizers
from byte_level_tokenizer import write_byte_level

from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.errors import InputError


@pytest.mark.parametrize("damage", ["missing", "empty", "less a byte"])
def test_damaged_file_is_named(dataset, tmp_path, capfd, damage):
    model, path = dataset.vocabulary_path.read_bytes(), tmp_path / "v.model"
    contents = {"empty": b"", "less a byte": model[:-1]}
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(InputError) as error:
        load_vocabulary(path)
    assert f"vocabulary {path}" in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("words", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_more_than_65536_tokens_are_int32(tmp_path, words, dtype):
    model = tokenizers.models.WordLevel({str(word): word for word in range(words)}, "0")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "1"}')
    vocabulary = load_vocabulary(tmp_path / "tokenizer.json")
    assert (vocabulary.size, vocabulary.token_dtype) == (words, dtype)


def test_directory_of_a_dataset_or_model_has_a_vocabulary(dataset, tmp_path):
    expected = load_vocabulary(dataset.vocabulary_path).model
    assert load_vocabulary(dataset.path).model == expected
    model = tmp_path / "model"
    write_byte_level(model, ["some text"] * 9, 270)
    assert load_vocabulary(model).model == load_vocabulary(model / "tokenizer.json").model
    # Of an export, the vocabulary of its run, which its tokenizer.json translates.
    shutil.copy(dataset.vocabulary_path, model)
    assert load_vocabulary(model).model == expected
    with pytest.raises(InputError, match=r"vocabulary\.model"):
        load_vocabulary(tmp_path)


def test_bundle_of_other_values_is_refused(tmp_path):
    (tmp_path / "vocabulary.model").write_text('{"tokenizer.json": 5}')
    with pytest.raises(InputError, match=r"vocabulary\.model"):
        load_vocabulary(tmp_path / "vocabulary.model")
