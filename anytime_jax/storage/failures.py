"""Failures of storage: which errors it raises, and whether trying again later may help."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from anytime_jax.errors import BucketError, InputError
from anytime_jax.storage.buckets import bucket_errors, file_system, is_remote

# Statuses of a bucket that is missing or belongs to somebody else.
_CLOSED = ("400", "401", "403", "404")
_LONGEST = 300  # characters of an error in a message
_REFUSED = ("Forbidden:", "Bad Request:")  # how errors of gcsfs without a status begin


def storage_errors() -> tuple[type[Exception], ...]:
    """Returns the types of errors that reading and writing raise: OSError, and bucket errors."""
    return OSError, *bucket_errors()


def is_temporary(error: Exception, path: Path | None = None) -> bool:
    """Returns whether retrying may help, as after a bucket's error that is not a refusal.

    Errors of local disks are never temporary. `path` says which storage raised the error.
    """
    is_bucket = isinstance(error, bucket_errors()) or (path is not None and is_remote(path))
    return is_bucket and not _is_refusal(error)


def read_failure(path: Path, error: Exception, name: str = "") -> InputError | BucketError:
    """Returns the error to raise if a path, called `name` in the message, could not be read.

    This is a BucketError if a bucket is out of reach, and otherwise an InputError.
    """
    name = name or str(path)
    if not is_remote(path):
        reason = getattr(error, "strerror", None) or error
        return InputError(f"{name} cannot be read ({reason}): correct the path, or its permissions")
    problem = " ".join(str(error).split())[:200]
    if _is_refusal(error) or isinstance(error, FileNotFoundError):
        return InputError(
            f"{name} cannot be read ({problem}): correct the name of the bucket, or log in (gcloud "
            "auth application-default login)"
        )
    return BucketError(f"{name} cannot be reached ({problem}): try again later")


def shorten_error(error: Exception) -> str:
    """Returns an error as one line, without the storage specification that TensorStore appends."""
    text = " ".join(str(error).split())
    text = text.split(" [tensorstore_spec")[0].split(". See full TensorStore")[0]
    if len(text) > _LONGEST:  # the reason is at the end
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return f"{type(error).__name__}: {text}"


def check_directory(path: Path, name: str) -> None:
    """Raises an InputError if a path, called `name`, cannot be a directory or may not be read.

    The directory need not exist yet. Raises a BucketError if the bucket is out of reach.
    """
    if is_remote(path):
        files, key = file_system(path)
        try:
            if not files.exists(bucket := key.partition("/")[0]):
                raise FileNotFoundError(f"there is no gs://{bucket}")
        except (ValueError, *storage_errors()) as error:
            raise read_failure(path, error, name) from error
    check_no_file(path, name, "choose another")


def check_no_file(path: Path, name: str, advice: str) -> None:
    """Raises an InputError if a local path, called `name`, is there and is no directory."""
    if is_remote(path):  # where a directory is only a part of names
        return
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is a file")
    except FileNotFoundError as error:
        if path.is_symlink():
            raise InputError(f"{name} is a link to a directory that is gone: {advice}") from error
    except OSError as error:
        raise InputError(f"{name} cannot be a directory ({error.strerror}): {advice}") from error


def _is_refusal(error: Exception) -> bool:
    """Returns whether an error says that the bucket denies access or rejects the request."""
    # gcsfs raises errors of these types, without a status, for 403 and 400.
    if type(error) in (OSError, ValueError):
        return str(error).startswith(_REFUSED)
    return str(getattr(error, "code", "")) in _CLOSED
