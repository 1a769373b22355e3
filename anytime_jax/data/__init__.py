"""Text to token windows.

`sources` (files), `builtin_source` and `tfds_source` divide text into parts; `vocabulary` turns
text into ids. `preparation` tokenizes the parts into a dataset: the arrays of `token_arrays`, and
the metadata of `dataset`. `windows` gives training its batches: `Windows.batch` is pure.
Begin with `preparation.py`, then `windows.py`.
"""
