"""Text files, on disks and at addresses: which there are, and the documents in them.

Errors name the file and the line.
"""

from __future__ import annotations

import codecs
import glob
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anytime_jax.corpus.source_interface import reading_error
from anytime_jax.data.dataset_info import METADATA_NAME, WORK_NAME
from anytime_jax.errors import InputError, format_value
from anytime_jax.storage import url_files
from anytime_jax.storage.files import file_size, walk
from anytime_jax.storage.json_files import parse_json
from anytime_jax.storage.paths import is_address

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
JSON_SUFFIXES = tuple(x + y for x in (".json", ".jsonl") for y in ("", *_COMPRESSIONS))
LIST_MARK = "@"  # before the path of a list of addresses
# Of a file whose name ends otherwise, nobody knows what its documents are.
SUFFIXES = (".txt", ".md", ".rst", ".tex", *JSON_SUFFIXES, ".parquet")

_BUFFER_BYTES = 2**18  # of decompressed text


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


def find_files(pattern: str) -> list[tuple[str, int]]:
    """Finds the files of a full path, a glob or a folder, which is searched recursively.

    Files of other kinds are skipped in a folder and rejected elsewhere, and so are the files of a
    prepared dataset.

    Returns:
      Paths and sizes in bytes, sorted by path; of a list of addresses, in its order.
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
    files = [path for path in found if _is_text(path)]
    if not files or (len(files) < len(found) and not is_folder):
        other = next((path for path in found if not _is_text(path)), "nothing")
        raise InputError(
            f"{pattern} names {other}; name a file, a folder or a quoted glob of "
            f"{', '.join(SUFFIXES)} files"
        )
    for path in files:
        if not {METADATA_NAME, WORK_NAME}.isdisjoint(Path(path).parts):
            raise InputError(
                f"{path} belongs to a prepared dataset or an exported model, which is no text; "
                "leave that directory out"
            )
    try:
        return [(path, sizes[path] if sizes else file_size(path)) for path in files]
    except OSError as error:
        raise reading_error(error.filename, error) from error


def read_text(path: str) -> Iterator[str]:
    """Yields the one document of a UTF-8 text file, or none if it is empty."""
    try:
        with open_file(path) as file:
            text = file.read().decode("utf-8-sig")  # a byte order mark is not text
    except (OSError, UnicodeDecodeError) as error:
        raise reading_error(path, error) from error
    if "\0" in text:  # a hole where data were lost, or UTF-16
        raise InputError(f"{path} has a NUL, which no text has; convert, fetch again or remove it")
    if text:
        yield text


def read_json_lines(path: str, text_field: str) -> Iterator[str | None]:
    """Yields the document of every line of a JSON file, plain or compressed, except blank lines.

    A field inside another is named `outer.inner`. A text that is null gives None.
    """
    number, documents = 0, 0
    try:
        with open_file(path) as file:
            for number, line in enumerate(_decompress(file, path), start=1):
                content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if content.strip():
                    documents += 1
                    yield _find_text(parse_json(content), text_field)
    except OSError as error:
        raise reading_error(path, error) from error
    except InputError:  # of an address, which it names
        raise
    except ValueError as error:
        raise reading_error(f"{path} line {number}", error) from error
    if not documents:  # as a failed download leaves
        raise InputError(f"{path} holds no document; fetch it again or leave it out")


def _walk(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise reading_error(error.filename, error) from error

    return walk(folder, refuse)


def _match(pattern: str) -> list[str]:
    """Returns the paths that a local path or glob matches."""
    matches = [pattern] if os.path.lexists(pattern) else glob.glob(pattern, recursive=True)
    # "**" matches folders too; a folder with the name of a file is refused when its size is read.
    return [path for path in matches if not os.path.isdir(path) or _is_text(path)]


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


def _is_text(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def _decompress(file: Any, path: str) -> Any:
    compression = _COMPRESSIONS.get(os.path.splitext(path.lower())[1])
    if compression is None:
        return file
    import pyarrow  # which other files do not need

    return io.BufferedReader(pyarrow.CompressedInputStream(file, compression), _BUFFER_BYTES)


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
