"""Run directory: checkpoints, their verification and retention, and records.

Start with `manager.CheckpointManager`, which saves and restores the state of a training.
`checkpoint_listing` lists what is on disk and `checkpoint_reader` reads and verifies it, both
without the run, by the names (`tree_names`) and checksums (`array_checksums`) of the arrays;
`retention` says which are kept. `run_json` has the content of `run.json`, `run_ownership` says
whose a directory is and has its lock, and `metric_records` has the metrics.
"""
