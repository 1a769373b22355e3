"""Fingerprint: that of the tokens, whatever the files that hold them."""

import hashlib
import json

import numpy as np
import pytest

from anytime_jax.data import verification
from anytime_jax.data.dataset import DatasetInfo, SplitInfo
from anytime_jax.data.token_files import write_token_file
from anytime_jax.data.verification import compute_fingerprint

TOKENS = np.arange(404).astype("<u2")


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
    splits = dict.fromkeys(files, SplitInfo(1, TOKENS.size, 50))
    return DatasetInfo(
        path=folder,
        length=8,
        vocab_size=1000,
        eos_id=1,
        token_dtype="uint16",
        vocabulary_sha256="a" * 64,
        splits=splits,
        settings={},
        fingerprint="",
        files=files,
    )


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("task_tokens", [160, 404])
def test_fingerprint_is_that_of_the_formula(tmp_path, monkeypatch, parts, task_tokens):
    """Runs compare it when they resume: it may never change."""
    monkeypatch.setattr(verification, "_TASK_TOKENS", task_tokens)
    hashes = [
        [split, hashlib.sha256(TOKENS[start : start + task_tokens].tobytes()).hexdigest()]
        for split in ("train", "validation")
        for start in range(0, TOKENS.size, task_tokens)
    ]
    text = json.dumps([8, "a" * 64, hashes], separators=(",", ":"))
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert compute_fingerprint(dataset(tmp_path, parts), 1, "hashing", None) == expected
