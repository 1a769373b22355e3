"""What a prepared dataset says about itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anytime_jax.data.local_paths import require_local_path
from anytime_jax.errors import InputError

# 2: the record has a digest of itself, and hashes of the files beside the shards.
FORMAT_VERSION = 2
# Part of every fingerprint, so that the same windows have the same one in any format of the record.
_WINDOWS_VERSION = 1
_DIGEST = "sha256"
# Written last: a directory that has it is complete.
METADATA_NAME = "anytime_jax.json"
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
class ShardInfo:
    """One file of a split's windows.

    Attributes:
      name: the file's, in the dataset's directory.
      bytes: its size.
      windows: how many it holds.
      sha256: of its tokens: every window's first `length`, and the last one's last.
    """

    name: str
    bytes: int
    windows: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """A complete dataset of token windows.

    Attributes:
      path: its directory, which TFDS reads too.
      length: L, the tokens a model sees of a window; windows hold L + 1.
      vocab_size: number of pieces of the vocabulary.
      eos_id: the id that ends every document.
      token_dtype: "uint16" or "int32", as stored.
      vocabulary_sha256: of the vocabulary's file.
      splits: by name: "train" and "validation".
      settings: what it was prepared from and how.
      fingerprint: the same for the same windows of the same vocabulary, wherever they lie and
        however they were made.
      shards: by split, the files of its windows in order.
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
    shards: Mapping[str, tuple[ShardInfo, ...]] = dataclasses.field(default_factory=dict)

    @property
    def vocabulary_path(self) -> Path:
        """The vocabulary's file, beside the windows: whatever `load_vocabulary` reads."""
        return self.path / VOCABULARY_NAME


def load_dataset(path: str | os.PathLike[str], prepare_hint: str = "") -> DatasetInfo:
    """Reads the description of a prepared dataset, and sees that its files are what they were.

    The shards are compared by size alone; `verify_dataset` reads them.

    Args:
      path: the directory that `prepare` wrote.
      prepare_hint: how to prepare it, put at the end of the message when it is not.

    Returns:
      The dataset's description.

    Raises:
      InputError: the dataset was never prepared, not to the end, or has been damaged since.
    """
    require_local_path(path)
    path = Path(path)
    record_path = path / METADATA_NAME
    hint = f"; {prepare_hint}" if prepare_hint else ""
    if not record_path.is_file():
        state = "only half prepared" if (path / WORK_NAME).is_dir() else "not a prepared dataset"
        raise InputError(f"{path} is {state} (it has no {METADATA_NAME}){hint}")
    try:
        info, files = _parse(path, json.loads(record_path.read_text("utf-8")))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{record_path} cannot be read ({error.strerror})") from error
    # Whatever JSON and types can say about a record that was not written here.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{record_path} is damaged ({reason}); copy it again, or delete the dataset and "
            "prepare it again"
        ) from error
    for shards in info.shards.values():
        for shard in shards:
            _check_file(path, shard.name, shard.bytes)
    for name, written in files.items():
        _check_file(path, name, **written)
    return info


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a record with the digest by which `load_dataset` sees that it is undamaged."""
    return {**record, _DIGEST: digest_of(record)}


def fingerprint_of(info: Mapping[str, Any], shards: Iterable[ShardInfo]) -> str:
    """Returns the hash of what a dataset is: its windows and its vocabulary.

    Args:
      info: a record, or as much of one as says how the windows are made.
      shards: those of all splits, in order.
    """
    names = ("length", "token_dtype", "vocab_size", "vocabulary_sha256", "eos_id")
    content = {"format_version": _WINDOWS_VERSION, **{name: info[name] for name in names}}
    return digest_of([content, [[shard.name, shard.sha256] for shard in shards]])


def digest_of(plain: Any) -> str:
    """Returns the SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode("utf-8")).hexdigest()


def _parse(path: Path, record: dict[str, Any]) -> tuple[DatasetInfo, dict[str, dict[str, Any]]]:
    """The description in a record, and the size and hash of each file beside the shards."""
    version = record["format_version"]
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path / METADATA_NAME} has format version {version}, this program reads version "
            f"{FORMAT_VERSION}; delete the dataset and prepare it again: the same text and "
            "settings give the same fingerprint, and runs go on with it"
        )
    if record.pop(_DIGEST) != digest_of(record):
        raise ValueError("its content does not match its digest")
    splits = {name: SplitInfo(**split) for name, split in record["splits"].items()}
    shards = {
        split: tuple(ShardInfo(**shard) for shard in listed)
        for split, listed in record["shards"].items()
    }
    fields = [field.name for field in dataclasses.fields(DatasetInfo)]
    kept = {name: record[name] for name in fields if name not in ("path", "splits", "shards")}
    info, files = DatasetInfo(path=path, splits=splits, shards=shards, **kept), record["files"]
    _check(info)
    for name in [*files, *(shard.name for listed in shards.values() for shard in listed)]:
        if Path(name).name != name:
            raise ValueError(f"it names {name!r}, which is not a file of its own directory")
    return info, files


def _check(info: DatasetInfo) -> None:
    """Refuses what no preparation writes."""
    counts = [info.length, info.vocab_size, info.eos_id]
    counts += [n for split in info.splits.values() for n in dataclasses.astuple(split)]
    for shard in (shard for listed in info.shards.values() for shard in listed):
        counts += [shard.bytes, shard.windows]
    for count in counts:
        if type(count) is not int or count < 0:
            raise ValueError(f"{count!r} where a count belongs")
    for name, listed in info.shards.items():
        if sum(shard.windows for shard in listed) != info.splits[name].windows:
            raise ValueError(f'the shards of split "{name}" do not add up')
    if info.token_dtype not in ("uint16", "int32"):
        raise ValueError(f"tokens of type {info.token_dtype!r}")


def _check_file(path: Path, name: str, size: int, sha256: str | None = None) -> None:
    """Refuses a file that is not what was written: by its size, and by its hash if given."""
    file = path / name
    found = file.stat().st_size if file.is_file() else None
    remedy = "copy the dataset again, or delete it and prepare it again"
    if found != size:
        state = "missing" if found is None else f"{found} bytes"
        raise InputError(f"{file} is {state} where {size} bytes were written; {remedy}")
    if sha256 is not None and hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise InputError(f"{file} is not what was written (its hash differs); {remedy}")
