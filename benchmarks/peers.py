"""The same training in PyTorch, beside ours: the ratio of the two.

    python -m benchmarks.peers --torch-python=/path/to/an/environment/with/torch/bin/python

Both have the same shape of model (the paper's), initial weights, tokens, precision, clip, AdamW,
learning rates and float32 averages. PyTorch runs as one writes it there: fused AdamW,
scaled_dot_product_attention, foreach averages; once with torch.compile and once without. Each is a
process of its own (`torch_peer.py`) that waits while another works; blocks of updates take turns.

Before anything is timed the losses are compared: from the same weights to 1e-4, after five updates
to 1e-3 (products of bfloat16 are rounded elsewhere in each, and get ten times that). Where they
differ, there is no ratio.
"""

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
from anytime_jax.commands.command_line import exit_status
from anytime_jax.config.schema import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.runtime import configure
from anytime_jax.errors import InputError, RunError
from anytime_jax.formats.model_format import params_to_tensors
from anytime_jax.formats.olmo import OLMO
from anytime_jax.training import step
from benchmarks import measure, record

CHECKED = 5  # updates before the losses are compared a second time
# How far the losses may be apart from the same weights, and after those updates.
APART = {"float32": (1e-4, 1e-3), "bfloat16": (1e-3, 1e-2)}
_BATCHES = 8
_WORKER = Path(__file__).with_name("torch_peer.py")
_SHAPE = (
    *("layers", "heads", "width", "mlp_width", "length", "embedding_rows"),
    *("rope_theta", "norm_epsilon", "dtype"),
)


class Ours:
    """Our updates, on the batches that the peers have too.

    Attributes:
      arrays: the first weights by ai2-olmo's names, and the tokens.
    """

    def __init__(self, config: Config) -> None:
        mesh = sharding.make_mesh(config.mesh)
        program = step.make_program(config, mesh)
        tokens = measure.random_tokens(config, _BATCHES)
        self._batches = [sharding.put_batch(mesh, one, config.batch_size) for one in tokens]
        self._step, self._state, self._done = program.train_step, program.init(), 0
        weights = jax.device_get(self._state.params)
        self.arrays = {**params_to_tensors(OLMO.tensors, weights), "tokens": tokens}

    def update(self) -> jax.Array:
        """Makes one update and returns its loss."""
        batch = self._batches[self._done % _BATCHES]
        self._state, metrics = self._step(self._state, batch)
        self._done += 1
        return metrics["loss"]


class Peer:
    """A worker process and what it said of itself.

    Attributes:
      about: versions, device, whether it is compiled.
      peak: bytes of the device that it has held at most; None on a CPU.
    """

    def __init__(self, process: Any, settings: Mapping[str, Any]) -> None:
        self._process, self.peak = process, None
        self.about = self.ask(do="start", **settings)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Returns its answer.

        Raises:
          RunError: if it ended instead.
        """
        with contextlib.suppress(BrokenPipeError):  # the answer, an empty line, says so too
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise RunError(
                f"the PyTorch worker ended with status {status}: its own words are above"
            )
        return json.loads(line)

    def seconds(self, count: int) -> float:
        """Makes updates and returns the seconds of one."""
        said = self.ask(do="steps", count=count)
        self.peak = said.get("peak_bytes")
        return said["seconds"] / count


def peer_settings(config: Config, arrays: str, updates: int) -> dict[str, Any]:
    """Returns what a worker has to know to do what a run does.

    Raises:
      InputError: if it is a run that the worker cannot repeat.
    """
    rules = list(config.averaging_rules.values())
    factors = [rule.f for rule in rules if isinstance(rule, GrowingWindow)]
    same = (
        config.model.architecture == "olmo"
        and len(factors) == len(rules)
        and not config.optimizer.weight_decay
        and config.average_every == 1
    )
    if not same:
        raise InputError(
            f"the run {config.name} is none that the PyTorch worker repeats: it must have "
            "model.architecture olmo, averages by f alone, average_every 1 and no weight decay"
        )
    return {
        **{name: getattr(config.model, name) for name in _SHAPE},
        **{name: getattr(config.optimizer, name) for name in ("b1", "b2", "epsilon", "clip_norm")},
        "arrays": arrays,
        "averages": factors,
        "microbatches": config.microbatches,
        "rates": [float(config.learning_rate(i)) for i in range(updates)],
    }


@contextlib.contextmanager
def start_peers(
    python: str, ours: Ours, settings: Mapping[str, Any], kinds: Sequence[str]
) -> Iterator[dict[str, Peer]]:
    """Gives the workers by name; they end with the block."""
    np.savez(settings["arrays"], allow_pickle=False, **ours.arrays)
    hidden = () if python == sys.executable else ("PYTHONPATH", "PYTHONHOME")  # not for others
    surroundings = {name: value for name, value in os.environ.items() if name not in hidden}
    with contextlib.ExitStack() as stack:
        peers = {}
        for kind in kinds:
            process = stack.enter_context(
                subprocess.Popen(
                    [python, str(_WORKER)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=surroundings,
                )
            )
            stack.callback(process.kill)
            peers[f"PyTorch, {kind}"] = Peer(process, {**settings, "compiled": kind == "compiled"})
        yield peers


def compare_losses(
    ours: Ours, peers: Mapping[str, Peer], dtype: str = "float32"
) -> dict[str, list[float]]:
    """Returns the first losses of everyone.

    Args:
      ours: has made no update yet.
      peers: by name; nor have they.
      dtype: of the operands of products.

    Raises:
      RunError: if a peer's are not ours.
    """
    losses = {"anytime_jax": [float(ours.update()) for _ in range(CHECKED + 1)]}
    for name, peer in peers.items():
        losses[name] = peer.ask(do="steps", count=CHECKED + 1)["losses"]
        for i, most in zip((0, CHECKED), APART[dtype], strict=True):
            mine, other = losses["anytime_jax"][i], losses[name][i]
            if not abs(mine - other) <= most:
                raise RunError(
                    f"{name} has the loss {other:.6f} after {i} updates, where ours is {mine:.6f}: "
                    f"more than {most} apart, so they do not compute the same"
                )
    return losses


def main(argv: Sequence[str]) -> int:
    parser = measure.make_parser("peers", __doc__, steps=8, rounds=9)
    parser.add_argument("--torch-python", required=True, help="an interpreter that has torch")
    parser.add_argument("--model", default="quickstart", help=measure.MODEL_HELP)
    parser.add_argument("--batch", type=int, help="sequences; the configuration's if not given")
    parser.add_argument("--microbatches", type=int, help="the configuration's if not given")
    kinds = ("compiled", "eager")
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds, help="of PyTorch")
    options = parser.parse_args(argv)

    def work() -> int:
        changes = {"batch_size": options.batch, "microbatches": options.microbatches}
        config = measure.load_config(options.model, **{k: v for k, v in changes.items() if v})
        updates = CHECKED + 1 + options.steps * (options.rounds + 1)
        with tempfile.TemporaryDirectory() as folder:
            settings = peer_settings(config, f"{folder}/arrays.npz", updates)
            ours = Ours(config)
            with start_peers(options.torch_python, ours, settings, options.kinds) as peers:
                losses = compare_losses(ours, peers, config.model.dtype)
                seconds = _time(ours, peers, options)
                details = {
                    "peers": {name: peer.about for name, peer in peers.items()},
                    "peak_bytes": {name: peer.peak for name, peer in peers.items()},
                    "losses": losses,
                }
        details["peak_bytes"]["anytime_jax"] = _peak()
        rows, more = _summary(config, seconds, details)
        title = "The same training in PyTorch"
        record.leave("peers", argv, title, rows, options.output, {**details, **more})
        return 0

    return exit_status(work, debug=False)


def _time(ours: Ours, peers: Mapping[str, Peer], options: Any) -> dict[str, list[float]]:
    blocks = {"anytime_jax": functools.partial(measure.repeat, ours.update, options.steps)}
    for name, peer in peers.items():
        blocks[name] = functools.partial(peer.seconds, options.steps)
    return measure.in_turn(blocks, options.rounds)


def _peak() -> int | None:
    """Bytes of the device that this process has held at most; None on a CPU."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def _summary(
    config: Config, seconds: dict[str, list[float]], details: Mapping[str, Any]
) -> tuple[list[record.Row], dict[str, Any]]:
    """The rows of the table, and what the record has of the times."""
    middle = measure.medians(seconds)
    ratios = {name: time / middle["anytime_jax"] for name, time in middle.items()}
    tokens = config.batch_size * config.model.length
    rows = []
    for name, times in seconds.items():
        losses, peak = details["losses"][name], details["peak_bytes"][name]
        row = {
            "what": name,
            **measure.in_ms(times),
            "tokens_per_s": record.rounded(tokens / middle[name]),
            "times_ours": record.rounded(ratios[name]),
            "first_loss": f"{losses[0]:.6f}",
            f"after_{CHECKED}": f"{losses[CHECKED]:.6f}",
            "how": details["peers"].get(name, {}).get("how"),
            "peak_MB": None if peak is None else record.rounded(peak / 1e6),
        }
        rows.append(row)
    return rows, {"ratios": ratios, "medians": middle, "seconds": seconds}


if __name__ == "__main__":
    # A GPU is shared with the workers: nobody takes all of its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    configure()
    sys.exit(main(sys.argv[1:]))
