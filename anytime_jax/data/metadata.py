"""The last files of a dataset: what TFDS and `load_dataset` read, once its windows are written."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from anytime_jax.data.dataset import (
    FORMAT_VERSION,
    METADATA_NAME,
    VOCABULARY_NAME,
    ShardInfo,
    fingerprint_of,
    seal,
)
from anytime_jax.data.preparation_jobs import DATASET_NAME, ShardJob, window_features, write_record
from anytime_jax.data.sources import SPLITS
from anytime_jax.data.vocabulary import Vocabulary


def finish(
    output: Path,
    work: Path,
    settings: dict[str, Any],
    vocabulary: Vocabulary,
    records: list[dict[str, Any]],
    shards: list[ShardJob],
    shard_records: list[dict[str, Any]],
) -> None:
    """Writes what TFDS and `load_dataset` read, the latter last.

    Args:
      output: the dataset's directory.
      work: the folder for temporary files.
      settings: what the dataset was prepared from and how.
      vocabulary: of the tokens.
      records: of the token files, in order.
      shards: the windows' files, in order.
      shard_records: of those.
    """
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
    write_record(output / METADATA_NAME, seal(record), work)


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
