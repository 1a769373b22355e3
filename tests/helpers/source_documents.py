"""Documents of a source of text, and the files of a dataset."""

import pickle

from anytime_jax.corpus.source_interface import read_texts
from anytime_jax.corpus.validation_split import assign_split


def read_documents(source):
    """Reads all documents by split, from pickled parts."""
    documents = {"train": [], "validation": []}
    for part in pickle.loads(pickle.dumps(source.parts())):
        for text in read_texts([part]):
            documents[assign_split(text, part.validation_fraction)].append(text)
    return documents


def read_files(folder):
    """Reads all files of a folder, as bytes by their path in it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
