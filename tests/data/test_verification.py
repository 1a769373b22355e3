"""Fingerprint: the one formula, whatever the files that hold the tokens."""

import hashlib
import json

import numpy as np
import pytest

from anytime_jax.data import verification
from anytime_jax.data.dataset import DatasetInfo, SplitInfo
from anytime_jax.data.token_files import write_token_file
from anytime_jax.data.verification import compute_fingerprint

LENGTH, WINDOWS = 8, 50
TOKENS = np.arange(LENGTH * WINDOWS + 4).astype("<u2")  # three too few for another window
FIELDS = {
    "length": LENGTH,
    "token_dtype": "uint16",
    "vocab_size": 1000,
    "vocabulary_sha256": "a" * 64,
    "eos_id": 1,
}


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def dataset(folder, parts):
    """A dataset with the same tokens in both splits, divided into so many files."""
    files = {
        split: tuple(
            write_token_file(
                folder / f"{split}-{i}.tokens", memoryview(t.tobytes()), t.dtype, folder
            )
            for i, t in enumerate(np.array_split(TOKENS, parts))
        )
        for split in ("train", "validation")
    }
    splits = dict.fromkeys(files, SplitInfo(1, TOKENS.size, WINDOWS))
    return DatasetInfo(
        path=folder, splits=splits, files=files, settings={}, fingerprint="", **FIELDS
    )


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("per_group", [20, WINDOWS])
def test_fingerprint_is_that_of_the_formula(tmp_path, monkeypatch, parts, per_group):
    """Runs compare it when they resume: it may never change."""
    monkeypatch.setattr(verification, "_GROUP_BYTES", per_group * 2 * (LENGTH + 1))
    starts = range(0, WINDOWS, per_group)
    hashes = [
        [
            f"token_windows-{split}.array_record-{i:05d}-of-{len(starts):05d}",
            sha256(TOKENS[start * LENGTH : min(start + per_group, WINDOWS) * LENGTH + 1].tobytes()),
        ]
        for split in ("train", "validation")
        for i, start in enumerate(starts)
    ]
    content = [{"format_version": 1, **FIELDS}, hashes]
    expected = sha256(json.dumps(content, sort_keys=True).encode())
    info = dataset(tmp_path, parts)
    assert compute_fingerprint(info, 1, "hashing", None) == expected
