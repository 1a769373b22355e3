"""Throughput of many small runs as one program, relative to a single run.

    python -m benchmarks.fleet
    python -m benchmarks.fleet --runs 1 16 64 --model=quickstart --width=32 --batch=8

Times the updates of `step.make_program` (single run) and `fleet.vectorize_update` (fleets) in turn
in one process, on random tokens. Runs of a fleet differ in seed, peak rate and b2. A fleet that
does not fit the device is reported in its row, and larger ones are skipped.
"""

import argparse
import copy
import functools
import statistics
import sys
import time
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from anytime_jax.config import schema
from anytime_jax.config.schema import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError
from anytime_jax.training import fleet, step
from benchmarks import harness, record
from benchmarks.train_step import Update, make_update, wrap_update

_SHAPE = ("layers", "heads", "width", "mlp_width", "length")


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("fleet", __doc__, steps=8, rounds=7, model=True)
    add, default = parser.add_argument, "(default: the configuration's)"
    add("--runs", nargs="+", type=int, default=[1, 4, 16], help="fleet sizes (default 1 4 16)")
    for name in _SHAPE:
        add(f"--{name.replace('_', '-')}", type=int, help=f"of the model {default}")
    add("--batch", type=int, help=f"sequences of each run {default}")
    add("--microbatches", type=int, help=default)
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    if min(options.runs) < 1:
        raise InputError(f"--runs={min(options.runs)} is not a number of runs from 1")
    config = harness.load_config(
        options.model,
        model={name: getattr(options, name) for name in _SHAPE},
        batch_size=options.batch,
        microbatches=options.microbatches,
    )
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    single = make_update(config, mesh)
    fleets, compile_seconds = make_fleets(config, sorted({*options.runs}), mesh)
    updates = {0: single, **{runs: update for runs, update in fleets.items() if update}}
    timers = {
        runs: functools.partial(_time, update, options.steps) for runs, update in updates.items()
    }
    seconds = harness.interleave(timers, options.rounds)
    rows = [_row(1, "single run", single, seconds[0], seconds[0])]
    for runs, update in fleets.items():
        program = "fleet" if update else "out of memory"
        rows.append(_row(runs, program, update, seconds.get(runs, ()), seconds[0]))
    details = {
        "compile_seconds": compile_seconds,
        "tokens_per_update": single.tokens,
        "seconds": seconds,
    }
    return record.Result(f"Runs of {config.name}", rows, details)


def _time(update: Update, steps: int) -> float:
    jax.block_until_ready(update.function())  # refills caches that hold another fleet's state
    return harness.seconds_per_call(update.function, steps)


def make_fleets(
    config: Config, sizes: Sequence[int], mesh: Mesh
) -> tuple[dict[int, Update | None], dict[int, float]]:
    """Returns updates of fleets of increasing size, and the seconds until the first update of each.

    An update is None if the device's memory is too small for it; it is then the last.
    """
    updates: dict[int, Update | None] = {}
    seconds: dict[int, float] = {}
    for runs in sizes:
        start = time.perf_counter()
        try:
            update = make_fleet(config, runs, mesh)
            jax.block_until_ready(update.function())
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            updates[runs] = None
            break
        updates[runs], seconds[runs] = update, time.perf_counter() - start
    return updates, seconds


def make_fleet(config: Config, runs: int, mesh: Mesh) -> Update:
    """Returns the compiled update of a fleet, with its states and batches on the device."""
    configs = [vary(config, 1 + i) for i in range(runs)]
    init = step.make_program(config, mesh).init
    states = fleet.stack([init(each.seed) for each in configs], mesh)
    tokens_RxBxT = jax.device_put(harness.random_tokens(config, runs), mesh.devices.flat[0])
    compiled = fleet.vectorize_update(configs, mesh).lower(states, tokens_RxBxT, True).compile()
    return wrap_update(config, mesh, compiled, states, tokens_RxBxT)


def vary(config: Config, number: int) -> Config:
    """Returns the configuration of run `number`, from 1, with its own seed, peak rate and b2."""
    settings = copy.deepcopy(config.to_dict())
    settings["seed"] += number
    settings["schedule"]["peak"] /= number
    settings["optimizer"]["b2"] = 1 - (1 - settings["optimizer"]["b2"]) / number
    return schema.build(settings)


def _row(
    runs: int, program: str, update: Update | None, times: Sequence[float], single: Sequence[float]
) -> record.Row:
    columns = ("median_ms", "least_ms", "most_ms", "tokens_per_s", "times_single")
    row = {"runs": runs, "program": program}
    row |= dict.fromkeys((*columns, "state_MB", "temporary_MB"))
    if update:
        # Ratios within a round, so that drift of the machine's speed cancels.
        ratios = [runs * one / fleet for one, fleet in zip(single, times, strict=True)]
        row |= harness.milliseconds(times) | update.columns()
        row["tokens_per_s"] = runs * update.tokens / statistics.median(times)
        row["times_single"] = statistics.median(ratios)
    return row


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
