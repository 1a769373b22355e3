"""What the machine itself can do: matrix products and copies.

    python -m benchmarks.ceiling
    python -m benchmarks.ceiling --model=150m

Products have operands of float32 on a CPU; elsewhere, where the model has them so, of bfloat16 with
a float32 sum. They come in the model's own shapes, of one microbatch, and in one large one. A copy
counts what is read and what is written.

Legend: T tokens of a microbatch, D width, F MLP width, V rows of the embedding.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from anytime_jax.commands.command_line import exit_status
from anytime_jax.config.schema import Config
from anytime_jax.distributed.runtime import configure
from anytime_jax.formatting import format_bytes
from benchmarks import measure, record

_LARGE = {"cpu": 2048}  # sides of the large product: enough to fill the device
_LARGE_ELSEWHERE = 8192
_COPIED = {"cpu": 2**28}  # bytes of the array that is copied: far beyond the caches
_COPIED_ELSEWHERE = 2**32


@dataclasses.dataclass(frozen=True)
class Limit:
    """A piece of work whose amount is known.

    Attributes:
      work: does it once.
      flops: floating-point operations in it; 0 for a copy.
      moved: bytes read and written by it; 0 for a product.
    """

    work: Callable[[], Any]
    flops: int = 0
    moved: int = 0


def make_limits(config: Config) -> dict[str, Limit]:
    """Returns the work by name: products in the shapes of a model, a large one, a copy."""
    cfg, platform = config.model, jax.default_backend()
    T = cfg.length * config.batch_size // config.microbatches
    D, F, V = cfg.width, cfg.mlp_width, cfg.embedding_rows
    side = _LARGE.get(platform, _LARGE_ELSEWHERE)
    dtype = "float32" if platform == "cpu" else cfg.dtype
    shapes = {
        "qkv": (T, D, 3 * D),
        "mlp_in": (T, D, F),
        "mlp_out": (T, F, D),
        "head": (T, D, V),
        "large": (side, side, side),
    }
    limits = {
        f"{name} {' x '.join(map(str, shape))}": _product(shape, dtype)
        for name, shape in shapes.items()
    }
    count = _COPIED.get(platform, _COPIED_ELSEWHERE)
    return {**limits, f"copy of {format_bytes(count)}": _copy(count)}


def rate_of_products(limits: dict[str, Limit], seconds: dict[str, list[float]]) -> float:
    """Returns the FLOP/s of the fastest of the products, by its median: the ceiling."""
    middle = measure.medians(seconds)
    return max(limit.flops / middle[name] for name, limit in limits.items())


def _product(shape: tuple[int, int, int], dtype: str) -> Limit:
    rows, inner, columns = shape
    x_key, y_key = jax.random.split(jax.random.key(0))
    x = jax.random.normal(x_key, (rows, inner), dtype)
    y = jax.random.normal(y_key, (inner, columns), dtype)
    multiply = jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32))
    return Limit(lambda: multiply(x, y), flops=2 * rows * inner * columns)


def _copy(count: int) -> Limit:
    source = jnp.ones(count // 4, jnp.float32)
    kept = [jnp.zeros_like(source)]  # memory that was in use before: no page is cleared first
    # Negated, so that a kernel must touch every number; the small result says when it is done.
    copy = jax.jit(lambda _, x: (-x, x[:1]), donate_argnums=0, keep_unused=True)

    def work() -> jax.Array:
        kept[0], done = copy(kept[0], source)
        return done

    return Limit(work, moved=2 * count)


def _row(name: str, limit: Limit, times: Sequence[float], median: float) -> record.Row:
    return {
        "what": name,
        **measure.in_ms(times),
        "GFLOP_per_s": record.rounded(limit.flops / median / 1e9) if limit.flops else None,
        "GB_per_s": record.rounded(limit.moved / median / 1e9) if limit.moved else None,
    }


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("ceiling", __doc__, steps=5, rounds=7)
    parser.add_argument("--model", default="quickstart", help=f"whose shapes: {measure.MODEL_HELP}")
    options = parser.parse_args(argv)

    def work() -> int:
        limits = make_limits(measure.load_config(options.model))
        blocks = {
            name: functools.partial(measure.repeat, limit.work, options.steps)
            for name, limit in limits.items()
        }
        seconds = measure.in_turn(blocks, options.rounds)
        middle = measure.medians(seconds)
        rates = {n: (limit.flops or limit.moved) / middle[n] for n, limit in limits.items()}
        rows = [_row(n, limit, seconds[n], middle[n]) for n, limit in limits.items()]
        details = {"seconds": seconds, "medians": middle, "rates": rates}
        record.leave("ceiling", argv, "What the machine can do", rows, options.output, details)
        return 0

    return exit_status(work, debug=False)


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
