"""Sources give the documents that are there, in order, and refuse what is not text."""

import gzip
import json
import pickle
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from tensorboardX.record_writer import RecordWriter

from anytime_jax.data import sources
from anytime_jax.data.builtin_source import BuiltinSource
from anytime_jax.data.sources import FileSource, split_of
from anytime_jax.data.tfds_source import TfdsSource
from anytime_jax.errors import InputError

TEXTS = [f"document {i}: naïve 漢字\n\tindented\n" * (i % 4 + 1) for i in range(60)]

HELD_OUT = [f"held out {i}" for i in range(5)]


def read(source):
    """All documents by split, each part having been to another process and back."""
    documents = {"train": [], "validation": []}
    for part in pickle.loads(pickle.dumps(source.parts())):
        for text in part.documents():
            documents[split_of(text, part.validation_fraction)].append(text)
    return documents


def json_lines(texts, key="text"):
    return "".join(json.dumps({key: text, "url": "u"}) + "\n" for text in texts).encode()


def test_split_of_hashes_content():
    assert {split_of(text, 0.0) for text in TEXTS} == {"train"}
    assert {split_of(text, 1.0) for text in TEXTS} == {"validation"}
    numbers = [str(i) for i in range(4000)]
    low = {text for text in numbers if split_of(text, 0.1) == "validation"}
    high = {text for text in numbers if split_of(text, 0.2) == "validation"}
    assert low < high
    assert abs(len(low) - 400) < 100  # five standard deviations
    assert abs(len(high) - 800) < 130


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz", "a.jsonl.gz"])
def test_json(tmp_path, name):
    content = json_lines(TEXTS, key="content")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (tmp_path / "b.jsonl").write_bytes(json_lines(["held out"], key="content"))
    source = FileSource(
        "json", str(tmp_path / "a*"), str(tmp_path / "b.jsonl"), text_field="content"
    )
    assert read(source) == {"train": TEXTS, "validation": ["held out"]}


def test_folder_reads_recursively_sorted_by_path(tmp_path):
    (tmp_path / "z" / "deep").mkdir(parents=True)
    (tmp_path / "z" / "deep" / "one.txt").write_bytes(b"crlf\r\nkept\r\n")
    (tmp_path / "b.jsonl").write_bytes(json_lines(TEXTS))
    (tmp_path / "a.txt").write_text("first", "utf-8")
    (tmp_path / "picture.png").write_bytes(b"\xff\xfe")
    documents = read(FileSource("folder", str(tmp_path), validation_fraction=0.3))
    ordered = ["first", *TEXTS, "crlf\r\nkept\r\n"]
    assert documents["train"] == [text for text in ordered if text in documents["train"]]
    assert sorted(documents["train"] + documents["validation"]) == sorted(ordered)
    assert 5 < len(documents["validation"]) < 40
    assert not set(documents["train"]) & set(documents["validation"])


def test_small_files_share_a_part(tmp_path, monkeypatch):
    for i in range(10):
        (tmp_path / f"{i}.txt").write_text(str(i) * 100)
    monkeypatch.setattr(sources, "PART_BYTES", 250)
    parts = FileSource("folder", str(tmp_path)).parts()
    assert [len(part.files) for part in parts] == [3, 3, 3, 1]
    assert [text[0] for part in parts for text in part.documents()] == list("0123456789")


@pytest.fixture(scope="module")
def tfds_directories(tmp_path_factory):
    """The same documents in both of TFDS's formats, in several shards."""
    root = tmp_path_factory.mktemp("tfds")
    features = tfds.features.FeaturesDict(
        {"text": tfds.features.Text(), "url": tfds.features.Text()}
    )

    class Tiny(tfds.core.GeneratorBasedBuilder):
        """Documents as C4 has them."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate(TEXTS), "validation": self._generate(HELD_OUT)}

        def _generate(self, texts):
            for key, text in enumerate(texts):
                yield key, {"text": text, "url": "u"}

        def _generate_examples(self):
            raise NotImplementedError

    builder = Tiny(data_dir=str(root), file_format="array_record")
    config = tfds.download.DownloadConfig(num_shards=3)
    builder.download_and_prepare(download_config=config)

    # TFDS itself cannot write this format without TensorFlow; tensorboardX can.
    tfrecord = root / "tfrecord"
    tfrecord.mkdir()
    split_infos = []
    for split, texts in {"train": TEXTS, "validation": HELD_OUT}.items():
        writer = RecordWriter(str(tfrecord / f"tiny-{split}.tfrecord-00000-of-00001"))
        for text in texts:
            writer.write(features.serialize_example({"text": text, "url": "u"}))
        writer.close()
        template = tfds.core.ShardedFileTemplate(
            data_dir=tfrecord, dataset_name="tiny", split=split, filetype_suffix="tfrecord"
        )
        split_infos.append(
            tfds.core.SplitInfo(
                name=split, shard_lengths=[len(texts)], num_bytes=1, filename_template=template
            )
        )
    tfds.folder_dataset.write_metadata(
        data_dir=tfrecord, features=features, split_infos=split_infos, check_data=False
    )
    return {"array_record": builder.data_dir, "tfrecord": tfrecord}


@pytest.mark.parametrize("format_name", ["array_record", "tfrecord"])
def test_tfds(tfds_directories, format_name):
    directory = tfds_directories[format_name]
    documents = read(TfdsSource(str(directory)))
    assert sorted(documents["train"]) == sorted(TEXTS)
    assert sorted(documents["validation"]) == HELD_OUT
    if format_name == "array_record":  # TFDS shuffles when it writes: its reader is the oracle
        stored = tfds.builder_from_directory(directory).as_data_source("train")
        assert documents["train"] == [example["text"].decode() for example in stored]
    slices = TfdsSource(str(directory), split="train[7:31]", validation_split="train[31:]")
    assert read(slices) == {
        "train": documents["train"][7:31],
        "validation": documents["train"][31:],
    }


def test_tfds_share_for_validation(tfds_directories):
    source = TfdsSource(
        str(tfds_directories["tfrecord"]), validation_split=None, validation_fraction=0.3
    )
    documents = read(source)
    assert sorted(documents["train"] + documents["validation"]) == sorted(TEXTS)
    assert documents["validation"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "test"}, "no split 'test'.*train.*validation"),
        ({"validation_split": None, "validation_fraction": 1.5}, "fraction 1.5"),
        ({"input": "/nowhere"}, "not a prepared TFDS dataset"),
    ],
)
def test_tfds_bad_settings(tfds_directories, options, message):
    with pytest.raises(InputError, match=message):
        TfdsSource(**{"input": str(tfds_directories["tfrecord"]), **options}).parts()


def test_tfds_without_that_feature(tfds_directories):
    source = TfdsSource(str(tfds_directories["tfrecord"]), text_field="body")
    with pytest.raises(InputError, match=r"record 0 has no text under 'body'.*'text', 'url'"):
        read(source)


@pytest.mark.parametrize("format_name", ["array_record", "tfrecord"])
@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_tfds_damaged(tfds_directories, tmp_path, format_name, damage):
    for file in Path(tfds_directories[format_name]).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = next(tmp_path.glob("tiny-validation*"))
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(InputError, match="tiny-validation") as error:
        read(TfdsSource(str(tmp_path)))
    assert "\n" not in str(error.value)


def test_builtin():
    source = BuiltinSource(0.5, validation_fraction=0.3)
    assert pickle.dumps(source.parts()) == pickle.dumps(source.parts())
    documents = read(source)
    texts = documents["train"] + documents["validation"]
    size = sum(len(text.encode()) for text in texts)
    assert 0.5e6 <= size < 1.5e6
    assert len(set(texts)) == len(texts)
    assert documents["validation"]
    # The standard library comes first, and not by the alphabet.
    files = [Path(path) for part in source.parts() for path, _ in part.files]
    assert all("site-packages" not in path.parts for path in files)
    assert files != sorted(files)
    more = [path for part in BuiltinSource(0.6).parts() for path, _ in part.files]
    assert more[: len(files)] == [str(path) for path in files]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (BuiltinSource(1e6), "this machine has"),
        (BuiltinSource(0), "more than 0"),
        (BuiltinSource(1, validation_fraction=0), "fraction 0"),
    ],
)
def test_builtin_bad_settings(source, message, monkeypatch):
    root = Path(json.__file__).parent
    paths = {"stdlib": str(root), "purelib": str(root), "platlib": str(root)}
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)
    with pytest.raises(InputError, match=message):
        source.parts()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9", "a.txt is not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n', "line 2 is not UTF-8"),
        ("a.jsonl", b'{"text": "fine"}\n{"text": \n', "line 2 is not a JSON object"),
        ("a.jsonl", b'{"text": "fine"}\n{"txt": "x"}\n', r"line 2 has no text.*\['txt'\]"),
        ("a.jsonl", b'{"text": 5}\n', "line 1 has no text"),
        ("a.jsonl", b'["text"]\n', "line 1 has no text.*list"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1 is not valid Unicode"),
        ("a.json.gz", gzip.compress(json_lines(TEXTS))[:-20], "broken gzip"),
        ("a.json.gz", json_lines(TEXTS), "not gzip data"),
        ("a.json.gz", gzip.compress(json_lines(TEXTS))[:60] + b"\0" * 60, "broken gzip"),
    ],
)
def test_bad_content_names_file_and_record(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read(FileSource("folder", str(tmp_path)))
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_to_read_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "b.jsonl").write_bytes(json_lines(TEXTS))
    with pytest.raises(InputError, match="names no file"):
        FileSource("json", str(tmp_path / "*.json.gz")).parts()
    with pytest.raises(InputError, match="names no file"):
        FileSource("folder", str(tmp_path / "nowhere")).parts()
    with pytest.raises(InputError, match="none of"):
        FileSource("json", str(tmp_path / "*")).parts()
    with pytest.raises(InputError, match=r"b\.jsonl is in the training and in the validation"):
        FileSource("json", str(tmp_path / "b.jsonl"), str(tmp_path / "b*")).parts()
    (part,) = FileSource("json", str(tmp_path / "b.jsonl")).parts()
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        list(part.documents())


def test_real_c4(c4_data):
    names = [f"c4-sample.0{i}.json.gz" for i in (1, 2, 3)]
    files = [c4_data / name for name in names]
    lines = [line for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    expected = [json.loads(line)["text"] for line in lines]
    source = FileSource(
        "json", str(files[0].parent / "c4-sample.*.json.gz"), validation_fraction=0.1
    )
    documents = read(source)
    assert sorted(documents["train"] + documents["validation"]) == sorted(expected)
