"""Roofline of the machine: the rates of matrix products and of copies.

    python -m benchmarks.peak_rates
    python -m benchmarks.peak_rates --model=150m

Products have float32 operands on a CPU, and elsewhere bfloat16 operands with a float32 sum if the
model uses them. Their shapes are taken from a microbatch of the model, and one is a large square. A
copy counts the bytes read and written.

Shape suffixes: T tokens of a microbatch, D width, F MLP width, V rows of the embedding.
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anytime_jax.config.run_config import Config
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.formatting import format_bytes
from benchmarks import harness, record

_LARGE = {"cpu": 2048}  # side of the large product, enough to saturate the device
_LARGE_ELSEWHERE = 8192
_COPIED = {"cpu": 2**28}  # bytes of the copied array, far more than the caches hold
_COPIED_ELSEWHERE = 2**32


@dataclasses.dataclass(frozen=True)
class Task:
    """A function to time, with the FLOPs or the bytes moved in a call."""

    function: Callable[[], Any]
    flops: int = 0
    bytes: int = 0


def make_tasks(config: Config) -> dict[str, Task]:
    """Returns by name the matrix products of a model, a large product and a copy."""
    cfg, platform = config.model, jax.default_backend()
    number = config.microbatches if isinstance(config.microbatches, int) else 1
    T = cfg.length * config.batch_size // number
    D, F, V = cfg.width, cfg.mlp_width, cfg.embedding_rows
    side = _LARGE.get(platform, _LARGE_ELSEWHERE)
    dtype = "float32" if platform == "cpu" else cfg.dtype
    shapes = {
        "qkv": (T, D, 3 * D),
        "mlp_in": (T, D, (2 if cfg.gated else 1) * F),
        "mlp_out": (T, F, D),
        "head": (T, D, V),
        "large": (side, side, side),
    }
    tasks = {f"{k} {' x '.join(map(str, v))}": _product(*v, dtype) for k, v in shapes.items()}
    count = _COPIED.get(platform, _COPIED_ELSEWHERE)
    return {**tasks, f"copy of {format_bytes(count)}": _copy(count)}


def peak_rate(tasks: Mapping[str, Task], seconds: Mapping[str, Sequence[float]]) -> float:
    """Returns the FLOP/s of the fastest product, from the median times."""
    medians = harness.medians(seconds)
    return max(task.flops / medians[name] for name, task in tasks.items())


def _product(rows: int, inner: int, columns: int, dtype: str) -> Task:
    x_key, y_key = jax.random.split(jax.random.key(0))
    x = jax.random.normal(x_key, (rows, inner), dtype)
    y = jax.random.normal(y_key, (inner, columns), dtype)
    multiply = jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32))
    return Task(lambda: multiply(x, y), flops=2 * rows * inner * columns)


def _copy(count: int) -> Task:
    source = jnp.ones(count // 4, jnp.float32)
    # The array is donated each time, so that no page has to be cleared.
    target = [jnp.zeros_like(source)]
    # With the negation, a kernel reads every number; the small result shows when it has finished.
    copy = jax.jit(lambda _, x: (-x, x[:1]), donate_argnums=0, keep_unused=True)

    def function() -> jax.Array:
        target[0], done = copy(target[0], source)
        return done

    return Task(function, bytes=2 * count)


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("benchmarks.peak_rates", __doc__, steps=5, rounds=7, model=True)
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    tasks = make_tasks(harness.load_config(options.model))
    timers = {
        name: functools.partial(harness.seconds_per_call, task.function, options.steps)
        for name, task in tasks.items()
    }
    seconds = harness.interleave(timers, options.rounds)
    medians = harness.medians(seconds)
    rates = {name: (task.flops or task.bytes) / medians[name] for name, task in tasks.items()}
    rows = [
        {
            "what": name,
            **harness.milliseconds(seconds[name]),
            "GFLOP_per_s": rates[name] / 1e9 if task.flops else None,
            "GB_per_s": rates[name] / 1e9 if task.bytes else None,
        }
        for name, task in tasks.items()
    ]
    details = {"seconds": seconds, "medians": medians, "rates": rates}
    return record.Result("Roofline of the machine", rows, details)


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
