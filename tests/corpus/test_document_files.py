"""Text files: damaged, disguised and missing ones are refused by the name of their place."""

import bz2
import gzip
import json
import lzma
import os
import threading
from pathlib import Path

import pyarrow
import pytest

from anytime_jax.corpus.document_files import find_files
from anytime_jax.corpus.sources import FileSource
from anytime_jax.corpus.tfds_source import TfdsSource
from anytime_jax.corpus.vocabulary import load_vocabulary
from anytime_jax.errors import InputError

LINES = [json.dumps({"text": f"document {i}"}).encode() + b"\n" for i in range(60)]
WHOLE = b"".join(LINES)
GZIP = gzip.compress(WHOLE)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><title>404</title></html>\n"
ZSTANDARD = pyarrow.compress(WHOLE, "zstd", asbytes=True)
UTF_16 = WHOLE.decode().encode("utf-16")

# Content, and the number of the line that is named; 0 where the file is named alone.
BAD_LINES = {
    "truncated": (WHOLE[:-10], 60),
    "latin-1": (LINES[0] + LINES[1] + b'{"text": "caf\xe9"}\n', 3),
    "utf-16": (UTF_16, 0),
    "utf-16 without a mark": (UTF_16[2:], 1),
    "no field": (LINES[0] + b'{"body": "x"}\n', 2),
    "number": (LINES[0] + b'{"text": 5}\n', 2),
    "list in a line": (b'["text"]\n', 1),
    "surrogate": (b'{"text": "\\ud800"}\n', 1),
    "too deep": (LINES[0] + b"[" * 100_000, 2),
    "long number": (LINES[0] + b'{"n": ' + b"1" * 5000 + b"}", 2),
    "blank lines only": (b"\n \n\n", 0),
}
# Name, content, and what it is said to be.
BAD_FILES = {
    "empty": ("a.jsonl", b"", "empty"),
    "compressed nothing": ("a.json.gz", gzip.compress(b""), "empty"),
    "plain gz": ("a.json.gz", WHOLE, "not gzip"),
    "gzip": ("a.jsonl", GZIP, "gzip-compressed"),
    "zstandard gz": ("a.json.gz", ZSTANDARD, "zstandard-compressed"),
    "bzip2": ("a.json.gz", bz2.compress(WHOLE), "bzip2-compressed"),
    "xz": ("a.json.gz", lzma.compress(WHOLE), "xz-compressed"),
    "zip": ("a.jsonl", b"PK\x03\x04rest", "zip archive"),
    "lfs": ("a.json.gz", LFS, "git-lfs"),
    "html": ("a.json.gz", HTML, "HTML"),
    "head of gzip": ("a.json.gz", GZIP[:15], "line 0"),
    "zeros in gzip": ("a.json.gz", GZIP[:60] + bytes(60), "broken gzip"),
    "gzip less a byte": ("a.json.gz", GZIP[:-1], "line 60"),
    "gzip and more": ("a.json.gz", GZIP + b"garbage", "line 60"),
    "checksum": ("a.json.gz", GZIP[:-8] + bytes(4) + GZIP[-4:], "broken gzip"),
    "head of zst": ("a.json.zst", ZSTANDARD[:15], "line 0"),
    "zst less a byte": ("a.jsonl.zst", ZSTANDARD[:-1], "broken zstandard"),
    "zst and more": ("a.jsonl.zst", ZSTANDARD + b"garbage", "broken zstandard"),
    "plain zst": ("a.jsonl.zst", WHOLE, "not zstandard"),
    "gzip zst": ("a.jsonl.zst", GZIP, "gzip-compressed"),
    "latin-1 text": ("a.txt", b"caf\xe9", "UTF-8"),
    "cut character": ("a.txt", b"na\xc3", "UTF-8"),
    "utf-16 text": ("a.txt", "hello".encode("utf-16"), "UTF-16"),
    "hole in text": ("a.txt", b"hello" + bytes(4096), "byte 5"),
    "gzip text": ("a.txt", GZIP, "gzip-compressed"),
}


def read_error(pattern, **options):
    """Reads all documents, and returns the message of the error."""
    with pytest.raises(InputError) as error:
        _ = [list(part.documents()) for part in FileSource(str(pattern), **options).parts()]
    return str(error.value)


def compress(name, content):
    if name.endswith("zst"):
        return pyarrow.compress(content, "zstd", asbytes=True)
    return gzip.compress(content) if name.endswith("gz") else content


@pytest.mark.parametrize(
    ("value", "kind"), [("5", "a number"), ("[]", "a list"), ("{}", "an object"), ("true", "true")]
)
def test_text_that_is_another_value_is_named(tmp_path, value, kind):
    (tmp_path / "a.jsonl").write_text(f'{{"text": {value}}}\n')
    assert f"has {kind}" in read_error(tmp_path)
    assert "under 'text', which is not text" in read_error(tmp_path)


@pytest.mark.parametrize(
    ("line", "kind"), [('[{"text": "x"}]', "a list"), ("5", "a number"), ("null", "null")]
)
def test_line_that_is_no_object_is_named(tmp_path, line, kind):
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    assert f"line 1 is {kind}, not a JSON object; give one object a line" in read_error(tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_line_is_named(tmp_path, name, case):
    content, number = BAD_LINES[case]
    path = tmp_path / name
    path.write_bytes(compress(name, content))
    assert (f"{path} line {number} " if number else f"{path} ") in read_error(path)


@pytest.mark.parametrize("case", BAD_FILES)
def test_disguised_or_broken_file_is_named(tmp_path, case):
    """Beside a good file, so that none of it is skipped silently."""
    name, content, kind = BAD_FILES[case]
    good = {"gz": GZIP, "zst": ZSTANDARD}.get(name.rpartition(".")[2], WHOLE)
    (tmp_path / f"0{name}").write_bytes(good)
    (tmp_path / name).write_bytes(content)
    message = read_error(tmp_path)
    assert str(tmp_path / name) in message
    assert kind in message


def test_frames_of_zstandard_follow_each_other(tmp_path):
    (tmp_path / "a.jsonl.zst").write_bytes(2 * ZSTANDARD)
    (part,) = FileSource(str(tmp_path), validation_fraction=0.1).parts()
    assert list(part.documents()) == 2 * [f"document {i}" for i in range(60)]


def test_field_inside_another_and_null(tmp_path):
    records = [{"a": {"b": "x"}}, {"a": {"b": None}}, {"a.b": "y"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (part,) = FileSource(str(tmp_path), text_field="a.b", validation_fraction=0.1).parts()
    assert list(part.documents()) == ["x", None, "y"]
    (tmp_path / "a.jsonl").write_text('{"a": {"c": "x"}}')
    assert "line 1" in read_error(tmp_path, text_field="a.b")


def test_empty_text_files_and_blank_lines_are_skipped(tmp_path):
    (tmp_path / "0.txt").write_bytes(b"")
    (tmp_path / "a.jsonl").write_bytes(WHOLE.replace(b"\n", b"\n\n \r\n"))
    parts = FileSource(str(tmp_path)).parts()
    texts = [text for part in parts for text in part.documents()]
    assert texts == [f"document {i}" for i in range(60)]


@pytest.mark.parametrize("pattern", ["d/b.jsonl", "d/*.jsonl", "d"])
@pytest.mark.parametrize("fault", ["link", "closed"])
def test_unreadable_file_is_named(tmp_path, pattern, fault):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.jsonl").write_bytes(WHOLE)
    file = tmp_path / "d" / "b.jsonl"
    if fault == "link":
        file.symlink_to(tmp_path / "gone")
    else:
        file.write_bytes(WHOLE)
        file.chmod(0)
        if os.access(file, os.R_OK):
            pytest.skip("no file is closed to the superuser")
    assert str(file) in read_error(tmp_path / pattern)


def test_directory_with_the_name_of_a_file_is_named(tmp_path):
    (tmp_path / "b.jsonl").mkdir()
    assert str(tmp_path / "b.jsonl") in read_error(tmp_path / "*.jsonl")


def test_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9")
    (part,) = FileSource(str(tmp_path)).parts()
    assert list(part.documents()) == ["café"]


def test_long_keys_are_cut_in_messages(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"k" * 100_000: "x", "\x1b[31m": 1}))
    line = read_error(tmp_path / "a.jsonl")
    assert len(line) < 400
    assert "\x1b" not in line


@pytest.fixture
def make_pipe():
    """Makes a named pipe with a writer, so that a reader fails instead of waiting for ever."""
    pipes = []

    def make(path):
        os.mkfifo(path)
        threading.Thread(target=lambda: open(path, "wb").close(), daemon=True).start()
        pipes.append(path)
        return path

    yield make
    for path in pipes:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # ends the writer


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.txt", lambda path: FileSource(str(path.parent)).parts()),
        ("a.jsonl", lambda path: FileSource(str(path)).parts()),
        ("a.json.gz", lambda path: FileSource(f"{path.parent}/*.gz").parts()),
        ("dataset_info.json", lambda path: TfdsSource(str(path.parent)).parts()),
        ("v.model", load_vocabulary),
        ("tokenizer.json", load_vocabulary),
    ],
)
def test_named_pipe_is_refused(name, read, tmp_path, make_pipe):
    path = make_pipe(tmp_path / name)
    with pytest.raises(InputError, match=f"{path} is a named pipe"):
        read(path)


def test_empty_path_is_refused(tmp_path, monkeypatch):
    """It would be the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InputError, match="input is empty"):
        FileSource("").parts()


def test_linked_folders_are_read_once_and_names_may_be_in_capitals(tmp_path):
    inner, other = tmp_path / "texts" / "inner", tmp_path / "other"
    inner.mkdir(parents=True)
    other.mkdir()
    for path in (inner / "a.TXT", other / "b.txt"):
        path.write_text("words")
    (tmp_path / "texts" / "linked").symlink_to(other)
    (inner / "again").symlink_to(tmp_path / "texts")  # a loop
    (inner / "twice").symlink_to(other)
    found = [Path(path).name for path, _ in find_files(str(tmp_path / "texts"))]
    assert sorted(found) == ["a.TXT", "b.txt"]
