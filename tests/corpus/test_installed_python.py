"""The built-in corpus: the same documents in the same order at every size."""

import json
import pickle
from pathlib import Path

import pytest

from anytime_jax.corpus.installed_python import BuiltinSource
from anytime_jax.corpus.validation_split import assign_split
from anytime_jax.errors import InputError


def test_corpus_is_the_same_at_every_size():
    source = BuiltinSource(0.5, validation_fraction=0.3)
    assert pickle.dumps(source.parts()) == pickle.dumps(source.parts())
    texts = [text for part in source.parts() for text in part.documents()]
    size = sum(len(text.encode()) for text in texts)
    assert 0.5e6 <= size < 1.5e6
    assert len(set(texts)) == len(texts)
    splits = [assign_split(text, 0.3) for text in texts]
    assert {"train", "validation"} == set(splits)
    # The standard library comes first, and not by the alphabet.
    files = [Path(path) for part in source.parts() for path, _ in part.files]
    assert all("site-packages" not in path.parts for path in files)
    assert files != sorted(files)
    more = [path for part in BuiltinSource(0.6).parts() for path, _ in part.files]
    assert more[: len(files)] == [str(path) for path in files]


@pytest.mark.parametrize(
    "source", [BuiltinSource(1e6), BuiltinSource(0), BuiltinSource(1, validation_fraction=0)]
)
def test_bad_settings_are_refused(source, monkeypatch):
    root = Path(json.__file__).parent
    paths = {"stdlib": str(root), "purelib": str(root), "platlib": str(root)}
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)
    with pytest.raises(InputError):
        source.parts()
