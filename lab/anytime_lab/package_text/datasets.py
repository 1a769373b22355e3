"""Datasets of package text: repeated runs are removed, then each dataset is prepared."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax.corpus.document_files import find_files
from anytime_jax.corpus.file_source import FileSource, FilesPart, group_files
from anytime_jax.corpus.preparation import prepare
from anytime_jax.corpus.source_interface import Source
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.corpus.vocabulary_training import train_vocabulary
from anytime_jax.data.dataset_info import VOCABULARY_NAME
from anytime_jax.errors import InputError
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.storage.json_files import json_digest, read_json, write_json
from anytime_lab.package_text.documents import (
    LEAST_BYTES,
    Document,
    read_documents,
    remove_duplicates,
)
from anytime_lab.package_text.download import (
    LANGUAGES,
    REPORT,
    SELECTION,
    TRAIN,
    Package,
    download,
)
from anytime_lab.package_text.repeated_text import piece_bytes, remove_lines, repeated_tokens

VOCABULARY_SIZE = 512
_VOCABULARY_CHARACTERS = 2_000_000  # of each language
_ORDER = (REPORT, SELECTION, TRAIN)  # what stands in an earlier role is removed from a later one
_UNUSED_FRACTION = 0.01  # of the training text, as every dataset to train on needs some
_BATCH = 256  # documents per call of the tokenizer
_COUNTS = ("documents", "distinct_bytes", "kept_bytes", "tokens", "repeated_tokens")
_STARTED, _SUMMARY = "list.json", "summary.json"


@dataclasses.dataclass(frozen=True)
class ValidationSource(Source):
    """A file of JSON lines, all of it validation text."""

    file: str

    def parts(self) -> Sequence[FilesPart]:
        """Returns the file as one part."""
        return group_files(find_files(self.file), 1.0, "text")


def make_datasets(
    packages: Sequence[Package],
    output: Path,
    vocabulary_size: int = VOCABULARY_SIZE,
    report: Callable[[str], object] = lambda step: None,
) -> dict[str, Any]:
    """Makes the datasets of a list of packages, resumes, or reads the summary if they are complete.

    `report` is called with the name of each long step.

    Returns the content of `summary.json`: "text", the counts of each role and language, and
    "packages", those of each package. Bytes are of UTF-8, tokens are without those that end
    documents, and a "repeated_share" is the share of kept tokens in runs of 32 that stand in kept
    training text: of training text, in an earlier document.

    Raises InputError if the list lacks training text of a language, a package cannot be downloaded
    or read, or the output was made of others.
    """
    digest = json_digest([vocabulary_size, [dataclasses.astuple(x) for x in packages]])
    started = read_json(output / _STARTED)
    if started and started["list_digest"] != digest:
        raise InputError(f"{output} has the text of other packages; give another --output")
    if summary := read_json(output / _SUMMARY):
        return summary
    for language in LANGUAGES:
        if not any(x.language == language and x.role == TRAIN for x in packages):
            raise InputError(f"the list has no {language} package for training; add some")
    output.mkdir(parents=True, exist_ok=True)
    archives = dict(zip(packages, download(packages, output / "archives"), strict=True))
    write_json(output / _STARTED, {"list_digest": digest}, output)
    documents = _read_all(archives)
    vocabulary = train_vocabulary(
        _vocabulary_sample(documents), vocabulary_size, output / VOCABULARY_NAME
    )
    report(f"removing repeated runs from {len(documents):,} documents")
    kept = _remove_repeated(documents, vocabulary)
    _write_text(packages, kept, output / "text")
    report(f"preparing datasets of {len(kept):,} documents")
    _prepare_all(packages, output)
    report("measuring what is left in common")
    summary = _summarize(archives, documents, kept, vocabulary)
    write_json(output / _SUMMARY, summary, output)
    return summary


def _read_all(archives: dict[Package, Path]) -> list[Document]:
    """Reads all different documents, by role in the order `_ORDER`, of a role in hash order."""
    found = itertools.chain.from_iterable(read_documents(*item) for item in archives.items())
    by_role = sorted(found, key=lambda x: (_ORDER.index(x.package.role), x.order))
    return remove_duplicates(by_role)


def _vocabulary_sample(documents: Iterable[Document]) -> Iterator[str]:
    """Yields training text of both languages in turn, as much of each."""
    training = [x for x in documents if x.package.role == TRAIN]
    for language in LANGUAGES:
        left = _VOCABULARY_CHARACTERS
        for text in (x.text for x in training if x.package.language == language):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break


def _encode(documents: Sequence[Document], vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all documents one after the other, and their numbers of tokens."""
    arrays: list[np.ndarray] = []
    for i in range(0, len(documents), _BATCH):
        texts = [x.text for x in documents[i : i + _BATCH]]
        arrays += [x.astype(vocabulary.token_dtype) for x in vocabulary.encode(texts)]
    return np.concatenate(arrays), np.array([len(x) for x in arrays])


def _remove_repeated(documents: Sequence[Document], vocabulary: Vocabulary) -> list[Document]:
    """Removes repeated lines, and the documents of which little is left."""
    tokens, lengths = _encode(documents, vocabulary)
    repeated = repeated_tokens(tokens, lengths, np.arange(len(lengths)))
    sizes = piece_bytes(vocabulary)
    kept, end = [], 0
    for document, length in zip(documents, lengths, strict=True):
        part = slice(end, end := end + length)
        text = remove_lines(document.text, sizes[tokens[part]], repeated[part])
        if len(text.encode("utf-8")) >= LEAST_BYTES:
            kept.append(dataclasses.replace(document, text=text))
    return kept


def _text_file(folder: Path, package: Package) -> Path:
    return folder / package.role / package.language / f"{package.name}.jsonl"


def _write_text(packages: Sequence[Package], documents: Sequence[Document], folder: Path) -> None:
    """Writes a file of JSON lines for each package."""
    own: dict[Package, list[Document]] = {package: [] for package in packages}
    for document in documents:
        own[document.package].append(document)
    for package in packages:
        if not own[package]:
            raise InputError(f"all text of {package.name} is repeated; take it off the list")
        path = _text_file(folder, package)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for document in own[package]:
                file.write(json.dumps({"path": document.path, "text": document.text}) + "\n")


def _prepare_all(packages: Sequence[Package], output: Path) -> None:
    text, vocabulary = output / "text", output / VOCABULARY_NAME
    for language in LANGUAGES:
        source = FileSource(str(text / TRAIN / language), validation_fraction=_UNUSED_FRACTION)
        prepare(source, output / language, vocabulary=vocabulary)
    for package in packages:
        if package.role != TRAIN:
            source = ValidationSource(str(_text_file(text, package)))
            place = output / package.role / package.language / package.name
            prepare(source, place, vocabulary=vocabulary, workers=1)


def _summarize(
    archives: Mapping[Package, Path],
    documents: Sequence[Document],
    kept: Sequence[Document],
    vocabulary: Vocabulary,
) -> dict[str, Any]:
    """Returns the counts of each package and of all text of a role and a language."""
    training = [x for x in kept if x.package.role == TRAIN]
    kept = training + [x for x in kept if x.package.role != TRAIN]
    tokens, lengths = _encode(kept, vocabulary)
    is_validation = (np.arange(len(kept)) >= len(training)).astype(int)
    repeated = repeated_tokens(tokens, lengths, is_validation)
    end = sum(lengths[: len(training)])
    repeated[:end] = repeated_tokens(
        tokens[:end], lengths[: len(training)], np.arange(len(training))
    )
    counts = {package: dict.fromkeys(_COUNTS, 0) for package in archives}
    for document in documents:
        counts[document.package]["distinct_bytes"] += len(document.text.encode("utf-8"))
    starts = np.cumsum(lengths) - lengths
    for document, length, start in zip(kept, lengths.tolist(), starts, strict=True):
        own = counts[document.package]
        own["documents"] += 1
        own["kept_bytes"] += len(document.text.encode("utf-8"))
        own["tokens"] += length
        own["repeated_tokens"] += int(repeated[start : start + length].sum())
    text: dict[str, dict[str, Any]] = {}
    for package, own in counts.items():
        total = text.setdefault(f"{package.role}/{package.language}", {"packages": 0})
        total["packages"] += 1
        for name in _COUNTS:
            total[name] = total.get(name, 0) + own[name]
    for total in text.values():
        total["removed_share"] = 1 - total["kept_bytes"] / total["distinct_bytes"]
        total["repeated_share"] = total["repeated_tokens"] / total["tokens"]
    listed = [
        {
            **dataclasses.asdict(package),
            "archive": archive.name,
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            **counts[package],
        }
        for package, archive in archives.items()
    ]
    return {"vocabulary_sha256": vocabulary.sha256, "text": text, "packages": listed}
