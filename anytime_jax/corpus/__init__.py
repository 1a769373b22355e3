"""Preparation of datasets: text and vocabularies become arrays of tokens.

Begin with `preparation.py`: it tokenizes the parts of a text in parallel. `sources.py` (files),
`installed_python.py` and `tfds_source.py` divide text into parts, `vocabulary.py` turns text into
ids, `validation_split.py` says which documents are set aside, and `verification.py` reads a whole
dataset again.
"""
