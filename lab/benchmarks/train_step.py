"""Speed and memory of an update: tokens/s, model FLOP/s, share of the machine's peak.

    python -m lab.benchmarks.train_step
    python -m lab.benchmarks.train_step --model 150m 300m --microbatches 4 8

Times the update of a run (`step.make_program`) on random tokens, with and without the
configuration's averages, in turn with the products of `benchmarks.peak_rates`. Model FLOPs are
counted as for `mfu` (`flops.flops_per_token`).
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.config.run_config import Config
from anytime_jax.data.dataset_info import Delimiters
from anytime_jax.distributed import sharding
from anytime_jax.distributed.device_specs import device_spec
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.models.flops import flops_per_token
from anytime_jax.training import step
from anytime_jax.training.objective import document_rules
from anytime_lab.compilation import hlo
from anytime_lab.compilation.roofline import analyze
from benchmarks import harness, peak_rates, record

_LOSSES = 3  # of the first updates, which a wrong kernel would change
_ANY_DELIMITERS = Delimiters(None, 0)  # speed does not depend on which token ends a document


@dataclasses.dataclass(frozen=True)
class Update:
    """A compiled update and its state.

    Attributes:
      config: configuration of the run.
      function: runs one update and returns its loss.
      state_bytes: bytes per device of the state and a batch, according to the compiler.
      temporary_bytes: further bytes that the update needs.
      program: text of the compiled program.
      roofline_seconds: the least time on a known accelerator (`compilation.roofline`), else None.
    """

    config: Config
    function: Callable[[], jax.Array]
    state_bytes: int
    temporary_bytes: int
    program: str
    roofline_seconds: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens of an update."""
        return self.config.batch_size * self.config.model.length

    def columns(self) -> dict[str, float]:
        """Table columns of the memory."""
        return {
            "state_MB": self.state_bytes / 1e6,
            "temporary_MB": self.temporary_bytes / 1e6,
        }


def make_update(config: Config, mesh: Mesh) -> Update:
    """Returns the compiled update of a run, with its state and a batch on the devices."""
    program = step.make_program(config, mesh, document_rules(config.data, _ANY_DELIMITERS))
    batch = sharding.put_batch(mesh, harness.random_tokens(config)[0], config.batch_size)
    compiled: Any = program.lower_update().compile()
    state, rates = program.init(), step.rates_at(config, 0)

    def function() -> jax.Array:
        nonlocal state
        state, metrics = compiled(state, batch, rates)
        return metrics["loss"]

    memory, device, least = compiled.memory_analysis(), device_spec(mesh.devices.flat[0]), None
    text = compiled.as_text()
    if device is not None and device.bandwidth:
        least = analyze(hlo.parse(text), device, dict(mesh.shape)).seconds
    sizes = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    return Update(config, function, *sizes, text, roofline_seconds=least)


def make_updates(options: argparse.Namespace) -> dict[str, Update]:
    """Returns an update for each combination of the options, by name."""
    updates = {}
    for model, batch, microbatches, attention, averages, kernels in itertools.product(
        options.model,
        options.batch or [None],
        options.microbatches or [None],
        options.attention or [None],
        options.averages,
        options.kernels or [None],
    ):
        config = harness.load_config(
            model,
            batch_size=batch,
            microbatches=microbatches,
            model={
                "attention": attention,
                "kernels": None if kernels is None else tuple(filter(None, kernels.split(","))),
            },
            averages=() if averages == "off" else None,
        )
        name = f"{config.name}, batch {config.batch_size} in {config.microbatches}"
        name += f", {attention} attention" if attention else ""
        name += f", kernels {kernels or 'none'}" if kernels is not None else ""
        name += f", {len(config.averages)} averages"
        updates[name] = make_update(config, sharding.make_mesh(config.mesh))
    return updates


def averages_cost(medians: Mapping[str, float]) -> dict[str, float]:
    """Returns the extra time of each update with averages, relative to the same without."""
    costs = {}
    for name, seconds in medians.items():
        without = f"{name.rpartition(', ')[0]}, 0 averages"
        if without in medians and without != name:
            costs[name] = seconds / medians[without] - 1
    return costs


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.train_step", __doc__, steps=8, rounds=7)
    add, default = parser.add_argument, "(default: the configuration's)"
    add("--model", nargs="+", default=["small"], help=harness.MODEL_HELP)
    add("--batch", nargs="+", type=positive_int, help=f"sequences {default}")
    add("--microbatches", nargs="+", type=positive_int, help=default)
    paths = ("plain", "blocks", "xla", "cudnn", "splash")
    add("--attention", nargs="+", choices=paths, help=default)
    add("--kernels", nargs="+", help="of model.kernels, joined by commas, such as heads,norms")
    add("--averages", nargs="+", choices=("on", "off"), default=["on", "off"])
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    updates = make_updates(options)
    losses = {
        name: [float(update.function()) for _ in range(_LOSSES)] for name, update in updates.items()
    }
    tasks = peak_rates.make_tasks(next(iter(updates.values())).config)
    products = {name: task for name, task in tasks.items() if task.flops}
    timers = {
        name: functools.partial(harness.seconds_per_call, timed.function, options.steps)
        for name, timed in {**updates, **products}.items()
    }
    seconds = harness.interleave(timers, options.rounds)
    medians = harness.medians(seconds)
    peak = peak_rates.peak_rate(products, seconds)
    costs = averages_cost({name: medians[name] for name in updates})
    rows = []
    for name, update in updates.items():
        tokens_per_s = update.tokens / statistics.median(seconds[name])
        flops_per_s = tokens_per_s * flops_per_token(update.config.model)
        row = {
            "what": name,
            **harness.milliseconds(seconds[name]),
            "tokens_per_s": tokens_per_s,
            "GFLOP_per_s": flops_per_s / 1e9,
            "of_peak": flops_per_s / peak,
            "averages_cost": costs.get(name),
            "first_losses": " ".join(f"{loss:.5f}" for loss in losses[name]),
            **update.columns(),
        }
        if update.roofline_seconds is not None:
            row["roofline_ms"] = 1e3 * update.roofline_seconds
            row["of_roofline"] = update.roofline_seconds / statistics.median(seconds[name])
        rows.append(row)
    details = {
        "peak_flops_per_s": peak,
        "averages_cost": costs,
        "model_flops_per_update": {
            name: update.tokens * flops_per_token(update.config.model)
            for name, update in updates.items()
        },
        "tokens_per_update": {name: update.tokens for name, update in updates.items()},
        "medians": medians,
        "seconds": seconds,
    }
    return record.Result("One update", rows, details)


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
