"""Local paths of files to read: refusal of addresses, pipes and devices."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from anytime_jax.errors import InputError
from anytime_jax.storage.paths import is_address

# Reading a pipe or a terminal waits for a writer, for ever if there is none.
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def absolute_path(path: str) -> str:
    """Returns a local path in full, with `~` written out; raises InputError for an address."""
    if is_address(path):
        raise InputError(
            f"{path} is an address, not a local path; mount the bucket (gs:// with gcsfuse, s3:// "
            "with mountpoint-s3), give the path there"
        )
    if not path:
        raise InputError("the path of the input is empty; give a file, a folder or a glob")
    return os.path.abspath(os.path.expanduser(path))


def file_size(path: str | os.PathLike[str]) -> int:
    """Returns the size of a regular file.

    Raises:
      InputError: it is a directory, a pipe, a socket or a device.
      OSError: it does not exist or is out of reach.
    """
    status = os.stat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise InputError(
            f"{path} is {_KINDS.get(kind, 'of an unknown kind')} where a file is expected; give a "
            "file, or leave it out"
        )
    return status.st_size


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Reads a regular file; raises as `file_size`."""
    file_size(path)
    return Path(path).read_bytes()
