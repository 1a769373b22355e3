"""Copies of directories between a disk and a bucket, as other tools make them."""

import pathlib

from anytime_jax.storage.buckets import upload
from anytime_jax.storage.files import list_files


def to_bucket(directory, target):
    """Copies a local directory to a folder of a bucket; returns that."""
    for file in list_files(pathlib.Path(directory)):
        upload(file, target / str(file.relative_to(directory)))
    return target


def to_disk(folder, target):
    """Copies a folder of a bucket to a local directory; returns that."""
    for file in list_files(folder):
        copy = pathlib.Path(target, str(file).removeprefix(f"{folder}/"))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return target
