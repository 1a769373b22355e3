"""Verification of datasets: reads every token and compares it with the digests."""

from __future__ import annotations

import functools
import itertools
import os
from typing import NamedTuple

from anytime_jax.corpus.workers import ProgressCallback, run_tasks
from anytime_jax.data.dataset_info import DatasetInfo, PartInfo, load_dataset
from anytime_jax.data.token_arrays import read_part
from anytime_jax.errors import RunError


def verify_dataset(
    path: str | os.PathLike[str],
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo:
    """Reads every token of a prepared dataset, and compares checksums and digests.

    `workers` and `progress` are as for `preparation.prepare`.

    Raises:
      InputError: as `load_dataset`.
      RunError: parts are damaged; the message names them.
    """
    info = load_dataset(path)
    parts = itertools.chain(*info.parts.values())
    tasks = {part.name: functools.partial(_verify_part, info, part) for part in parts}
    results = run_tasks("verifying", tasks, {}, workers, progress)
    if damage := [result.damage for result in results.values() if result.damage]:
        raise RunError(
            f"{'; '.join(damage)}; copy these parts again, or delete the dataset and prepare it "
            "again"
        )
    return info


class _Verified(NamedTuple):
    tokens: int
    damage: str


def _verify_part(info: DatasetInfo, part: PartInfo) -> _Verified:
    try:
        for _ in read_part(info, part):
            pass
    except RunError as error:
        return _Verified(part.tokens, str(error))
    return _Verified(part.tokens, "")
