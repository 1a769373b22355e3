"""Prepared windows are the plain concatenation cut at stride L, however they were made."""

import gzip
import hashlib
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow_datasets as tfds
import tokenizers
from byte_level_tokenizer import EOS, write_byte_level

from anytime_jax.data import preparation, sources
from anytime_jax.data.dataset import load_dataset
from anytime_jax.data.preparation import prepare, prepare_builtin, prepare_share
from anytime_jax.data.preparation_lock import Share
from anytime_jax.data.sources import FileSource
from anytime_jax.data.verification import verify_dataset
from anytime_jax.data.vocabulary import train_vocabulary
from anytime_jax.errors import InputError, RunError

LENGTH = 32
TEXTS = {
    split: [f"{split} {i}:\n\t" + "some words, and more. " * (i % 11) for i in range(count)]
    for split, count in (("train", 300), ("validation", 40))
}
TEXTS["train"][7] = ""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Three training files, a validation file and a vocabulary."""
    folder = tmp_path_factory.mktemp("inputs")
    for index in range(3):
        lines = [json.dumps({"text": text}) for text in TEXTS["train"][100 * index :][:100]]
        (folder / f"train.{index}.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    lines = [json.dumps({"text": text}) for text in TEXTS["validation"]]
    (folder / "validation.jsonl").write_text("\n".join(lines))
    train_vocabulary(TEXTS["train"], 300, folder / "v.model")
    return folder


@pytest.fixture
def many_small_files(monkeypatch):
    """A part per file and a shard per few windows, so that small texts have many of both."""
    monkeypatch.setattr(sources, "PART_BYTES", 1)
    monkeypatch.setattr(preparation, "_SHARD_BYTES", 66 * 25)


def source_of(inputs):
    return FileSource("json", str(inputs / "train.*"), str(inputs / "validation.jsonl"))


def prepare_inputs(inputs, output, **options):
    options = {"length": LENGTH, "vocabulary": inputs / "v.model", "workers": 1, **options}
    return prepare(source_of(inputs), output, **options)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def plain_windows(model: Path, texts: list[str], length: int) -> np.ndarray:
    """The oracle: SentencePiece called directly, one list, one loop."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    stream = []
    for text in texts:
        stream += [*processor.encode(text), processor.eos_id()]
    rows = []
    while len(stream) >= length + 1:
        rows.append(stream[: length + 1])
        stream = stream[length:]
    return np.array(rows)


def test_windows_are_the_cut_concatenation(inputs, tmp_path, many_small_files):
    reports = []
    info = prepare_inputs(inputs, tmp_path / "token_windows" / "1.0.0", progress=reports.append)
    builder = tfds.builder_from_directory(info.path)
    assert builder.info.splits["train"].num_shards > 3
    for split, texts in TEXTS.items():
        expected = plain_windows(inputs / "v.model", texts, LENGTH)
        stored = np.stack([example["tokens"] for example in builder.as_data_source(split)])
        assert stored.dtype == np.uint16
        np.testing.assert_array_equal(stored, expected)
        by_name = tfds.data_source("token_windows", data_dir=tmp_path, split=split)
        np.testing.assert_array_equal(by_name[len(expected) - 1]["tokens"], expected[-1])
        counts = info.splits[split]
        assert (counts.documents, counts.windows) == (len(texts), len(expected))
        assert (stored[:, :-1] == info.eos_id).sum() <= counts.documents
        assert 0 <= counts.tokens - 1 - LENGTH * counts.windows < LENGTH
    assert (info.length, info.vocab_size, info.eos_id) == (LENGTH, 300, 1)
    assert info.vocabulary_path.read_bytes() == (inputs / "v.model").read_bytes()
    assert {path.suffix for path in info.path.iterdir()} <= {
        ".json", ".model", *(path.suffix for path in info.path.glob("*array_record*"))
    }  # fmt: skip
    assert [r.done for r in reports if r.stage == "tokenising"] == [0, 1, 2, 3, 4]
    assert reports[-1].done == reports[-1].total == len(list(info.path.glob("*array_record*")))
    assert load_dataset(info.path) == info


def test_bytes_do_not_depend_on_workers_or_place(inputs, tmp_path, many_small_files):
    one = prepare_inputs(inputs, tmp_path / "one", workers=1)
    three = prepare_inputs(inputs, tmp_path / "elsewhere" / "three", workers=3)
    assert contents(one.path) == contents(three.path)
    assert one.fingerprint == three.fingerprint


def test_fingerprint_tells_datasets_apart(inputs, tmp_path):
    fingerprints = {
        prepare_inputs(inputs, tmp_path / "a").fingerprint,
        prepare_inputs(inputs, tmp_path / "b", length=LENGTH + 1).fingerprint,
        prepare_inputs(inputs, tmp_path / "c", vocabulary=301).fingerprint,
    }
    assert len(fingerprints) == 3
    moved = tmp_path / "moved"
    shutil.copytree(inputs, moved)
    (moved / "train.0.json.gz").rename(moved / "train.00.json.gz")
    assert prepare_inputs(moved, tmp_path / "d").fingerprint in fingerprints


def test_large_vocabulary_is_stored_wide(inputs, tmp_path, monkeypatch):
    narrow = prepare_inputs(inputs, tmp_path / "narrow")
    wide_dtype = property(lambda self: np.dtype(np.int32))
    monkeypatch.setattr("anytime_jax.data.vocabulary.Vocabulary.token_dtype", wide_dtype)
    wide = prepare_inputs(inputs, tmp_path / "wide")
    assert (narrow.token_dtype, wide.token_dtype) == ("uint16", "int32")
    first, second = (
        tfds.builder_from_directory(info.path).as_data_source("train")[5]["tokens"]
        for info in (narrow, wide)
    )
    assert second.dtype == np.int32
    np.testing.assert_array_equal(first, second)


def test_tokenizer_of_a_public_model(inputs, tmp_path, many_small_files):
    vocabulary = write_byte_level(tmp_path / "model", TEXTS["train"], size=400)
    whole = prepare_inputs(inputs, tmp_path / "whole", vocabulary=vocabulary)
    oracle = tokenizers.Tokenizer.from_file(str(vocabulary))
    oracle.no_truncation()
    oracle.no_padding()
    stream = []
    for text in TEXTS["validation"]:
        stream += [*oracle.encode(text, add_special_tokens=False).ids, oracle.token_to_id(EOS)]
    stored = tfds.builder_from_directory(whole.path).as_data_source("validation")
    for index, example in enumerate(stored):
        expected = stream[index * LENGTH : (index + 1) * LENGTH + 1]
        np.testing.assert_array_equal(example["tokens"], expected)
    assert len(stored) == (len(stream) - 1) // LENGTH > 3
    assert (whole.vocab_size, whole.eos_id) == (oracle.get_vocab_size(), 1)
    assert verify_dataset(whole.path) == whole

    options = {"length": LENGTH, "vocabulary": vocabulary, "workers": 1}
    for index in range(2):
        prepare_share(source_of(inputs), tmp_path / "s", share=Share(index, 2), **options)
    prepare_inputs(inputs, tmp_path / "s", vocabulary=vocabulary)
    assert contents(tmp_path / "s") == contents(whole.path)
    # Its own file is all that the dataset needs, here or for another text.
    shutil.rmtree(vocabulary.parent)
    assert load_dataset(whole.path) == whole
    assert prepare_inputs(inputs, whole.path, vocabulary=whole.vocabulary_path) == whole
    again = prepare_inputs(inputs, tmp_path / "again", vocabulary=whole.vocabulary_path)
    assert again.fingerprint == whole.fingerprint


@pytest.mark.parametrize(("extra", "windows"), [(-1, 2), (0, 2), (1, 3), (2, 3)])
def test_a_window_needs_its_last_target(inputs, tmp_path, extra, windows):
    length, vocabulary = 20, inputs / "v.model"
    text = "\x01" * (3 * length + extra - 1)  # a rare character is a token, and EOS one more
    (tmp_path / "text.txt").write_text(text)
    source = FileSource("folder", str(tmp_path / "text.txt"), str(inputs / "validation.jsonl"))
    info = prepare(source, tmp_path / "output", length=length, vocabulary=vocabulary)
    assert info.splits["train"].tokens == 3 * length + extra
    assert info.splits["train"].windows == windows
    assert len(plain_windows(vocabulary, [text], length)) == windows


class Stop(Exception):
    pass


@pytest.mark.parametrize("stage", ["tokenising", "writing"])
def test_goes_on_where_it_stopped(inputs, tmp_path, many_small_files, stage):
    whole = prepare_inputs(inputs, tmp_path / "whole")
    output = tmp_path / "output"

    def stop(progress):
        if progress.stage == stage and progress.done == 2:
            raise Stop

    with pytest.raises(Stop):
        prepare_inputs(inputs, output, progress=stop)
    with pytest.raises(InputError, match=r"half prepared.*prepare it so$"):
        load_dataset(output, "prepare it so")
    with pytest.raises(InputError, match=r"length 32 \(asked: 16\)"):
        prepare_inputs(inputs, output, length=16)
    reports = []
    prepare_inputs(inputs, output, progress=reports.append)
    assert next(report.done for report in reports if report.stage == stage) == 2
    assert contents(output) == contents(whole.path)


def test_input_that_changed_meanwhile_is_read_again(inputs, tmp_path, many_small_files):
    changed = tmp_path / "inputs"
    shutil.copytree(inputs, changed)

    def stop(progress):
        if progress.stage == "writing" and progress.done == 2:
            raise Stop

    with pytest.raises(Stop):
        prepare_inputs(changed, tmp_path / "output", progress=stop)
    # Swapped, they give as many tokens, windows and shards: only their order has changed.
    first, second = changed / "train.0.json.gz", changed / "train.1.json.gz"
    assert first.stat().st_size != second.stat().st_size
    first.rename(changed / "aside")
    second.rename(first)
    (changed / "aside").rename(second)
    reports = []
    prepare_inputs(changed, tmp_path / "output", progress=reports.append)
    assert (reports[0].done, reports[0].total) == (2, 4)
    prepare_inputs(changed, tmp_path / "whole")
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")


def test_finished_dataset_is_returned_at_once(inputs, tmp_path):
    copy = tmp_path / "inputs"
    shutil.copytree(inputs, copy)
    first = prepare_inputs(copy, tmp_path / "output")
    for file in copy.glob("*.gz"):  # the text may be gone by then
        file.unlink()
    assert prepare_inputs(copy, tmp_path / "output") == first
    with pytest.raises(InputError, match=r"holds a dataset.*vocabulary.*trained, 290.*another out"):
        prepare_inputs(copy, tmp_path / "output", vocabulary=290)


def test_another_vocabulary_at_the_same_place(inputs, tmp_path):
    prepare_inputs(inputs, tmp_path / "output", vocabulary=290)
    shutil.rmtree(tmp_path / "output")
    prepare_inputs(inputs, tmp_path / "output")
    prepare_inputs(inputs, tmp_path / "whole")
    assert contents(tmp_path / "output") == contents(tmp_path / "whole")


def test_directory_of_others_is_left_alone(inputs, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        prepare_inputs(inputs, tmp_path)
    with pytest.raises(InputError, match="is a file"):
        prepare_inputs(inputs, tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_at_once_are_refused(inputs, tmp_path):
    refusals = []

    def enter_again(progress):
        with pytest.raises(InputError, match="by another process") as error:
            prepare_inputs(inputs, tmp_path / "output")
        refusals.append(error)

    prepare_inputs(inputs, tmp_path / "output", progress=enter_again)
    assert refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length 0"),
        ({"workers": 0}, "0 workers"),
        ({"vocabulary": "nowhere.model"}, "nowhere.model"),
        ({"vocabulary": 100_000}, "too high"),
        ({"length": 10**6}, r'"train" has \d+ tokens, fewer than the 1000001'),
    ],
)
def test_bad_settings_leave_nothing_behind(inputs, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        prepare_inputs(inputs, tmp_path / "output", **options)
    assert list(tmp_path.iterdir()) == []


def test_bad_record_is_named_and_the_rest_kept(inputs, tmp_path, many_small_files):
    broken = tmp_path / "inputs"
    shutil.copytree(inputs, broken)
    good = (broken / "train.2.json.gz").read_bytes()
    (broken / "train.2.json.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"no": "text"}\n'))
    with pytest.raises(InputError, match=r"train\.2\.json\.gz line 2"):
        prepare_inputs(broken, tmp_path / "output", workers=2)
    (broken / "train.2.json.gz").write_bytes(good)
    prepare_inputs(broken, tmp_path / "output")
    prepare_inputs(inputs, tmp_path / "whole")
    got, expected = contents(tmp_path / "output"), contents(tmp_path / "whole")
    got.pop("anytime_jax.json"), expected.pop("anytime_jax.json")  # they name their inputs
    assert got == expected


def test_death_of_a_worker_is_reported(inputs, tmp_path, many_small_files, monkeypatch):
    class Deadly(FileSource):
        def parts(self):
            return [DeadlyPart(), DeadlyPart()]

    source = Deadly("json", "a", "b")
    with pytest.raises(RunError, match="worker process died"):
        prepare(source, tmp_path / "o", length=8, vocabulary=inputs / "v.model", workers=2)


class DeadlyPart:
    validation_fraction = 0.0
    identity = ["deadly"]  # noqa: RUF012

    def documents(self):
        import os

        os._exit(9)
        yield ""


def test_builtin_is_prepared_once(tmp_path):
    options = {"length": 64, "vocab_size": 512, "megabytes": 1.0}
    first = prepare_builtin(tmp_path / "builtin", **options)
    assert (first.vocab_size, first.length) == (512, 64)
    assert 0.005 < first.splits["validation"].tokens / first.splits["train"].tokens < 0.3
    began = time.monotonic()
    assert prepare_builtin(tmp_path / "builtin", **options) == first
    assert time.monotonic() - began < 0.2
    with pytest.raises(InputError, match=r"megabytes 1\.0"):
        prepare_builtin(tmp_path / "builtin", **{**options, "megabytes": 2.0})
