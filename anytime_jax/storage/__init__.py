"""Storage of runs and datasets: local directories, and buckets by their address (`gs://...`).

`paths.py` has the paths, with the methods of pathlib. `files.py`, `atomic.py` and `json_files.py`
add what pathlib lacks; `locks.py` locks on a disk; `failures.py` classifies errors;
`url_files.py` reads text from elsewhere. No module outside this package asks whether a path is in
a bucket: some ask what a path can do, such as `files.can_append`.
"""
