"""Reading of a whole dataset: its fingerprint, and its verification."""

from __future__ import annotations

import dataclasses
import hashlib
import os

from anytime_jax.data.dataset import DatasetInfo, load_dataset
from anytime_jax.data.token_files import TokenReader
from anytime_jax.data.worker_pool import ProgressCallback, run_tasks
from anytime_jax.errors import RunError
from anytime_jax.json_files import json_digest

# Tokens are hashed so many at a time: the fingerprint is a digest of these hashes.
_TASK_TOKENS = 128_000_000
_READ_TOKENS = 1_000_000


def verify_dataset(
    path: str | os.PathLike[str],
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo:
    """Reads every token of a prepared dataset, and compares checksums and fingerprint.

    `workers` and `progress` are those of `preparation.prepare`.

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
    """Computes the digest of length, vocabulary and tokens; `info.fingerprint` is ignored.

    Raises:
      RunError: token files are damaged; the message names them, and `remedy`.
    """
    tasks = [
        _HashTokens(info, split, start, min(start + _TASK_TOKENS, counts.tokens))
        for split, counts in info.splits.items()
        for start in range(0, counts.tokens, _TASK_TOKENS)
    ]
    results = run_tasks(tasks, workers, stage, progress)
    if damage := [result.damage for result in results if result.damage]:
        raise RunError(f"{info.path} is damaged: {'; '.join(damage)}; {remedy}")
    hashes = [[task.split, result.sha256] for task, result in zip(tasks, results, strict=True)]
    return json_digest([info.length, info.vocabulary_sha256, hashes])


@dataclasses.dataclass(frozen=True)
class _Hashed:
    tokens: int
    sha256: str = ""
    damage: str = ""


@dataclasses.dataclass(frozen=True)
class _HashTokens:
    """Task: hashes tokens `start` to `stop` of a split."""

    info: DatasetInfo
    split: str
    start: int
    stop: int

    def load_result(self) -> None:
        """Returns None: files may have been damaged since the last time."""

    def run(self) -> _Hashed:
        reader, digest = TokenReader(self.info, self.split), hashlib.sha256()
        try:
            for first in range(self.start, self.stop, _READ_TOKENS):
                tokens = reader.read(first, min(first + _READ_TOKENS, self.stop))
                digest.update(tokens.tobytes())
        except RunError as error:
            return _Hashed(self.stop - self.start, damage=str(error))
        return _Hashed(self.stop - self.start, digest.hexdigest())
