"""From text to a dataset of token windows: planned, in parallel, resumable, deterministic.

Phase 1 turns each part of the source into a flat file of tokens, every document ended by EOS.
Phase 2 lays a split's tokens end to end, in the order of the parts, and cuts windows of L + 1
tokens at stride L. A file appears whole or not at all, so a run that was killed goes on where it
was; and no file depends on the number of workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from anytime_jax.atomic import replacing
from anytime_jax.data.builtin import BuiltinSource
from anytime_jax.data.dataset import (
    FORMAT_VERSION,
    RECORD_NAME,
    VOCABULARY_NAME,
    WORK_NAME,
    DatasetInfo,
    ShardInfo,
    digest_of,
    fingerprint_of,
    load_dataset,
    seal,
)
from anytime_jax.data.sources import SPLITS, TRAIN, Part, Source, split_of
from anytime_jax.data.tokens import (
    DATASET_NAME,
    ShardJob,
    TokenJob,
    read_record,
    window_features,
    write_record,
)
from anytime_jax.data.vocabulary import Vocabulary, load_vocabulary, train_vocabulary
from anytime_jax.data.workers import ProgressCallback, run_jobs
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
      vocabulary: the path of a SentencePiece model, or the size of one to train on the text.
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
    output = Path(output).absolute()
    settings = _check_settings(source, length, vocabulary, workers)
    if finished := _finished(output, settings):
        return finished
    with _claimed(output, settings) as work:
        if finished := _finished(output, settings):  # by another process, just now
            return finished
        parts = source.parts()
        loaded = _place_vocabulary(output, work, vocabulary, parts)
        report = progress or (lambda _: None)
        records, token_files = _tokenise(parts, loaded, output, work, workers, report)
        dtype = loaded.token_dtype.name
        shards = _plan_shards(token_files, length, dtype, output, work)
        _forget_stale_shards(output, work, records)
        shard_records = run_jobs(
            shards, workers, "writing", lambda record: record["windows"] * length, report
        )
        _finish(output, work, settings, loaded, records, shards, shard_records)
    return load_dataset(output)


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
    if not (output / RECORD_NAME).is_file():
        return None
    info = load_dataset(output)
    _compare(output, "holds a dataset", dict(info.settings), settings)
    # A kill between the record and this leaves the folder behind.
    shutil.rmtree(output / WORK_NAME, ignore_errors=True)
    return info


def _compare(output: Path, state: str, there: dict[str, Any], asked: dict[str, Any]) -> None:
    differences = [
        f"{key} {there.get(key)!r} (asked: {asked.get(key)!r})"
        for key in sorted({*there, *asked})
        if there.get(key) != asked.get(key)
    ]
    if differences:
        raise InputError(
            f"{output} {state} prepared with {', '.join(differences)}; give another output, or "
            "delete that directory to prepare it anew"
        )


@contextlib.contextmanager
def _claimed(output: Path, settings: dict[str, Any]) -> Iterator[Path]:
    """Makes the directory ours, for these settings, while no other process works in it."""
    work = output / WORK_NAME
    is_new = not output.exists()
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; give a directory as output")
    if output.is_dir() and any(output.iterdir()) and not work.is_dir():
        raise InputError(f"{output} holds other files; give a new or empty directory as output")
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output} cannot be made ({error.strerror}); give another") from error
    with open(work / "lock", "w") as lock:
        try:
            # Held by this process alone and gone with it, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{output} is being prepared by another process; wait for it or stop it"
            ) from error
        for leftover in [*work.rglob("*.tmp"), *output.glob("*.tmp")]:
            leftover.unlink(missing_ok=True)
        planned = read_record(work / "plan.json")
        if planned is None:
            if (work / "plan.json").exists():
                raise InputError(f"{work / 'plan.json'} is damaged; delete {output} to start anew")
            write_record(work / "plan.json", settings)
        else:
            _compare(output, "is half", planned, settings)
        try:
            yield work
        except InputError:
            # Nothing done yet is worth refusing the corrected settings for.
            if not any((work / "tokens").glob("*.json")):
                shutil.rmtree(work)
                (output / VOCABULARY_NAME).unlink(missing_ok=True)
                if is_new:
                    output.rmdir()
            raise


def _place_vocabulary(
    output: Path, work: Path, vocabulary: str | os.PathLike[str] | int, parts: Sequence[Part]
) -> Vocabulary:
    """Puts the vocabulary into the dataset: the one given, or one trained on the text."""
    path = output / VOCABULARY_NAME
    if isinstance(vocabulary, int):
        # One that an interrupted run trained serves: parts are tokenised with it already.
        with contextlib.suppress(InputError):
            return load_vocabulary(path)
        return train_vocabulary(_sample(parts), vocabulary, path)
    with replacing(path, work) as temporary:
        shutil.copyfile(vocabulary, temporary)
    return load_vocabulary(path)


def _sample(parts: Sequence[Part]) -> Iterator[str]:
    """Training documents from the beginnings of parts spread over all of them."""
    chosen = np.unique(np.linspace(0, len(parts) - 1, _SAMPLE_PARTS).astype(int))
    share = _SAMPLE_PARTS * _SAMPLE_CHARACTERS // len(chosen)
    for part in (parts[index] for index in chosen):
        characters = 0
        for text in part.documents():
            if split_of(text, part.validation_share) == TRAIN:
                yield text[: share - characters]
                characters += len(text)
            if characters >= share:
                break


def _tokenise(
    parts: Sequence[Part],
    vocabulary: Vocabulary,
    output: Path,
    work: Path,
    workers: int | None,
    report: ProgressCallback,
) -> tuple[list[dict[str, Any]], dict[str, tuple[tuple[Path, int], ...]]]:
    """Phase 1: the record of every part, and for every split its token files in order."""
    folder = work / "tokens"
    folder.mkdir(exist_ok=True)
    path = output / VOCABULARY_NAME
    jobs = [
        TokenJob(part, index, folder, path, vocabulary.sha256) for index, part in enumerate(parts)
    ]
    records = run_jobs(
        jobs, workers, "tokenising", lambda record: sum(record[s]["tokens"] for s in SPLITS), report
    )
    token_files = {
        split: tuple(
            (job.token_path(split), record[split]["tokens"])
            for job, record in zip(jobs, records, strict=True)
        )
        for split in SPLITS
    }
    return records, token_files


def _plan_shards(
    token_files: dict[str, tuple[tuple[Path, int], ...]],
    length: int,
    dtype: str,
    output: Path,
    work: Path,
) -> list[ShardJob]:
    """Divides the windows of each split into files of equal numbers of windows."""
    folder = work / "shards"
    folder.mkdir(exist_ok=True)
    per_shard = max(1, _SHARD_BYTES // ((length + 1) * np.dtype(dtype).itemsize))
    jobs = []
    for split, files in token_files.items():
        tokens = sum(count for _, count in files)
        windows = (tokens - 1) // length
        if windows < 1:
            shutil.rmtree(work / "tokens")  # other settings will make others
            raise InputError(
                f'split "{split}" has {tokens} tokens, fewer than the {length + 1} of one window; '
                "give more text, a larger share of it or a smaller length"
            )
        shards = -(-windows // per_shard)
        for index, first in enumerate(range(0, windows, per_shard)):
            count = min(per_shard, windows - first)
            jobs.append(
                ShardJob(split, index, shards, first, count, length, dtype, files, output, folder)
            )
    return jobs


def _forget_stale_shards(output: Path, work: Path, records: list[dict[str, Any]]) -> None:
    """Drops shards that an interrupted run cut from other tokens, if the input has changed."""
    digest = digest_of(records)
    path = work / "shards" / "cut_from.json"
    if read_record(path) != {"parts": digest}:
        for stale in [
            *(work / "shards").glob(f"{DATASET_NAME}-*.json"),
            *output.glob(f"{DATASET_NAME}-*"),
        ]:
            stale.unlink()
        write_record(path, {"parts": digest})


def _finish(
    output: Path,
    work: Path,
    settings: dict[str, Any],
    vocabulary: Vocabulary,
    records: list[dict[str, Any]],
    shards: list[ShardJob],
    shard_records: list[dict[str, Any]],
) -> None:
    """Writes what TFDS and `load_dataset` read, the latter last, and removes the work folder."""
    length, dtype = settings["length"], vocabulary.token_dtype.name
    _write_tfds_metadata(output, length, dtype, shards)
    splits = {
        split: {
            "documents": sum(record[split]["documents"] for record in records),
            "tokens": sum(record[split]["tokens"] for record in records),
            "windows": sum(shard.windows for shard in shards if shard.split == split),
        }
        for split in SPLITS
    }
    done = list(zip(shards, shard_records, strict=True))
    record = {
        "format_version": FORMAT_VERSION,
        "length": length,
        "token_dtype": dtype,
        "vocab_size": vocabulary.size,
        "vocabulary_sha256": vocabulary.sha256,
        "eos_id": vocabulary.eos_id,
        "splits": splits,
        "settings": settings,
        "shards": {
            split: [record for job, record in done if job.split == split] for split in SPLITS
        },
        "files": {
            name: _written(output / name)
            for name in ("dataset_info.json", "features.json", VOCABULARY_NAME)
        },
    }
    record["fingerprint"] = fingerprint_of(record, [ShardInfo(**each) for each in shard_records])
    write_record(output / RECORD_NAME, seal(record), work)
    shutil.rmtree(work)


def _written(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _write_tfds_metadata(output: Path, length: int, dtype: str, shards: list[ShardJob]) -> None:
    import tensorflow_datasets as tfds

    window_bytes = (length + 1) * np.dtype(dtype).itemsize
    split_infos = []
    for split, jobs in itertools.groupby(shards, key=lambda job: job.split):
        lengths = [job.windows for job in jobs]
        template = tfds.core.ShardedFileTemplate(
            data_dir=epath.Path(output),
            dataset_name=DATASET_NAME,
            split=split,
            filetype_suffix="array_record",
        )
        split_infos.append(
            tfds.core.SplitInfo(
                name=split,
                shard_lengths=lengths,
                num_bytes=sum(lengths) * window_bytes,
                filename_template=template,
            )
        )
    tfds.folder_dataset.write_metadata(
        data_dir=output,
        features=window_features(length, dtype),
        split_infos=split_infos,
        check_data=False,  # the check needs TensorFlow
        description=f"Windows of {length + 1} tokens at stride {length}.",
    )
