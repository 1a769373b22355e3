"""Storage of runs and datasets: local directories, and buckets by their address (`gs://...`).

Begin with `paths.py`: the same code reads and writes both. `lease.py` is the lock of a directory in
a bucket.
"""
