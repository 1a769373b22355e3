"""The preparation command, and kills of it."""

import errno
import gzip
import json
import os
import pathlib
import re
import shlex
import sys
from pathlib import Path

import pyarrow
import pytest
from byte_level_tokenizer import write_byte_level
from hub_server import local_hub
from paths import REPOSITORY
from pyarrow import parquet
from source_documents import read_files

from anytime_jax.commands import config_file, prepare, train
from anytime_jax.config import schema
from anytime_jax.corpus import installed_python
from anytime_jax.corpus.vocabulary import train_vocabulary
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.training import preflight


@pytest.fixture
def text(tmp_path):
    lines = [json.dumps({"text": f"{i} " + "words to prepare " * 20}) for i in range(100)]
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_summary_is_printed(text, tmp_path, command):
    output = tmp_path / "output"
    words = [f"--input={text}", "--validation-fraction=0.2"]
    words += ["--train-vocabulary=300", f"--output={output}"]
    status, out, err = command(prepare, *words)
    assert status == 0, err
    info = load_dataset(output)
    assert "tokenizing: 1/1 done" in err
    summary = out.splitlines()
    for line, (split, counts) in zip(summary, info.splits.items(), strict=False):
        assert line.startswith(f"{split}: {counts.documents} documents, {counts.tokens:,} tokens")
    assert summary[2].startswith("ready in ")
    status, out, _ = command(prepare, *words)
    assert (status, out.splitlines()[2]) == (0, f"already prepared: {output}")
    assert out.splitlines()[3:] == summary[3:]
    content = text.read_text()
    text.write_text(content + "\n" + content.splitlines()[0])
    status, out, _ = command(prepare, *words)
    assert (status, out.count("note: the input has other files now")) == (0, 1)
    text.unlink()
    status, out, _ = command(prepare, *words)
    assert (status, out.splitlines()[3:]) == (0, summary[3:])

    files, changed = read_files(output), output.stat().st_mtime_ns
    status, out, _ = command(prepare, "--verify", f"--output={output}")
    assert output.stat().st_mtime_ns == changed  # it may be on a read-only file system
    assert (status, out.splitlines()[:2]) == (0, summary[:2])
    assert info.fingerprint in out
    assert read_files(output) == files
    name = info.parts["train"][0].name
    (output / name / "c" / "0").write_bytes(bytes(len(files[f"{name}/c/0"])))
    status, out, err = command(prepare, "--verify", f"--output={output}")
    assert (status, out) == (1, "")
    assert name in err
    assert info.parts["validation"][0].name not in err


@pytest.mark.parametrize(
    ("words", "fraction", "small"),
    [(20, "0.3", ("train", "validation")), (3000, "0.3", ()), (3000, "0.011", ("validation",))],
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
    assert program == "python -m anytime_jax"
    (option,) = shlex.split(option)
    config = schema.build(config_file.read(option.removeprefix("--config=")))
    assert config.data.path == str(output)
    preflight.check_data(config, info)
    stop, _ = preflight.find_stop(config, dict.fromkeys(config.sources, info), 0)
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


def test_closed_directory_is_bad_input(tmp_path, rejected, monkeypatch):
    def closed(self):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, "is_file", closed)
    assert str(tmp_path) in rejected(prepare, "--verify", f"--output={tmp_path}")


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


# The files of public texts, by the beginning of their addresses in the documentation.
LAYOUTS = {
    "hf://datasets/HuggingFaceFW/fineweb-edu/": "sample/10BT/000_00000.parquet",
    "hf://datasets/mlfoundations/dclm-baseline-1.0/": "global-shard_01_of_10/"
    "local-shard_0_of_10/shard_00000000_processed.jsonl.zst",
    "@hf://datasets/allenai/dolma/": "urls/v1_7.txt",
    "hf://datasets/allenai/c4/": "en/c4-train.00000-of-01024.json.gz",
}


def write_public_text(path, texts, url):
    """Writes the texts as a file of a public dataset, with its other fields."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [{"text": text, "id": f"<urn:{i}>", "url": "u"} for i, text in enumerate(texts)]
    content = "".join(json.dumps(record) + "\n" for record in records).encode()
    if path.suffix == ".parquet":
        table = pyarrow.Table.from_pylist([x | {"score": 2.5, "int_score": 3} for x in records])
        parquet.write_table(table, path, row_group_size=100, compression="snappy")
    elif path.suffix == ".zst":
        path.write_bytes(pyarrow.compress(content, "zstd", asbytes=True))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    else:
        listed = [path.with_name(f"books-{i:04d}.json.gz") for i in range(2)]
        for each, half in zip(listed, (texts[:200], texts[200:]), strict=True):
            write_public_text(each, half, url)
        path.write_text("".join(f"{url}/files/{path.parent.name}/{x.name}\n" for x in listed))


@pytest.mark.parametrize("start", LAYOUTS)
def test_documented_commands_prepare_public_texts(tmp_path, monkeypatch, command, start):
    """Against a local server: no test reads the originals."""
    page = (REPOSITORY / "docs/data.md").read_text("utf-8").replace("\\\n", " ")
    lines = [x for x in page.splitlines() if f"--input={start}" in x.replace("'", "")]
    (words,) = [shlex.split(line)[4:] for line in lines]
    monkeypatch.chdir(tmp_path)
    texts = [f"{i} " + "words of a page. " * (i % 9 + 1) for i in range(400)]
    write_byte_level(tmp_path / "hub", texts, 300)
    train_vocabulary(texts, 300, tmp_path / "hub" / "sentencepiece.model")
    with local_hub(tmp_path / "hub") as hub:
        write_public_text(tmp_path / "hub" / LAYOUTS[start], texts, hub.url)
        if "c4" in start:
            path = tmp_path / "hub" / "en/c4-validation.00000-of-00008.json.gz"
            write_public_text(path, ["held out " * 40], hub.url)
            path = f"{hub.url}/files/sentencepiece.model"
            words = [f"--vocabulary={path}" if x.startswith("--vocab") else x for x in words]
        status, _, err = command(prepare, *words, "--workers=1")
    assert status == 0, err
    (output,) = [x.removeprefix("--output=") for x in words if x.startswith("--output")]
    splits = load_dataset(output).splits
    documents = splits["train"].documents + splits["validation"].documents
    assert documents == 400 + ("c4" in start)


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


SOURCE = '''"""A source of one's own."""
import dataclasses
from anytime_jax.corpus.sources import Source

@dataclasses.dataclass(frozen=True)
class Numbers:
    validation_fraction: float
    identity = ["numbers"]

    def documents(self):
        yield from map(str, range(300))

@dataclasses.dataclass(frozen=True)
class Counter(Source):
    fraction: float
    times: int = 1

    def parts(self):
        return [Numbers(self.fraction)] * self.times
'''


@pytest.fixture
def counter(tmp_path, monkeypatch):
    """A module in the working directory with a class of a source."""
    (tmp_path / "counter.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("counter", None)


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


def test_builtin_corpus_has_a_validation_split(tmp_path, command, monkeypatch):
    monkeypatch.setitem(installed_python.PACKAGES, "rich", "0.1")
    words = ["--source=builtin", "--megabytes=0.5", "--train-vocabulary=400"]
    status, out, _ = command(prepare, *words, f"--output={tmp_path / 'output'}")
    assert status == 0
    assert re.search("^note: .*rich .*, not 0.1", out, re.MULTILINE)
    assert load_dataset(tmp_path / "output").settings["validation_fraction"] == 0.05
