"""Benchmarks: `python -m benchmarks.NAME` measures one aspect of performance and prints a table.

Each appends its record to `results.jsonl`, or writes it to FILE with `--output=FILE`. `harness` has
common functions; `record` prints tables and writes records. Start with `train_step`; `gpu` runs all
benchmarks on a GPU.
"""
