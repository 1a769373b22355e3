"""Text files: which there are, and their documents. What is damaged is named, with its line."""

from __future__ import annotations

import glob
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from anytime_jax.data.local_paths import require_local_path
from anytime_jax.errors import InputError

JSON_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")

_HEAD_BYTES = 64
_GZIP = b"\x1f\x8b"
_UTF_8_BOM = b"\xef\xbb\xbf"
# What a file may be instead of the text its name promises: how it begins, what it is, what to do.
_DISGUISES = (
    (_GZIP, "gzip-compressed", "if it holds JSON lines, name it .json.gz, else decompress it"),
    (rb"\x28\xb5\x2f\xfd", "zstandard-compressed", "decompress it, or compress it with gzip"),
    (rb"BZh[1-9]1AY&SY", "bzip2-compressed", "decompress it, or compress it with gzip"),
    (rb"\xfd7zXZ\0", "xz-compressed", "decompress it, or compress it with gzip"),
    (rb"\x04\x22\x4d\x18", "lz4-compressed", "decompress it, or compress it with gzip"),
    (rb"PK\x03\x04", "a zip archive", "unpack it"),
    (
        rb"version https://git-lfs\.github\.com",
        "a git-lfs pointer, not the file",
        "fetch it with git lfs pull",
    ),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text", "convert it to UTF-8"),
)
_HTML = re.compile(rb"\s*<(!doctype|html)", re.IGNORECASE)


def find_files(pattern: str, suffixes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Finds the files of a path, a glob or a folder (searched recursively).

    Args:
      pattern: the path.
      suffixes: what the files' names may end with; others in a folder are passed over.

    Returns:
      Paths and sizes in bytes, sorted by path.

    Raises:
      InputError: there is none, one is of another kind, or a JSON file is empty, compressed in
        another way than its name says, or something else altogether.
    """
    require_local_path(pattern)
    root = os.path.abspath(os.path.expanduser(pattern))
    if os.path.isdir(root):
        found = [os.path.join(folder, n) for folder, _, names in _walk(root) for n in names]
        found = [path for path in found if path.endswith(suffixes)]
    else:
        # A pattern such as "**" matches folders too; one that is called like a file is a mistake.
        matches = [root] if os.path.lexists(root) else glob.glob(root, recursive=True)
        found = [path for path in matches if not os.path.isdir(path) or path.endswith(suffixes)]
    if not found:
        raise InputError(
            f"{pattern} names no file; give a file, a folder or a quoted glob of "
            f"{', '.join(suffixes)} files"
        )
    return [(path, _check_file(path, suffixes)) for path in sorted(found)]


def read_text(path: str) -> Iterator[str]:
    """Yields the one document of a text file, or none where it is empty.

    Raises:
      InputError: it cannot be read or is not UTF-8 text.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_reason(error)})") from error
    _refuse_disguise(content[:_HEAD_BYTES], path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); convert or remove it") from error
    if "\0" in text:
        at = content.index(b"\0")
        raise InputError(
            f"{path} has a NUL at byte {at}, which no text has (UTF-16, or a hole where data were "
            "lost); convert, fetch again or remove it"
        )
    if text:
        yield text


def read_json_lines(path: str, text_field: str) -> Iterator[str]:
    """Yields the document of every line of a JSON file, plain or `.gz`; blank lines are none.

    Args:
      path: the file.
      text_field: the key of the text.

    Raises:
      InputError: it holds no line, or one that is not such a record; the message has its number.
    """
    number, documents = 0, 0
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path} line {number}"
                if number == 1:  # of what was compressed
                    _refuse_disguise(line[:_HEAD_BYTES], where)
                if line.strip():
                    documents += 1
                    yield _text_of_line(line, text_field, where)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is a broken gzip file after line {number} ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_reason(error)})") from error
    if not documents:
        raise _empty(path)


def _walk(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be opened ({_reason(error)})") from error

    return os.walk(root, onerror=refuse)


def _check_file(path: str, suffixes: tuple[str, ...]) -> int:
    """The size of a file that can be read and is what its name says."""
    if os.path.isdir(path):
        raise InputError(f"{path} is a directory where a file is expected; name the files in it")
    if not path.endswith(suffixes):
        raise InputError(f"{path} is none of {', '.join(suffixes)}; name only such files")
    if not os.path.exists(path):
        raise InputError(f"{path} is a link to a file that does not exist; fetch or remove it")
    size = os.path.getsize(path)
    if path.endswith(JSON_SUFFIXES):
        if not size:
            raise _empty(path)
        _check_head(path)
    return size


def _check_head(path: str) -> None:
    """Refuses a JSON file that does not begin as its name says."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({_reason(error)})") from error
    if path.endswith(".gz") and _GZIP.startswith(head[: len(_GZIP)]):
        return
    _refuse_disguise(head, path)
    if _HTML.match(head):
        raise InputError(f"{path} is an HTML page, as a failed download leaves; fetch it again")
    if path.endswith(".gz"):
        raise InputError(
            f"{path} is not gzip data (it begins with {head[:8]!r}); fetch it again, or name it "
            "without .gz if it is plain text"
        )


def _refuse_disguise(head: bytes, where: str) -> None:
    for beginning, what, remedy in _DISGUISES:
        if re.match(beginning, head):
            raise InputError(f"{where} is {what}; {remedy}")


def _empty(path: str) -> InputError:
    return InputError(f"{path} is empty: it holds no document; fetch it again or leave it out")


def _text_of_line(line: bytes, text_field: str, where: str) -> str:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not UTF-8 text ({error}); convert the file") from error
    # Also what Python's parser has no words of its own for: too deep, a number too long.
    except (ValueError, RecursionError) as error:
        if b"\0" in line:
            raise InputError(
                f"{where} holds NUL bytes (UTF-16, or a hole where data were lost); convert the "
                "file or fetch it again"
            ) from error
        raise InputError(f"{where} is not a JSON object ({error}); give one a line") from error
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        keys = sorted(record)[:20] if isinstance(record, dict) else type(record).__name__
        raise InputError(
            f"{where} has no text under {text_field!r} (it has {keys}); name the field that "
            "holds the text"
        )
    try:
        text.encode("utf-8")  # JSON can spell half of a surrogate pair, which is no text
    except UnicodeEncodeError as error:
        raise InputError(f"{where} is not valid Unicode ({error}); mend that line") from error
    return text


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
