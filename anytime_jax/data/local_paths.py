"""Local paths: refusal of the addresses of buckets."""

from __future__ import annotations

import os
import re

from anytime_jax.errors import InputError

# gs://bucket, also with the one slash that pathlib leaves.
_ADDRESS = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/+")
_MOUNT = "mount the bucket (gs:// with gcsfuse, s3:// with mountpoint-s3), give the path there"


def require_local_path(path: str | os.PathLike[str], remedy: str = _MOUNT) -> None:
    """Raises InputError if a path is an address such as `gs://bucket/c4`."""
    if match := _ADDRESS.match(os.fspath(path)):
        address = f"{match[1]}://{os.fspath(path)[match.end() :]}"
        raise InputError(f"{address} is an address, not a local path; {remedy}")


def absolute_path(path: str) -> str:
    """Returns a local path in full, with `~` written out; raises InputError for an address."""
    require_local_path(path)
    return os.path.abspath(os.path.expanduser(path))
