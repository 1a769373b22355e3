"""Text files, on disks and at addresses: search and reading of documents.

Errors name the file and the line.
"""

from __future__ import annotations

import codecs
import fnmatch
import glob
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anytime_jax.data.dataset_info import METADATA_NAME, WORK_NAME
from anytime_jax.errors import InputError, format_value
from anytime_jax.storage import addresses
from anytime_jax.storage.files import file_size, walk
from anytime_jax.storage.json_files import parse_json
from anytime_jax.storage.paths import is_address

_TEXT_SUFFIXES = (".txt", ".md", ".rst", ".tex")  # each file is one document
_COMPRESSED = {".gz": "gzip", ".zst": "zstandard"}
JSON_SUFFIXES = tuple(x + y for x in (".json", ".jsonl") for y in ("", *_COMPRESSED))
LIST_MARK = "@"  # before the path of a list of addresses
SUFFIXES = (*_TEXT_SUFFIXES, *JSON_SUFFIXES, ".parquet")

_HEAD_BYTES = 64
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAGIC = {".gz": _GZIP, ".zst": _ZSTANDARD}
_DECOMPRESS = "decompress it, or compress it with gzip or zstandard"
# What a value of JSON is, that is neither text nor null.
_JSON_KINDS = {
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
# First bytes of files whose content is not the text that their name promises.
_OTHER_KINDS = {
    _GZIP: "gzip-compressed; if it holds JSON lines, name it .json.gz, else decompress it",
    re.escape(_ZSTANDARD): "zstandard-compressed; if it holds JSON lines, name it .jsonl.zst",
    rb"BZh[1-9]1AY&SY": f"bzip2-compressed; {_DECOMPRESS}",
    rb"\xfd7zXZ\0": f"xz-compressed; {_DECOMPRESS}",
    rb"\x04\x22\x4d\x18": f"lz4-compressed; {_DECOMPRESS}",
    rb"PK\x03\x04": "a zip archive; unpack it",
    rb"version https://git-lfs": "a git-lfs pointer, not the file; fetch it with git lfs pull",
    rb"\xff\xfe|\xfe\xff": "UTF-16 text; convert it to UTF-8",
}
_HTML = re.compile(rb"\s*<(!doctype|html)", re.IGNORECASE)


def full_path(path: str) -> str:
    """Returns a local path in full, with `~` written out; an address as it is."""
    if path.startswith(LIST_MARK):
        return LIST_MARK + full_path(path.removeprefix(LIST_MARK))
    return path if is_address(path) else local_path(path)


def local_path(path: str) -> str:
    """Returns a local path in full, with `~` written out; raises InputError for an address."""
    if is_address(path):
        raise InputError(
            f"{path} is an address, not a local path; mount the bucket (gs:// with gcsfuse, s3:// "
            "with mountpoint-s3), give the path there"
        )
    if not path:
        raise InputError("the path of the input is empty; give a file, a folder or a glob")
    return os.path.abspath(os.path.expanduser(path))


def open_file(path: str, *, buffered: bool = True) -> Any:
    """Opens a regular file, or one at an address, for reading in binary.

    `buffered` reads ahead at an address; local files are buffered in either case.
    """
    if is_address(path):
        return addresses.open_address(path, buffered=buffered)
    file_size(path)  # rejects a pipe, which may never end
    return open(path, "rb")


def find_files(pattern: str) -> list[tuple[str, int]]:
    """Finds the files of a path, a glob or a folder, which is searched recursively.

    Files of other kinds are skipped in a folder and rejected elsewhere. A local JSON file that is
    empty or not what its name says is rejected too; at an address that shows when it is read.

    Returns:
      Paths and sizes in bytes, sorted by path.
    """
    if pattern.startswith(LIST_MARK):
        return _listed_files(pattern.removeprefix(LIST_MARK))
    sizes: dict[str, int] = {}
    if is_address(pattern):
        sizes = dict(addresses.find(pattern))
        is_folder = pattern not in sizes and not glob.has_magic(pattern)
        found = list(sizes)
    else:
        root = local_path(pattern)
        is_folder = os.path.isdir(root)
        if is_folder:
            found = list(walk(root, _raise_unreadable))
        else:
            # A pattern such as "**" matches folders too; a folder that is named like a file is a
            # mistake.
            matches = [root] if os.path.lexists(root) else glob.glob(root, recursive=True)
            found = [path for path in matches if not os.path.isdir(path) or _is_text(path)]
    files = sorted(filter(_is_text, found) if is_folder else found)
    if not files:
        others = f" ({len(found):,} of other kinds)" if found else ""
        raise InputError(
            f"{pattern} names no file of text{others}; give a file, a folder or a quoted glob of "
            f"{', '.join(SUFFIXES)} files"
        )
    for path in files:
        _check_name(path)
        if sizes.get(path) == 0:
            raise _empty(path)
    return [(path, sizes[path] if sizes else _check_file(path)) for path in files]


def _listed_files(path: str) -> list[tuple[str, int]]:
    """The addresses in a file, one a line; only the first is asked for its size."""
    path = full_path(path)
    try:
        with open_file(path) as file:
            names = file.read().decode("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a list of addresses ({error})") from error
    for name in names:
        if not is_address(name):
            raise InputError(f"{path} has {format_value(name)}, which is not an address")
        _check_name(name)
    if not names:
        raise InputError(f"{path} lists no address: give some, one a line")
    addresses.find(names[0])
    return [(name, addresses.UNKNOWN_SIZE) for name in names]


def would_find(pattern: str, file: Path) -> bool:
    """Returns whether `find_files` finds a file, which need not exist yet."""
    if is_address(file) or is_address(pattern) or pattern.startswith(LIST_MARK):
        return False
    if not _is_text(file.name):
        return False
    root, paths = local_path(pattern), {os.path.abspath(file), os.path.realpath(file)}
    if os.path.isdir(root):
        folder = Path(os.path.realpath(root))
        return any(folder in Path(path).parents for path in paths)
    parts = Path(root).parts
    first = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    resolved = Path(os.path.realpath(os.path.join(*parts[:first]))).parts + parts[first:]
    return any(_matches(Path(path).parts, each) for path in paths for each in (parts, resolved))


def read_text(path: str) -> Iterator[str]:
    """Yields the one document of a UTF-8 text file, or none if it is empty."""
    try:
        with open_file(path) as file:
            content = file.read()
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_kind(content[:_HEAD_BYTES], path)
    try:
        text = content.decode("utf-8-sig")  # a byte order mark is not text
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert or remove it") from error
    if "\0" in text:
        raise InputError(
            f"{path} has a NUL at byte {content.index(0)}, which no text has (UTF-16, or a hole "
            "where data were lost); convert, fetch again or remove it"
        )
    if text:
        yield text


def read_json_lines(path: str, text_field: str) -> Iterator[str | None]:
    """Yields the document of every line of a JSON file, plain or compressed, except blank lines.

    A field inside another is named `outer.inner`. A text that is null gives None.
    """
    number, documents = 0, 0
    compression = next((x for x in _COMPRESSED if path.lower().endswith(x)), None)
    try:
        with open_file(path) as file:
            _check_json_head(file.peek(_HEAD_BYTES)[:_HEAD_BYTES], path)
            for number, line in enumerate(_decompress(file, compression), start=1):
                place = f"{path} line {number}"
                if number == 1:  # now decompressed
                    _check_kind(line[:_HEAD_BYTES], place)
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    documents += 1
                    yield _parse_line(line, text_field, place)
    except (EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and (error.errno is not None or compression is None):
            raise _unreadable(path, error) from error
        raise InputError(
            f"{path} is a broken {_COMPRESSED[str(compression)]} file after line {number} "
            f"({error}); fetch it again"
        ) from error
    if not documents:
        raise _empty(path)


def _decompress(file: Any, compression: str | None) -> Any:
    if compression == ".gz":
        return gzip.GzipFile(fileobj=file)
    if compression == ".zst":
        import pyarrow  # which other files do not need

        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"), 2**18)
    return file


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Returns whether a split path matches a split glob; "**" is any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    is_match = bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0])
    return is_match and _matches(parts[1:], pattern[1:])


def _is_text(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def _check_name(path: str) -> None:
    if not {METADATA_NAME, WORK_NAME}.isdisjoint(Path(path).parts):
        raise InputError(
            f"{path} belongs to a prepared dataset or an exported model, which is not text; leave "
            "that directory out"
        )
    if not _is_text(path):
        raise InputError(f"{path} is none of {', '.join(SUFFIXES)}; name only such files")


def _check_file(path: str) -> int:
    """The size of a local file that can be read and is what its name says."""
    try:
        size = file_size(path)
        if path.lower().endswith(JSON_SUFFIXES):
            with open(path, "rb") as file:
                _check_json_head(file.read(_HEAD_BYTES), path)
    except OSError as error:
        if os.path.islink(path) and not os.path.exists(path):
            raise InputError(
                f"{path} is a link to a file that does not exist; fetch or remove it"
            ) from error
        raise _unreadable(path, error) from error
    return size


def _check_json_head(head: bytes, path: str) -> None:
    if not head:
        raise _empty(path)
    compression = next((x for x in _COMPRESSED if path.lower().endswith(x)), None)
    magic = _MAGIC.get(compression or "", b"")
    if magic and magic.startswith(head[: len(magic)]):
        return
    _check_kind(head, path)
    if _HTML.match(head):
        raise InputError(f"{path} is an HTML page, as a failed download leaves; fetch it again")
    if magic:
        raise InputError(
            f"{path} is not {_COMPRESSED[str(compression)]} data (it begins with {head[:8]!r}); "
            f"fetch it again, or name it without {compression} if it is plain text"
        )


def _check_kind(head: bytes, place: str) -> None:
    for beginning, kind in _OTHER_KINDS.items():
        if re.match(beginning, head):
            raise InputError(f"{place} is {kind}")


def _parse_line(line: bytes, text_field: str, place: str) -> str | None:
    try:
        record = parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{place} is not UTF-8 text ({error}); convert the file") from error
    except ValueError as error:
        if b"\0" in line:
            raise InputError(
                f"{place} holds NUL bytes (UTF-16, or a hole where data were lost); convert the "
                "file or fetch it again"
            ) from error
        raise InputError(f"{place} is not a JSON object ({error}); give one a line") from error
    if not isinstance(record, dict):
        kind = _JSON_KINDS.get(type(record), "a text" if record else "null")
        raise InputError(f"{place} is {kind}, not a JSON object; give one object a line")
    fields: dict[str, Any] = record
    inside = text_field.split(".")
    for outer in [] if text_field in fields else inside[:-1]:
        fields = fields[outer] if isinstance(fields.get(outer), dict) else {}
    name = text_field if text_field in fields else inside[-1]
    if name in fields and fields[name] is None:
        return None
    text = fields.get(name)
    if name in fields and not isinstance(text, str):
        raise InputError(
            f"{place} has {_JSON_KINDS[type(text)]} under {text_field!r}, which is not text; name "
            "the field that holds the text, or correct that line"
        )
    if not isinstance(text, str):
        content = format_value(sorted(record)) if record else "nothing"
        raise InputError(
            f"{place} has no text under {text_field!r} (it has {content}); name the field that "
            "holds the text"
        )
    try:
        text.encode("utf-8")  # JSON can spell half of a surrogate pair, which is not text
    except UnicodeEncodeError as error:
        raise InputError(f"{place} is not valid Unicode ({error}); correct that line") from error
    return text


def _raise_unreadable(error: OSError) -> None:
    raise _unreadable(error.filename, error) from error


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read ({error.strerror or error})")


def _empty(path: str) -> InputError:
    return InputError(f"{path} is empty: it holds no document; fetch it again or leave it out")
