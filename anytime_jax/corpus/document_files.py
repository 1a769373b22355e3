"""Text files: search and reading of documents; errors name the file and the line."""

from __future__ import annotations

import fnmatch
import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from anytime_jax.checks import format_value
from anytime_jax.data.dataset_info import METADATA_NAME, WORK_NAME
from anytime_jax.errors import InputError
from anytime_jax.storage.files import file_size, read_file
from anytime_jax.storage.json_files import parse_json
from anytime_jax.storage.paths import is_address

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".tex")  # each file is one document
JSON_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")

_HEAD_BYTES = 64
_GZIP = b"\x1f\x8b"
_DECOMPRESS = "decompress it, or compress it with gzip"
# First bytes of files whose content is not the text that their name promises.
_OTHER_KINDS = {
    _GZIP: "gzip-compressed; if it holds JSON lines, name it .json.gz, else decompress it",
    rb"\x28\xb5\x2f\xfd": f"zstandard-compressed; {_DECOMPRESS}",
    rb"BZh[1-9]1AY&SY": f"bzip2-compressed; {_DECOMPRESS}",
    rb"\xfd7zXZ\0": f"xz-compressed; {_DECOMPRESS}",
    rb"\x04\x22\x4d\x18": f"lz4-compressed; {_DECOMPRESS}",
    rb"PK\x03\x04": "a zip archive; unpack it",
    rb"version https://git-lfs": "a git-lfs pointer, not the file; fetch it with git lfs pull",
    rb"\xff\xfe|\xfe\xff": "UTF-16 text; convert it to UTF-8",
}
_HTML = re.compile(rb"\s*<(!doctype|html)", re.IGNORECASE)


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


def find_files(pattern: str, suffixes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Finds the files of a path, a glob or a folder, which is searched recursively.

    Files with other suffixes are skipped in a folder and rejected elsewhere. A JSON file that is
    empty or not what its name says is rejected too.

    Returns:
      Paths and sizes in bytes, sorted by path.
    """
    root = local_path(pattern)
    if os.path.isdir(root):
        walk = os.walk(root, onerror=_raise_unreadable)
        files = [os.path.join(folder, name) for folder, _, names in walk for name in names]
        total = len(files)
        files = [path for path in files if path.endswith(suffixes)]
    else:
        total = 0
        # A pattern such as "**" matches folders too; a folder that is named like a file is a
        # mistake.
        matches = [root] if os.path.lexists(root) else glob.glob(root, recursive=True)
        files = [path for path in matches if not os.path.isdir(path) or path.endswith(suffixes)]
    if not files:
        others = f" ({total:,} of other kinds)" if total else ""
        raise InputError(
            f"{pattern} names no file of text{others}; give a file, a folder or a quoted glob of "
            f"{', '.join(suffixes)} files"
        )
    return [(path, _check_file(path, suffixes)) for path in sorted(files)]


def would_find(pattern: str, suffixes: tuple[str, ...], file: Path) -> bool:
    """Returns whether `find_files` finds a file, which need not exist yet."""
    if is_address(file) or not file.name.endswith(suffixes):
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
        content = read_file(Path(path))
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


def read_json_lines(path: str, text_field: str) -> Iterator[str]:
    """Yields the document of every line of a JSON file, plain or `.gz`, except blank lines."""
    number, documents = 0, 0
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                place = f"{path} line {number}"
                if number == 1:  # now decompressed
                    _check_kind(line[:_HEAD_BYTES], place)
                if line.strip():
                    documents += 1
                    yield _parse_line(line, text_field, place)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is a broken gzip file after line {number} ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if not documents:
        raise _empty(path)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Returns whether a split path matches a split glob; "**" is any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[i:], pattern[1:]) for i in range(len(parts) + 1))
    is_match = bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0])
    return is_match and _matches(parts[1:], pattern[1:])


def _check_file(path: str, suffixes: tuple[str, ...]) -> int:
    """The size of a file that can be read and is what its name says."""
    if not {METADATA_NAME, WORK_NAME}.isdisjoint(Path(path).parts):
        raise InputError(
            f"{path} belongs to a prepared dataset or an exported model, which is not text; leave "
            "that directory out"
        )
    if not path.endswith(suffixes):
        raise InputError(f"{path} is none of {', '.join(suffixes)}; name only such files")
    try:
        size = file_size(path)
    except OSError as error:
        if os.path.islink(path):
            raise InputError(
                f"{path} is a link to a file that does not exist; fetch or remove it"
            ) from error
        raise _unreadable(path, error) from error
    if path.endswith(JSON_SUFFIXES):
        _check_json_head(path)
    return size


def _check_json_head(path: str) -> None:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not head:
        raise _empty(path)
    is_gzip = path.endswith(".gz")
    if is_gzip and _GZIP.startswith(head[: len(_GZIP)]):
        return
    _check_kind(head, path)
    if _HTML.match(head):
        raise InputError(f"{path} is an HTML page, as a failed download leaves; fetch it again")
    if is_gzip:
        raise InputError(
            f"{path} is not gzip data (it begins with {head[:8]!r}); fetch it again, or name it "
            "without .gz if it is plain text"
        )


def _check_kind(head: bytes, place: str) -> None:
    for beginning, kind in _OTHER_KINDS.items():
        if re.match(beginning, head):
            raise InputError(f"{place} is {kind}")


def _parse_line(line: bytes, text_field: str, place: str) -> str:
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
    fields = record if isinstance(record, dict) else {}
    text = fields.get(text_field)
    if not isinstance(text, str):
        content = format_value(sorted(fields)) if fields else type(record).__name__
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
