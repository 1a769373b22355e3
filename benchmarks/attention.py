"""Attention of one layer: error against float32 and time, by implementation.

    python -m benchmarks.attention
    python -m benchmarks.attention --attention plain xla blocks --rows 2 --length 256     on a CPU

Queries, keys and values are random and bfloat16. The errors are of the result and of its gradients,
||x - reference|| / ||reference||, where the reference is the plain path in float32. The time is of
the result and the gradients together. "documents" are texts of random lengths, which attention
keeps apart; "4 heads share keys" is grouped-query attention. On a GPU, the row is printed with
which `anytime_jax.models.attention.GPU_TIMES` tells "auto" what to take on GPUs of its generation.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.config.model import Attention, Olmo
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError
from anytime_jax.models.attention import (
    Documents,
    GpuTimes,
    causal_attention,
    find_documents,
    generation,
    plain_attention,
    unmet_need,
)
from anytime_jax.models.mixed_einsum import Precision
from benchmarks import harness, record

_END_OF_TEXT = 0
_SHARE_OF_ENDS = 1 / 150  # of the tokens: the mean length of a document is 150 tokens
Arrays = tuple[jax.Array, ...]


def main(argv: list[str]) -> int:
    parser = harness.make_parser("benchmarks.attention", __doc__, steps=5, rounds=3)
    add = parser.add_argument
    paths = ("plain", "blocks", "xla", "cudnn", "splash")
    add("--attention", nargs="+", choices=paths, help="default: plain, xla, and on a GPU cudnn")
    add("--rows", type=positive_int, default=16, help="windows (default 16)")
    add("--length", type=positive_int, default=1024, help="tokens of a window (default 1024)")
    add("--heads", type=positive_int, default=12, help="a multiple of 4 (default 12)")
    add("--head-size", type=positive_int, default=64, help="channels of a head (default 64)")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    platform, device = jax.default_backend(), jax.devices()[0]
    heads = options.heads
    if heads % 4:
        raise InputError(f"--heads={heads} is not a multiple of 4")
    paths: list[Attention] = options.attention or ["plain", "xla"]
    if not options.attention and platform == "gpu":
        paths.append("cudnn")
    model = Olmo(width=heads * options.head_size, heads=heads, length=options.length)
    for path in paths:
        if need := unmet_need(path, model, device, options.length):
            raise InputError(f"--attention={path} needs {need}")
    rng = np.random.default_rng(0)
    shape = (options.rows, options.length, options.heads, options.head_size)
    tokens = (rng.random(shape[:2]) >= _SHARE_OF_ENDS).astype(np.int32)  # 0 ends a text
    documents = find_documents(jnp.asarray(tokens == _END_OF_TEXT), 64)
    rows, timers = {}, {}
    for group, apart in itertools.product((1, 4), (None, documents)):
        of_keys = (*shape[:2], options.heads // group, options.head_size)
        draws = (rng.standard_normal(x, np.float32) for x in (shape, of_keys, of_keys, shape))
        arrays = tuple(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32) for x in draws)
        with jax.default_matmul_precision("highest"):
            expected = _function(plain_attention, Precision("float32", platform), apart)(arrays)
        for path in paths:
            name = path + (", documents" if apart else "")
            name += ", 4 heads share keys" if group > 1 else ""
            precision = Precision("bfloat16", platform)
            stored = tuple(x.astype(precision.stored_dtype) for x in arrays)
            attention = functools.partial(causal_attention, implementation=path)
            function = functools.partial(_function(attention, precision, apart), stored)
            parts = ("out", "dq", "dk", "dv")
            found = zip(parts, function(), expected, strict=True)
            rows[name] = {f"error_{part}": _distance(x, y) for part, x, y in found}
            timers[name] = functools.partial(harness.seconds_per_call, function, options.steps)
    seconds = harness.interleave(timers, options.rounds)
    table = [
        {"what": name, **harness.milliseconds(seconds[name]), **errors}
        for name, errors in rows.items()
    ]
    if platform == "gpu":
        times: dict[Attention, float] = {
            x: round(harness.milliseconds(seconds[x])["median_ms"], 3) for x in paths
        }
        print(GpuTimes(device.device_kind, generation(device), times))
    return record.Result("Attention and its gradients", table, {"seconds": seconds})


def _function(
    attention: Callable[..., jax.Array], precision: Precision, documents: Documents | None
) -> Callable[[Arrays], Arrays]:
    """Returns a compiled function of (q, k, v, the result's gradient): result and gradients."""

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention(q, k, v, precision, documents=documents)

    @jax.jit
    def run(arrays: Arrays) -> Arrays:
        *inputs, gradient = arrays
        out, pull_back = jax.vjp(attend, *inputs)
        return out, *pull_back(gradient.astype(out.dtype))

    return run


def _distance(x: jax.Array, reference: jax.Array) -> float:
    found, expected = (np.asarray(y, np.float64) for y in (x, reference))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
