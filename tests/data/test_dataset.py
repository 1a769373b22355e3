"""Datasets: damage to any of their files is named, and nothing in them is trusted unchecked."""

import dataclasses
import json
import os
import random
import shutil

import pytest

from anytime_jax.data.batches import read_ahead
from anytime_jax.data.dataset import load_dataset
from anytime_jax.data.verification import verify_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError
from anytime_jax.json_files import json_digest

TRAIN = "train-00000-of-00002.tokens"
VALIDATION = "validation-00001-of-00002.tokens"
FILES = ["anytime_jax.json", "vocabulary.model", TRAIN, VALIDATION]
DAMAGES = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: os.truncate(file, 0),
    "half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "directory": lambda file: (file.unlink(), file.mkdir()),
    "link": lambda file: (file.unlink(), file.symlink_to("/nowhere")),
}


@pytest.fixture
def copy(corpus, tmp_path):
    shutil.copytree(corpus.folder / "data", tmp_path / "copy")
    return tmp_path / "copy"


def open_windows(info, split="train"):
    return Windows(info, split, length=info.length, seed=0, shuffle=False)


def read_all(path):
    info = load_dataset(path)
    return [open_windows(info, s).batch(0, info.splits[s].windows) for s in sorted(info.splits)]


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def edit(folder, change):
    """Changes the metadata, with a digest that matches."""
    metadata = json.loads((folder / "anytime_jax.json").read_text())
    del metadata["sha256"]
    change(metadata)
    metadata["sha256"] = json_digest(metadata)
    (folder / "anytime_jax.json").write_text(json.dumps(metadata))


def test_load_refuses_what_is_not_prepared(copy, tmp_path):
    with pytest.raises(InputError, match=r"not a prepared dataset.*; run this$"):
        load_dataset(tmp_path / "nowhere", "run this")
    (copy / "anytime_jax.json").write_text('{"format_version": 2}')
    with pytest.raises(InputError, match=r"version 2.*prepare it again"):
        load_dataset(copy)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_named(copy, name, damage):
    DAMAGES[damage](copy / name)
    with pytest.raises((InputError, RunError)) as error:
        read_all(copy)
    message = str(error.value)
    assert name in message
    assert "\n" not in message
    assert "again" in message or "not a prepared dataset" in message
    assert isinstance(error.value, InputError) or (".tokens" in name and damage == "zeros")


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_is_named(copy, name):
    file, chosen = copy / name, random.Random(0)
    content = file.read_bytes()
    for _ in range(60):
        flip(file, chosen.randrange(8 * len(content)))
        with pytest.raises((InputError, RunError), match=name):
            read_all(copy)
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["files"]["train"][0].update(name="../x"), r"'\.\./x'"),
        (lambda m: m["files"]["train"][0].update(name="/etc/hostname"), "/etc/hostname"),
        (lambda m: m["files"]["train"][0].update(tokens=3), "do not add up"),
        (lambda m: m["splits"]["train"].update(windows=3), "do not add up"),
        (lambda m: m.update(token_dtype="object"), "tokens of type 'object'"),
        (lambda m: m.update(vocab_size="many"), "'many' is not a count"),
        (lambda m: m.update(length=-1), "-1 is not a count"),
        (lambda m: m.update(length=0), "damaged"),
        (lambda m: m.update(files=[1]), "damaged"),
        (lambda m: m.pop("eos_id"), "damaged"),
    ],
)
def test_metadata_with_a_digest_is_not_trusted(copy, change, message):
    edit(copy, change)
    with pytest.raises(InputError, match=message) as error:
        load_dataset(copy)
    assert "anytime_jax.json" in str(error.value)


def test_damage_reaches_the_consumer_of_batches(copy):
    info = load_dataset(copy)
    flip(copy / TRAIN, 8 * (2 * info.length * 30 + 4))  # of window 30
    with pytest.raises(RunError, match=rf"{TRAIN} tokens .*--verify --output={copy}") as error:
        list(read_ahead(open_windows(info).batch, 0, [8] * 20))
    assert type(error.value) is RunError
    assert "\n" not in str(error.value)


def test_token_beyond_the_vocabulary_is_refused(copy):
    edit(copy, lambda metadata: metadata.update(vocab_size=40))
    with pytest.raises(RunError, match=rf"{TRAIN} .*token \d+ where the vocabulary has 40 pieces"):
        open_windows(load_dataset(copy)).batch(0, 64)


def test_file_that_goes_while_training_is_named(copy):
    info = load_dataset(copy)
    windows, validation = open_windows(info), open_windows(info, "validation")
    (copy / TRAIN).unlink()
    with pytest.raises(RunError, match=rf"samples 0 to 3 .*{TRAIN} .*No such file"):
        windows.batch(0, 4)
    validation.batch(0, 1)
    os.truncate(copy / VALIDATION, 100)
    with pytest.raises(RunError, match=VALIDATION):
        validation.batch(0, 4)


@pytest.mark.parametrize(
    ("fields", "named"), [(["tokens"], TRAIN), (["tokens", "checksum"], "fingerprint")]
)
def test_file_of_another_dataset_is_named(corpus, copy, tmp_path, fields, named):
    """Its own checksums match."""
    (tmp_path / "other.jsonl").write_bytes(corpus.content.replace(b"of words", b"fo words"))
    other = corpus.prepare(tmp_path / "other", tmp_path / "other.jsonl")
    shutil.copy(other.path / TRAIN, copy / TRAIN)

    def accept(metadata):
        file = dataclasses.asdict(other.files["train"][0])
        metadata["files"]["train"][0].update({k: file[k] for k in fields})
        metadata["splits"]["train"].update(dataclasses.asdict(other.splits["train"]))

    edit(copy, accept)
    with pytest.raises(RunError, match=named):
        verify_dataset(copy)
