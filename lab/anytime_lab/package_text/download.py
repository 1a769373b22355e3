"""The list of packages, and the download of their archives."""

from __future__ import annotations

import concurrent.futures
import csv
import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from anytime_jax.errors import InputError

LIST_PATH = Path(__file__).with_name("packages.csv")
PYTHON, ENGLISH = LANGUAGES = ("python", "english")
TRAIN, SELECTION, REPORT = ROLES = ("train", "selection", "report")

_JOBS = 3


@dataclasses.dataclass(frozen=True)
class Package:
    """A package of one version, for its Python sources or its English documentation.

    Attributes:
      language: "python" for the sources in its wheel, "english" for the documentation in its sdist.
      role: "train", "selection" or "report"; the last two are for validation.
      licence: of its own code and documentation, an SPDX identifier where there is one.
    """

    name: str
    version: str
    language: str
    role: str
    licence: str

    @property
    def folder(self) -> str:
        """Folder of its archive, below that of all archives."""
        return f"{self.language}/{self.name}-{self.version}"


def read_list(path: Path = LIST_PATH) -> list[Package]:
    """Reads a list of packages; raises InputError if a row or the split by package is wrong."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            packages = [Package(**row) for row in csv.DictReader(file, strict=True)]
    except (OSError, TypeError, ValueError, csv.Error) as error:
        raise InputError(f"{path} is not a list of packages ({error})") from error
    roles: dict[str, str] = {}
    seen = set[tuple[str, str]]()
    for package in packages:
        name = package.name
        if not all(isinstance(x, str) and x for x in dataclasses.astuple(package)):
            raise InputError(f"{path}: {name} lacks a column")
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
            raise InputError(
                f"{path}: {name!r} is not a package's name in normal form, such as a-b"
            )
        if package.language not in LANGUAGES or package.role not in ROLES:
            raise InputError(
                f"{path}: {name} has language {package.language!r} and role {package.role!r}; give "
                f"one of {', '.join(LANGUAGES)} and one of {', '.join(ROLES)}"
            )
        if roles.setdefault(name, package.role) != package.role:
            raise InputError(f"{path}: {name} has two roles; give it one, in both languages")
        if (name, package.language) in seen:
            raise InputError(f"{path}: {name} is listed twice for {package.language}")
        seen.add((name, package.language))
    return packages


def download(packages: Sequence[Package], directory: Path) -> list[Path]:
    """Downloads the archives that are not in a directory yet; returns the paths of all.

    Raises InputError if pip cannot download one. Packages are not installed, but for an sdist pip
    runs the package's own build code, in an environment of its own, to learn its metadata.
    """
    with concurrent.futures.ThreadPoolExecutor(_JOBS) as pool:
        futures = [pool.submit(_download, package, directory) for package in packages]
        try:
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)


def _download(package: Package, directory: Path) -> Path:
    folder = directory / package.folder
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            new = Path(scratch, "new")
            _run_pip(package, new)
            new.rename(folder)
    return next(folder.iterdir())


def _archive_options(package: Package) -> list[str]:
    """Options of pip that select the same archive on every machine, whatever Python is here."""
    if package.language == ENGLISH:  # an sdist; what pip needs to build its metadata may be wheels
        return [f"--no-binary={package.name}", "--ignore-requires-python"]
    platforms = ("manylinux_2_17", "manylinux2014", "manylinux_2_28")
    return [
        "--only-binary=:all:",
        "--python-version=3.13",
        *(f"--platform={x}_x86_64" for x in platforms),
    ]


def _run_pip(package: Package, folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    where = ("--no-deps", f"--dest={folder}", f"{package.name}=={package.version}")
    done = subprocess.run(
        [*pip, *_archive_options(package), *where],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line] or lines or ["nothing"]
        raise InputError(
            f"{package.name} {package.version} ({package.language}) cannot be downloaded; see that "
            f"the network is there and that this version exists. pip says: {errors[-1].strip()}"
        )
