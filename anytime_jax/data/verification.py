"""Reading of a whole dataset: its fingerprint, and its verification."""

from __future__ import annotations

import dataclasses
import hashlib
import os

import numpy as np

from anytime_jax.data.dataset import DatasetInfo, compute_digest, load_dataset
from anytime_jax.data.token_files import TokenReader
from anytime_jax.data.worker_pool import ProgressCallback, run_tasks
from anytime_jax.errors import RunError

# Windows are hashed in groups of so many bytes. The names of the groups and the version are those
# of a former format, so that the fingerprints of the same windows stay the same.
_GROUP_BYTES = 256_000_000
_GROUP_NAME = "token_windows-{}.array_record-{:05d}-of-{:05d}"
_WINDOWS_VERSION = 1
_READ_TOKENS = 1_000_000


def verify_dataset(
    path: str | os.PathLike[str],
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo:
    """Reads every token of a prepared dataset, and compares checksums and fingerprint.

    `workers` and `progress` are those of `preparation.prepare`; progress is in 256 MB of tokens.

    Raises:
      InputError: as `load_dataset`.
      RunError: token files are damaged; the message names them.
    """
    info = load_dataset(path)
    remedy = "copy those files again, or delete the dataset and prepare it again"
    fingerprint = compute_fingerprint(info, workers, "verifying", progress, remedy)
    if fingerprint != info.fingerprint:
        raise RunError(f"{info.path}: its fingerprint is not that of its files; prepare it again")
    return info


def compute_fingerprint(
    info: DatasetInfo,
    workers: int | None,
    stage: str,
    progress: ProgressCallback | None,
    remedy: str = "delete those files and prepare again",
) -> str:
    """Computes the digest of the windows and the vocabulary; `info.fingerprint` is ignored.

    Raises:
      RunError: token files are damaged; the message names them, and `remedy`.
    """
    names = ("length", "token_dtype", "vocab_size", "vocabulary_sha256", "eos_id")
    content = {"format_version": _WINDOWS_VERSION, **{name: getattr(info, name) for name in names}}
    per_group = _GROUP_BYTES // ((info.length + 1) * np.dtype(info.token_dtype).itemsize) or 1
    tasks = {}
    for split, counts in info.splits.items():
        starts = range(0, counts.windows, per_group)
        for index, start in enumerate(starts):
            stop = min(start + per_group, counts.windows)
            name = _GROUP_NAME.format(split, index, len(starts))
            tasks[name] = _HashWindows(info, split, start, stop)
    results = run_tasks(
        list(tasks.values()), workers, stage, lambda result: result.tokens, progress
    )
    if damage := [result.damage for result in results if result.damage]:
        raise RunError(f"{info.path} is damaged: {'; '.join(damage)}; {remedy}")
    hashes = [[name, result.sha256] for name, result in zip(tasks, results, strict=True)]
    return compute_digest([content, hashes])


@dataclasses.dataclass(frozen=True)
class _Hashed:
    tokens: int
    sha256: str = ""
    damage: str = ""


@dataclasses.dataclass(frozen=True)
class _HashWindows:
    """Task: hashes the tokens of windows `start` to `stop`."""

    info: DatasetInfo
    split: str
    start: int
    stop: int

    def load_result(self) -> None:
        """Returns None: files may have been damaged since the last time."""

    def run(self) -> _Hashed:
        reader, digest = TokenReader(self.info, self.split), hashlib.sha256()
        start, stop = self.start * self.info.length, self.stop * self.info.length + 1
        try:
            for first in range(start, stop, _READ_TOKENS):
                tokens = reader.read(first, min(first + _READ_TOKENS, stop))
                digest.update(tokens.tobytes())
        except RunError as error:
            return _Hashed(stop - start, damage=str(error))
        return _Hashed(stop - start, digest.hexdigest())
