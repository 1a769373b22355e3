"""Run directory: checkpoints, their verification and retention, and records.

Start with `manager.CheckpointManager`, which saves and restores the state of a training.
`checkpoint_listing` lists the checkpoints on a disk, and `checkpoint_reader` reads and verifies
them; both work without the configuration of the run. Arrays have names (`tree_names`) and checksums
(`array_checksums`). `retention` says which checkpoints are kept. `run_json` has the content of
`run.json`; `run_ownership` says to which run a directory belongs, and locks the directory.
`metric_records` has the records of metrics.
"""
