"""What a device gains by many small runs as one program: tokens/s of them beside one run alone.

    python -m benchmarks.fleet
    python -m benchmarks.fleet --runs 1 16 64 --model=quickstart --width=32 --batch=8

The run alone makes the update of `step.make_program`, the others that of
`fleet.vectorize_update`, on
random tokens; they differ in seed, peak rate and b2. All take their turn in one process. Where the
device has no room for so many, the row says so, and more are not tried.
"""

import copy
import functools
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.commands.command_line import exit_status
from anytime_jax.config import schema as config_lib
from anytime_jax.config.schema import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.runtime import configure
from anytime_jax.errors import InputError
from anytime_jax.training import fleet
from benchmarks import measure, record
from benchmarks.train_step import Update, make_update

_SHAPE = ("layers", "heads", "width", "mlp_width", "length")


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("fleet", __doc__, steps=8, rounds=7)
    add, own = parser.add_argument, "the configuration's if not given"
    add("--runs", nargs="+", type=int, default=[1, 4, 16], help="as one program (default 1 4 16)")
    add("--model", default="quickstart", help=measure.MODEL_HELP)
    for name in _SHAPE:
        add(f"--{name.replace('_', '-')}", type=int, help=f"of the model; {own}")
    add("--batch", type=int, help=f"sequences of each run; {own}")
    add("--microbatches", type=int, help=own)
    options = parser.parse_args(argv)
    return exit_status(functools.partial(_measure, argv, options), debug=False)


def _measure(argv: Sequence[str], given: Any) -> int:
    if min(given.runs) < 1:
        raise InputError(f"--runs has {min(given.runs)}: give numbers of runs from 1")
    shape = {name: value for name in _SHAPE if (value := getattr(given, name))}
    own = {"batch_size": given.batch, "microbatches": given.microbatches}
    changes = {"model": shape, **{name: value for name, value in own.items() if value}}
    config = measure.load_config(given.model, **changes)
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    alone = make_update(config, mesh)
    together, begun = begin(config, sorted({*given.runs}), mesh)
    updates = {0: alone, **{runs: made for runs, made in together.items() if made}}
    blocks = {runs: functools.partial(_time, made, given.steps) for runs, made in updates.items()}
    seconds = measure.in_turn(blocks, given.rounds)
    rows = [_row(1, "alone", alone, seconds[0], seconds[0])]
    for runs, made in together.items():
        how = "one program" if made else "no room"
        rows.append(_row(runs, how, made, seconds.get(runs, ()), seconds[0]))
    details = {"seconds_to_begin": begun, "tokens_per_update": alone.tokens, "seconds": seconds}
    record.leave("fleet", argv, f"Runs of {config.name}", rows, given.output, details)
    return 0


def _time(update: Update, steps: int) -> float:
    """The seconds of an update after a first one, which finds the caches full of another fleet."""
    jax.block_until_ready(update.work())
    return measure.repeat(update.work, steps)


def begin(
    config: Config, counts: Sequence[int], mesh: Mesh
) -> tuple[dict[int, Update | None], dict[int, float]]:
    """Makes the first update of fleets, up to the first that the device has no room for.

    Args:
      config: of their runs, but for what differs.
      counts: of runs, the least first.
      mesh: of a single device.

    Returns:
      for each count its update, None for one without room; and the seconds that it took.
    """
    made: dict[int, Update | None] = {}
    seconds: dict[int, float] = {}
    for runs in counts:
        began = time.perf_counter()
        try:
            update = make_fleet(config, runs, mesh)
            jax.block_until_ready(update.work())
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            made[runs] = None
            break
        made[runs], seconds[runs] = update, time.perf_counter() - began
    return made, seconds


def make_fleet(config: Config, runs: int, mesh: Mesh) -> Update:
    """Returns the update of many runs, compiled, with first states and batches on the device."""
    configs = [vary(config, 1 + i) for i in range(runs)]
    make_program = fleet.share_program(config, mesh)
    kept = [fleet.stack([make_program(each, mesh).init() for each in configs], mesh)]
    tokens_RxBxT = jax.device_put(measure.random_tokens(config, runs), mesh.devices.flat[0])
    compiled = fleet.vectorize_update(configs, mesh).lower(kept[0], tokens_RxBxT, True).compile()

    def work() -> jax.Array:
        kept[0], metrics = compiled(kept[0], tokens_RxBxT)
        return metrics["loss"]

    memory: Any = compiled.memory_analysis()
    return Update(config, work, memory.argument_size_in_bytes, memory.temp_size_in_bytes)


def vary(config: Config, number: int) -> Config:
    """Returns a run with a seed, a peak rate and b2 of its own, by its number from 1."""
    source = copy.deepcopy(config.to_dict())
    source["seed"] += number
    source["schedule"]["peak"] /= number
    source["optimizer"]["b2"] = 1 - (1 - source["optimizer"]["b2"]) / number
    return config_lib.build(source)


def _row(
    runs: int, how: str, update: Update | None, times: Sequence[float], alone: Sequence[float]
) -> record.Row:
    """The ratio is of neighbours in time, the median over the rounds."""
    columns = ("median_ms", "least_ms", "most_ms", "tokens_per_s", "times_alone")
    found: dict[str, Any] = dict.fromkeys((*columns, "held_MB", "temporary_MB"))
    if update:
        ratios = [runs * one / all_ for one, all_ in zip(alone, times, strict=True)]
        found |= measure.in_ms(times)
        found["tokens_per_s"] = record.rounded(runs * update.tokens / statistics.median(times))
        found["times_alone"] = record.middle(ratios)
        found["held_MB"] = record.rounded(update.held / 1e6)
        found["temporary_MB"] = record.rounded(update.temporary / 1e6)
    return {"runs": runs, "how": how, **found}


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
