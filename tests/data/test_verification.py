"""Fingerprint: that of the tokens, whatever the files that hold them."""

import hashlib
import json

import numpy as np
import pytest
from token_datasets import write_dataset

from anytime_jax.data import verification


@pytest.mark.parametrize("files", [1, 7])
@pytest.mark.parametrize("task_tokens", [160, 404])
def test_fingerprint_is_that_of_the_formula(tmp_path, monkeypatch, files, task_tokens):
    """Runs compare it when they resume: it may never change."""
    monkeypatch.setattr(verification, "_TASK_TOKENS", task_tokens)
    tokens = np.arange(404).astype("<u2")
    hashes = [
        [split, hashlib.sha256(tokens[start : start + task_tokens].tobytes()).hexdigest()]
        for split in ("train", "validation")
        for start in range(0, tokens.size, task_tokens)
    ]
    text = json.dumps([8, "a" * 64, hashes], separators=(",", ":"))
    expected = hashlib.sha256(text.encode()).hexdigest()
    info = write_dataset(tmp_path, tokens, length=8, files=files)
    assert verification.compute_fingerprint(info, 1, "hashing", None) == expected
