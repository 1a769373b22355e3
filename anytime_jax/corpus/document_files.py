"""Files of text, on disks and at addresses: which there are, and the documents in them.

The names tell files of records, of JSON and Parquet. Any other file is a document if its content is
UTF-8 without a NUL, so that source code is text; or else it is left out and counted. Errors name
the file and the line.
"""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from anytime_jax.corpus.source_interface import (
    BadRecord,
    BadRecords,
    LeftOut,
    bad_record,
    reading_error,
)
from anytime_jax.data.dataset_info import METADATA_NAME, WORK_NAME
from anytime_jax.errors import InputError, format_value
from anytime_jax.storage import url_files
from anytime_jax.storage.files import file_size, walk
from anytime_jax.storage.json_files import parse_json
from anytime_jax.storage.paths import is_address

_GZIP, _ZSTANDARD = ".gz", ".zst"
_JSON = (".json", ".jsonl", ".ndjson", ".jsonlines")
JSON_SUFFIXES = tuple(x + y for x in _JSON for y in ("", _GZIP, _ZSTANDARD))
LIST_MARK = "@"  # before the path of a list of addresses

_BUFFER_BYTES = 2**18  # of decompressed text
_DAMAGE = (OSError, EOFError, zlib.error)  # what a file of text raises that cannot be read


class FoundFiles(NamedTuple):
    """Files of an input.

    Attributes:
      files: paths and sizes in bytes, sorted by path; of a list of addresses, in its order.
      hidden: hidden files and folders in a folder, such as `.git`, which are not read.
    """

    files: list[tuple[str, int]]
    hidden: list[str]


def full_path(path: str) -> str:
    """Returns a local path in full, with `~` written out; an address as it is."""
    if path.startswith(LIST_MARK):
        return LIST_MARK + full_path(path.removeprefix(LIST_MARK))
    if not path:
        raise InputError("the path of the input is empty; give a file, a folder or a glob")
    return path if is_address(path) else os.path.abspath(os.path.expanduser(path))


def open_file(path: str, *, buffered: bool = True) -> Any:
    """Opens a regular file, or one at an address, for reading in binary.

    `buffered` reads ahead at an address; local files are buffered in either case.
    """
    if is_address(path):
        return url_files.open_address(path, buffered=buffered)
    file_size(path)  # rejects a pipe, which may never end
    return open(path, "rb")


def last_change(path: str) -> int:
    """Returns when a local file was changed, in ns since 1970; 0 if it is gone or at an address."""
    if not is_address(path):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime_ns
    return 0


def find_files(pattern: str) -> FoundFiles:
    """Finds the files of a full path, a glob or a folder, which is searched recursively.

    Raises an InputError if there are none, or files of a prepared dataset.
    """
    sizes: dict[str, int] = {}
    is_folder = False
    if pattern.startswith(LIST_MARK):
        found = _read_list(pattern.removeprefix(LIST_MARK))
        sizes = dict.fromkeys(found, url_files.UNKNOWN_SIZE)
    elif is_address(pattern):
        sizes = dict(url_files.find(pattern))
        is_folder = pattern not in sizes and not glob.has_magic(pattern)
        found = sorted(sizes)
    else:
        is_folder = os.path.isdir(pattern)
        found = sorted(_walk(pattern) if is_folder else _match(pattern))
    for path in found:
        if not {METADATA_NAME, WORK_NAME}.isdisjoint(Path(path).parts):
            raise InputError(
                f"{path} belongs to a prepared dataset or an exported model, which is no text; "
                "leave that directory out"
            )
    folder = pattern.rstrip("/")
    hidden = {x: part for x in found if is_folder and (part := _find_hidden(x, folder))}
    found = [path for path in found if path not in hidden]
    if not found:
        raise InputError(f"{pattern} names no file; name a file, a folder or a quoted glob")
    try:
        files = [(path, sizes[path] if path in sizes else file_size(path)) for path in found]
    except OSError as error:
        raise reading_error(error.filename, error) from error
    return FoundFiles(files, sorted(set(hidden.values())))


def read_text(path: str) -> Iterator[str | LeftOut]:
    """Yields the one document of a file of text, plain or compressed, or why it is left out."""
    try:
        with open_file(path) as file:
            content = _decompress(file, path)
            data = content.read(_BUFFER_BYTES)
            if b"\0" not in data:  # of most binary files, which may be large
                data += content.read()
        text = data.decode("utf-8-sig")  # a byte order mark is not text
    except _DAMAGE as error:
        raise _damage_error(path, error) from error
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # also of UTF-16, and of a hole where data were lost
        yield LeftOut("not UTF-8 text", path)
    else:
        yield text or LeftOut("empty", path)


def read_json_lines(
    path: str, text_field: str, bad_records: BadRecords | None = None
) -> Iterator[str | LeftOut | BadRecord | None]:
    """Yields the document of every line of a JSON file, plain or compressed, except blank lines.

    A field inside another is named `outer.inner`. A text that is null gives None. A file named
    `.json`, not `.jsonl`, is left out if its first line is no record: many programs have some.
    """
    plain = path.lower().removesuffix(_GZIP).removesuffix(_ZSTANDARD)
    records, is_any_json = 0, plain.endswith(_JSON[0])
    try:
        with open_file(path) as file:
            for number, line in enumerate(_decompress(file, path), start=1):
                content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not content.strip():
                    continue
                try:
                    record = _find_text(parse_json(content), text_field)
                except ValueError as error:
                    if not records and is_any_json and not _is_json(error):
                        yield LeftOut(
                            f"JSON whose first line has no text under {text_field!r}", path
                        )
                        return
                    record = bad_record(f"{path} line {number}", error, bad_records)
                records += 1
                yield record
    except _DAMAGE as error:
        raise _damage_error(path, error) from error
    if not records:  # as a failed download leaves
        yield bad_record(path, ValueError("it holds no document"), bad_records)


def _walk(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise reading_error(error.filename, error) from error

    return walk(folder, refuse)


def _find_hidden(path: str, folder: str) -> str | None:
    """Returns the first part of a path in `folder` that is hidden, as a path; None without one."""
    parts = path[len(folder) :].split("/")
    numbers = (i for i, name in enumerate(parts, 1) if name.startswith("."))
    end = next(numbers, None)
    return None if end is None else folder + "/".join(parts[:end])


def _match(pattern: str) -> list[str]:
    """Returns the paths that a local path or glob matches."""
    folder = pattern  # the part of the pattern that exists is a name, whatever its characters
    while folder and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    matches = [pattern]
    if rest := os.path.relpath(pattern, folder) if folder != pattern else "":
        found = glob.glob(rest, root_dir=folder, recursive=True)
        matches = [os.path.join(folder, x) for x in found]
    # "**" matches folders too; a folder with the name of a file is refused when its size is read.
    records = (*JSON_SUFFIXES, ".parquet")
    return [x for x in matches if not os.path.isdir(x) or x.lower().endswith(records)]


def _read_list(path: str) -> list[str]:
    """Returns the addresses in a file, one a line; only the first is asked for its size."""
    try:
        with open_file(path) as file:
            names = file.read().decode("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise reading_error(path, error) from error
    if not names or not all(map(is_address, names)):
        other = next((format_value(x) for x in names if not is_address(x)), "nothing")
        raise InputError(f"{path} lists {other}; list addresses, one a line")
    url_files.find(names[0])
    return names


def _decompress(file: Any, path: str) -> Any:
    suffix = os.path.splitext(path.lower())[1]
    if suffix == _GZIP:
        return io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES)
    if suffix == _ZSTANDARD:
        import pyarrow  # which other files do not need

        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), _BUFFER_BYTES)
    return file


def _damage_error(path: str, error: Exception) -> InputError:
    if "requires too much memory" in str(error):  # zstandard's own words for a long window
        reason = "its zstandard window is longer than 128 MiB: `zstd -d --long=31` decompresses it"
        error = ValueError(reason)
    return reading_error(path, error)


def _is_json(error: ValueError) -> bool:
    """Whether an error is of a record with a text, which Python's limits or UTF-8 do not allow."""
    is_number_or_depth = type(error.__cause__) in (ValueError, RecursionError)
    return is_number_or_depth or isinstance(error, UnicodeEncodeError)


def _find_text(record: Any, field: str) -> str | None:
    """Returns the text of a record; raises a ValueError if there is none."""
    names = [field] if isinstance(record, dict) and field in record else field.split(".")
    value = record
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise ValueError(f"no JSON object with a text under {field!r}; see --text-field")
        value = value[name]
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"what is under {field!r} is no text; see --text-field")
    value.encode("utf-8")  # JSON can spell half of a surrogate pair, which is not text
    return value
