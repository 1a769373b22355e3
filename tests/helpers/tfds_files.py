"""Small TFDS datasets, written without TFDS."""

import json

from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2


def write_tfds(folder, texts):
    """Writes a TFDS dataset with the same documents in both splits."""
    folder.mkdir()
    for split in ("train", "validation"):
        write_tfds_shard(folder / f"tiny-{split}.array_record-00000-of-00001", texts)
    splits = [{"name": name, "shardLengths": [str(len(texts))]} for name in ("train", "validation")]
    info = {"name": "tiny", "version": "1.0.0", "fileFormat": "array_record", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))


def write_tfds_shard(path, texts):
    """Writes records with the features `text` and `n`."""
    writer = ArrayRecordWriter(str(path))
    for text in texts:
        example = tf_example_pb2.Example()
        content = text if isinstance(text, bytes) else text.encode()
        example.features.feature["text"].bytes_list.value.append(content)
        example.features.feature["n"].int64_list.value.append(5)
        writer.write(example.SerializeToString())
    writer.close()
