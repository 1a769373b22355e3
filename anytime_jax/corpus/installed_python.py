"""Built-in corpus: the Python source code installed on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.corpus.file_source import group_files
from anytime_jax.corpus.source_interface import Part
from anytime_jax.corpus.validation_split import check_fraction
from anytime_jax.errors import InputError
from anytime_jax.storage.files import read_file


@dataclasses.dataclass(frozen=True)
class BuiltinSource:
    """Source code of the standard library, then of the installed packages, up to a size.

    Files that are not UTF-8, contain a NUL, are empty or repeat an earlier one are skipped.

    Attributes:
      megabytes: size in 10⁶ bytes of UTF-8.
      validation_fraction: fraction of the documents for validation, by the hash of their content.
    """

    kind = "builtin"
    megabytes: float = 12.0
    validation_fraction: float = 0.05

    def parts(self) -> Sequence[Part]:
        """Lists the files, ordered within each folder by the hash of their names."""
        check_fraction(self.validation_fraction)
        if not self.megabytes > 0:
            raise InputError(f"{self.megabytes} megabytes of built-in text; ask for more than 0")
        files: list[tuple[str, int]] = []
        total, digests = 0, set[bytes]()
        for path in _source_files():
            if total >= self.megabytes * 1e6:
                break
            text = _read(path)
            digest = hashlib.sha256(text).digest()
            if text and digest not in digests:
                digests.add(digest)
                files.append((str(path), len(text)))
                total += len(text)
        if total < self.megabytes * 1e6:
            raise InputError(
                f"{self.megabytes:g} MB of built-in text were requested, but this machine has "
                f"{total / 1e6:.1f} MB; ask for less, or give a folder of text instead"
            )
        return group_files(files, self.validation_fraction)

    def settings(self) -> dict[str, Any]:
        """Returns the attributes."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def reads(self, file: Path) -> bool:
        """Returns False: a dataset has no Python files."""
        return False


def _source_files() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    # The standard library's folder contains the packages' folder in some installations.
    packages = list(dict.fromkeys(Path(paths[name]).resolve() for name in ("purelib", "platlib")))
    for root in [Path(paths["stdlib"]).resolve(), *packages]:
        files = []
        for folder, folders, names in os.walk(root):
            skipped = {"__pycache__", "site-packages", "dist-packages"}
            folders[:] = [name for name in folders if name not in skipped]
            files += [Path(folder, name) for name in names if name.endswith(".py")]
        # In hash order any prefix is a fair mixture, not the modules that begin with "a".
        yield from sorted(
            files, key=lambda path: hashlib.sha256(os.fsencode(path.relative_to(root))).digest()
        )


def _read(path: Path) -> bytes:
    """The file's bytes; empty if they are not UTF-8 text."""
    try:
        text = read_file(path)
        text.decode("utf-8")
    except (OSError, ValueError):
        return b""
    return b"" if b"\0" in text else text
