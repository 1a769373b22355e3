"""Sources of files: documents in order, in parts of bounded size."""

import codecs
import gzip
import json

import pyarrow
import pytest
from source_documents import read_documents

from anytime_jax.corpus import file_source
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.tfds_source import TfdsSource
from anytime_jax.errors import InputError

TEXTS = [f"document {i}: naïve 漢字\n\tindented\n" * (i % 4 + 1) for i in range(60)]


def json_lines(texts, key="text"):
    return "".join(json.dumps({key: text, "url": "u"}) + "\n" for text in texts).encode()


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.jsonl.zst"])
def test_lines_of_json_are_documents(tmp_path, name):
    content = json_lines(TEXTS, key="content")
    compress = {"gz": gzip.compress, "zst": lambda x: pyarrow.compress(x, "zstd", asbytes=True)}
    content = compress.get(name.rpartition(".")[2], bytes)(content)
    (tmp_path / name).write_bytes(content)
    held_out = codecs.BOM_UTF8 + json_lines(["held out"], key="content")
    (tmp_path / "b.jsonl").write_bytes(held_out)
    source = FileSource(str(tmp_path / "a*"), str(tmp_path / "b.jsonl"), text_field="content")
    assert read_documents(source) == {"train": TEXTS, "validation": ["held out"]}


def test_folder_reads_recursively_sorted_by_path(tmp_path):
    (tmp_path / "z" / "deep").mkdir(parents=True)
    (tmp_path / "z" / "deep" / "one.txt").write_bytes(b"crlf\r\nkept\r\n")
    (tmp_path / "b.jsonl").write_bytes(json_lines(TEXTS))
    (tmp_path / "a.txt").write_text("first", "utf-8")
    (tmp_path / "picture.png").write_bytes(b"\xff\xfe")
    documents = read_documents(FileSource(str(tmp_path), validation_fraction=0.3))
    ordered = ["first", *TEXTS, "crlf\r\nkept\r\n"]
    assert documents["train"] == [text for text in ordered if text in documents["train"]]
    assert sorted(documents["train"] + documents["validation"]) == sorted(ordered)
    assert 5 < len(documents["validation"]) < 40
    assert not set(documents["train"]) & set(documents["validation"])


def test_small_files_share_a_part(tmp_path, monkeypatch):
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text(str(i) * 100)
    monkeypatch.setattr(file_source, "PART_BYTES", 250)
    parts = FileSource(str(tmp_path)).parts()
    assert [len(part.files) for part in parts] == [3, 3, 3, 1]
    assert [text[0] for part in parts for text in part.documents()] == list("0123456789")


def test_nothing_to_read_is_refused(tmp_path):
    (tmp_path / "b.jsonl").write_bytes(json_lines(TEXTS))
    for source, named in (
        (FileSource(f"{tmp_path}/*.json.gz"), r"\*\.json\.gz"),
        (FileSource(f"{tmp_path}/b.jsonl", f"{tmp_path}/b*"), r"b\.jsonl"),
    ):
        with pytest.raises(InputError, match=named):
            source.parts()
    (part,) = FileSource(str(tmp_path / "b.jsonl")).parts()
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(InputError, match=r"b\.jsonl"):
        list(part.documents())


def test_home_directory_is_written_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("text")
    in_home = [FileSource(path, path) for path in ("~/a.txt", str(tmp_path / "a.txt"))]
    assert in_home[0] == in_home[1]
    tfds = [TfdsSource(path) for path in ("~/tfds", str(tmp_path / "tfds"))]
    assert tfds[0] == tfds[1]
