"""Damaged, disguised and missing data: one line that names the file and the record, or no harm."""

import bz2
import gzip
import itertools
import json
import lzma
import os
import random
import shutil
import sys

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from run_command import run_command
from tensorboardX.crc32c import crc32c
from tensorboardX.record_writer import RecordWriter, masked_crc32c
from tensorflow_datasets.proto import tf_example_pb2

from anytime_jax.commands import prepare
from anytime_jax.data import dataset, preparation, tfrecord
from anytime_jax.data.dataset import load_dataset, seal
from anytime_jax.data.sources import FileSource
from anytime_jax.data.vocabulary import train_vocabulary
from anytime_jax.data.windows import Windows, prefetch_batches
from anytime_jax.errors import InputError, RunError

LENGTH = 16
TEXTS = [f"document {i} " + "of words and numbers " * (i % 5 + 1) for i in range(60)]
LINES = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]
WHOLE = b"".join(LINES)
GZIP = gzip.compress(WHOLE)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
HTML = b"<!DOCTYPE html>\n<html><title>404</title></html>\n"
ZSTANDARD = bytes.fromhex("28b52ffd") + b"rest"
UTF_16 = WHOLE.decode().encode("utf-16")


def plain(value):
    """Names a case by its text: compressed bytes hold the time of day."""
    return value if isinstance(value, str) else type(value).__name__


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A vocabulary, validation text, a prepared dataset and one of TFDS's in both formats."""
    folder = tmp_path_factory.mktemp("faults")
    train_vocabulary(TEXTS, 300, folder / "v.model")
    (folder / "validation.jsonl").write_bytes(WHOLE)
    (folder / "train.jsonl").write_bytes(WHOLE)
    source = FileSource("json", str(folder / "train.jsonl"), str(folder / "validation.jsonl"))
    preparation.prepare(source, folder / "data", length=LENGTH, vocabulary=folder / "v.model")
    for stored_as in ("array_record", "tfrecord"):
        write_tfds(folder / stored_as, stored_as)
    return folder


def write_tfds(folder, stored_as):
    folder.mkdir()
    for split in ("train", "validation"):
        write_shard(folder / f"tiny-{split}.{stored_as}-00000-of-00001", TEXTS)
    splits = [{"name": name, "shardLengths": [str(len(TEXTS))]} for name in ("train", "validation")]
    info = {"name": "tiny", "version": "1.0.0", "fileFormat": stored_as, "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))


def write_shard(path, texts):
    is_tfrecord = "tfrecord" in path.name
    writer = RecordWriter(str(path)) if is_tfrecord else ArrayRecordWriter(str(path))
    for text in texts:
        example = tf_example_pb2.Example()
        content = text if isinstance(text, bytes) else text.encode()
        example.features.feature["text"].bytes_list.value.append(content)
        example.features.feature["n"].int64_list.value.append(5)
        writer.write(example.SerializeToString())
    writer.close()


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def edit(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.fixture
def door(base, tmp_path, capsys):
    """Goes through the command line; gives the status and, where it is bad, the one line."""

    def run(*options, output=None):
        command = [
            *(f"--vocabulary={base / 'v.model'}", f"--length={LENGTH}", "--workers=1"),
            f"--output={output or tmp_path / 'output'}",
        ]
        given = {option.split("=")[0] for option in options}
        if "--verify" in given:
            given |= {"--vocabulary", "--length"}
        kept = [option for option in command if option.split("=")[0] not in given]
        status = run_command(prepare, [*options, *kept])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        progress = ("tokenising: ", "writing: ", "verifying: ")
        lines = [line for line in printed.err.splitlines() if not line.startswith(progress)]
        if status == 0:
            assert lines == []
            return 0, printed.out
        assert printed.out == ""
        (line,) = lines
        assert line.startswith("error: ")
        return status, line

    return run


def file_options(base, path, source="json"):
    return (
        *(f"--source={source}", f"--input={path}"),
        f"--validation-input={base / 'validation.jsonl'}",
    )


# Text, compressed and not.

IN_LINES = [
    ("truncated", WHOLE[:-30], "line 60 is not a JSON object"),
    ("latin-1", LINES[0] + LINES[1] + b'{"text": "caf\xe9"}\n', "line 3 is not UTF-8 text"),
    ("utf-16", UTF_16, "is UTF-16 text; convert it to UTF-8"),
    ("utf-16 without a mark", UTF_16[2:], "line 1 holds NUL bytes (UTF-16"),
    ("a byte order mark", b"\xef\xbb\xbf" + WHOLE, "line 1 is not a JSON object (Unexpected UTF-8"),
    ("a hole", LINES[0] + bytes(500), "line 2 holds NUL bytes"),
    ("no such field", LINES[0] + b'{"body": "x"}\n', "line 2 has no text under 'text' (it has ['b"),
    ("a number", LINES[0] + b'{"text": 5}\n', "line 2 has no text"),
    ("null", LINES[0] + b'{"text": null}\n', "line 2 has no text"),
    ("an array", b"[\n" + WHOLE + b"]", "line 1 is not a JSON object"),
    ("too deep", LINES[0] + b"[" * 100_000, "line 2 is not a JSON object"),
    ("a long number", LINES[0] + b'{"n": ' + b"1" * 5000 + b"}", "line 2 is not a JSON object"),
    ("blank lines only", b"\n \n\n", "is empty: it holds no document"),
]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz"])
@pytest.mark.parametrize(
    ("content", "message"), [case[1:] for case in IN_LINES], ids=[case[0] for case in IN_LINES]
)
def test_bad_lines(door, base, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    status, line = door(*file_options(base, tmp_path / name))
    assert status == 2
    assert f"{tmp_path / name} {message}" in line or f"{name} line 1 {message}" in line
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.json.gz", b"", "is empty"),
        ("a.json.gz", gzip.compress(b""), "is empty"),
        ("a.json.gz", WHOLE, "is not gzip data (it begins with b'{\"text\":'); fetch it again, or"),
        ("a.jsonl", GZIP, "is gzip-compressed; if it holds JSON lines, name it .json.gz"),
        ("a.json.gz", ZSTANDARD, "is zstandard-compressed"),
        ("a.jsonl", ZSTANDARD, "is zstandard-compressed"),
        ("a.json.gz", bz2.compress(WHOLE), "is bzip2-compressed"),
        ("a.json.gz", lzma.compress(WHOLE), "is xz-compressed"),
        ("a.jsonl", b"PK\x03\x04rest", "is a zip archive"),
        ("a.json.gz", LFS, "is a git-lfs pointer, not the file; fetch it with git lfs pull"),
        ("a.json.gz", HTML, "is an HTML page"),
        ("a.json.gz", GZIP[:1], "is a broken gzip file after line 0"),
        ("a.json.gz", GZIP[:15], "is a broken gzip file after line 0"),
        ("a.json.gz", GZIP[:-1], "is a broken gzip file after line 60"),
        ("a.json.gz", GZIP + b"garbage", "is a broken gzip file after line 60"),
        ("a.json.gz", GZIP[:-8] + bytes(4) + GZIP[-4:], "is a broken gzip file after line 60"),
    ],
    ids=plain,
)
def test_disguised_and_broken_files(door, base, tmp_path, name, content, message):
    """Beside a good file, so that none of it is passed over in silence."""
    (tmp_path / f"0{name}").write_bytes(GZIP if name.endswith("gz") else WHOLE)
    (tmp_path / name).write_bytes(content)
    status, line = door(*file_options(base, tmp_path / "*a.json*"))
    assert status == 2
    assert f"{tmp_path / name} {message}" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9", "is not UTF-8 text"),
        (b"na\xc3", "is not UTF-8 text"),
        ("hello".encode("utf-16"), "is UTF-16 text"),
        ("hello".encode("utf-16-le"), "has a NUL at byte 1, which no text has (UTF-16, or a hole"),
        (b"hello" + bytes(4096), "has a NUL at byte 5"),
        (GZIP, "is gzip-compressed"),
        (ZSTANDARD, "is zstandard-compressed"),
        (LFS, "is a git-lfs pointer"),
    ],
    ids=plain,
)
def test_bad_text_files(door, base, tmp_path, content, message):
    (tmp_path / "b.txt").write_bytes(content)
    status, line = door(*file_options(base, tmp_path, "folder"))
    assert status == 2
    assert f"b.txt {message}" in line


def test_what_is_no_fault(door, base, tmp_path):
    """Empty text files and blank lines are common, and say nothing."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.jsonl").write_bytes(WHOLE)
    shutil.copytree(tmp_path / "plain", tmp_path / "odd")
    (tmp_path / "odd" / "0.txt").write_bytes(b"")
    (tmp_path / "odd" / "a.jsonl").write_bytes(WHOLE.replace(b"\n", b"\n\n \r\n"))
    infos = []
    for name in ("plain", "odd"):
        options = file_options(base, tmp_path / name, "folder")
        assert door(*options, output=tmp_path / f"output {name}")[0] == 0
        infos.append(load_dataset(tmp_path / f"output {name}"))
    assert infos[0].fingerprint == infos[1].fingerprint
    assert infos[0].splits == infos[1].splits


@pytest.mark.parametrize("pattern", ["d/b.jsonl", "d/*.jsonl", "d"])
@pytest.mark.parametrize("fault", ["link", "directory", "closed"])
def test_files_that_cannot_be_read(door, base, tmp_path, pattern, fault):
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(WHOLE)
    file = folder / "b.jsonl"
    if fault == "link":
        file.symlink_to(tmp_path / "gone")
        message = "is a link to a file that does not exist"
    elif fault == "directory":
        file.mkdir()
        message = "names no file" if pattern == "d/b.jsonl" else "is a directory where a file is"
        if pattern == "d":  # searched like any other
            return
    else:
        file.write_bytes(WHOLE)
        file.chmod(0)
        message = "cannot be read (Permission denied)"
        if os.access(file, os.R_OK):
            pytest.skip("nothing is closed to the superuser")
    status, line = door(*file_options(base, tmp_path / pattern))
    assert status == 2
    assert f"{file} {message}" in line


# TFDS datasets.


def shard_of(folder):
    return next(folder.glob("tiny-train*"))


def cut(count):
    return lambda folder: os.truncate(shard_of(folder), shard_of(folder).stat().st_size - count)


def latin_1(folder):
    write_shard(shard_of(folder), [*TEXTS[:7], b"caf\xe9", *TEXTS[8:]])


def info_with(**changes):
    def change(record):
        top = {key: changes[key] for key in changes if key in ("name", "fileFormat", "splits")}
        record.update(top)
        for split in record["splits"]:
            if isinstance(split, dict):
                split.update({key: changes[key] for key in changes if key not in top})

    return lambda folder: edit(folder / "dataset_info.json", change)


def write_info(text):
    return lambda folder: (folder / "dataset_info.json").write_text(text)


TFDS_FAULTS = {
    "no directory": (shutil.rmtree, "is not a prepared TFDS dataset (dataset_info.json: No such"),
    "info empty": (write_info(""), "dataset_info.json is damaged"),
    "info cut": (write_info('{"name": "ti'), "dataset_info.json is damaged"),
    "info a list": (write_info("[1]"), "dataset_info.json is damaged"),
    "format": (info_with(fileFormat="riegeli"), "is stored as 'riegeli'; prepare it as one of"),
    "no splits": (info_with(splits=[]), "dataset_info.json has no split 'train'"),
    "bad split": (info_with(splits=[1]), "dataset_info.json is damaged"),
    "fewer": (info_with(shardLengths=["7"]), "records where dataset_info.json says 7"),
    "none": (info_with(shardLengths=["0"]), "records where dataset_info.json says 0"),
    "more": (info_with(shardLengths=["100"]), "60 records where dataset_info.json says 100"),
    "negative": (info_with(shardLengths=["-1"]), "dataset_info.json is damaged"),
    "template out": (info_with(filepathTemplate="../x-{SHARD_X_OF_Y}"), "outside the dataset's"),
    "template root": (info_with(filepathTemplate="/etc/passwd"), "outside the dataset's"),
    "template width": (info_with(filepathTemplate="{SPLIT:>99999999999}"), "the template"),
    "template inside": (info_with(filepathTemplate="{SPLIT.__class__}"), "the template"),
    "name out": (info_with(name="../tiny"), "outside the dataset's"),
    "shard missing": (lambda folder: shard_of(folder).unlink(), "SHARD is missing"),
    "shard empty": (lambda folder: os.truncate(shard_of(folder), 0), "SHARD "),
    "shard cut": (cut(5), "SHARD record"),
    "shard of zeros": (lambda folder: shard_of(folder).write_bytes(bytes(99_999)), "SHARD record"),
    "shard of text": (lambda folder: shard_of(folder).write_bytes(WHOLE * 30), "SHARD record"),
    "latin-1": (latin_1, "SHARD record 7 is not UTF-8 text"),
}


@pytest.mark.parametrize("stored_as", ["array_record", "tfrecord"])
@pytest.mark.parametrize("fault", TFDS_FAULTS)
def test_tfds_faults(door, base, tmp_path, stored_as, fault):
    folder = tmp_path / "tfds"
    shutil.copytree(base / stored_as, folder)
    name = shard_of(folder).name
    act, message = TFDS_FAULTS[fault]
    act(folder)
    status, line = door("--source=tfds", f"--input={folder}")
    assert status == 2
    assert message.replace("SHARD", name) in line
    assert str(folder) in line


def test_tfds_feature_that_is_no_text(door, base):
    status, line = door("--source=tfds", f"--input={base / 'tfrecord'}", "--text-field=n")
    assert status == 2
    assert "record 0 has no text under 'n' (it has ['n', 'text'])" in line


@pytest.mark.parametrize("stored_as", ["array_record", "tfrecord"])
def test_tfds_flipped_bits_are_refused_or_harmless(base, tmp_path, stored_as):
    from anytime_jax.data.tfds_source import TfdsSource

    folder = tmp_path / "tfds"
    shutil.copytree(base / stored_as, folder)
    source, shard = TfdsSource(str(folder)), shard_of(folder)
    whole, content = documents(source), shard.read_bytes()
    filled = [place for place, byte in enumerate(content) if byte]
    chosen, refused = random.Random(0), 0
    for _ in range(150):
        flip(shard, 8 * chosen.choice(filled) + chosen.randrange(8))
        message = ""
        try:
            assert documents(source) == whole
        except InputError as error:
            message = str(error)
        assert not message or f"{shard} record" in message
        refused += bool(message)
        shard.write_bytes(content)
    assert refused == 150 if stored_as == "tfrecord" else refused > 100


def documents(source):
    return [text for part in source.parts() for text in part.documents()]


def test_data_cannot_make_us_import_code(door, base, tmp_path, monkeypatch):
    """TFDS imports any class that features.json names."""
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    evil = json.dumps({"pythonClassName": "evil_module.Evil", "jsonFeature": {"json": "{}"}})
    shutil.copytree(base / "tfrecord", tmp_path / "tfds")
    (tmp_path / "tfds" / "features.json").write_text(evil)
    assert door("--source=tfds", f"--input={tmp_path / 'tfds'}")[0] == 0
    shutil.copytree(base / "data", tmp_path / "data")
    (tmp_path / "data" / "features.json").write_text(evil)
    with pytest.raises(InputError, match=r"features\.json"):
        load_dataset(tmp_path / "data")
    info = load_dataset(base / "data")
    shutil.copy(tmp_path / "data" / "features.json", tmp_path / "output" / "features.json")
    open_windows(info.__class__(**{**vars(info), "path": tmp_path / "output"})).batch(0, 4)
    assert "evil_module" not in sys.modules


def test_checksum_against_another_implementation():
    generator = random.Random(0)
    for size in (0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 1026, 1028, 3000):
        data = generator.randbytes(size)
        assert tfrecord.masked_crc32c(data) == masked_crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


# Vocabularies.


@pytest.mark.parametrize(
    "damage",
    ["missing", "empty", "half", "less a byte", "zeros", "text", "gzip", "directory", "link"],
)
def test_vocabulary_faults(door, base, tmp_path, damage):
    model, path = (base / "v.model").read_bytes(), tmp_path / "v.model"
    contents = {"empty": b"", "half": model[: len(model) // 2], "less a byte": model[:-1]}
    contents |= {"zeros": bytes(1000), "text": HTML, "gzip": gzip.compress(model)}
    if damage in contents:
        path.write_bytes(contents[damage])
    elif damage == "directory":
        path.mkdir()
    elif damage == "link":
        path.symlink_to(tmp_path / "gone")
    options = file_options(base, base / "train.jsonl")
    status, line = door(*options, f"--vocabulary={path}")
    assert status == 2
    assert f"vocabulary {path}" in line
    assert ("is not a SentencePiece model" in line) == (damage in contents)


# Half prepared.


class Stop(Exception):
    pass


@pytest.mark.parametrize("damage", ["empty", "half", "missing", "list"])
@pytest.mark.parametrize(
    "pattern",
    [
        *(
            ".preparing/plan.json",
            ".preparing/tokens/*.json",
            ".preparing/tokens/000001.validation",
        ),
        *(".preparing/shards/token_windows*.json", ".preparing/shards/cut_from.json"),
        *("token_windows-train*", "vocabulary.model"),
    ],
)
def test_half_prepared_goes_on_or_says_what_to_delete(
    door, base, tmp_path, monkeypatch, pattern, damage
):
    monkeypatch.setattr(preparation, "_SHARD_BYTES", 34 * 40)
    options = file_options(base, base / "train.jsonl")

    def stop(progress):
        if progress.stage == "writing" and progress.done == 2:
            raise Stop

    source = FileSource("json", str(base / "train.jsonl"), str(base / "validation.jsonl"))
    settings = {"length": LENGTH, "vocabulary": base / "v.model", "workers": 1}
    with pytest.raises(Stop):
        preparation.prepare(source, tmp_path / "output", **settings, progress=stop)
    file = min((tmp_path / "output").glob(pattern))
    contents = {"empty": b"", "half": file.read_bytes()[: file.stat().st_size // 2], "list": b"[1]"}
    file.unlink() if damage == "missing" else file.write_bytes(contents[damage])
    status, line = door(*options)
    if pattern.endswith("plan.json") and damage != "missing":
        assert status == 2
        assert f"{file} is damaged; delete {tmp_path / 'output'}" in line
    else:
        assert status == 0
        whole = preparation.prepare(source, tmp_path / "whole", **settings)
        assert load_dataset(tmp_path / "output").fingerprint == whole.fingerprint


# Prepared datasets.


@pytest.fixture
def copy(base, tmp_path):
    shutil.copytree(base / "data", tmp_path / "copy")
    return tmp_path / "copy"


def open_windows(info, split="train"):
    return Windows(info, split, length=LENGTH, seed=0, shuffle=False)


def read_all(path):
    info = load_dataset(path)
    return [open_windows(info, s).batch(0, info.splits[s].windows) for s in sorted(info.splits)]


FILES = ["anytime_jax.json", "dataset_info.json", "features.json", "vocabulary.model"]
FILES += [f"token_windows-{s}.array_record-00000-of-00001" for s in ("train", "validation")]
DAMAGES = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: os.truncate(file, 0),
    "half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "directory": lambda file: (file.unlink(), file.mkdir()),
    "link": lambda file: (file.unlink(), file.symlink_to("/nowhere")),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_of_a_dataset_is_missed(copy, name, damage):
    DAMAGES[damage](copy / name)
    with pytest.raises((InputError, RunError)) as error:
        read_all(copy)
    message = str(error.value)
    assert name in message
    assert "\n" not in message
    assert "again" in message or "not a prepared dataset" in message
    assert isinstance(error.value, InputError) or ("array_record" in name and damage == "zeros")


@pytest.mark.parametrize("name", FILES)
def test_flipped_bits_are_named_or_harmless(base, copy, name):
    file, whole, chosen = copy / name, read_all(base / "data"), random.Random(0)
    content = file.read_bytes()
    filled = [place for place, byte in enumerate(content) if byte]
    for _ in range(60):
        flip(file, 8 * chosen.choice(filled) + chosen.randrange(8))
        message = ""
        try:
            read = read_all(copy)
        except (InputError, RunError) as error:
            message = str(error)
        assert name in message or (not message and "array_record" in name)
        if not message:  # a shard has filling that nothing depends on
            for rows, expected in zip(read, whole, strict=True):
                np.testing.assert_array_equal(rows, expected)
        file.write_bytes(content)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["splits"]["train"].update(windows=7),
        lambda record: record.update(vocab_size=600),
        lambda record: record.update(token_dtype="int32"),
        lambda record: record.update(fingerprint="0" * 64),
        lambda record: record.pop("sha256"),
        lambda record: record["splits"].pop("validation"),
    ],
)
def test_changed_records_do_not_match_their_digest(copy, change):
    edit(copy / "anytime_jax.json", change)
    with pytest.raises(InputError, match=r"anytime_jax\.json is damaged .*prepare it again"):
        load_dataset(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["files"].update({"/etc/hostname": {"size": 1, "sha256": ""}}), "/etc/hostna"),
        (lambda r: r["files"].update({"../v.model": {"size": 1, "sha256": ""}}), r"\.\./v\.model"),
        (lambda r: r["shards"]["train"][0].update(name="../x"), r"'\.\./x', which is not a file"),
        (lambda r: r["shards"]["train"][0].update(windows=3), "do not add up"),
        (lambda r: r.update(token_dtype="object"), "tokens of type 'object'"),
        (lambda r: r.update(vocab_size="many"), "'many' where a count belongs"),
        (lambda r: r.update(length=-1), "-1 where a count belongs"),
        (lambda r: r.update(files=[1]), "is damaged"),
        (lambda r: r.update(format_version=1), "format version 1, .* version 2; .*the same finger"),
    ],
)
def test_records_of_others_are_not_trusted(copy, change, message):
    """With a digest that is right."""

    def change_and_seal(record):
        record.pop("sha256")
        change(record)
        record.update(seal(record))

    edit(copy / "anytime_jax.json", change_and_seal)
    with pytest.raises(InputError, match=message) as error:
        load_dataset(copy)
    assert "anytime_jax.json" in str(error.value)


def spoil(copy, window):
    """Flips a bit of the tokens of a training window."""
    shard = copy / FILES[4]
    content = shard.read_bytes()
    record = open_windows(load_dataset(copy)).batch(window, 1)[0].astype(np.uint16).tobytes()
    at = content.find(record)
    if at < 0:  # compressed
        at = 2_000 + 40 * window
    flip(shard, 8 * at)


def test_damage_reaches_the_consumer_of_a_stream(copy):
    windows = open_windows(load_dataset(copy))
    spoil(copy, 30)
    batches = prefetch_batches(windows, 0, 8)
    with pytest.raises(RunError) as error:
        list(itertools.islice(batches, 20))
    assert type(error.value) is RunError
    message = str(error.value)
    assert 'of split "train"' in message
    assert f"{FILES[4]} window" in message
    assert f"python -m anytime_jax prepare --verify --output={copy}" in message
    assert "\n" not in message
    first, last = (int(word) for word in message.split()[1:4:2])
    assert last - first == 7
    window = int(message.split(" window ")[1].split()[0])
    assert first <= window <= last
    with pytest.raises(RunError, match="window"):  # read one by one
        windows.batch(window, 1)
    windows.batch(first - 8 if first else 64, 8)  # what is whole can be read


def test_tokens_beyond_the_vocabulary_are_refused(copy):
    def shrink(record):
        record.pop("sha256")
        record.update(vocab_size=40)
        record.update(seal(record))

    edit(copy / "anytime_jax.json", shrink)
    with pytest.raises(RunError, match=r"token \d+ where the vocabulary has 40 pieces"):
        open_windows(load_dataset(copy)).batch(0, 64)


def test_a_file_that_goes_while_it_is_read(copy):
    windows = open_windows(load_dataset(copy))
    (copy / FILES[4]).unlink()
    with pytest.raises(RunError, match=r"samples 0 to 3 .*No such file"):
        windows.batch(0, 4)


# Verifying.


def test_verify_says_that_it_is_what_was_written(door, copy):
    status, line = door_verify(door, copy)
    assert status == 0
    info = load_dataset(copy)
    windows = sum(split.windows for split in info.splits.values())
    assert line.splitlines() == [
        f"{copy} is what was written: {windows:,} windows of {LENGTH} + 1, fingerprint "
        f"{info.fingerprint}"
    ]


def door_verify(door, copy):
    return door("--verify", output=copy)


def test_verify_names_the_shard_that_is_damaged(door, copy):
    spoil(copy, 30)
    load_dataset(copy)  # sizes tell nothing
    status, line = door_verify(door, copy)
    assert status == 1
    assert f"1 of 2 shards are not what was written: {FILES[4]} (" in line
    assert FILES[5] not in line


def test_verify_names_a_shard_of_another_dataset(door, base, copy, tmp_path):
    """Whole in itself, as large, and with as many windows."""
    (tmp_path / "other.jsonl").write_bytes(WHOLE.replace(b"of words", b"fo words"))
    source = FileSource("json", str(tmp_path / "other.jsonl"), str(base / "validation.jsonl"))
    info = preparation.prepare(
        source, tmp_path / "other", length=LENGTH, vocabulary=base / "v.model"
    )
    shard = info.shards["train"][0]

    def accept(record):
        record.pop("sha256")
        counts = {"bytes": shard.bytes, "windows": shard.windows}
        record["shards"]["train"][0].update(counts)
        record["splits"]["train"].update(windows=shard.windows)
        record.update(seal(record))

    shutil.copy(tmp_path / "other" / FILES[4], copy / FILES[4])
    edit(copy / "anytime_jax.json", accept)
    status, line = door_verify(door, copy)
    assert status == 1
    assert f"{FILES[4]} (its tokens are others)" in line


def test_verify_checks_the_fingerprint(door, copy):
    def change(record):
        record.pop("sha256")
        record.update(fingerprint="0" * 64)
        record.update(seal(record))

    edit(copy / "anytime_jax.json", change)
    status, line = door_verify(door, copy)
    assert status == 1
    assert "its fingerprint is not that of its shards" in line


def test_verify_reads_and_nothing_else(door, copy, tmp_path):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    assert door_verify(door, copy)[0] == 0
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    status, line = door("--verify", "--source=builtin", output=copy)
    assert status == 2
    assert "--source means nothing to --verify" in line
    status, line = door_verify(door, tmp_path / "nowhere")
    assert status == 2
    assert "is not a prepared dataset" in line


def test_formats_of_the_record_share_fingerprints():
    """Prepared again, a dataset of an older format is the same to the runs that used it."""
    shard = dataset.ShardInfo("a", 1, 2, "b")
    record = dict.fromkeys(("length", "token_dtype", "vocab_size", "vocabulary_sha256", "eos_id"))
    given = dataset.fingerprint_of(record, [shard])
    assert given == dataset.fingerprint_of({**record, "format_version": 99}, [shard])
