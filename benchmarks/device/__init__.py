"""What a GPU that is there for minutes should answer, in this order.

| command | what it prints | on an H100 |
| --- | --- | --- |
| `lab.benchmarks.kernels --model=150m --keep=trace` | kernels above 1% of an update | 1 minute |
| `benchmarks.device.switches` | the update with each switch of XLA and of the model, its losses | 8 minutes |
| `benchmarks.device.moments --model=150m --data=DATA` | losses with moments in bfloat16 | 9 minutes |
| `lab.benchmarks.ratios --accept` | the parts of this tree in units of a product | 4 minutes |
| `benchmarks.gpu` | speed, memory, errors and PyTorch beside it | 9 minutes |

Each is `python -m` of a clone, writes FILE with `--output=FILE`, and runs on a CPU: `kernels` and
`ratios` with `--model=small`, `moments` with its own small model, `switches` and `gpu` with
`--smoke`. The times are estimates where nobody has run a command there. On a machine without a
network, take wheels of what it lacks: jax with CUDA, and the packages of `pyproject.toml` and
`lab/pyproject.toml`; torch is for `gpu` alone.
"""
