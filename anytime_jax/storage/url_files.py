"""Files at addresses, such as `hf://` and `https://`, which fsspec lists and opens for reading.

A file is read in ranges, one request each, so that no copy of it is made. A request that fails is
repeated, with longer and longer waits in between.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import io
import random
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from anytime_jax.errors import BucketError, InputError, needs_extra

# Seconds between the tries of a request; listing comes first, where a wrong address is likely.
_LISTING_WAITS = (1.0, 2.0)
_READING_WAITS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_BLOCK_BYTES = 8 * 2**20  # of a request; seconds of tokenizing
_STALL_SECONDS = 30  # without a byte
_EXTRAS = {"hf": "hub", "http": "hub", "https": "hub"}
# Errors that another try does not mend.
_PERMANENT = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
UNKNOWN_SIZE = -1
T = TypeVar("T")


def find(pattern: str) -> list[tuple[str, int]]:
    """Returns the addresses and sizes of the files that an address, a folder or a glob names.

    Raises an InputError if the address cannot be listed.
    """
    files, path = _file_system(pattern)
    # A question mark begins the query of a web address.
    is_glob = "*" in path if _scheme(pattern).startswith("http") else glob.has_magic(path)

    def attempt() -> list[tuple[str, int]]:
        if is_glob:
            found = files.glob(path, detail=True)
        else:
            info = files.info(path)
            is_folder = info["type"] == "directory"
            found = files.find(path, detail=True) if is_folder else {path: info}
        return [
            (files.unstrip_protocol(name), UNKNOWN_SIZE if info["size"] is None else info["size"])
            for name, info in found.items()
            if info["type"] != "directory"
        ]

    try:
        return _repeat(attempt, _LISTING_WAITS)
    except Exception as error:
        is_wrong = _is_permanent(error)
        advice = "correct it, or log in if it is not public" if is_wrong else "check the network"
        raise InputError(f"{pattern} cannot be listed ({_describe(error)}): {advice}") from error


def open_address(address: str, *, buffered: bool = True) -> Any:
    """Opens a file for reading in binary, with `buffered` as a stream that is read ahead.

    Reading raises an InputError if there is no such file, and a BucketError if its server does not
    answer after several tries.
    """
    file = _RemoteFile(address)
    return io.BufferedReader(file, _BLOCK_BYTES) if buffered else file


def read_if_there(address: str) -> bytes | None:
    """Returns the content of a file, or None if there is none; raises as `open_address`."""
    try:
        with _RemoteFile(address) as file:
            return file.read()
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


class _RemoteFile(io.RawIOBase):
    """A file whose reads survive broken transfers."""

    def __init__(self, address: str):
        self._address, self._position = address, 0
        self._file_system, self._path = _file_system(address)
        self._file: Any = None
        self._block_bytes = _BLOCK_BYTES  # 0 for a server that sends files only whole

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}
        self._position = offset + (base[whence] if whence in base else self._reading(self._size))
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._reading(lambda: self._read(len(buffer)))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(_BLOCK_BYTES), b""))

    def close(self) -> None:
        self._drop()
        super().close()

    def _reading(self, attempt: Callable[[], T]) -> T:
        try:
            return _repeat(attempt, _READING_WAITS)
        except Exception as error:
            kind = InputError if _is_permanent(error) else BucketError
            raise kind(f"{self._address} cannot be read ({_describe(error)})") from error

    def _size(self) -> int:
        return self._open().size

    def _open(self) -> Any:
        if self._file is None:
            self._file = self._file_system.open(
                self._path, "rb", block_size=self._block_bytes, cache_type="none"
            )
        return self._file

    def _read(self, count: int) -> bytes:
        try:
            file = self._open()
            try:
                file.seek(self._position)
            except ValueError:  # a stream: read again up to here
                while (missing := self._position - file.tell()) > 0 and file.read(
                    min(missing, _BLOCK_BYTES)
                ):
                    pass
            data = file.read(count)
            if not data and count and file.size is not None and self._position < file.size:
                raise ConnectionError(f"it ends at byte {self._position:,} of {file.size:,}")
            return data
        except ValueError:
            self._drop()
            if not self._block_bytes or not _scheme(self._address).startswith("http"):
                raise
            self._block_bytes = 0  # the server ignored the range
            return self._read(count)
        except Exception:
            self._drop()
            raise

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(Exception):
                file.close()


def _repeat(attempt: Callable[[], T], waits: Sequence[float]) -> T:
    """Calls `attempt` again after errors that may pass; the last one has a note of the tries."""
    start = time.monotonic()
    for tries, wait in enumerate((*waits, None), start=1):
        try:
            return attempt()
        except Exception as error:
            if _is_permanent(error):
                raise
            if wait is None:
                error.add_note(f"{tries} tries in {time.monotonic() - start:.0f} s")
                raise
            time.sleep(wait * random.uniform(0.8, 1.2))  # workers do not return all at once
    raise AssertionError


def _is_permanent(error: Exception) -> bool:
    """Returns whether another try is of no use, as the request itself is wrong."""
    cause = _cause(error)
    # Each library has another place for the status of a response.
    code = getattr(getattr(cause, "response", None), "status_code", None)
    for name in ("status", "code"):
        code = getattr(cause, name, None) if code is None else code
    if str(code).isdecimal() and 400 <= int(str(code)) < 600:
        return int(str(code)) < 500 and int(str(code)) not in (408, 429)
    return isinstance(cause, _PERMANENT)


def _cause(error: Exception) -> Exception:
    """The error itself, or what it hides: fsspec says of any web server that a file is missing."""
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        return cause
    return error


def _describe(error: Exception) -> str:
    cause = error if _is_permanent(error) else _cause(error)
    lines = str(cause).split("\n")
    text = " ".join([type(cause).__name__ + ":", *(x.strip() for x in lines if x.strip())][:3])
    return ", ".join([text[:200], *getattr(error, "__notes__", ())])


def _scheme(address: str) -> str:
    return re.split(":/+", address, maxsplit=1)[0].lower()


def _file_system(address: str) -> tuple[Any, str]:
    files = _open_file_system(_scheme(address))
    return files, files._strip_protocol(re.sub(":/+", "://", address, count=1))


@functools.cache
def _open_file_system(scheme: str) -> Any:
    import fsspec

    options: dict[str, Any] = {}
    with needs_extra(_EXTRAS[scheme]) if scheme in _EXTRAS else contextlib.nullcontext():
        if scheme.startswith("http"):
            import aiohttp

            waits = aiohttp.ClientTimeout(sock_connect=_STALL_SECONDS, sock_read=_STALL_SECONDS)
            options["client_kwargs"] = {"timeout": waits}
        try:
            return fsspec.filesystem(scheme, **options)
        except (ImportError, ValueError) as error:
            if isinstance(error, ImportError) and scheme in _EXTRAS:
                raise
            raise InputError(
                f"{scheme}:// cannot be read here ({error}): install the package that it needs, or "
                "mount the bucket and give the path there"
            ) from error
