"""How fast an update is: tokens/s, model FLOP/s, the share of what the machine can do, memory.

    python -m benchmarks.train_step
    python -m benchmarks.train_step --model 150m 300m --microbatches 4 8

It is the update of a run (`step.make_program`) on random tokens, with the configuration's averages
and without. Every variant and the products of `benchmarks.ceiling` take their turn in one process.
Model FLOPs are those of `mfu` (`flops.flops_per_token`).
"""

import dataclasses
import functools
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.commands.command_line import exit_status
from anytime_jax.config.schema import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.runtime import configure
from anytime_jax.models.flops import flops_per_token
from anytime_jax.training import step
from benchmarks import measure, record
from benchmarks.ceiling import make_limits, rate_of_products


@dataclasses.dataclass(frozen=True)
class Update:
    """A compiled update with the state that it moves.

    Attributes:
      config: the run.
      work: makes one update; returns its loss.
      held: bytes of each device for the state and a batch, by the compiler's account.
      temporary: bytes that the update takes beside them, by the same account.
    """

    config: Config
    work: Callable[[], jax.Array]
    held: int
    temporary: int

    @property
    def tokens(self) -> int:
        """In an update."""
        return self.config.batch_size * self.config.model.length


def make_update(config: Config, mesh: Mesh) -> Update:
    """Returns the update of a run, compiled, with a first state and a batch on the devices."""
    program = step.make_program(config, mesh)
    tokens_BxT = measure.random_tokens(config)[0]
    batch = sharding.put_batch(mesh, tokens_BxT, config.batch_size)
    compiled = program.train_step.lower(program.abstract_state, batch).compile()
    kept = [program.init()]

    def work() -> jax.Array:
        kept[0], metrics = compiled(kept[0], batch)
        return metrics["loss"]

    memory = compiled.memory_analysis()
    return Update(config, work, memory.argument_size_in_bytes, memory.temp_size_in_bytes)


def make_updates(options: Any) -> dict[str, Update]:
    """Returns an update for each combination of what the command line asks for, by its name."""
    made = {}
    asked = (options.model, options.batch or [None], options.microbatches or [None])
    for model, batch, parts, path in itertools.product(*asked, options.attention or [None]):
        changes: dict[str, Any] = {"batch_size": batch, "microbatches": parts}
        changes = {name: value for name, value in changes.items() if value}
        changes |= {"model": {"attention": path}} if path else {}
        for averages in options.averages:
            without: dict[str, Any] = {"averages": ()} if averages == "off" else {}
            config = measure.load_config(model, **changes, **without)
            name = f"{config.name}, batch {config.batch_size} in {config.microbatches}"
            name += f", {path} attention" if path else ""
            made[f"{name}, {len(config.averages)} averages"] = make_update(
                config, sharding.make_mesh(config.mesh)
            )
    return made


def _row(
    name: str, update: Update, times: Sequence[float], ceiling: float, cost: float | None
) -> record.Row:
    tokens = update.tokens / statistics.median(times)
    rate = tokens * flops_per_token(update.config.model)
    return {
        "what": name,
        **measure.in_ms(times),
        "tokens_per_s": record.rounded(tokens),
        "GFLOP_per_s": record.rounded(rate / 1e9),
        "of_ceiling": record.rounded(rate / ceiling),
        "averages_cost": None if cost is None else record.rounded(cost),
        "held_MB": record.rounded(update.held / 1e6),
        "temporary_MB": record.rounded(update.temporary / 1e6),
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
    parser = measure.make_parser("train_step", __doc__, steps=8, rounds=7)
    add, own = parser.add_argument, "the configuration's if not given"
    add("--model", nargs="+", default=["quickstart"], help=measure.MODEL_HELP)
    add("--batch", nargs="+", type=int, help=f"sequences; {own}")
    add("--microbatches", nargs="+", type=int, help=own)
    add("--attention", nargs="+", choices=("plain", "xla", "cudnn"), help=own)
    add("--averages", nargs="+", choices=("on", "off"), default=["on", "off"])
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
        costs = costs_of_averages({name: middle[name] for name in updates})
        rows = [
            _row(name, made, seconds[name], ceiling, costs.get(name))
            for name, made in updates.items()
        ]
        details = {
            "ceiling_flops_per_s": ceiling,
            "averages_cost": costs,
            "held_bytes": {name: made.held for name, made in updates.items()},
            "temporary_bytes": {name: made.temporary for name, made in updates.items()},
            "model_flops_per_update": {
                name: made.tokens * flops_per_token(made.config.model)
                for name, made in updates.items()
            },
            "tokens_per_update": {name: made.tokens for name, made in updates.items()},
            "medians": middle,
            "seconds": seconds,
        }
        record.leave("train_step", argv, "One update", rows, options.output, details)
        return 0

    return exit_status(work, debug=False)


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
