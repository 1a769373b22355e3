"""Loading: damage to any file of a dataset is named, and nothing in its metadata is trusted."""

import json
import os
import random
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from anytime_jax.data.dataset_info import Delimiters, load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError
from anytime_jax.storage.json_files import json_digest

FILES = ["anytime_jax.json", "vocabulary.model", "train/00000/c/0", "validation/00000/c/0"]
DAMAGES = {
    "missing": lambda file: file.unlink(),
    "half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
}


@pytest.fixture
def copy(dataset, tmp_path):
    shutil.copytree(dataset.path, tmp_path / "copy")
    return tmp_path / "copy"


def read_all(path):
    info = load_dataset(path)
    for split, counts in info.splits.items():
        windows = Windows.from_dataset(info, split, length=8, seed=0, shuffle=False)
        windows.batch(0, counts.windows(8))


def test_load_refuses_what_is_not_prepared(copy, tmp_path):
    with pytest.raises(InputError, match="run this"):
        load_dataset(tmp_path / "nowhere", "run this")
    (copy / "anytime_jax.json").write_text('{"format_version": 2}')
    with pytest.raises(InputError, match="2"):
        load_dataset(copy)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_named(dataset, tmp_path, damage):
    for number, name in enumerate(FILES):
        copy = shutil.copytree(dataset.path, tmp_path / str(number))
        DAMAGES[damage](copy / name)
        with pytest.raises(InputError, match=name):
            load_dataset(copy)


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_is_named(copy, name):
    file, chosen = copy / name, random.Random(0)
    content = file.read_bytes()
    for _ in range(20):
        bit, flipped = chosen.randrange(8 * len(content)), bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises((InputError, RunError), match=name.removesuffix("/c/0")):
            read_all(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["parts"]["train"][0].update(name="train/../../x"),
        lambda m: m["parts"]["train"][0].update(tokens=3),
        lambda m: m.update(token_dtype="object"),
        lambda m: m.update(vocab_size="many"),
        lambda m: m.pop("eos_id"),
    ],
)
def test_metadata_with_a_digest_is_not_trusted(copy, change):
    metadata = json.loads((copy / "anytime_jax.json").read_text())
    del metadata["sha256"]
    change(metadata)
    metadata["sha256"] = json_digest(metadata)
    (copy / "anytime_jax.json").write_text(json.dumps(metadata))
    with pytest.raises(InputError, match=r"anytime_jax\.json"):
        load_dataset(copy)


def test_last_tokens_of_documents_where_one_id_begins_and_ends_them():
    """In every window, wherever it begins, of documents of which some are empty."""
    rng, tokens, ends = np.random.default_rng(0), [], []
    for size in rng.choice([0, 1, 2, 5], 60):
        tokens += [7, *rng.integers(8, 20, size), 7]
        ends += [False] * (size + 1) + [True]
    for length in (1, 4, 17):
        starts = [i for i in range(len(tokens) - length) if {*tokens[i : i + length]} != {7}]
        cut = np.array(starts)[:, None] + np.arange(length)
        windows_BxL, expected_BxL = np.array(tokens)[cut], np.array(ends)[cut]
        for array in (np.asarray, jnp.asarray):
            found_BxL = Delimiters(7, 7).find_ends(array(windows_BxL))
            np.testing.assert_array_equal(found_BxL, expected_BxL)
    np.testing.assert_array_equal(Delimiters(8, 7).find_ends(windows_BxL), windows_BxL == 7)
