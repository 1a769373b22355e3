"""Text from TFDS datasets: every document, or an error that names the shard and the record."""

import json
import os
import shutil
import sys

import pytest
import tensorflow_datasets as tfds
from source_documents import read_documents
from tfds_files import write_tfds, write_tfds_shard

from anytime_jax.corpus.tfds_source import TfdsSource
from anytime_jax.errors import InputError

TEXTS = [f"document {i}: naïve 漢字\n\tindented\n" * (i % 4 + 1) for i in range(60)]
HELD_OUT = [f"held out {i}" for i in range(5)]


@pytest.fixture(scope="module")
def written_by_tfds(tmp_path_factory):
    """A dataset in several shards."""
    features = tfds.features.FeaturesDict(
        {"text": tfds.features.Text(), "url": tfds.features.Text()}
    )

    class Tiny(tfds.core.GeneratorBasedBuilder):
        """Documents with the features of C4."""

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

    builder = Tiny(data_dir=str(tmp_path_factory.mktemp("tfds")), file_format="array_record")
    config = tfds.download.DownloadConfig(num_shards=3)
    builder.download_and_prepare(download_config=config)
    return builder.data_dir


def check_slices(directory, documents):
    slices = TfdsSource(str(directory), split="train[7:31]", validation_split="train[31:]")
    assert read_documents(slices) == {"train": documents[7:31], "validation": documents[31:]}
    fraction = TfdsSource(str(directory), validation_fraction=0.3)
    by_hash = read_documents(fraction)
    assert sorted(by_hash["train"] + by_hash["validation"]) == sorted(documents)
    assert by_hash["validation"]


def test_documents_are_those_that_tfds_reads(written_by_tfds):
    documents = read_documents(TfdsSource(str(written_by_tfds)))
    # TFDS shuffles when it writes: its reader is the oracle.
    stored = tfds.builder_from_directory(written_by_tfds).as_data_source("train")
    assert documents["train"] == [example["text"].decode() for example in stored]
    assert sorted(documents["train"]) == sorted(TEXTS)
    assert sorted(documents["validation"]) == HELD_OUT
    check_slices(written_by_tfds, documents["train"])


@pytest.fixture
def folder(tmp_path):
    """A dataset with a shard for each split."""
    write_tfds(tmp_path / "tfds", TEXTS)
    return tmp_path / "tfds"


@pytest.mark.parametrize(("option", "named"), [("split", "split 'n'"), ("text_field", "record 0 ")])
def test_missing_split_or_feature_is_named(folder, option, named):
    with pytest.raises(InputError, match=named):
        read_documents(TfdsSource(str(folder), **{option: "n"}))


def train_shard(folder):
    return next(folder.glob("tiny-train*"))


def cut_shard(folder):
    os.truncate(train_shard(folder), train_shard(folder).stat().st_size - 5)


def write_latin_1(folder):
    texts = [b"caf\xe9" if i == 7 else text for i, text in enumerate(TEXTS)]
    write_tfds_shard(train_shard(folder), texts)


def change_info(**changes):
    def change(folder):
        path = folder / "dataset_info.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def splits(**changes):
    names = ("train", "validation")
    return change_info(splits=[{"name": name, "shardLengths": ["60"], **changes} for name in names])


def move_shards(folder):
    for split in ("train", "validation"):
        shard = next(folder.glob(f"tiny-{split}*"))
        shard.rename(folder.parent / shard.name)
    template = "../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    splits(filepathTemplate=template)(folder)


FAULTS = {
    "no directory": (shutil.rmtree, "dataset_info.json"),
    "format": (change_info(fileFormat="tfrecord"), "array_record"),
    "fewer": (splits(shardLengths=["7"]), "SHARD"),
    "elsewhere": (move_shards, "outside"),
    "shard missing": (lambda folder: train_shard(folder).unlink(), "train"),
    "shard cut": (cut_shard, "SHARD record"),
    "latin-1": (write_latin_1, "SHARD record 7"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damage_is_named(folder, fault):
    name = train_shard(folder).name
    act, message = FAULTS[fault]
    act(folder)
    with pytest.raises(InputError) as error:
        read_documents(TfdsSource(str(folder)))
    assert message.replace("SHARD", name) in str(error.value)
    assert str(folder) in str(error.value)


def test_bad_record_is_left_out_if_asked(folder):
    write_latin_1(folder)
    part = TfdsSource(str(folder), bad_records="skip").parts()[0]
    records = list(part.documents())
    assert records.pop(7).place == f"{train_shard(folder)} record 7"
    assert records == [text for i, text in enumerate(TEXTS) if i != 7]


def test_no_code_is_imported(folder, tmp_path, monkeypatch):
    """TFDS imports any class that features.json names."""
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    evil = json.dumps({"pythonClassName": "evil_module.Evil", "jsonFeature": {"json": "{}"}})
    (folder / "features.json").write_text(evil)
    assert read_documents(TfdsSource(str(folder)))["train"]
    assert "evil_module" not in sys.modules
