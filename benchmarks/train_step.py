"""How fast an update is: tokens/s, model FLOP/s, the share of what the machine can do, memory.

    python -m benchmarks.train_step
    python -m benchmarks.train_step --model 150m 300m --microbatches 4 8 --output

It is the update of a run (`step.make_program`) on random tokens, with the configuration's averages
and without. Every variant and the products of `benchmarks.ceiling` take their turn in one process.
Model FLOPs are those of `mfu` (`flops.flops_per_token`).
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from anytime_jax import sharding, step
from anytime_jax.command_line import answer
from anytime_jax.compilation import set_up
from anytime_jax.config import Config
from anytime_jax.flops import flops_per_token
from anytime_jax.units import human, size
from benchmarks import measure
from benchmarks.ceiling import make_limits, rate_of_products


@dataclasses.dataclass(frozen=True)
class Update:
    """A compiled update with the state that it moves.

    Attributes:
      config: the run.
      work: makes one update; returns its loss.
      temporary: bytes of each device that it takes beside the state, by the compiler's account.
    """

    config: Config
    work: Callable[[], jax.Array]
    temporary: int

    @property
    def tokens(self) -> int:
        """In an update."""
        return self.config.batch_size * self.config.model.length


def make_update(config: Config) -> Update:
    """Returns the update of a run, compiled, with a first state and a batch on the devices."""
    mesh = sharding.make_mesh(config.mesh)
    program = step.make_program(config, mesh)
    tokens_BxT = measure.random_tokens(config)[0]
    batch = sharding.put_batch(mesh, tokens_BxT, config.batch_size)
    compiled = program.train_step.lower(program.abstract_state, batch).compile()
    kept = [program.init()]

    def work() -> jax.Array:
        kept[0], metrics = compiled(kept[0], batch)
        return metrics["loss"]

    return Update(config, work, compiled.memory_analysis().temp_size_in_bytes)


def make_updates(options: Any) -> dict[str, Update]:
    """Returns an update for each combination of what the command line asks for, by its name."""
    made = {}
    asked = (options.model, options.batch or [None], options.microbatches or [None])
    for model, batch, parts in itertools.product(*asked):
        changes = {"batch_size": batch, "microbatches": parts}
        changes = {name: value for name, value in changes.items() if value}
        for averages in options.averages:
            without: dict[str, Any] = {"averages": ()} if averages == "off" else {}
            config = measure.load_config(model, **changes, **without)
            name = f"{config.name}, batch {config.batch_size} in {config.microbatches}"
            made[f"{name}, {len(config.averages)} averages"] = make_update(config)
    return made


def _row(name: str, update: Update, times: Sequence[float], median: float, ceiling: float) -> Any:
    tokens = update.tokens / median
    rate = tokens * flops_per_token(update.config.model)
    return {
        "what": name,
        "median": f"{median * 1e3:.4g} ms",
        "least to most": measure.spread(times),
        "tokens/s": human(tokens),
        "model GFLOP/s": f"{rate / 1e9:,.4g}",
        "of ceiling": f"{rate / ceiling:.1%}",
        "temporary": size(update.temporary),
    }


def costs_of_averages(middle: dict[str, float]) -> dict[str, float]:
    """Returns how much longer each update with averages takes than the same without, as a share."""
    ends = {name.rpartition(", ")[0]: name for name in middle if name.endswith(", 0 averages")}
    found = {}
    for name, seconds in middle.items():
        base = ends.get(name.rpartition(", ")[0])
        if base and base != name:
            found[name] = seconds / middle[base] - 1
    return found


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("train_step", str(__doc__), steps=8, rounds=7)
    parser.add_argument(
        "--model", nargs="+", default=["quickstart"], help="quickstart, 150m, 300m, files"
    )
    parser.add_argument(
        "--batch", nargs="+", type=int, help="sequences; the configuration's if not given"
    )
    parser.add_argument(
        "--microbatches", nargs="+", type=int, help="the configuration's if not given"
    )
    parser.add_argument("--averages", nargs="+", choices=("on", "off"), default=["on", "off"])
    options = parser.parse_args(argv)

    def work() -> int:
        updates = make_updates(options)
        limits = make_limits(next(iter(updates.values())).config)
        limits = {name: limit for name, limit in limits.items() if limit.flops}
        works = {name: made.work for name, made in {**updates, **limits}.items()}
        blocks = {
            name: functools.partial(measure.repeat, one, options.steps)
            for name, one in works.items()
        }
        seconds = measure.in_turn(blocks, options.rounds)
        middle, ceiling = measure.medians(seconds), rate_of_products(limits, seconds)
        rows = [
            _row(name, made, seconds[name], middle[name], ceiling) for name, made in updates.items()
        ]
        costs = costs_of_averages({name: middle[name] for name in updates})
        for row in rows:
            row["averages cost"] = f"{costs[row['what']]:+.1%}" if row["what"] in costs else "-"
        measured = {
            "ceiling_flops_per_s": ceiling,
            "averages_cost": costs,
            "temporary_bytes": {name: made.temporary for name, made in updates.items()},
            "model_flops_per_update": {
                name: made.tokens * flops_per_token(made.config.model)
                for name, made in updates.items()
            },
            "tokens_per_update": {name: made.tokens for name, made in updates.items()},
            "medians": middle,
            "seconds": seconds,
        }
        measure.report(parser, argv, options.output, rows, measured)
        return 0

    return answer(work, debug=False)


if __name__ == "__main__":
    set_up()
    sys.exit(main(sys.argv[1:]))
