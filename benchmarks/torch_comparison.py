"""Comparison with the same training in PyTorch: first losses, then the ratio of the speeds.

    python -m benchmarks.torch_comparison --torch-python=/path/to/torch/environment/bin/python

Both sides have the same model (the paper's), initial weights, tokens, precision, clip, AdamW,
learning rates and float32 averages. PyTorch runs idiomatic code: fused AdamW,
scaled_dot_product_attention and foreach averages, with torch.compile and without. Each side is a
process (PyTorch's is `torch_peer.py`) that waits while the other works; they take turns.

Losses are compared first: from the same weights to 1e-4, after five updates to 1e-3 (ten times that
in bfloat16, whose products the two sides round differently). If they differ, no ratio is reported.
"""

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytime_jax.averaging import GrowingWindow
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.config.model import Olmo
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.ai2_olmo import OLMO
from anytime_jax.formats.model_format import layers_to_tensors, split_layers
from anytime_jax.optimizers import AdamW
from anytime_jax.training import step
from benchmarks import harness, record

OURS = "anytime_jax"
CHECKED = 5  # updates before the second comparison of losses
# Largest differences of the losses: from the same weights, and after `CHECKED` updates.
TOLERANCE = {"float32": (1e-4, 1e-3), "bfloat16": (1e-3, 1e-2)}
_BATCHES = 8
_WORKER = Path(__file__).with_name("torch_peer.py")
_SHAPE = (
    *("layers", "heads", "width", "mlp_width", "length", "embedding_rows"),
    *("rope_theta", "norm_epsilon", "dtype"),
)


class Trainer:
    """Training in JAX, on the same batches as the workers.

    `arrays` are the initial weights by ai2-olmo's names, and the tokens.
    """

    def __init__(self, config: Config) -> None:
        self._config, mesh = config, sharding.make_mesh(config.mesh)
        program = step.make_program(config, mesh)
        tokens = harness.random_tokens(config, _BATCHES)
        self._batches = [sharding.put_batch(mesh, batch, config.batch_size) for batch in tokens]
        self._step, self._state, self._updates = program.train_step, program.init(), 0
        layers = split_layers(jax.device_get(self._state.params))
        self.arrays = {
            **dict(layers_to_tensors(OLMO.tensors(config.model), layers)),
            "tokens": tokens,
        }

    def update(self) -> jax.Array:
        """Makes one update and returns its loss."""
        batch = self._batches[self._updates % _BATCHES]
        rates = step.rates_at(self._config, self._updates)
        self._state, metrics = self._step(self._state, batch, rates)
        self._updates += 1
        return metrics["loss"]


class Worker:
    """A process of `torch_peer.py`.

    `info` has versions, the device, and whether the loss is compiled. `peak_bytes` is the peak
    memory of the device so far, or None on a CPU.
    """

    def __init__(self, process: Any, settings: Mapping[str, Any]) -> None:
        self._process, self.peak_bytes = process, None
        self.info = self.request(do="start", **settings)

    def request(self, **message: Any) -> dict[str, Any]:
        """Sends a message and returns the answer; raises a RunError if the process ended."""
        with contextlib.suppress(BrokenPipeError):  # a process that ended gives an empty answer
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RunError(f"the PyTorch worker ended with status {status}: see its output above")
        return json.loads(line)

    def seconds_per_update(self, count: int) -> float:
        """Runs some updates and returns the mean seconds of one."""
        answer = self.request(do="steps", count=count)
        self.peak_bytes = answer.get("peak_bytes")
        return answer["seconds"] / count


def worker_settings(config: Config, arrays: str, updates: int) -> dict[str, Any]:
    """Returns the settings of a worker; raises an InputError for a run that it cannot reproduce."""
    rules = list(config.averaging_rules.values())
    factors = [rule.f for rule in rules if isinstance(rule, GrowingWindow)]
    is_supported = (
        isinstance(config.model, Olmo)
        and type(config.optimizer) is AdamW
        and len(factors) == len(rules)
        and not config.optimizer.weight_decay
    )
    if not is_supported:
        raise InputError(
            f"the PyTorch worker cannot repeat the run {config.name}: it needs the model "
            "olmo, the optimizer adamw without weight decay, and averages such as f25"
        )
    return {
        **{name: getattr(config.model, name) for name in _SHAPE},
        **{name: getattr(config.optimizer, name) for name in ("b1", "b2", "epsilon")},
        "clip_norm": config.clip_norm,
        "arrays": arrays,
        "averages": factors,
        "microbatches": config.microbatches,
        "rates": [float(np.float32(config.rate_at(i))) for i in range(updates)],
    }


@contextlib.contextmanager
def start_workers(
    python: str, arrays: Mapping[str, Any], settings: Mapping[str, Any], modes: Sequence[str]
) -> Iterator[dict[str, Worker]]:
    """Starts a worker for each mode, "compiled" or "eager"; they end with the block."""
    np.savez(settings["arrays"], allow_pickle=False, **arrays)
    ours_only = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in ours_only}
    with contextlib.ExitStack() as stack:
        workers = {}
        for mode in modes:
            process = stack.enter_context(
                subprocess.Popen(
                    [python, str(_WORKER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            stack.callback(process.kill)
            worker = Worker(process, {**settings, "compiled": mode == "compiled"})
            workers[f"PyTorch, {mode}"] = worker
        yield workers


def compare_losses(
    trainer: Trainer, workers: Mapping[str, Worker], dtype: str = "float32"
) -> dict[str, list[float]]:
    """Returns the losses of the first updates by name; raises a RunError if they differ."""
    losses = {OURS: [float(trainer.update()) for _ in range(CHECKED + 1)]}
    for name, worker in workers.items():
        losses[name] = worker.request(do="steps", count=CHECKED + 1)["losses"]
        for i, tolerance in zip((0, CHECKED), TOLERANCE[dtype], strict=True):
            ours, theirs = losses[OURS][i], losses[name][i]
            if not abs(ours - theirs) <= tolerance:
                raise RunError(
                    f"{name} has a loss of {theirs:.6f} after {i} updates, ours is {ours:.6f}: "
                    f"they differ by more than {tolerance}, so they do not compute the same"
                )
    return losses


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser(
        "benchmarks.torch_comparison", __doc__, steps=8, rounds=9, model=True
    )
    add, default = parser.add_argument, "(default: the configuration's)"
    add("--torch-python", required=True, help="an interpreter with torch")
    add("--batch", type=positive_int, help=f"sequences {default}")
    add("--microbatches", type=positive_int, help=default)
    modes = ("compiled", "eager")
    add("--modes", nargs="+", choices=modes, default=modes, help="of PyTorch (default both)")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    config = harness.load_config(
        options.model, batch_size=options.batch, microbatches=options.microbatches
    )
    updates = CHECKED + 1 + options.steps * (options.rounds + 1)
    with tempfile.TemporaryDirectory() as folder:
        settings = worker_settings(config, f"{folder}/arrays.npz", updates)
        trainer = Trainer(config)
        with start_workers(
            options.torch_python, trainer.arrays, settings, options.modes
        ) as workers:
            losses = compare_losses(trainer, workers, config.model.dtype)
            timers = {
                OURS: functools.partial(harness.seconds_per_call, trainer.update, options.steps)
            }
            for name, worker in workers.items():
                timers[name] = functools.partial(worker.seconds_per_update, options.steps)
            seconds = harness.interleave(timers, options.rounds)
            info = {name: worker.info for name, worker in workers.items()}
            peaks = {name: worker.peak_bytes for name, worker in workers.items()}
    peaks[OURS] = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    medians = harness.medians(seconds)
    ratios = {name: median / medians[OURS] for name, median in medians.items()}
    tokens = config.batch_size * config.model.length
    rows = [
        {
            "what": name,
            **harness.milliseconds(seconds[name]),
            "tokens_per_s": tokens / medians[name],
            "times_ours": ratios[name],
            "first_loss": f"{losses[name][0]:.6f}",
            f"after_{CHECKED}": f"{losses[name][CHECKED]:.6f}",
            "mode": info.get(name, {}).get("mode"),
            "peak_MB": (peak := peaks[name]) and peak / 1e6,
        }
        for name in seconds
    ]
    details = {
        "peers": info,
        "peak_bytes": peaks,
        "losses": losses,
        "ratios": ratios,
        "medians": medians,
        "seconds": seconds,
    }
    return record.Result("The same training in PyTorch", rows, details)


if __name__ == "__main__":
    # The workers share the GPU: no process may allocate all of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    configure()
    sys.exit(main(sys.argv[1:]))
