"""Benchmarks: `python -m benchmarks.NAME` times something and prints a table.

Each appends its record to `results.jsonl`, or with `--output=FILE` writes that file. `measure` has
what they share to time things, `record` the table and the record. Begin with `train_step`; `gpu`
runs all of them on a GPU.
"""
