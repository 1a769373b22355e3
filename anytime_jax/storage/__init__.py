"""Storage of runs and datasets: local directories, and buckets by their address (`gs://...`).

`paths.py` has the paths, with the methods of pathlib. `files.py`, `atomic.py`, `growing_files.py`
and `locks.py` add what pathlib lacks; `failures.py` classifies errors. Each function does the same
on a disk and in a bucket, and no module outside this package asks which of them it is.
"""
