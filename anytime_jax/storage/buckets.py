"""Bucket libraries: gcsfs behind `upath` paths, imported when an address is first given.

Only modules of this package ask whether a path is in a bucket.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import pathlib
import sys
from pathlib import Path
from typing import Any

from anytime_jax.errors import InputError

_SMALL = 5 * 2**20  # bytes below which gcsfs uploads a file in one request
# gcsfs would ask another service about hierarchical buckets before every request.
_GCSFS_SETTING = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"


def is_remote(path: Path) -> bool:
    """Returns whether a path from `storage_path` is in a bucket."""
    return not isinstance(path, pathlib.PurePath)


def bucket_path(address: str) -> Any:
    """Returns the path of an address; raises an InputError if a library is not installed."""
    prepare_libraries()
    import upath  # pyright: ignore[reportMissingImports]

    return upath.UPath(address)


def file_system(path: Any) -> tuple[Any, str]:
    """Returns the file system of a bucket, and the name of a path in it."""
    return path.fs, path.path


def upload(file: Path, path: Path) -> None:
    """Copies a local file to a bucket; raises a bucket's error if it has other bytes there."""
    files, key = file_system(path)
    size = file.stat().st_size
    with file.open("rb") as opened:
        opened.seek(max(size - 1, 0))
        is_cut = opened.read() == b"\r" and size < _SMALL
    if is_cut:
        # A small file is sent between lines that end with a line feed alone, so that a carriage
        # return before one is lost as a part of the line's end. A chunk of a large file has none.
        files.pipe_file(key, file.read_bytes(), chunksize=size, consistency="md5")
    else:
        files.put_file(str(file), key, consistency="md5")


def bucket_errors() -> tuple[type[Exception], ...]:
    """Returns the error types of the libraries that are imported so far.

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


@functools.cache
def prepare_libraries() -> None:
    """Imports the libraries of buckets and sets them up; raises an InputError without them."""
    missing = [name for name in ("upath", "gcsfs") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"gs:// needs {' and '.join(missing)}: pip install 'anytime_jax[gcs]', or give a local "
            "path"
        )
    os.environ.setdefault(_GCSFS_SETTING, "false")
    # They would print the errors that they raise, and those of reads ahead that nobody waits for.
    for name in ("gcsfs", "fsspec"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from fsspec import asyn, config

    asyn.get_loop().set_exception_handler(lambda loop, context: None)

    # Listings are not cached, as other hosts write to the same directories.
    for name in ("gcs", "gs"):
        config.conf.setdefault(name, {}).setdefault("use_listings_cache", False)
