"""Vocabularies: files that are none are refused; ids fit the type they are stored in."""

import shutil

import numpy as np
import pytest
import tokenizers
from byte_level_tokenizer import write_byte_level

from anytime_jax.corpus.vocabulary import load_vocabulary
from anytime_jax.errors import InputError


@pytest.mark.parametrize("damage", ["missing", "empty", "less a byte", "text", "directory", "link"])
def test_damaged_file_is_named(corpus, tmp_path, capfd, damage):
    model, path = (corpus.folder / "v.model").read_bytes(), tmp_path / "v.model"
    contents = {"empty": b"", "less a byte": model[:-1], "text": b"not a model"}
    if damage in contents:
        path.write_bytes(contents[damage])
    elif damage == "directory":
        path.mkdir()
    elif damage == "link":
        path.symlink_to(tmp_path / "gone")
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


def test_directory_of_a_dataset_or_model_has_a_vocabulary(corpus, tmp_path):
    expected = load_vocabulary(corpus.folder / "v.model")
    assert load_vocabulary(corpus.folder / "data") == expected
    model = tmp_path / "model"
    write_byte_level(model, ["some text"] * 9, 270)
    assert load_vocabulary(model) == load_vocabulary(model / "tokenizer.json")
    # Of an export, the vocabulary of its run, which its tokenizer.json translates.
    shutil.copy(corpus.folder / "v.model", model / "vocabulary.model")
    assert load_vocabulary(model) == expected
    with pytest.raises(InputError, match=r"vocabulary\.model"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize("files", ['{"tokenizer.json": 5}', '{"tokenizer_config.json": 5}'])
def test_bundle_of_other_values_is_refused(files, tmp_path):
    (tmp_path / "vocabulary.model").write_text(files)
    with pytest.raises(InputError, match=r"vocabulary\.model"):
        load_vocabulary(tmp_path / "vocabulary.model")
