"""From text to a dataset of token windows: planned, in parallel, resumable, deterministic.

Phase 1 turns each part of the source into a flat file of tokens, every document ended by EOS.
Phase 2 lays a split's tokens end to end, in the order of the parts, and cuts windows of L + 1
tokens at stride L. A file appears whole or not at all, so a run that was killed goes on where it
was; and no file depends on the number of workers. Both phases can be divided into shares, processes
on any hosts that have the directory in common.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax.atomic import atomic_write
from anytime_jax.data.builtin_source import BuiltinSource
from anytime_jax.data.dataset import (
    METADATA_NAME,
    VOCABULARY_NAME,
    WORK_NAME,
    DatasetInfo,
    digest_of,
    load_dataset,
)
from anytime_jax.data.local_paths import require_local_path
from anytime_jax.data.metadata import finish
from anytime_jax.data.preparation_jobs import (
    DATASET_NAME,
    ShardJob,
    TokenJob,
    read_record,
    write_record,
)
from anytime_jax.data.preparation_lock import Claim, Share, claimed, compare_settings
from anytime_jax.data.sources import SPLITS, TRAIN, Part, Source, split_of
from anytime_jax.data.vocabulary import Vocabulary, load_vocabulary, train_vocabulary
from anytime_jax.data.worker_pool import ProgressCallback, run_jobs
from anytime_jax.errors import InputError

# Few, large files: readers hold each one open, with an index of it in memory.
_SHARD_BYTES = 256_000_000
# A vocabulary is trained on the beginnings of so many parts, so many characters of each.
_SAMPLE_PARTS, _SAMPLE_CHARACTERS = 16, 250_000


def prepare(
    source: Source,
    output: str | os.PathLike[str],
    *,
    length: int,
    vocabulary: str | os.PathLike[str] | int,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo:
    """Prepares a dataset, goes on with one that was interrupted, or returns the finished one.

    Args:
      source: the text.
      output: the dataset's directory: new, empty, or prepared before with the same settings.
      length: L, in tokens; windows hold L + 1.
      vocabulary: the path of a SentencePiece model or a tokenizer.json, or the size of one to
        train on the text.
      workers: number of processes; by default one per core where there is work for them. The
        dataset does not depend on it.
      progress: called in this process whenever a part or a shard is finished.

    Returns:
      The finished dataset's description.

    Raises:
      InputError: a setting or the text cannot be used, the directory holds something else, or
        another process is preparing it.
      RunError: a worker process died; the same call goes on.
    """
    output = _absolute(output)
    settings = _check_settings(source, length, vocabulary, workers)
    if finished := _finished(output, settings):
        return finished
    report = progress or (lambda _: None)
    with claimed(output, settings) as claim:
        if finished := _finished(output, settings):  # by another process, just now
            return finished
        loaded, token_jobs = _plan_tokens(claim, source, vocabulary)
        records = run_jobs(token_jobs, workers, "tokenising", _tokens_of, report)
        shards = _plan_shards(claim, token_jobs, records, length, loaded)
        shard_records = run_jobs(
            shards, workers, "writing", lambda record: record["windows"] * length, report
        )
        finish(output, claim.work, settings, loaded, records, shards, shard_records)
    return load_dataset(output)


@dataclasses.dataclass(frozen=True)
class Remainder:
    """What a share leaves to others.

    Attributes:
      parts: of the text.
      parts_left: those not tokenised yet.
      shards: files of windows; 0 while there are parts left.
      shards_left: those not written yet.
    """

    parts: int
    parts_left: int
    shards: int = 0
    shards_left: int = 0


def prepare_share(
    source: Source,
    output: str | os.PathLike[str],
    *,
    share: Share,
    length: int,
    vocabulary: str | os.PathLike[str] | int,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> Remainder | DatasetInfo:
    """Does one share of a preparation, while other processes do others; `prepare` then ends it.

    It tokenises its parts. If those of all shares are there then, it writes its share of the
    windows' files too.

    Args:
      source: as for `prepare`, as are those that follow; the same for all shares.
      output: the dataset's directory, which all shares have in common.
      share: which one.
      length: L, in tokens.
      vocabulary: a path, or the size of one to train, which one share does for all.
      workers: number of processes of this share.
      progress: called in this process whenever a part or a shard of this share is finished.

    Returns:
      What is left to others, or the dataset's description if it is finished.

    Raises:
      InputError: as `prepare`; or the input is not that of other shares at work, or this share
        is being prepared already.
      RunError: a worker process died; the same call goes on.
    """
    output = _absolute(output)
    settings = _check_settings(source, length, vocabulary, workers)
    if finished := _finished(output, settings):
        return finished
    report = progress or (lambda _: None)
    with claimed(output, settings, share) as claim:
        if finished := _finished(output, settings):
            return finished
        loaded, jobs = _plan_tokens(claim, source, vocabulary)
        run_jobs(share.of(jobs), workers, "tokenising", _tokens_of, report)
        records = [record for job in jobs if (record := job.finished())]
        if len(records) < len(jobs):
            return Remainder(len(jobs), len(jobs) - len(records))
        shards = _plan_shards(claim, jobs, records, length, loaded)
        run_jobs(
            share.of(shards), workers, "writing", lambda record: record["windows"] * length, report
        )
        left = sum(shard.finished() is None for shard in shards)
        return Remainder(len(jobs), 0, len(shards), left)


def prepare_builtin(
    path: str | os.PathLike[str],
    *,
    length: int,
    vocab_size: int,
    megabytes: float,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DatasetInfo:
    """Prepares the Python source on this machine, with a vocabulary trained on it.

    Args:
      path: the dataset's directory; a dataset that is there already is returned at once.
      length: L, in tokens; windows hold L + 1.
      vocab_size: pieces of the vocabulary to train.
      megabytes: how much text, in 10⁶ bytes.
      workers: number of processes; by default as many as pay off.
      progress: as in `prepare`.

    Returns:
      The finished dataset's description.

    Raises:
      InputError: as `prepare`; among others when the machine has less text.
      RunError: as `prepare`.
    """
    return prepare(
        BuiltinSource(megabytes),
        path,
        length=length,
        vocabulary=vocab_size,
        workers=workers,
        progress=progress,
    )


def _absolute(output: str | os.PathLike[str]) -> Path:
    # A mounted bucket would not do: it lacks locks between hosts, or atomic renames, or both.
    require_local_path(output, "prepare on a disk, then copy the finished directory to the bucket")
    return Path(output).absolute()


def _check_settings(
    source: Source, length: int, vocabulary: str | os.PathLike[str] | int, workers: int | None
) -> dict[str, Any]:
    """The settings that decide what the dataset is, in JSON values."""
    if length < 1:
        raise InputError(f"length {length} is not a positive number of tokens; 1024 is usual")
    if workers is not None and workers < 1:
        raise InputError(f"{workers} workers cannot work; ask for 1 or more")
    if isinstance(vocabulary, int):
        wanted = f"trained, {vocabulary} pieces"
    else:
        wanted = f"sha256 {load_vocabulary(vocabulary).sha256}"
    return {"length": length, "vocabulary": wanted, **source.settings()}


def _finished(output: Path, settings: dict[str, Any]) -> DatasetInfo | None:
    """The dataset, if the directory holds a complete one; it must have the same settings."""
    if not (output / METADATA_NAME).is_file():
        return None
    info = load_dataset(output)
    compare_settings(output, "holds a dataset", dict(info.settings), settings)
    # A kill between the record and this leaves the folder behind.
    shutil.rmtree(output / WORK_NAME, ignore_errors=True)
    return info


def _plan_tokens(
    claim: Claim, source: Source, vocabulary: str | os.PathLike[str] | int
) -> tuple[Vocabulary, list[TokenJob]]:
    """Phase 1: the vocabulary, in its place, and a job for every part."""
    parts = source.parts()
    path = claim.output / VOCABULARY_NAME
    folder = claim.work / "tokens"
    with claim.turn():
        claim.agree_on(parts)
        folder.mkdir(exist_ok=True)
        loaded = _place_vocabulary(claim, path, vocabulary, parts)
    return loaded, [
        TokenJob(part, index, folder, path, loaded.sha256, claim.scratch)
        for index, part in enumerate(parts)
    ]


def _place_vocabulary(
    claim: Claim, path: Path, vocabulary: str | os.PathLike[str] | int, parts: Sequence[Part]
) -> Vocabulary:
    """Puts the vocabulary into the dataset: the one given, or one trained on the text."""
    if isinstance(vocabulary, int):
        # One that an interrupted run or another share trained serves: parts are tokenised with it.
        with contextlib.suppress(InputError):
            return load_vocabulary(path)
        return train_vocabulary(_sample(parts), vocabulary, path)
    model = load_vocabulary(vocabulary).model
    # Other shares may be reading the one that is there.
    if not path.is_file() or path.read_bytes() != model:
        with atomic_write(path, claim.scratch or claim.work) as temporary:
            temporary.write_bytes(model)
    return load_vocabulary(path)


def _sample(parts: Sequence[Part]) -> Iterator[str]:
    """Training documents from the beginnings of parts spread over all of them."""
    chosen = np.unique(np.linspace(0, len(parts) - 1, _SAMPLE_PARTS).astype(int))
    share = _SAMPLE_PARTS * _SAMPLE_CHARACTERS // len(chosen)
    for part in (parts[index] for index in chosen):
        characters = 0
        for text in part.documents():
            if split_of(text, part.validation_fraction) == TRAIN:
                yield text[: share - characters]
                characters += len(text)
            if characters >= share:
                break


def _tokens_of(record: dict[str, Any]) -> int:
    return sum(record[split]["tokens"] for split in SPLITS)


def _plan_shards(
    claim: Claim,
    token_jobs: Sequence[TokenJob],
    records: Sequence[dict[str, Any]],
    length: int,
    vocabulary: Vocabulary,
) -> list[ShardJob]:
    """Phase 2: divides the windows of each split into files of equal numbers of windows."""
    folder, output = claim.work / "shards", claim.output
    folder.mkdir(exist_ok=True)
    dtype = vocabulary.token_dtype
    per_shard = max(1, _SHARD_BYTES // ((length + 1) * dtype.itemsize))
    jobs = []
    for split in SPLITS:
        files = tuple(
            (job.token_path(split), record[split]["tokens"])
            for job, record in zip(token_jobs, records, strict=True)
        )
        tokens = sum(count for _, count in files)
        windows = (tokens - 1) // length
        if windows < 1:
            if claim.share is None:
                shutil.rmtree(claim.work / "tokens")  # other settings will make others
            raise InputError(
                f'split "{split}" has {tokens} tokens, fewer than the {length + 1} of one window; '
                "give more text, a larger share of it or a smaller length"
            )
        shards = -(-windows // per_shard)
        for index, first in enumerate(range(0, windows, per_shard)):
            count = min(per_shard, windows - first)
            place = (split, index, shards, first, count, length, dtype.name)
            jobs.append(ShardJob(*place, files, output, folder, claim.scratch))
    with claim.turn():
        _forget_stale_shards(claim, records)
    return jobs


def _forget_stale_shards(claim: Claim, records: Sequence[dict[str, Any]]) -> None:
    """Drops shards that an interrupted run cut from other tokens, if the input has changed."""
    digest = digest_of(records)
    folder = claim.work / "shards"
    path = folder / "cut_from.json"
    if read_record(path) != {"parts": digest}:
        for stale in [
            *folder.glob(f"{DATASET_NAME}-*.json"),
            *claim.output.glob(f"{DATASET_NAME}-*"),
        ]:
            stale.unlink()
        write_record(path, {"parts": digest}, claim.scratch)
