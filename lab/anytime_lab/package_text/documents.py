"""Documents in the archives of packages: Python sources in wheels, documentation in sdists."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from anytime_jax.errors import InputError
from anytime_lab.package_text.download import PYTHON, TRAIN, Package

LEAST_BYTES, MOST_BYTES = 200, 200_000  # of a document; larger ones are mostly data
VALIDATION_BYTES = 450_000  # of a validation package, before repeated runs are removed
# Reads back as a space from a SentencePiece model, so a text with it has no exact offsets.
_SPACE_MARK = "\u2581"

_DOCUMENTATION = re.compile(r"/(docs?|documentation)/.*\.(rst|txt|md)$", re.IGNORECASE)
_PROSE_LINE = re.compile(rb"\s*[*-]?\s*[A-Za-z`*\"'(]\S*(?: +\S+){4}")
_LEAST_PROSE, _MOST_NON_ASCII = 0.5, 0.02  # shares of bytes in English documents


@dataclasses.dataclass(frozen=True)
class Document:
    """A file of a package; `order` is the hash of the package's name and the path."""

    package: Package
    path: str
    text: str

    @property
    def order(self) -> str:
        """Documents in this order are a mixture, whichever are left out."""
        return hashlib.sha256(f"{self.package.name}/{self.path}".encode()).hexdigest()


def read_documents(package: Package, archive: Path) -> list[Document]:
    """Reads the documents of a package in hash order, of a validation package up to a size.

    Raises InputError for an archive that is damaged or has no document.
    """
    documents = []
    try:
        for path, content in _read_files(package, archive):
            if (text := _decode(content)) is not None:
                documents.append(Document(package, path, text))
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error) as error:
        raise InputError(f"{archive} is damaged ({error}); delete its folder") from error
    if not documents:
        raise InputError(f"{archive} has no {package.language} text; take it off the list")
    documents.sort(key=lambda document: document.order)
    return documents if package.role == TRAIN else list(_first(documents, VALIDATION_BYTES))


def remove_duplicates(documents: Iterable[Document]) -> list[Document]:
    """Keeps the first of documents that have the same text."""
    first: dict[str, Document] = {}
    for document in documents:
        first.setdefault(document.text, document)
    return list(first.values())


def is_prose(content: bytes) -> bool:
    """Whether a text is in English rather than in another language, code or tables."""
    lines = content.splitlines(keepends=True)
    prose = sum(len(line) for line in lines if _PROSE_LINE.match(line))
    non_ascii = len(content) - len(content.decode("ascii", "ignore"))
    return prose >= _LEAST_PROSE * len(content) and non_ascii <= _MOST_NON_ASCII * len(content)


def _read_files(package: Package, archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the paths and contents of files that may be documents."""
    if package.language == PYTHON:
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            if member.isfile() and _DOCUMENTATION.search(member.name):
                file = sdist.extractfile(member)
                content = b"" if file is None else file.read()
                if is_prose(content):
                    yield str(PurePosixPath(*PurePosixPath(member.name).parts[1:])), content


def _decode(content: bytes) -> str | None:
    """The text of a file, None if it is none that can be used."""
    if not LEAST_BYTES <= len(content) <= MOST_BYTES or b"\0" in content:
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if _SPACE_MARK in text else text


def _first(documents: Iterable[Document], most: int) -> Iterator[Document]:
    """Yields documents until they have `most` bytes, and none that would exceed it."""
    total = 0
    for document in documents:
        size = len(document.text.encode("utf-8"))
        if total + size <= most:
            total += size
            yield document
