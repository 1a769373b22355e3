"""Preparation: the plain concatenation of the documents, whatever workers, kills and changes."""

import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers
from byte_level_tokenizer import EOS, write_byte_level
from hub_server import local_hub
from source_documents import read_files

from anytime_jax.corpus import part_tokenization
from anytime_jax.corpus.document_files import find_files
from anytime_jax.corpus.file_source import FileSource, group_files
from anytime_jax.corpus.preparation import Share, prepare
from anytime_jax.corpus.source_interface import Source
from anytime_jax.corpus.validation_split import assign_split
from anytime_jax.corpus.verification import verify_dataset
from anytime_jax.corpus.vocabulary_training import train_vocabulary
from anytime_jax.data.dataset_info import SplitInfo, load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError, RunError

LENGTH = 32
TEXTS = {
    split: [f"{split} {i}:\n\t" + "some words, and more. " * (i % 11) for i in range(count)]
    for split, count in (("train", 300), ("validation", 40))
}
TEXTS["train"][7] = ""

pytestmark = pytest.mark.usefixtures("part_per_file")


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


def prepare_inputs(inputs, output, **options):
    options = {"vocabulary": inputs / "v.model", "workers": 1, **options}
    source = FileSource(str(inputs / "train.*"), str(inputs / "validation.jsonl"))
    return prepare(source, output, **options)


class Stop(Exception):
    pass


def prepare_until_stopped(inputs, output, **options):
    """Prepares two parts of four."""

    def stop(progress):
        if progress.activity == "tokenizing" and progress.done == 2:
            raise Stop

    with pytest.raises(Stop):
        prepare_inputs(inputs, output, progress=stop, **options)


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """The dataset of the inputs; no test changes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anytime_jax.corpus.file_source.PART_BYTES", 1)
        return prepare_inputs(inputs, tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture
def half(inputs, tmp_path):
    """The directory of a dataset with two parts of four."""
    prepare_until_stopped(inputs, tmp_path / "half")
    return tmp_path / "half"


def concatenate(model: Path, texts: list[str]) -> list[int]:
    """The oracle: SentencePiece called directly, one list."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [i for text in texts if text for i in [*processor.encode(text), processor.eos_id()]]


def cut(tokens: list[int], length: int) -> np.ndarray:
    """The oracle of windows: one loop."""
    rows = []
    while len(tokens) >= length + 1:
        rows.append(tokens[: length + 1])
        tokens = tokens[length:]
    return np.array(rows)


def read_windows(info, split):
    windows = Windows.from_dataset(info, split, length=LENGTH, seed=0, shuffle=False)
    return windows.batch(0, info.splits[split].windows(LENGTH))


@dataclasses.dataclass(frozen=True)
class ValidationText(Source):
    """Files of which a share is for validation."""

    file: str
    fraction: float = 1.0

    def parts(self):
        return group_files(find_files(self.file), self.fraction, "text")


def test_dataset_for_validation_alone_needs_no_training_text(inputs, tmp_path):
    source = ValidationText(str(inputs / "validation.jsonl"))
    info = prepare(source, tmp_path / "output", vocabulary=inputs / "v.model")
    tokens = concatenate(inputs / "v.model", TEXTS["validation"])
    assert info.splits == {"train": SplitInfo(0, 0), "validation": SplitInfo(40, len(tokens))}
    np.testing.assert_array_equal(read_windows(info, "validation"), cut(tokens, LENGTH))
    assert verify_dataset(info.path).fingerprint == info.fingerprint
    with pytest.raises(InputError, match="train"):
        Windows.from_dataset(info, "train", length=LENGTH, seed=0)


def test_vocabulary_is_not_trained_on_validation_text(inputs, tmp_path):
    source = ValidationText(str(inputs / "validation.jsonl"))
    with pytest.raises(InputError, match="vocabulary"):
        prepare(source, tmp_path / "output", vocabulary=300)


def test_windows_are_the_cut_concatenation(inputs, tmp_path):
    reports = []
    info = prepare_inputs(inputs, tmp_path / "output", progress=reports.append)
    assert [len(info.parts[split]) for split in TEXTS] == [3, 1]
    for split, texts in TEXTS.items():
        tokens = concatenate(inputs / "v.model", texts)
        expected = cut(tokens, LENGTH)
        np.testing.assert_array_equal(read_windows(info, split), expected)
        counts = info.splits[split]
        assert (counts.documents, counts.tokens) == (sum(map(bool, texts)), len(tokens))
        assert counts.windows(LENGTH) == len(expected)
    assert (info.vocab_size, info.eos_id) == (300, 1)
    everything = [concatenate(inputs / "v.model", texts) for texts in TEXTS.values()]
    assert info.largest_id == max(map(max, everything))
    assert info.vocabulary_path.read_bytes() == (inputs / "v.model").read_bytes()
    expected = {"anytime_jax.json", "vocabulary.model", "train", "validation"}
    assert {path.name for path in info.path.iterdir()} == expected
    assert [r.done for r in reports if r.activity == "tokenizing"] == [0, 1, 2, 3, 4]
    assert reports[-1].done == reports[-1].total
    assert load_dataset(info.path) == info == verify_dataset(info.path)


def test_bytes_do_not_depend_on_workers_or_place(inputs, whole, tmp_path):
    three = prepare_inputs(inputs, tmp_path / "elsewhere" / "three", workers=3)
    assert read_files(three.path) == read_files(whole.path)


def test_large_vocabulary_is_stored_wide(inputs, whole, tmp_path, monkeypatch):
    wide_dtype = property(lambda self: np.dtype(np.int32))
    monkeypatch.setattr(
        "anytime_jax.corpus.vocabulary_interface.Vocabulary.token_dtype", wide_dtype
    )
    wide = prepare_inputs(inputs, tmp_path / "wide")
    assert (whole.token_dtype, wide.token_dtype) == ("uint16", "int32")
    assert wide.parts["train"][0].tokens == whole.parts["train"][0].tokens
    np.testing.assert_array_equal(read_windows(whole, "train"), read_windows(wide, "train"))
    assert verify_dataset(wide.path) == wide


def test_tokenizer_of_a_public_model(inputs, tmp_path):
    """Its own post-processor puts a token before every text."""
    vocabulary = write_byte_level(tmp_path / "model", TEXTS["train"], size=400)
    whole = prepare_inputs(inputs, tmp_path / "whole", vocabulary=vocabulary)
    oracle = tokenizers.Tokenizer.from_file(str(vocabulary))
    oracle.no_truncation()
    oracle.no_padding()
    tokens = []
    for text in TEXTS["validation"]:
        tokens += [*oracle.encode(text).ids, oracle.token_to_id(EOS)]
    assert tokens[0] == whole.bos_id == oracle.token_to_id("<|begin|>")
    np.testing.assert_array_equal(read_windows(whole, "validation"), cut(tokens, LENGTH))
    assert (whole.vocab_size, whole.eos_id) == (oracle.get_vocab_size(), 1)


@pytest.mark.parametrize(
    ("config", "bos", "expected"),
    [
        ({}, "none", None),
        ({"add_bos_token": False, "bos_token": "<|begin|>"}, None, None),
        ({"add_bos_token": False, "bos_token": "<|begin|>"}, "document", 2),
        ({"add_bos_token": True, "bos_token": "<|padding|>"}, None, 0),
        ({"template": f"{EOS} $A"}, None, 1),
        ({"template": f"{EOS} <|begin|> $A", "bos_token": EOS}, "document", 1),
    ],
)
def test_first_token_of_documents(inputs, tmp_path, config, bos, expected):
    vocabulary = write_byte_level(tmp_path / "model", TEXTS["train"], size=400, **config)
    whole = prepare_inputs(inputs, tmp_path / "whole", vocabulary=vocabulary, bos=bos)
    assert whole.bos_id == expected
    first, second = read_windows(whole, "validation").ravel()[:2].tolist()
    assert (second if expected is not None else first) not in (0, 1, 2)
    assert (first == expected) == (expected is not None)


def test_resumes_after_a_stop(inputs, half, whole):
    with pytest.raises(InputError, match=str(half)):
        load_dataset(half)
    reports = []
    prepare_inputs(inputs, half, progress=reports.append)
    assert reports[0].done == 2
    assert read_files(half) == read_files(whole.path)


def test_large_part_is_written_in_stretches(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(part_tokenization, "_STRETCH_TOKENS", 2_000)
    monkeypatch.setattr(part_tokenization, "_BATCH_DOCUMENTS", 8)
    lines = [json.dumps({"text": text}) for text in TEXTS["train"]]
    lines[9:9] = ['{"text": null}', '{"text": ""}', '{"text": null}']
    (tmp_path / "one.json.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    source = FileSource(str(tmp_path / "one.json.gz"), validation_fraction=0.2)
    options = {"vocabulary": inputs / "v.model", "workers": 1}
    whole = prepare(source, tmp_path / "whole", **options)
    assert len(whole.parts["train"]) > 5
    assert whole.null_records == 4  # of which one is in the texts
    for split in TEXTS:
        texts = [x for x in TEXTS["train"] if assign_split(x, 0.2) == split]
        expected = cut(concatenate(inputs / "v.model", texts), LENGTH)
        np.testing.assert_array_equal(read_windows(whole, split), expected)
    assert verify_dataset(whole.path).fingerprint == whole.fingerprint


def test_text_and_vocabulary_at_addresses_give_the_same_dataset(inputs, whole, tmp_path):
    vocabulary = write_byte_level(tmp_path / "repository" / "model", TEXTS["train"], 300)
    shutil.copytree(inputs, tmp_path / "repository" / "en")
    expected = prepare_inputs(inputs, tmp_path / "expected", vocabulary=vocabulary)
    root = "hf://datasets/owner/name/en"
    source = FileSource(f"{root}/train.*.json.gz", f"{root}/validation.jsonl")
    output = tmp_path / "output"
    with local_hub(tmp_path / "repository") as hub:
        hub.faults += [None, "cut", "500", "cut"]
        options = {"workers": 1}
        model = f"{root}/v.model"
        info = prepare(source, output, vocabulary=model, **options)
        assert info.fingerprint == whole.fingerprint
        assert info.settings["vocabulary"] == model
        shutil.rmtree(output)
        prepare(source, output, share=Share(0, 2), vocabulary=model, **options)
        hub.requests.clear()
        prepare(source, output, vocabulary=model, **options)
        transfers = [x for x in hub.requests if x.startswith("GET /cdn")]
        assert not any("v.model" in x for x in transfers)  # the dataset has it
        assert len(transfers) == 2  # the other share's files
        hub.requests.clear()
        prepare(source, output, vocabulary=model, **options)
        assert hub.requests == []  # it is complete
        for place in ("hf://owner/name/model", f"{hub.url}/files/model/tokenizer.json"):
            shutil.rmtree(output)
            info = prepare(source, output, vocabulary=place, **options)
            assert info.fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        (".preparing/settings.json", "list"),
        (".preparing/parts/*.json", "half"),
        ("train/*/c/0", "half"),
        ("train/*/c/0", "missing"),
        ("vocabulary.model", "half"),
    ],
)
def test_damage_to_a_half_prepared_dataset_is_repaired(inputs, half, whole, pattern, damage):
    file = min(half.glob(pattern))
    damaged = {"half": file.read_bytes()[: file.stat().st_size // 2], "list": b"[1]"}
    file.unlink() if damage == "missing" else file.write_bytes(damaged[damage])
    prepare_inputs(inputs, half)
    assert read_files(half) == read_files(whole.path)


def test_part_of_a_killed_write_is_written_again(inputs, half, whole):
    (half / ".preparing/parts/000000.json").unlink()
    shard = half / "train/00000/c/0"
    shard.with_name("0.__lock").write_bytes(shard.read_bytes()[:50])  # TensorStore's temporary file
    shard.unlink()
    prepare_inputs(inputs, half)
    assert read_files(half) == read_files(whole.path)


@pytest.mark.parametrize("change", ["swapped", "one more"])
def test_input_that_changed_meanwhile_is_read_again(inputs, tmp_path, change):
    changed = tmp_path / "inputs"
    shutil.copytree(inputs, changed)
    prepare_until_stopped(changed, tmp_path / "output")
    if change == "swapped":  # which gives as many tokens: only their order changes
        first, second = changed / "train.0.json.gz", changed / "train.1.json.gz"
        contents = first.read_bytes(), second.read_bytes()
        second.write_bytes(contents[0]), first.write_bytes(contents[1])
    else:
        (changed / "train.8.json.gz").write_bytes(gzip.compress(b'{"text": "one more"}'))
    prepare_inputs(changed, tmp_path / "output")
    prepare_inputs(changed, tmp_path / "whole")
    assert read_files(tmp_path / "output") == read_files(tmp_path / "whole")


def test_vocabulary_that_another_process_replaced_is_an_error(inputs):
    with pytest.raises(RunError, match=r"v\.model"):
        part_tokenization._load_cached(inputs / "v.model", "0" * 64)


def test_vocabulary_trained_before_a_stop_is_used_again(inputs, whole, tmp_path):
    uninterrupted = prepare_inputs(inputs, tmp_path / "uninterrupted", vocabulary=290)
    output = tmp_path / "output"
    prepare_until_stopped(inputs, output, vocabulary=290)
    trained = (output / "vocabulary.model").stat().st_mtime_ns
    assert prepare_inputs(inputs, output, vocabulary=290).vocab_size == 290
    assert (output / "vocabulary.model").stat().st_mtime_ns == trained
    assert read_files(output) == read_files(uninterrupted.path)
    # Another vocabulary at the same path, in the same process.
    shutil.rmtree(output)
    prepare_inputs(inputs, output)
    assert read_files(output) == read_files(whole.path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary": 100_000}, "100000 pieces"),
        ({"bos": "document"}, "--bos=document"),
    ],
)
def test_bad_settings_leave_nothing_behind(inputs, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        prepare_inputs(inputs, tmp_path / "output", **options)
    assert list(tmp_path.iterdir()) == []


def test_bad_record_is_named_and_other_parts_are_kept(inputs, whole, tmp_path):
    broken = tmp_path / "inputs"
    shutil.copytree(inputs, broken)
    good = (broken / "train.2.json.gz").read_bytes()
    (broken / "train.2.json.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"no": "text"}\n'))
    with pytest.raises(InputError, match=r"train\.2\.json\.gz line 2"):
        prepare_inputs(broken, tmp_path / "output", workers=2)
    (broken / "train.2.json.gz").write_bytes(good)
    reports = []
    prepare_inputs(broken, tmp_path / "output", progress=reports.append)
    assert reports[0].done > 0
    actual, expected = read_files(tmp_path / "output"), read_files(whole.path)
    actual.pop("anytime_jax.json"), expected.pop("anytime_jax.json")  # they name their inputs
    assert actual == expected


@pytest.mark.parametrize("pattern", ["text", "link"])
def test_output_inside_the_input_is_refused(whole, tmp_path, pattern):
    """Before its own files are read as text, so that nothing stays."""
    (tmp_path / "text" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("text")
    line = json.dumps({"text": "a line of text"}) + "\n"
    for name in ("text/0.jsonl", "text/deep/1.jsonl"):
        (tmp_path / name).write_text(line * 200)
    before = sorted(tmp_path.rglob("*"))
    source = FileSource(str(tmp_path / pattern), validation_fraction=0.5)
    with pytest.raises(InputError, match=r"/output/\.preparing/"):
        prepare(source, tmp_path / "text/output", vocabulary=whole.vocabulary_path, workers=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_prepared_dataset_in_the_input_is_named(whole, tmp_path):
    shutil.copytree(whole.path, tmp_path / "text" / "data")
    (tmp_path / "text" / "a.txt").write_text("text")
    source = FileSource(str(tmp_path / "text"))
    with pytest.raises(InputError, match=r"data/anytime_jax\.json"):
        prepare(source, tmp_path / "output", vocabulary=270, workers=1)
