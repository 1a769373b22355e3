"""Token files of other trainers: the dataset of the same text, prepared from the text."""

import inspect
import json
import struct
from pydoc_data.topics import topics

import numpy as np
import pytest
import tokenizers
from byte_level_tokenizer import EOS, write_byte_level
from source_documents import read_files

from anytime_jax.corpus import token_files
from anytime_jax.corpus.file_source import FileSource
from anytime_jax.corpus.preparation import Share, prepare
from anytime_jax.corpus.token_source import TokenSource
from anytime_jax.data.dataset_info import load_dataset
from anytime_jax.data.windows import Windows
from anytime_jax.errors import InputError

BEGIN = "<|begin|>"
TEXTS = {
    "train": [f"number {i} has " + "naïve words, and more. " * (i % 9) for i in range(200)],
    "val": [f"held out {i}: " + "some words. " * (i % 5) for i in range(30)],
}


class Ids:
    """The ids of each text, by the library, and those of the special tokens."""

    def __init__(self, path, texts):
        library = tokenizers.Tokenizer.from_file(str(path))
        library.no_truncation()
        library.no_padding()
        self.path, self.eos, self.bos = path, *map(library.token_to_id, (EOS, BEGIN))
        self.texts = {
            split: [library.encode(x, add_special_tokens=False).ids for x in own]
            for split, own in texts.items()
        }


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    path = write_byte_level(
        tmp_path_factory.mktemp("tokenizer"), TEXTS["train"], bos_token=BEGIN, add_bos_token=False
    )
    return Ids(path, TEXTS)


@pytest.fixture(scope="module")
def expected(ids, tmp_path_factory):
    """The windows of both splits, prepared from the text."""
    folder = tmp_path_factory.mktemp("text")
    for split, texts in TEXTS.items():
        lines = [json.dumps({"text": text}) for text in texts]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    source = FileSource(str(folder / "train.jsonl"), str(folder / "val.jsonl"))
    return describe(prepare(source, folder / "data", vocabulary=ids.path))


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch):
    """Divides the tokens into many stretches, whose ends are anywhere in the documents."""
    monkeypatch.setattr(token_files, "STRETCH_TOKENS", 150)
    monkeypatch.setattr(token_files, "_SEARCH_TOKENS", 7)


def describe(info):
    facts = [info.splits, info.delimiters, info.vocabulary_sha256, info.largest_id]
    for split in info.splits:
        windows = Windows.from_dataset(info, split, length=16, seed=0, shuffle=False)
        facts.append(windows.batch(0, info.splits[split].windows(16)).tolist())
    return facts


def join(documents, before=(), after=()):
    return [i for document in documents for i in (*before, *document, *after)]


def nanogpt(path, ids, documents):
    np.array(join(documents, after=[ids.eos]), "<u2").tofile(path.with_suffix(".bin"))


def headed(path, tokens, *header):
    content = struct.pack("<256i", *header, len(tokens), *[0] * 253)
    path.with_suffix(".bin").write_bytes(content + tokens.tobytes())


def llm_c(path, ids, documents):
    """GPT-2's shards begin documents with the end of text."""
    headed(path, np.array(join(documents, before=[ids.eos]), "<u2"), 20240520, 1)


def llm_c_llama(path, ids, documents):
    """Llama 3's begin them with its BOS."""
    headed(path, np.array(join(documents, before=[ids.bos]), "<u4"), 20240801, 7)


def olmo(path, ids, documents):
    tokens = np.array(join(documents, after=[ids.eos]), "<u4")
    array = np.memmap(path.with_suffix(".npy"), "<u4", "w+", shape=tokens.shape)
    array[:] = tokens
    array.flush()


def numpy_array(path, ids, documents):
    np.save(path, np.array(join(documents, before=[ids.bos], after=[ids.eos]), ">i4"))


def megatron(path, ids, documents, code=8, dtype="<u2", after=(), modes=b"", sequences=1):
    """Documents of one or more sequences, and an empty one."""
    whole = [[*document, *after] for document in [*documents[:3], [], *documents[3:]]]
    pieces = [np.array_split(np.array(x, dtype), sequences) for x in whole]
    lengths = [len(piece) for document in pieces for piece in document]
    places = np.cumsum([0, *lengths])[:-1] * np.dtype(dtype).itemsize
    ends = np.arange(len(whole) + 1) * sequences
    with open(path.with_suffix(".idx"), "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(ends)))
        file.write(struct.pack(f"<{len(lengths)}i", *lengths))
        file.write(struct.pack(f"<{len(places)}q", *places))
        file.write(struct.pack(f"<{len(ends)}q", *ends) + modes * len(lengths))
    np.array(join(whole), dtype).tofile(path.with_suffix(".bin"))


def megatron_with_ends(path, ids, documents):
    options = {"after": [ids.eos], "modes": b"\0", "sequences": 2}
    megatron(path, ids, documents, 4, "<i4", **options)


FORMATS = {
    nanogpt: ("*.bin", "uint16"),
    llm_c: ("*.bin", None),
    llm_c_llama: ("*.bin", None),
    olmo: ("*.npy", "uint32"),
    numpy_array: ("*.npy", None),
    megatron: ("*.*", None),
    megatron_with_ends: ("*.idx", None),
}


def write(write_file, ids, folder):
    """Writes the training documents into three files, and those of validation into one."""
    for split, count in (("train", 3), ("val", 1)):
        for index in range(count):
            documents = ids.texts[split]
            share = slice(len(documents) * index // count, len(documents) * (index + 1) // count)
            write_file(folder / f"{split}_{index}", ids, documents[share])
    pattern, dtype = FORMATS[write_file]
    return TokenSource(f"{folder}/train{pattern}", f"{folder}/val{pattern}", dtype=dtype)


@pytest.mark.parametrize("write_file", FORMATS)
def test_dataset_is_that_of_the_text(write_file, ids, expected, tmp_path):
    source = write(write_file, ids, tmp_path)
    info = prepare(source, tmp_path / "data", vocabulary=ids.path)
    assert describe(info) == expected
    assert len(info.parts["train"]) > 20


def test_bos_begins_documents_as_the_vocabulary_says(ids, tmp_path):
    source = write(nanogpt, ids, tmp_path)
    info = prepare(source, tmp_path / "data", vocabulary=ids.path, bos="document")
    rows = Windows.from_dataset(info, "train", length=16, seed=0, shuffle=False).batch(0, 40)
    tokens = join(ids.texts["train"], before=[ids.bos], after=[ids.eos])
    assert rows[:, :-1].ravel().tolist() == tokens[: 40 * 16]


def test_shares_workers_and_stops_write_the_same_files(ids, tmp_path):
    source = write(llm_c, ids, tmp_path)
    options = {"vocabulary": ids.path}
    prepare(source, tmp_path / "whole", workers=1, **options)
    whole = read_files(tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.done == 7:
            raise Stop

    with pytest.raises(Stop):
        prepare(source, tmp_path / "stopped", workers=1, progress=stop, **options)
    assert prepare(source, tmp_path / "stopped", workers=2, **options)
    assert read_files(tmp_path / "stopped") == whole
    for share in (Share(1, 3), Share(0, 3)):
        assert prepare(source, tmp_path / "shared", share=share, workers=1, **options) is None
    assert prepare(source, tmp_path / "shared", workers=1, **options)
    assert read_files(tmp_path / "shared") == whole


def test_copies_of_documents_are_in_one_split(ids, tmp_path):
    documents = ids.texts["train"]
    nanogpt(tmp_path / "a", ids, documents)
    olmo(tmp_path / "b", ids, documents)
    splits = []
    for name, dtype in (("a.bin", "uint16"), ("b.npy", "uint32")):
        source = TokenSource(str(tmp_path / name), validation_fraction=0.2, dtype=dtype)
        splits.append(describe(prepare(source, tmp_path / dtype, vocabulary=ids.path)))
    assert splits[0] == splits[1]
    info = load_dataset(tmp_path / "uint16")
    assert 10 < info.splits["validation"].documents < 80
    assert sum(split.documents for split in info.splits.values()) == len(documents)


def test_other_files_of_a_folder_are_counted(ids, tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    llm_c(folder / "a", ids, ids.texts["train"])
    headed(folder / "none", np.array([], "<u2"), 20240520, 1)
    (folder / "meta.pkl").write_bytes(b"pickle")
    source = TokenSource(str(folder), validation_fraction=0.2)
    info = prepare(source, tmp_path / "data", vocabulary=ids.path)
    assert [name for _, name in info.left_out] == [f"{folder}/meta.pkl", f"{folder}/none.bin"]


def refuse(source, tmp_path, match, vocabulary):
    with pytest.raises(InputError, match=match):
        prepare(source, tmp_path / "data", vocabulary=vocabulary, workers=1)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "content", "options", "match"),
    [
        ("a.bin", struct.pack("<256i", 20240522, 1, *[0] * 254), {}, "20240522"),
        ("a.bin", struct.pack("<256i", 20240520, 1, 9, *[0] * 253) + b"12", {}, "a.bin"),
        ("a.bin", struct.pack("<256iH", 20240520, 1, 1, *[0] * 253, 1), {"dtype": "uint32"}, "dt"),
        ("a.bin", b"\1\0\1", {"dtype": "uint16"}, "a.bin"),
        ("a.bin", b"\xff\xff\1\0", {"dtype": "uint16"}, "65535"),
        ("a.bin", b"\xff\xff\xff\xff\1\0\0\0", {"dtype": "int32"}, "token -1,"),
        ("a.bin", b"\x50\0" * 99, {"dtype": "uint16"}, "end of text"),
        ("a.bin", b"\1\0" + b"\x50\0" * 999, {"dtype": "uint16"}, "end of text"),
        ("a.npy", b"\x93NUMPY\1\0nothing", {}, "a.npy"),
        ("a.npy", b"\x93NUMPY\1\0\x08\0{'descr\n", {}, "a.npy"),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 7, 0, 0), {}, "code 7"),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 5, 1), {}, "a.idx"),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, 1, 0, 0, 1), {}, "a.bin"),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQiqq", 1, 8, 1, 1, 1, 0, 0), {}, "docu"),
        ("a.idx", b"MMIDIDX\0\0" + struct.pack("<QBQQiqqq", 1, 8, 1, 2, 1, 0, 1, 1), {}, "doc"),
        ("a.idx", b"another", {}, "a.idx"),
        ("a.txt", b"text", {}, "document"),
    ],
)
def test_what_is_no_token_file_is_refused(name, content, options, match, ids, tmp_path):
    (tmp_path / name).write_bytes(content)
    refuse(TokenSource(str(tmp_path / name), **options), tmp_path, match, ids.path)


def test_tokens_of_another_vocabulary_are_refused(tmp_path):
    texts = [text[:250] for text in topics.values()]
    own = Ids(write_byte_level(tmp_path / "own", texts, 400), {"train": texts})
    other = write_byte_level(tmp_path / "other", [inspect.getsource(inspect)], 400)
    llm_c(tmp_path / "a", own, own.texts["train"])
    options = {"validation_fraction": 0.2}
    refuse(TokenSource(str(tmp_path / "a.bin"), **options), tmp_path, "round-trip", other)
    source = TokenSource(str(tmp_path / "a.bin"), round_trip=False, **options)
    copied = prepare(source, tmp_path / "copied", vocabulary=other)
    source = TokenSource(str(tmp_path / "a.bin"), **options)
    assert copied.parts == prepare(source, tmp_path / "data", vocabulary=own.path).parts


def test_tokens_read_as_ones_of_half_their_bytes_are_refused(ids, tmp_path):
    """Every other one is 0, which ends documents here."""
    tokens = join(ids.texts["train"], after=[0])
    np.array(tokens, "<u4").tofile(tmp_path / "a.npy")
    options = {"vocabulary": ids.path, "end_of_text": "<|padding|>", "workers": 1}
    with pytest.raises(InputError, match="type"):
        prepare(TokenSource(str(tmp_path / "a.npy"), dtype="uint16"), tmp_path / "b", **options)
    source = TokenSource(str(tmp_path / "a.npy"), validation_fraction=0.2, dtype="uint32")
    info = prepare(source, tmp_path / "data", **options)
    assert sum(split.documents for split in info.splits.values()) == len(ids.texts["train"])


def test_tokens_train_no_vocabulary(ids, tmp_path):
    llm_c(tmp_path / "a", ids, ids.texts["train"])
    refuse(TokenSource(str(tmp_path / "a.bin")), tmp_path, "--vocabulary", 300)
