"""Built-in corpus: the Python sources of a fixed list of installed packages."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from anytime_jax.corpus.document_files import FoundFiles
from anytime_jax.corpus.file_source import group_files
from anytime_jax.corpus.source_interface import Part, Source
from anytime_jax.corpus.validation_split import check_fraction
from anytime_jax.errors import InputError
from anytime_jax.storage.files import read_file

# Packages that every installation has, in the versions of constraints.txt. One whose version there
# depends on the version of Python, such as jax, would make the text depend on it.
PACKAGES = {
    "absl-py": "2.5.1",
    "etils": "1.15.0",
    "filelock": "4.3.1",
    "flax": "0.12.8",
    "fonttools": "4.68.0",
    "fsspec": "2026.9.0",
    "grain": "0.2.18",
    "matplotlib": "3.11.2",
    "numpy": "2.4.6",
    "optax": "0.2.8",
    "orbax-checkpoint": "0.12.8",
    "packaging": "26.4",
    "pillow": "13.0.0",
    "protobuf": "7.36.2",
    "pyarrow": "26.0.1",
    "pygments": "2.21.0",
    "pyparsing": "3.3.3",
    "rich": "15.0.0",
    "scipy": "1.17.1",
    "tensorflow-datasets": "4.9.10",
    "treescope": "0.1.10",
    "urllib3": "2.8.0",
}
# These differ between the wheels of a version for several Pythons and processors.
_LEFT_OUT = ("numpy/distutils/", "numpy/__config__.py", "scipy/__config__.py")


@dataclasses.dataclass(frozen=True)
class BuiltinSource(Source):
    """Python sources of `PACKAGES`, in an order that depends on their names alone, up to a size.

    A package's sources are those that its RECORD lists. Files that are not UTF-8, contain a NUL,
    are empty or repeat an earlier one are skipped. With the versions of `PACKAGES` the text is the
    same on every machine.

    Attributes:
      megabytes: size in 10⁶ bytes of UTF-8.
      validation_fraction: fraction of the documents for validation, by the hash of their content.
    """

    megabytes: float = 12.0
    validation_fraction: float = 0.05

    def parts(self) -> Sequence[Part]:
        """Lists the files, ordered by the hash of their names."""
        check_fraction(self.validation_fraction)
        if not self.megabytes > 0:
            raise InputError(f"{self.megabytes} megabytes of built-in text; ask for more than 0")
        files: list[tuple[str, int]] = []
        total, digests = 0, set[bytes]()
        for path in _ordered_files():
            if total >= self.megabytes * 1e6:
                break
            text = _read(path)
            digest = hashlib.sha256(text).digest()
            if text and digest not in digests:
                digests.add(digest)
                files.append((str(path), len(text)))
                total += len(text)
        if total < self.megabytes * 1e6:
            reason = f" ({differences})" if (differences := builtin_differences()) else ""
            raise InputError(
                f"{self.megabytes:g} MB of built-in text were requested, but the installed "
                f"packages have {total / 1e6:.1f} MB{reason}; ask for less, or give a folder of "
                "text instead"
            )
        return group_files(FoundFiles(files, []), self.validation_fraction)


def builtin_differences() -> str:
    """Names the packages that are not installed as in `PACKAGES`; empty if all are."""
    differences = []
    for name, version in PACKAGES.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            differences.append(f"no {name}")
            continue
        if installed != version:
            differences.append(f"{name} {installed}, not {version}")
        elif not (files := _files_of(name)):
            differences.append(f"{name} without a list of files")
        elif missing := sum(not path.is_file() for path in files.values()):
            differences.append(f"{name} without {missing:,} of {len(files):,} files")
    return "; ".join(differences)


def difference_note() -> str:
    """What to tell whoever prepares the text, if it is not that of `PACKAGES`; otherwise empty."""
    if not (differences := builtin_differences()):
        return ""
    return (
        f"note: the built-in text is not that of the versions in constraints.txt ({differences}), "
        "so losses will differ from those in the documentation"
    )


def _ordered_files() -> Iterator[Path]:
    """Yields the sources of all packages, ordered by the hash of their names."""
    files: dict[str, Path] = {}
    for name in PACKAGES:
        files |= _files_of(name)
    # In hash order any prefix is a fair mixture, not the modules that begin with "a".
    for name in sorted(files, key=lambda name: hashlib.sha256(name.encode()).digest()):
        yield files[name]


def _files_of(package: str) -> dict[str, Path]:
    """The sources that a package's RECORD lists, by name; none if it has no RECORD."""
    try:
        about = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return {}
    # `metadata.files` would leave out the files that are missing, from Python 3.12 on.
    rows = csv.reader((about.read_text("RECORD") or "").splitlines())
    # What is in no folder belongs to an editable installation; what is above is a script.
    return {
        name: Path(str(about.locate_file(name)))
        for name, *_ in rows
        if name.endswith(".py") and "/" in name and not name.startswith(("../", *_LEFT_OUT))
    }


def _read(path: Path) -> bytes:
    """The file's bytes; empty if they are not UTF-8 text."""
    try:
        text = read_file(path)
        text.decode("utf-8")
    except (OSError, ValueError):
        return b""
    return b"" if b"\0" in text else text
