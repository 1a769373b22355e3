"""Text to token windows.

`sources` (files), `builtin_source` and `tfds_source` divide text into parts; `vocabulary` turns
text into ids. `preparation` tokenizes the parts into a dataset: the files of `token_files`, and the
metadata of `dataset`. `windows` gives training its batches: `Windows.batch` is a pure function.
Begin with `preparation.py`, then `windows.py`.
"""
