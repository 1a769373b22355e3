"""Documents of a source of text."""

import pickle

from anytime_jax.data.sources import assign_split


def read_documents(source):
    """Reads all documents by split, from pickled parts."""
    documents = {"train": [], "validation": []}
    for part in pickle.loads(pickle.dumps(source.parts())):
        for text in part.documents():
            documents[assign_split(text, part.validation_fraction)].append(text)
    return documents
