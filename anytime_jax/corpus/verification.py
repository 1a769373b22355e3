"""Verification of datasets: reads every token and compares it with the digests."""

from __future__ import annotations

import dataclasses
import os

from anytime_jax.corpus.worker_pool import ProgressCallback, run_tasks
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
    tasks = [_VerifyPart(info, part) for parts in info.parts.values() for part in parts]
    results = run_tasks(tasks, workers, "verifying", progress)
    if damage := [result.damage for result in results if result.damage]:
        raise RunError(
            f"{'; '.join(damage)}; copy these parts again, or delete the dataset and prepare it "
            "again"
        )
    return info


@dataclasses.dataclass(frozen=True)
class _Verified:
    tokens: int
    damage: str = ""


@dataclasses.dataclass(frozen=True)
class _VerifyPart:
    """Task: reads a part."""

    info: DatasetInfo
    part: PartInfo

    def load_result(self) -> None:
        """Returns None: the part may have been damaged since the last time."""

    def run(self) -> _Verified:
        try:
            for _ in read_part(self.info, self.part):
                pass
        except RunError as error:
            return _Verified(self.part.tokens, str(error))
        return _Verified(self.part.tokens)
