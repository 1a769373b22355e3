"""Reads a prepared dataset whole, to see whether it is what was written."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import Any

import numpy as np

from anytime_jax.data.dataset import DatasetInfo, ShardInfo, fingerprint_of, load_dataset
from anytime_jax.data.preparation_jobs import token_bytes
from anytime_jax.data.shard_reader import ShardReader
from anytime_jax.data.worker_pool import ProgressCallback, run_jobs
from anytime_jax.errors import RunError

_WINDOWS_AT_ONCE = 1024


def verify_dataset(
    path: str | os.PathLike[str],
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo:
    """Reads every window and compares the hash of every shard's tokens, and the fingerprint.

    Args:
      path: the dataset's directory.
      workers: number of processes; by default as many as pay off.
      progress: called in this process whenever a shard is read.

    Returns:
      The dataset's description, if it is what was written.

    Raises:
      InputError: it is not a prepared dataset, or a look at its files shows that it is damaged.
      RunError: some shards are not what was written; the message names them.
    """
    info = load_dataset(path)
    shards = [shard for listed in info.shards.values() for shard in listed]
    jobs = [_VerifyJob(info, shard) for shard in shards]
    found = run_jobs(
        jobs,
        workers,
        "verifying",
        lambda record: record["windows"] * info.length,
        progress or (lambda _: None),
    )
    if damaged := [record for record in found if record["damage"]]:
        names = ", ".join(record["name"] for record in damaged)
        raise RunError(
            f"{info.path}: {len(damaged)} of {len(shards)} shards are not what was written: "
            f"{names} ({damaged[0]['damage']}); copy those files again, or delete the dataset and "
            "prepare it again"
        )
    if fingerprint_of(dataclasses.asdict(info), shards) != info.fingerprint:
        raise RunError(f"{info.path}: its fingerprint is not that of its shards; prepare it again")
    return info


@dataclasses.dataclass(frozen=True)
class _VerifyJob:
    """Read one shard; the record says what is wrong with it."""

    info: DatasetInfo
    shard: ShardInfo

    def finished(self) -> dict[str, Any] | None:
        """Nothing is remembered: what was whole yesterday may not be today."""
        return None

    def __call__(self) -> dict[str, Any]:
        """Reads the shard; returns {"name", "windows", "damage"}."""
        try:
            damage = "" if self._hash() == self.shard.sha256 else "its tokens are others"
        except RunError as error:
            damage = str(error)
        return {"name": self.shard.name, "windows": self.shard.windows, "damage": damage}

    def _hash(self) -> str:
        """The hash of all tokens; none where a window does not go on where the last one ended."""
        shards, dtype = ShardReader(self.info, [self.shard]), np.dtype(self.info.token_dtype)
        digest, last = hashlib.sha256(), None
        for start in range(0, self.shard.windows, _WINDOWS_AT_ONCE):
            end = min(start + _WINDOWS_AT_ONCE, self.shard.windows)
            tokens_BxW = shards.read(range(start, end))
            first_B, last_B = tokens_BxW[:, 0], tokens_BxW[:, -1]
            goes_on = last is None or first_B[0] == last
            if not goes_on or not np.array_equal(first_B[1:], last_B[:-1]):
                return ""
            last = last_B[-1]
            digest.update(token_bytes(tokens_BxW[:, :-1].astype(dtype)))
        digest.update(token_bytes(np.array([last], dtype)))
        return digest.hexdigest()
