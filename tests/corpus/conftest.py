"""Texts and datasets for the tests of data."""

import dataclasses
import json
from pathlib import Path

import pytest
from tfds_files import write_tfds

from anytime_jax.corpus import file_source, preparation
from anytime_jax.corpus.sources import FileSource
from anytime_jax.corpus.vocabulary import train_vocabulary

LENGTH = 16
TEXTS = [f"document {i} " + "of words and numbers " * (i % 5 + 1) for i in range(60)]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A folder with a small text, and the datasets prepared from it.

    It holds `train.jsonl`, `validation.jsonl`, the vocabulary `v.model`, the prepared dataset
    `data`, and the TFDS dataset `tfds`.
    """

    folder: Path
    content: bytes = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)

    def prepare(self, output, train=None, **options):
        """Prepares a text, by default `train.jsonl`."""
        train = train or self.folder / "train.jsonl"
        source = FileSource(str(train), str(self.folder / "validation.jsonl"))
        options = {"vocabulary": self.folder / "v.model", "workers": 1, **options}
        return preparation.prepare(source, output, **options)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    corpus = Corpus(tmp_path_factory.mktemp("corpus"))
    train_vocabulary(TEXTS, 300, corpus.folder / "v.model")
    for split in ("train", "validation"):
        (corpus.folder / f"{split}.jsonl").write_bytes(corpus.content)
    corpus.prepare(corpus.folder / "data")
    write_tfds(corpus.folder / "tfds", TEXTS)
    return corpus


@pytest.fixture
def part_per_file(monkeypatch):
    """Makes every file a part, so that a small text has several."""
    monkeypatch.setattr(file_source, "PART_BYTES", 1)
