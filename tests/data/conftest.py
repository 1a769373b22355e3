"""Texts, datasets and the command line for the tests of data."""

import dataclasses
import json
from pathlib import Path

import pytest
from run_command import run_command
from tfds_files import write_tfds

from anytime_jax.commands import prepare
from anytime_jax.data import preparation, sources
from anytime_jax.data.sources import FileSource
from anytime_jax.data.vocabulary import train_vocabulary

LENGTH = 16
TEXTS = [f"document {i} " + "of words and numbers " * (i % 5 + 1) for i in range(60)]
PROGRESS = ("tokenising: ", "hashing: ", "verifying: ")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A small text, and the datasets prepared from it.

    Attributes:
      folder: `train.jsonl`, `validation.jsonl`, the vocabulary `v.model`, the prepared dataset
        `data`, and TFDS datasets `array_record` and `tfrecord`.
      length: of the windows of `data`.
      texts: documents of either split.
      lines: the same as JSON lines.
    """

    folder: Path
    length: int = LENGTH
    texts: tuple[str, ...] = tuple(TEXTS)
    lines: tuple[bytes, ...] = tuple(json.dumps({"text": t}).encode() + b"\n" for t in TEXTS)

    @property
    def content(self) -> bytes:
        """All lines."""
        return b"".join(self.lines)

    def options(self, path, source="json"):
        """Options to prepare a text with the validation text of the corpus."""
        validation = self.folder / "validation.jsonl"
        return f"--source={source}", f"--input={path}", f"--validation-input={validation}"

    def prepare(self, output, train=None, **options):
        """Prepares a text, by default `train.jsonl`."""
        train = train or self.folder / "train.jsonl"
        source = FileSource("json", str(train), str(self.folder / "validation.jsonl"))
        options = {"vocabulary": self.folder / "v.model", "workers": 1, **options}
        return preparation.prepare(source, output, length=LENGTH, **options)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    corpus = Corpus(tmp_path_factory.mktemp("corpus"))
    train_vocabulary(TEXTS, 300, corpus.folder / "v.model")
    for split in ("train", "validation"):
        (corpus.folder / f"{split}.jsonl").write_bytes(corpus.content)
    corpus.prepare(corpus.folder / "data")
    for stored_as in ("array_record", "tfrecord"):
        write_tfds(corpus.folder / stored_as, stored_as, TEXTS)
    return corpus


@pytest.fixture
def run_prepare(corpus, tmp_path, capsys):
    """Runs the command; returns its status, and what it prints or its one line of error."""

    def run(*options, output=None):
        defaults = [f"--vocabulary={corpus.folder / 'v.model'}", f"--length={LENGTH}"]
        if "--verify" in options:
            defaults = []
        given = {option.split("=")[0] for option in options}
        kept = [option for option in defaults if option.split("=")[0] not in given]
        output = f"--output={output or tmp_path / 'output'}"
        status = run_command(prepare, [*options, *kept, "--workers=1", output])
        printed = capsys.readouterr()
        lines = [line for line in printed.err.splitlines() if not line.startswith(PROGRESS)]
        if status == 0:
            assert lines == []
            return 0, printed.out
        assert printed.out == ""
        (line,) = lines
        assert line.startswith("error: ")
        return status, line

    return run


@pytest.fixture
def part_per_file(monkeypatch):
    """Makes every file a part, so that a small text has several."""
    monkeypatch.setattr(sources, "PART_BYTES", 1)
