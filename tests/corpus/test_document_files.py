"""Text files: damaged, disguised and missing ones are refused by the name of their place."""

import gzip
import json
import os
import struct
import threading
from pathlib import Path

import pyarrow
import pytest

from anytime_jax.corpus.document_files import find_files
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.source_interface import LeftOut
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.errors import InputError

LINES = [json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(60)]
WHOLE = b"".join(LINES)
GZIP = gzip.compress(WHOLE)
ZSTANDARD = pyarrow.compress(WHOLE, "zstd", asbytes=True)
UTF_16 = WHOLE.decode().encode("utf-16")

# Name of a file, its content, and what is named after its path: a line, or "" for the file alone.
BAD = {
    "truncated": ("0.jsonl", WHOLE[:-10], "line 60"),
    "latin-1": ("0.jsonl", LINES[0] + LINES[1] + b'{"text": "caf\xe9"}\n', "line 3"),
    "no field": ("0.jsonl", LINES[0] + b'{"body": "x"}\n', "line 2"),
    "number": ("0.json.gz", gzip.compress(LINES[0] + b'{"text": 5}\n'), "line 2"),
    "surrogate": ("0.jsonl", b'{"text": "\\ud800"}\n', "line 1"),
    "blank lines only": ("0.jsonl", b"\n \n\n", ""),
    "empty": ("0.jsonl", b"", ""),
    "empty gzip": ("0.jsonl.gz", b"", ""),
    "plain gz": ("0.json.gz", WHOLE, ""),
    "gzip less a byte": ("0.json.gz", GZIP[:-1], ""),
    "checksum": ("0.json.gz", GZIP[:-8] + bytes(4) + GZIP[-4:], ""),
    "zst less a byte": ("0.jsonl.zst", ZSTANDARD[:-1], ""),
}
# What is no document in a folder, by the name of the file or folder that is named for it.
LEFT_OUT = {
    "hidden": (".git/objects/a", b"text", ".git"),
    "hidden in a folder": ("src/.env", b"text", "src/.env"),
    "empty": ("empty/__init__.py", b"", "empty/__init__.py"),
    "latin-1": ("notes.txt", b"caf\xe9", "notes.txt"),
    "latin-1 at the end": ("long.c", b"a" * 2**19 + b"\xe9", "long.c"),
    "hole": ("a.md", b"hello" + bytes(4096), "a.md"),
    "UTF-16": ("b.txt", UTF_16, "b.txt"),
    "picture": ("p.png", b"\x89PNG\r\n\x1a\n\0\0", "p.png"),
    "archive": ("a.tar.gz", gzip.compress(bytes(512)), "a.tar.gz"),
    "settings": ("package.json", b'{\n  "name": "x"\n}\n', "package.json"),
    "list": ("list.json.gz", gzip.compress(b'[{"text": "x"}]\n'), "list.json.gz"),
}


def read_error(pattern):
    """Reads all documents, and returns the message of the error."""
    with pytest.raises(InputError) as error:
        _ = [list(part.documents()) for part in FileSource(str(pattern)).parts()]
    return str(error.value)


@pytest.mark.parametrize("case", BAD)
def test_bad_file_and_line_are_named(tmp_path, case):
    """Beside a good file, so that none of it is skipped silently."""
    name, content, line = BAD[case]
    (tmp_path / "1.jsonl").write_bytes(WHOLE)
    (tmp_path / name).write_bytes(content)
    message = read_error(tmp_path)
    assert f"{tmp_path / name} " in message
    assert line in message


def skippable(size):
    """A frame of zstandard that holds no text, as pzstd writes before each of its frames."""
    return struct.pack("<II", 0x184D2A50, size) + bytes(size)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        ("zst", 2 * ZSTANDARD),
        ("zst", 2 * (skippable(4) + ZSTANDARD) + skippable(2**18)),
        ("zst", skippable(2**16 - 8) + pyarrow.compress(b"", "zstd", asbytes=True) + 2 * ZSTANDARD),
        ("gz", 2 * GZIP + gzip.compress(b"")),
        ("gz", 2 * (GZIP + bytes(512))),  # padded, as tapes are
    ],
)
def test_every_frame_and_member_is_read(tmp_path, suffix, content):
    (tmp_path / f"a.jsonl.{suffix}").write_bytes(content)
    (part,) = FileSource(str(tmp_path), validation_fraction=0.1).parts()
    assert list(part.documents()) == 2 * [f"document {i}" for i in range(60)]


def test_long_window_of_zstandard_is_named_with_its_remedy(tmp_path):
    """In a frame by hand: magic, no content size, a window of 2**28 bytes, one raw block."""
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00\x90\x09\x00\x00x")
    assert "zstd -d --long=31" in read_error(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "\\ud83d"}',
        b'{"text": "x", "n": ' + b"9" * 5_000 + b"}",
        b'{"text": "x", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"text": "caf\xe9"}',
        b'{"body": "x"}',
        b'{"text": "x"',
    ],
)
def test_bad_record_is_left_out_by_its_line_if_asked(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(b"".join([*LINES[:7], line, b"\n", *LINES[7:]]))
    source = FileSource(str(tmp_path), validation_fraction=0.1, bad_records="skip")
    (part,) = source.parts()
    records = list(part.documents())
    assert records.pop(7).place == f"{tmp_path / 'a.jsonl'} line 8"
    assert records == [f"document {i}" for i in range(60)]


def test_file_of_records_is_told_by_a_first_record_that_is_bad(tmp_path):
    """A first line that is no record makes a .json file something else, not text."""
    (tmp_path / "a.json").write_bytes(b'{"text": "\\ud83d"}\n' + WHOLE)
    assert f"{tmp_path / 'a.json'} line 1 " in read_error(tmp_path)


def test_file_without_a_record_is_left_out_if_asked(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\n")
    (part,) = FileSource(str(tmp_path), validation_fraction=0.1, bad_records="skip").parts()
    assert [x.place for x in part.documents()] == [str(tmp_path / "a.jsonl")]


def test_field_inside_another_and_null(tmp_path):
    records = [{"a": {"b": "x"}}, {"a": {"b": None}}, {"a.b": "y"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (part,) = FileSource(str(tmp_path), text_field="a.b", validation_fraction=0.1).parts()
    assert list(part.documents()) == ["x", None, "y"]


@pytest.mark.parametrize("case", LEFT_OUT)
def test_other_files_are_left_out_by_name(tmp_path, case):
    """Without changing the parts, and so the tokens, of the text beside them."""
    name, content, named = LEFT_OUT[case]
    (tmp_path / "text").write_text("words")
    (before,) = FileSource(str(tmp_path)).parts()
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content)
    (part,) = FileSource(str(tmp_path)).parts()
    records = list(part.documents())
    assert [x for x in records if isinstance(x, str)] == ["words"]
    assert [x.name for x in records if isinstance(x, LeftOut)] == [str(tmp_path / named)]
    assert (part.identity == before.identity) == ("hidden" in case)


@pytest.mark.parametrize("name", ["Makefile", "a.py", "b.csv", "c.py.gz", "d.log.zst", "e.json5"])
def test_text_is_told_by_its_content(tmp_path, name):
    text = "def naïve():\n\treturn 'x'\r\n"
    compress = {"gz": gzip.compress, "zst": lambda x: pyarrow.compress(x, "zstd", asbytes=True)}
    (tmp_path / name).write_bytes(compress.get(name.rpartition(".")[2], bytes)(text.encode()))
    for pattern in (tmp_path, tmp_path / name, tmp_path / "*"):
        (part,) = FileSource(str(pattern)).parts()
        assert list(part.documents()) == [text]


def test_folder_below_a_hidden_one_is_read(tmp_path):
    folder = tmp_path / ".cache" / "text"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("words")
    (part,) = FileSource(f"{folder}/").parts()
    assert list(part.documents()) == ["words"]
    (folder / "a.txt").rename(folder / ".a.txt")
    with pytest.raises(InputError, match=str(folder)):
        FileSource(str(folder)).parts()


def test_blank_lines_are_skipped(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(WHOLE.replace(b"\n", b"\n\n \r\n"))
    parts = FileSource(str(tmp_path)).parts()
    texts = [text for part in parts for text in part.documents()]
    assert texts == [f"document {i}" for i in range(60)]


def test_link_to_no_file_in_a_folder_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(WHOLE)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    assert str(tmp_path / "b.jsonl") in read_error(tmp_path)


def test_folder_with_the_name_of_a_file_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(WHOLE)
    (tmp_path / "b.jsonl").mkdir()
    assert str(tmp_path / "b.jsonl") in read_error(tmp_path / "*")


def test_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9")
    (part,) = FileSource(str(tmp_path)).parts()
    assert list(part.documents()) == ["café"]


@pytest.mark.parametrize(
    ("name", "read"),
    [("a.jsonl", lambda path: FileSource(str(path)).parts()), ("v.model", load_vocabulary)],
)
def test_named_pipe_is_refused(name, read, tmp_path):
    path = tmp_path / name
    os.mkfifo(path)
    # With a writer, a reader of it would fail here instead of waiting for ever.
    threading.Thread(target=lambda: open(path, "wb").close(), daemon=True).start()
    with pytest.raises(InputError, match=str(path)):
        read(path)


def test_empty_path_is_refused():
    """It would be the working directory."""
    with pytest.raises(InputError, match="input"):
        FileSource("")


def test_linked_folders_are_read_once_and_names_may_be_in_capitals(tmp_path):
    inner, other = tmp_path / "texts" / "inner", tmp_path / "other"
    inner.mkdir(parents=True)
    other.mkdir()
    for path in (inner / "a.TXT", other / "b.txt"):
        path.write_text("words")
    (tmp_path / "texts" / "linked").symlink_to(other)
    (inner / "again").symlink_to(tmp_path / "texts")  # a loop
    (inner / "twice").symlink_to(other)
    found = [Path(path).name for path, _ in find_files(str(tmp_path / "texts")).files]
    assert sorted(found) == ["a.TXT", "b.txt"]


def test_part_of_a_glob_that_exists_is_a_name(tmp_path):
    folder = tmp_path / "text [v1]" / "a*"
    folder.mkdir(parents=True)
    (folder / "b.txt").write_text("words")
    found = [path for path, _ in find_files(str(folder / "*.t[x]t")).files]
    assert found == [str(folder / "b.txt")]


@pytest.mark.parametrize("suffix", ["ndjson", "JSONLINES.gz"])
def test_every_name_of_lines_of_json(tmp_path, suffix):
    content = b'{"text": "a"}\n{"text": "b"}\n'
    compressed = gzip.compress(content) if suffix.endswith("gz") else content
    (tmp_path / f"x.{suffix}").write_bytes(compressed)
    (part,) = FileSource(str(tmp_path)).parts()
    assert list(part.documents()) == ["a", "b"]
