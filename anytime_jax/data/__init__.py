"""Datasets of tokens, and the batches that training reads from them.

Begin with `prefetch.py`. `windows.py` says which tokens a batch has: `Windows.batch` is a pure
function of datasets, seed and sample number, in the order of `mixture.py`. `dataset_info.py` is the
metadata of a dataset, and `token_arrays.py` writes and reads its tokens, on a disk or in a bucket.
"""
