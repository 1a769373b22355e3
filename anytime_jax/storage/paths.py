"""Paths of local files and of files in buckets, with the methods of `pathlib.Path`.

A path in a bucket is a `upath.UPath`, which reads and writes through gcsfs. A file there is written
whole or not at all, a directory exists while it has files, and nothing can be appended or locked.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import pathlib
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from anytime_jax.errors import BucketError, InputError

# gs://bucket, also with the one slash that pathlib leaves.
_ADDRESS = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/+")
_BUCKET = re.compile("gs://[a-z0-9][a-z0-9._-]+(/|$)")
# gcsfs takes these for patterns, even where it deletes, or for a version of a file.
_MISREAD = re.compile(r"[*?\[\]#]|/\.{1,2}(/|$)")
_CLOSED = ("400", "401", "403", "404")  # statuses of a bucket that is missing, or of others
_REFUSED = ("Forbidden:", "Bad Request:")  # how errors of gcsfs without a status begin
_MOUNT = "mount the bucket (s3:// with mountpoint-s3, others with rclone), give the path there"
# Its search for hierarchical buckets asks another service before every request.
_GCSFS_SETTING = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"


def is_address(path: str | os.PathLike[str] | Path) -> bool:
    """Whether a path is an address, such as `gs://bucket/run`, rather than a local path."""
    return _ADDRESS.match(str(path)) is not None


def is_remote(path: Path) -> bool:
    """Whether a path of `storage_path` is in a bucket."""
    return not isinstance(path, pathlib.PurePath)


def storage_path(path: str | os.PathLike[str] | Path) -> Path:
    """Returns the path of a local file or directory, or of one in a bucket.

    Raises an InputError for an address other than `gs://BUCKET/PATH`, or if gcsfs is not installed.
    """
    if not isinstance(path, str | os.PathLike):
        return path  # in a bucket already
    match = _ADDRESS.match(os.fspath(path))
    if match is None:
        return Path(path)
    scheme, rest = match[1], os.fspath(path)[match.end() :]
    address = f"{scheme}://{rest}"
    if scheme != "gs":
        raise InputError(f"{address} is an address of another kind than gs://BUCKET/PATH; {_MOUNT}")
    if not _BUCKET.match(address) or not address.isprintable() or "//" in rest:
        raise InputError(f"{address} is not an address: give gs://BUCKET/PATH")
    if misread := _MISREAD.search(address):
        raise InputError(
            f"{address} has {misread[0]!r}, which the libraries of buckets misread: give "
            "gs://BUCKET/PATH without any of * ? [ ] # and parts . or .."
        )
    return _bucket_path(address.rstrip("/"))


def absolute_path(path: str | os.PathLike[str] | Path) -> Path:
    """Returns `storage_path` in full."""
    return storage_path(path).absolute()


def check_bucket(setting: str, path: Path) -> None:
    """Raises an InputError if a bucket is missing or closed, a BucketError if it is out of reach.

    `setting`, as written, is in the message.
    """
    bucket = path.parents[-1] if path.parents else path
    try:
        is_there = bucket.exists()
    except (OSError, ValueError, *bucket_errors()) as error:
        raise bucket_failure(setting, error) from error
    if not is_there:
        raise bucket_failure(setting, FileNotFoundError(f"there is no {bucket}"))


def bucket_failure(name: str, error: Exception) -> InputError | BucketError:
    """Returns the error of a command that could not read what is named, because of another error.

    That is an InputError if the bucket is missing or closed, a BucketError if it is out of reach.
    """
    problem = " ".join(str(error).split())[:200]
    if is_refusal(error) or isinstance(error, FileNotFoundError):
        return InputError(
            f"{name} cannot be read ({problem}): correct the name of the bucket, or log in (gcloud "
            "auth application-default login)"
        )
    return BucketError(f"{name} cannot be reached ({problem}): try again later")


def remove_directory(path: Path, missing_ok: bool = False) -> None:
    """Removes a directory and everything in it."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=missing_ok)
    elif not missing_ok or path.exists():
        files, key = _file_system(path)
        files.rm(key, recursive=True)


def rename_directory(path: Path, target: Path) -> None:
    """Renames a directory; in a bucket, copies its files there and removes it."""
    if not is_remote(path):
        path.rename(target)
        return
    files, key = _file_system(path)
    for file in list_files(path):
        copy = target / str(file).removeprefix(f"{path}/")
        files.cp_file(_file_system(file)[1], _file_system(copy)[1])
    files.rm(key, recursive=True)


def is_refusal(error: Exception) -> bool:
    """Whether an error says that a bucket is closed to this account, or has no such request."""
    # gcsfs raises errors of these types, without a status, for 403 and 400.
    if type(error) in (OSError, ValueError):
        return str(error).startswith(_REFUSED)
    return str(getattr(error, "code", "")) in _CLOSED


def is_directory(path: Path) -> bool:
    """Whether there is a directory; raises an error if that cannot be known.

    In a bucket, the method `is_dir` takes every error for a no.
    """
    return _type(path) == "directory" if is_remote(path) else path.is_dir()


def is_regular_file(path: Path) -> bool:
    """Whether there is a file; raises an error if that cannot be known, unlike `is_file`."""
    return _type(path) == "file" if is_remote(path) else path.is_file()


def _type(path: Path) -> str | None:
    files, key = _file_system(path)
    try:
        return files.info(key)["type"]
    except FileNotFoundError:
        return None


def list_files(path: Path) -> list[Path]:
    """Returns the files below a directory, which another process may be deleting, in order."""
    if is_remote(path):
        files, key = _file_system(path)  # one request for a thousand files
        names = (str(name) for name in files.find(key))
        return sorted((path / name.removeprefix(f"{key}/") for name in names), key=str)
    walk = os.walk(path)  # leaves out directories that disappear; `Path.rglob` raises an error
    return sorted(Path(folder, name) for folder, _, names in walk for name in names)


def file_sizes(directory: Path) -> dict[str, int]:
    """Returns the size in bytes of every regular file below a directory, by its relative name."""
    if is_remote(directory):
        files, key = _file_system(directory)
        found = files.find(key, detail=True).items()
        return {str(name).removeprefix(f"{key}/"): x["size"] for name, x in found}
    return {
        file.relative_to(directory).as_posix(): file.stat().st_size
        for file in list_files(directory)
        if file.is_file()
    }


def upload(file: Path, path: Path) -> None:
    """Copies a local file to a bucket."""
    files, key = _file_system(path)
    files.put_file(str(file), key)


def read_range(path: Path, start: int, stop: int) -> bytes:
    """Reads bytes `start` to `stop` of a file in a bucket; safe to call from several threads."""
    files, key = _file_system(path)
    return files.cat_file(key, start=start, end=stop)


def cache_directory() -> Path:
    """Returns the local directory of what may be deleted, and is computed or fetched again."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "anytime_jax"


def bucket_errors() -> tuple[type[Exception], ...]:
    """Returns the types of errors of the libraries that reach buckets, as far as they are loaded.

    Missing files and closed connections raise an OSError.
    """
    modules = {
        "gcsfs.retry": ("HttpError", "ChecksumError", "NonRetryableError"),
        "google.auth.exceptions": ("GoogleAuthError",),
        "aiohttp": ("ClientError",),
    }
    loaded = ((sys.modules[name], names) for name, names in modules.items() if name in sys.modules)
    found = (getattr(module, name, None) for module, names in loaded for name in names)
    return tuple(error for error in found if error is not None)


def _file_system(path: Any) -> tuple[Any, str]:
    """Returns the file system of a bucket, and the name of a path in it."""
    return path.fs, path.path


@functools.cache
def _prepare_libraries() -> None:
    missing = [name for name in ("upath", "gcsfs") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"gs:// needs {' and '.join(missing)}: pip install 'anytime_jax[gcs]', or give a local "
            "path"
        )
    os.environ.setdefault(_GCSFS_SETTING, "false")
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it prints the errors that it raises
    from fsspec import config

    for name in ("gcs", "gs"):  # other hosts write to the same directories
        config.conf.setdefault(name, {}).setdefault("use_listings_cache", False)


def _bucket_path(address: str) -> Any:
    _prepare_libraries()
    import upath  # pyright: ignore[reportMissingImports]

    return upath.UPath(address)
