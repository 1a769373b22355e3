"""What a GPU that is there for minutes should answer, in this order, with minutes on an H100.

1. `lab.benchmarks.kernels --model=150m --keep=trace` (1): the kernels above 1% of an update.
2. `benchmarks.device.switches` (8): the update with each switch of XLA and of the model.
3. `benchmarks.device.moments --model=150m --data=DATA` (9): losses with moments in bfloat16.
4. `lab.benchmarks.ratios --accept` (4): the parts of this tree in units of a matrix product.
5. `benchmarks.gpu` (9): speed, memory and errors, beside PyTorch.
6. `lab.benchmarks.seeds --study=leaderboard --directory=DIR` (9): the leaderboard with 32 seeds.

Each is `python -m` of a clone, writes FILE with `--output=FILE`, and runs on a CPU: `kernels` and
`ratios` by default with a small model, as `moments` does, `switches` and `gpu` with `--smoke`, and
`seeds` with another study. The minutes of 2 to 4 and 6 are estimates: nobody has run these there.
On a machine without a network, take wheels of what it lacks: jax with CUDA, and the packages of
`pyproject.toml` and `lab/pyproject.toml`; torch is for `gpu` alone.
"""
