"""Preparation of datasets: text and vocabularies become arrays of tokens.

Begin with `preparation.py`: it has the parts of a text tokenized, by `part_tokenization.py` in
parallel. A source (`source_interface.py`) divides text into parts: `file_source.py`,
`builtin_source.py` and `tfds_source.py`. `vocabulary_files.py` loads what turns text into ids,
`validation_split.py` says which documents are set aside, and `verification.py` reads a whole
dataset again.
"""
