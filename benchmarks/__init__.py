"""Benchmarks: `python -m benchmarks.NAME` measures one aspect of performance and prints a table.

Each appends its record to `results.jsonl`, or writes it to FILE with `--output=FILE`. `harness`
has what they share, `record` the table and the record. Start with `train_step`; `gpu` runs all of
them on a GPU.
"""
