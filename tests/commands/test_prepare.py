"""The preparation command, and kills of it."""

import errno
import gzip
import json
import os
import shlex
import struct
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import tokenizers
from byte_level_tokenizer import EOS, write_byte_level
from hub_server import local_hub
from letter_tokenizer import write_letters
from paths import REPOSITORY
from pyarrow import parquet
from source_documents import read_files

from anytime_jax.commands import config_file, prepare, train
from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.corpus import file_source
from anytime_jax.corpus.vocabulary_training import train_vocabulary
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.data.token_arrays import read_part
from anytime_jax.training import run_data


@pytest.fixture
def text(tmp_path):
    lines = [json.dumps({"text": f"{i} " + "words to prepare " * 20}) for i in range(100)]
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def prepared(text, tmp_path, command):
    """The options that prepare the text, and the directory of the dataset made with them."""
    output = tmp_path / "output"
    words = [f"--input={text}", "--validation-fraction=0.2"]
    words += ["--train-vocabulary=300", f"--output={output}"]
    status, out, err = command(prepare, *words)
    assert status == 0, err
    assert f"{load_dataset(output).splits['train'].tokens:,} tokens" in out
    return words, output


def test_finished_dataset_stays_and_says_if_its_input_changed(prepared, text, command):
    words, output = prepared
    before = read_files(output)
    status, out, _ = command(prepare, *words)
    assert (status, "already prepared" in out, "note: the input has" in out) == (0, True, False)
    later = text.stat().st_mtime_ns + 10**9
    text.write_text(text.read_text().replace("words", "sword"))  # of the same size
    os.utime(text, ns=(later, later))
    status, out, _ = command(prepare, *words)
    assert (status, "note: the input has" in out) == (0, True)
    text.unlink()
    assert command(prepare, *words)[0] == 0
    assert read_files(output) == before


def test_verification_writes_nothing_and_names_the_damaged_part(prepared, command):
    _, output = prepared
    info, files, changed = load_dataset(output), read_files(output), output.stat().st_mtime_ns
    status, out, _ = command(prepare, "--verify", f"--output={output}")
    assert output.stat().st_mtime_ns == changed  # it may be on a read-only file system
    assert (status, info.fingerprint in out) == (0, True)
    assert read_files(output) == files
    name = info.parts["train"][0].name
    (output / name / "c" / "0").write_bytes(bytes(len(files[f"{name}/c/0"])))
    status, out, err = command(prepare, "--verify", f"--output={output}")
    assert (status, out) == (1, "")
    assert name in err
    assert info.parts["validation"][0].name not in err


@pytest.mark.parametrize(
    ("words", "fraction", "small"),
    [(20, "0.3", ("train", "validation")), (3000, "0.3", ())],
)
def test_printed_command_trains_on_the_dataset(
    words, fraction, small, tmp_path, command, monkeypatch
):
    """Its settings fit the data, and none has to be added by hand."""
    monkeypatch.chdir(REPOSITORY)
    text, output = tmp_path / "text.jsonl", tmp_path / "my data"
    lines = [json.dumps({"text": f"{i} " + "words to prepare " * words}) for i in range(100)]
    text.write_text("\n".join(lines))
    words = [f"--input={text}", f"--validation-fraction={fraction}"]
    words += ["--train-vocabulary=300", f"--output={output}"]
    status, out, err = command(prepare, *words)
    assert status == 0, err
    *lines, last = out.splitlines()
    notes = [line for line in lines if line.startswith("note: ")]
    assert len(notes) == len(small)
    for note, split in zip(notes, small, strict=True):
        assert f"{split} has " in note
    info = load_dataset(output)
    program, _, option = last.strip().partition(" train ")
    assert program == "anytime"
    (option,) = shlex.split(option)
    config = run_config.build(config_file.read(option.removeprefix("--config=")), trust=NOBODY)
    assert config.data.path == str(output)
    run_data.check_fit(config, info)
    stop, _ = run_data.find_stop(config, dict.fromkeys(config.sources, info), 0)
    assert stop == config.clock.step_at("4x", "stop")


def test_little_text_leaves_more_to_validate_on(tmp_path, command):
    (tmp_path / "text").mkdir()
    for i in range(20):
        (tmp_path / "text" / f"{i}.md").write_text(f"{i} words and other words " * 40)
    words = [f"--input={tmp_path / 'text'}", "--train-vocabulary=300"]
    status, _, err = command(prepare, *words, f"--output={tmp_path / 'data'}")
    assert status == 0, err
    documents = [split.documents for split in load_dataset(tmp_path / "data").splits.values()]
    assert sum(documents) == 20
    assert min(documents) > 0


def test_folder_of_code_is_text_and_the_rest_of_it_is_counted(tmp_path, command):
    """At the end, when asked again and by --verify, also if a share has read the files."""
    folder, output = tmp_path / "code", tmp_path / "data"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main")
    for i in range(30):
        (folder / f"{i:02}.py").write_text(f"def function_{i}(x):\n    return x\n" * 40)
    for i in range(5):
        (folder / f"{i}.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    words = [f"--input={folder}", "--train-vocabulary=300", f"--output={output}"]
    assert command(prepare, *words, "--share=0/1")[0] == 0
    for options in (words, words, ["--verify", f"--output={output}"]):
        status, out, err = command(prepare, *options)
        assert status == 0, err
        lines = [line for line in out.splitlines() if line.startswith("left out: ")]
        assert lines == [
            "left out: 1 hidden (.git)",
            "left out: 5 not UTF-8 text (0.png, 1.png, 2.png, ...)",
        ]
    info = load_dataset(output)
    assert sum(split.documents for split in info.splits.values()) == 30
    names = [os.path.relpath(name, folder) for _, name in info.left_out]
    assert names == [".git", *(f"{i}.png" for i in range(5))]


@pytest.mark.parametrize("vocabulary", ["--train-vocabulary=300", "--vocabulary=v.model"])
def test_folder_without_a_text_says_what_is_in_it(vocabulary, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_vocabulary(["words to prepare " * 20] * 9, 290, "v.model")
    Path("pictures").mkdir()
    Path("pictures/a.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    status, out, err = command(prepare, "--input=pictures", vocabulary, "--output=data")
    assert (status, out) == (2, "")
    assert "a.png" in err.splitlines()[-1]
    assert not Path("data").exists()


def test_text_that_the_vocabulary_cannot_write_is_counted(tmp_path, command):
    """By the command, when asked again and in the metadata, also if a share has read the text."""
    lines = [json.dumps({"text": "a text in letters " + "漢字"[: i % 3]}) for i in range(30)]
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    for model, count in (({}, "in no token: 30"), ({"unk_token": "<unk>"}, "unknown: 30")):
        vocabulary = write_letters(tmp_path / f"letters{len(model)}", **model)
        output = tmp_path / f"data{len(model)}"
        words = [f"--input={tmp_path / 'text.jsonl'}", f"--vocabulary={vocabulary}"]
        assert command(prepare, *words, f"--output={output}", "--share=0/1")[0] == 0
        for options in (words, words, ["--verify"]):
            status, out, err = command(prepare, *options, f"--output={output}")
            assert status == 0, err
            (line,) = [x for x in out.splitlines() if count in x]
            assert "20 documents" in line
        info = load_dataset(output)
        counts = [info.dropped_characters, info.dropped_documents]
        counts += [info.unknown_pieces, info.unknown_documents]
        assert counts == ([0, 0, 30, 20] if model else [30, 20, 0, 0])


def test_bad_records_are_left_out_if_asked_and_the_first_ten_named(
    tmp_path, command, rejected, monkeypatch
):
    monkeypatch.setattr(file_source, "PART_BYTES", 1)  # so that each file is a part
    bad = '{"text": "\\ud83d"}'
    lines = [json.dumps({"text": f"{i} words to prepare " * 9}) for i in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, *[bad] * 5]))
    (tmp_path / "b.jsonl").write_text("\n".join([*lines, *[bad] * 7]))
    output = tmp_path / "data"
    words = [f"--input={tmp_path}/*.jsonl", "--train-vocabulary=300", f"--output={output}"]
    assert "a.jsonl line 31 " in rejected(prepare, *words)
    status, out, err = command(prepare, *words, "--bad-records=skip")
    assert status == 0, err
    assert "left out: 12 records" in out
    assert [f"a.jsonl line {i} " in out for i in (30, 31, 35, 36)] == [False, True, True, False]
    assert [f"b.jsonl line {i} " in out for i in (30, 31, 35, 36)] == [False, True, True, False]
    info = load_dataset(output)
    assert (info.bad_records, len(info.first_bad_records)) == (12, 10)
    assert sum(split.documents for split in info.splits.values()) == 60


def test_full_disk_names_the_output(text, tmp_path, command, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    words = [f"--input={text}", "--train-vocabulary=300"]
    status, out, err = command(prepare, *words, f"--output={tmp_path / 'output'}")
    assert (status, out) == (1, "")
    line = err.splitlines()[-1]
    assert f"--output={tmp_path / 'output'}: " in line
    assert "No space left" in line
    assert "resumes" in line


CONFIG = """
from configs import quickstart

def get_config():
    config = quickstart.get_config()
    config.name = "mine"
    config.data.update(
        path="data/mine", text="text.jsonl", vocabulary="v.model", builtin_megabytes=0.0
    )
    config.model.update(length=32, vocab_size=300, embedding_rows=300)
    config.stop, config.schedule.warmup, config.eval.tokens = "8 steps", "2 steps", "all"
    return config
"""


def test_configuration_names_text_vocabulary_and_directory(
    text, tmp_path, command, rejected, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CONFIG)
    train_vocabulary(["words to prepare " * 20] * 9, 290, "v.model")
    line = rejected(train, "--config=mine.py")
    assert "prepare --input=text.jsonl --vocabulary=v.model --output=data/mine" in line
    status, out, err = command(prepare, "--config=mine.py")
    assert status == 0, err
    assert out.splitlines()[-1].endswith("train --config=mine.py")
    info = load_dataset("data/mine")
    assert info.vocab_size == 290
    assert info.settings["input"] == str(text)
    words = ["--config=mine.py", "--output=other"]
    status, out, _ = command(prepare, *words, "--train-vocabulary=280")
    assert status == 0
    assert out.endswith(" train --config=mine.py --config.data.path=other\n")
    assert load_dataset("other").vocab_size == 280


def test_configuration_with_the_builtin_corpus_is_prepared(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--config=quickstart", "--config.data.builtin_megabytes=0.3"]
    status, _, err = command(prepare, *words, "--config.data.path=data")
    assert status == 0, err
    info = load_dataset("data")
    assert info.settings["megabytes"] == 0.3
    assert info.vocab_size == 1024


def read_documented(name):
    """The options of the command in docs/data.md that reads a public text."""
    page = (REPOSITORY / "docs/data.md").read_text("utf-8").replace("\\\n", " ")
    (line,) = [x for x in page.splitlines() if "--input=" in x and name in x]
    return shlex.split(line)[2:]


@pytest.fixture
def public_texts(tmp_path, monkeypatch):
    """Texts of a public dataset, in whose folder a local server has a tokenizer."""
    monkeypatch.chdir(tmp_path)
    texts = [f"{i} " + "words of a page. " * (i % 9 + 1) for i in range(400)]
    write_byte_level(tmp_path / "hub", texts, 300)
    return texts


def count_documents(words):
    (output,) = [x.removeprefix("--output=") for x in words if x.startswith("--output")]
    return sum(split.documents for split in load_dataset(output).splits.values())


def test_documented_command_reads_tables(public_texts, tmp_path, command):
    """Against a local server: no test reads the originals."""
    words = read_documented("HuggingFaceFW/fineweb-edu")
    path = tmp_path / "hub/sample/10BT/000_00000.parquet"
    path.parent.mkdir(parents=True)
    columns = {"text": public_texts, "id": range(400), "score": [2.5] * 400}
    parquet.write_table(pyarrow.table(columns), path, row_group_size=100)
    with local_hub(tmp_path / "hub"):
        status, _, err = command(prepare, *words, "--workers=1")
    assert status == 0, err
    assert count_documents(words) == 400


def test_documented_command_reads_a_list_of_addresses(public_texts, tmp_path, command):
    words = read_documented("allenai/dolma")
    folder = tmp_path / "hub" / "urls"
    folder.mkdir()
    with local_hub(tmp_path / "hub") as hub:
        addresses = []
        for name, texts in (("a.json.gz", public_texts[:200]), ("b.json.gz", public_texts[200:])):
            lines = "".join(json.dumps({"text": text, "id": "x"}) + "\n" for text in texts)
            (folder / name).write_bytes(gzip.compress(lines.encode()))
            addresses.append(f"{hub.url}/files/urls/{name}\n")
        (folder / "v1_7.txt").write_text("".join(addresses))
        status, _, err = command(prepare, *words, "--workers=1")
    assert status == 0, err
    assert count_documents(words) == 400


def test_documented_command_copies_tokens(public_texts, tmp_path, command):
    words = read_documented("kjj0/fineweb10B-gpt2")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "hub/tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    encoded = [library.encode(text, add_special_tokens=False).ids for text in public_texts]
    names = ["fineweb_val_000000", "fineweb_train_000001", "fineweb_train_000002"]
    for index, name in enumerate(names):
        documents = encoded[index::3]
        ids = [token for x in documents for token in (library.token_to_id(EOS), *x)]
        header = struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253)
        path = tmp_path / "hub" / f"{name}.bin"
        path.write_bytes(header + struct.pack(f"<{len(ids)}H", *ids))
    with local_hub(tmp_path / "hub"):
        status, _, err = command(prepare, *words, "--workers=1")
    assert status == 0, err
    assert count_documents(words) == 400
    info = load_dataset("data/fineweb-gpt2")
    tokens = np.concatenate([x for part in info.parts["train"] for x in read_part(info, part)])
    documents = [*encoded[1::3], *encoded[2::3]]
    bos, eos = library.token_to_id("<|begin|>"), library.token_to_id(EOS)
    assert tokens.tolist() == [token for x in documents for token in (bos, *x, eos)]


def test_server_that_stops_answering_is_worth_another_start(text, tmp_path, command):
    train_vocabulary(["words to prepare " * 20] * 9, 290, tmp_path / "v.model")
    words = [f"--vocabulary={tmp_path / 'v.model'}", "--validation-fraction=0.2"]
    with local_hub(tmp_path) as hub:
        words += [f"--input={hub.url}/files/{text.name}", f"--output={tmp_path / 'output'}"]
        hub.faults += ["500"] * 4
        status, _, err = command(prepare, *words)
        assert (status, hub.faults) == (75, [])
        assert text.name in err.splitlines()[-1]
        assert command(prepare, *words)[0] == 0


def test_source_of_ones_own_has_its_fields_as_options(counter, command):
    words = ["--source=counter:Counter", "--fraction=0.2", "--times=2"]
    words += ["--train-vocabulary=270", "--output=data"]
    status, _, err = command(prepare, *words)
    assert status == 0, err
    info = load_dataset("data")
    assert sum(split.documents for split in info.splits.values()) == 600
    assert info.settings.items() >= {
        *{"kind": "counter:Counter", "fraction": 0.2, "times": 2}.items()
    }
    sys.modules.pop("counter")
    (counter / "counter.py").unlink()
    load_dataset("data")  # which imports no class
