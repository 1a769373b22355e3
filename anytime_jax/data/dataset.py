"""What a prepared dataset says about itself."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anytime_jax.errors import InputError

FORMAT_VERSION = 1
# Written last: a directory that has it is complete.
RECORD_NAME = "anytime_jax.json"
VOCABULARY_NAME = "vocabulary.model"
# Everything unfinished lives in this folder, and goes with it.
WORK_NAME = ".preparing"


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """One split of a dataset.

    Attributes:
      documents: number of documents.
      tokens: number of tokens, the EOS of every document included.
      windows: number of windows of `length + 1` tokens, at stride `length`.
    """

    documents: int
    tokens: int
    windows: int


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """A complete dataset of token windows.

    Attributes:
      path: its directory, which TFDS reads too.
      length: L, the tokens a model sees of a window; windows hold L + 1.
      vocab_size: number of pieces of the vocabulary.
      eos_id: the id that ends every document.
      token_dtype: "uint16" or "int32", as stored.
      vocabulary_sha256: of the vocabulary's model file.
      splits: by name: "train" and "validation".
      settings: what it was prepared from and how.
      fingerprint: the same for the same windows of the same vocabulary, wherever they lie and
        however they were made.
    """

    path: Path
    length: int
    vocab_size: int
    eos_id: int
    token_dtype: str
    vocabulary_sha256: str
    splits: Mapping[str, SplitInfo]
    settings: Mapping[str, Any]
    fingerprint: str

    @property
    def vocabulary_path(self) -> Path:
        """The SentencePiece model, beside the windows."""
        return self.path / VOCABULARY_NAME


def load_dataset(path: str | os.PathLike[str], prepare_hint: str = "") -> DatasetInfo:
    """Reads the description of a prepared dataset, and sees that its files are there.

    Args:
      path: the directory that `prepare` wrote.
      prepare_hint: how to prepare it, put at the end of the message when it is not.

    Returns:
      The dataset's description.

    Raises:
      InputError: the dataset was never prepared, not to the end, or has lost files since.
    """
    path = Path(path)
    record_path = path / RECORD_NAME
    hint = f"; {prepare_hint}" if prepare_hint else ""
    if not record_path.is_file():
        state = "only half prepared" if (path / WORK_NAME).is_dir() else "not a prepared dataset"
        raise InputError(f"{path} is {state} (it has no {RECORD_NAME}){hint}")
    try:
        record = json.loads(record_path.read_text("utf-8"))
        version = record["format_version"]
        if version != FORMAT_VERSION:
            raise InputError(
                f"{record_path} has format version {version}, this program reads version "
                f"{FORMAT_VERSION}; delete the dataset and prepare it again"
            )
        splits = {name: SplitInfo(**split) for name, split in record["splits"].items()}
        names = [field.name for field in dataclasses.fields(DatasetInfo)]
        kept = {name: record[name] for name in names if name not in ("path", "splits")}
        files = record["files"].items()
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{record_path} is damaged ({error!r}); delete the dataset and prepare it again"
        ) from error
    for name, size in files:
        file = path / name
        if not file.is_file() or file.stat().st_size != size:
            found = f"{file.stat().st_size} bytes" if file.is_file() else "missing"
            raise InputError(
                f"{file} is {found} where {size} bytes were written; copy the dataset again, or "
                "delete it and prepare it again"
            )
    return DatasetInfo(path=path, splits=splits, **kept)
