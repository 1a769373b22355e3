"""Datasets of tokens, and the batches that training reads from them.

Begin with `mixture.py`, which says from which source each sample comes. `windows.py` says which
tokens a batch has: `Windows.batch` is a pure function of datasets, mixture, seed and sample number.
`prefetch.py` reads batches ahead. `dataset_info.py` has the metadata of a dataset, and
`token_arrays.py` writes and reads the tokens, on a disk or in a bucket.
"""
