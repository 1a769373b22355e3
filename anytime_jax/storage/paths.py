"""Paths of local files and of files in buckets, with the methods of `pathlib.Path`.

A path in a bucket is an `etils.epath.Path`, which Orbax uses too. A file there is written whole or
not at all, a directory exists while it has files, and nothing can be appended or locked.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from anytime_jax.errors import InputError
from anytime_jax.storage.buckets import bucket_path, is_remote

# Matches gs://bucket, also with the single slash that pathlib leaves.
_ADDRESS = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/+")
_BUCKET = re.compile("gs://[a-z0-9][a-z0-9._-]+(/|$)")
# gcsfs reads these as patterns, even when it deletes, or as a version of a file.
_MISREAD = re.compile(r"[*?\[\]#]|/\.{1,2}(/|$)")
_MOUNT = "mount the bucket (s3:// with mountpoint-s3, others with rclone), give the path there"


def is_address(path: str | os.PathLike[str] | Path) -> bool:
    """Returns whether a path is an address, such as `gs://bucket/run`, rather than a local path."""
    return _ADDRESS.match(str(path)) is not None


def storage_path(path: str | os.PathLike[str] | Path) -> Path:
    """Returns the path of a local file or directory, or of one in a bucket.

    Raises an InputError for an address other than `gs://BUCKET/PATH`, or if gcsfs is not installed.
    """
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
    return bucket_path(address.rstrip("/"))


def absolute_path(path: str | os.PathLike[str] | Path) -> Path:
    """Returns `storage_path` as an absolute path without `..`, which TensorStore does not take.

    Raises an InputError if TensorStore, which names files in UTF-8, would use another file.
    """
    path = storage_path(path)
    if is_remote(path):  # epath takes it for a relative one
        return path
    absolute = path.absolute()
    try:
        is_same = os.fsencode(absolute) == str(absolute).encode("utf-8", "replace")
    except UnicodeEncodeError:
        is_same = False
    if not is_same:
        raise InputError(
            f"TensorStore, which names files in UTF-8, would not find {absolute} (this process has "
            f"the encoding {sys.getfilesystemencoding()}): set PYTHONUTF8=1, or give another path"
        )
    return absolute.resolve() if ".." in absolute.parts else absolute


def cache_directory() -> Path:
    """Returns the local cache directory; its files can be computed or fetched again."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "anytime_jax"
