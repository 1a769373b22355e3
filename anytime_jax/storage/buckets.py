"""Paths in buckets: those of `etils.epath`, which read and write through gcsfs.

Only modules of this package ask whether a path is in a bucket.
"""

from __future__ import annotations

import pathlib
from pathlib import Path
from typing import Any

from anytime_jax.errors import needs_extra

_SMALL = 5 * 2**20  # bytes below which gcsfs does not send a file in chunks by itself
_errors: tuple[type[Exception], ...] = ()


def is_remote(path: Path) -> bool:
    """Returns whether a path from `storage_path` is in a bucket."""
    return not isinstance(path, pathlib.Path)


def bucket_path(address: str) -> Any:
    """Returns the path of an address; raises an InputError if gcsfs is not installed."""
    global _errors
    with needs_extra("gcs"):
        import aiohttp
        import google.auth.exceptions
        from gcsfs import retry
    from etils import epath
    from fsspec import config

    # Other hosts and TensorStore write to the same directories. The paths of epath, which Orbax
    # opens too, take no options of gcsfs, so its list of a directory is forgotten for all of them.
    config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    _errors = (
        retry.HttpError,
        retry.ChecksumError,
        retry.NonRetryableError,
        google.auth.exceptions.GoogleAuthError,
        aiohttp.ClientError,
    )
    return epath.Path(address)


def bucket_errors() -> tuple[type[Exception], ...]:
    """Returns the types of errors of gcsfs, () until there is a path in a bucket.

    Missing files and closed connections raise an OSError.
    """
    return _errors


def file_system(path: Path) -> tuple[Any, str]:
    """Returns the file system of a bucket, and the name of a path in it."""
    from fsspec.core import url_to_fs

    return url_to_fs(str(path))


def upload(file: Path, path: Path) -> None:
    """Copies a local file to a bucket; raises a bucket's error if it has other bytes there."""
    files, key = file_system(path)
    if (size := file.stat().st_size) < _SMALL:
        # In one chunk. Without it gcsfs sends the file between lines that end with a line feed
        # alone, so that a carriage return at its end is lost as a part of the line's end.
        files.pipe_file(key, file.read_bytes(), chunksize=size or 1, consistency="md5")
    else:
        files.put_file(str(file), key, consistency="md5")
