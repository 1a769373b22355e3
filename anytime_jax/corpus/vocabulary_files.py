"""Vocabularies of any kind, loaded from files on disks, in buckets and at addresses."""

from __future__ import annotations

import os
from pathlib import Path

from anytime_jax.corpus.hf_vocabulary import TOKENIZER_FILE, load_tokenizer
from anytime_jax.corpus.sentencepiece_vocabulary import SentencePieceVocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import VOCABULARY_NAME
from anytime_jax.errors import InputError
from anytime_jax.storage import url_files
from anytime_jax.storage.failures import read_failure, storage_errors
from anytime_jax.storage.files import read_file
from anytime_jax.storage.paths import is_address, storage_path

# An export has both files; its tokenizer.json may differ in bytes from the run's vocabulary.
_FILES = (VOCABULARY_NAME, TOKENIZER_FILE)


def load_vocabulary(
    path: str | os.PathLike[str] | Path, end_of_text: str | None = None
) -> Vocabulary:
    """Loads a SentencePiece model, a `tokenizer.json`, or a dataset's `vocabulary.model`.

    In a directory, such as a model or a dataset, the vocabulary is the file that
    `find_vocabulary_file` names; an address is one unless it ends with .model or .json. For a
    `tokenizer.json`, EOS is the token `end_of_text`, or else the `eos_token` that
    `tokenizer_config.json` or `special_tokens_map.json` in the same directory names.

    Raises InputError if there is no vocabulary, or one without an EOS token.
    """
    place = str(path).rstrip("/")
    if is_address(place) and not place.startswith("gs:"):
        is_file = place.endswith((".model", ".json"))
        folder, _, name = place.rpartition("/") if is_file else (place, "", "")

        def read(name: str) -> bytes | None:
            return url_files.read_if_there(f"{folder}/{name}")
    else:
        local = storage_path(path)
        is_file = not local.is_dir()
        parent, name = (local.parent, local.name) if is_file else (local, "")

        def read(name: str) -> bytes | None:
            return _read_if_there(parent / name)

    names = (name,) if is_file else _FILES
    found = ((name, content) for name in names if (content := read(name)) is not None)
    name, model = next(found, ("", b""))
    if not name:
        raise InputError(f"vocabulary {place}: there is no {' or '.join(names)}")
    if name.endswith(".json") or model.lstrip()[:1] == b"{":  # no SentencePiece model begins so
        return load_tokenizer(model, place, read, end_of_text)
    if end_of_text is not None:
        raise InputError(
            f"--end-of-text has no meaning for {place}, a SentencePiece model, which names its "
            "own: leave it out"
        )
    return SentencePieceVocabulary(model, place)


def find_vocabulary_file(directory: Path) -> Path | None:
    """Finds the vocabulary of a dataset, an export or a model of another library, if it has one."""
    files = (directory / name for name in _FILES)
    return next((file for file in files if file.is_file()), None)


def _read_if_there(path: Path) -> bytes | None:
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except storage_errors() as error:
        raise read_failure(path, error, f"vocabulary {path}") from error
