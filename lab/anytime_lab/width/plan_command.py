"""Print the settings that a larger model takes from a small run, and why.

The small run is the one whose learning rate was tuned. The larger configuration gets its optimizer
and schedule, and a parametrization under which the rate holds at another width (docs/width.md).
Nothing is trained or written.
"""

import argparse
import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from anytime_jax.checkpoints import run_json
from anytime_jax.commands import argument_parser, config_file
from anytime_jax.commands.rich_console import open_console
from anytime_jax.config.run_config import Config
from anytime_jax.config.settings_reader import flatten
from anytime_jax.errors import InputError, format_value
from anytime_jax.models import decoder
from anytime_jax.tables import Column, Table

EXAMPLES = ("--from=runs/quickstart --config=quickstart --config.model.width=256",)

_SAME = "the same at any width"
_WHY = {
    "optimizer.epsilon": "gradients fall as the width grows, and so does epsilon in the program",
    "optimizer.weight_decay": "the same: what an update takes does not depend on the width",
    "schedule.peak": "what depends on the width is in the program, see below",
    "clip_norm": "under mup the norm of the gradient does not grow with the width",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a larger model takes: the value, what it has now, and why."""

    name: str
    value: Any
    now: Any
    why: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--from",
        dest="run",
        required=True,
        type=argument_parser.path,
        metavar="RUN",
        help="run directory of the small run",
    )
    config_file.add_option(parser)
    config_file.add_trust(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan; returns the exit status."""
    small, _ = run_json.read_run(str(arguments.run), "--from", arguments.trust)
    large = config_file.load(arguments)
    settings = list(plan(small, large))
    console = open_console()
    names = ["setting", "now", "takes", Column("why", wrap=True)]
    rows = [[x.name, _text(x.now), _text(x.value), x.why] for x in settings]
    console.print(Table(f"{large.name} from {arguments.run}", names, rows))
    console.print(_rates(small, large))
    for line in _open_questions(small, large):
        console.print(f"not transferred: {line}")
    changes = [(x.name, _text(x.value)) for x in settings if x.value != x.now]
    options = [f"--config.{name}={shlex.quote(value)}" for name, value in changes]
    console.print(" ".join(options) or "nothing to change", soft_wrap=True, highlight=False)
    return 0


def plan(small: Config, large: Config) -> Iterator[Setting]:
    """Yields the settings that a larger configuration takes from a small one.

    Raises an InputError if the rules for the width do not apply to the two.
    """
    _check(small, large)
    now, ours = (flatten(x.to_dict()) for x in (large, small))
    model, base = large.model, _base_width(small)
    head, heads = small.model.head_width, small.model.heads * model.width // small.model.width
    groups = small.model.heads // small.model.key_heads
    if heads * small.model.width != small.model.heads * model.width or heads % groups:
        raise InputError(
            f"config.model.width = {model.width}: the small run has {small.model.heads} heads at a "
            f"width of {small.model.width}, and heads grow in proportion: give a multiple of "
            f"{small.model.width // math.gcd(small.model.key_heads, small.model.width)}"
        )
    values = {
        "model.parametrization": ("mup", "initial weights, logits and rates follow the width"),
        "model.base_width": (base, "the width at which the rate was tuned"),
        "model.heads": (heads, f"heads keep their size of {head}"),
        "model.mlp_width": (
            round(model.width * small.model.mlp_width / small.model.width),
            "grows in proportion to the width",
        ),
    }
    if small.model.head_size or large.model.head_size:
        values["model.head_size"] = (head, f"heads keep their size of {head}")
    if small.model.kv_heads or large.model.kv_heads:
        kv_heads = 0 if groups == 1 else heads // groups
        values["model.kv_heads"] = (kv_heads, "as many queries share a key as before")
    if small.horizon is not None:
        values["stop"] = ("horizon", "the schedule of the small run has an end")
    for name, value in ours.items():
        if name.startswith(("optimizer.", "schedule.")) or name == "clip_norm":
            values[name] = (value, _WHY.get(name, _SAME))
    # The kinds come first: their settings are read after them.
    for name in sorted(values, key=lambda x: (x.partition(".")[0], not x.endswith(".kind"))):
        value, why = values[name]
        yield Setting(name, value, now.get(name), why)


def _check(small: Config, large: Config) -> None:
    if type(small.model) is not type(large.model):
        kinds = (flatten(x.to_dict())["model.kind"] for x in (small, large))
        raise InputError(
            "config.model.kind: the small run is {} and the configuration {}: the rules hold "
            "within a kind".format(*kinds)
        )
    if large.initial_weights:
        raise InputError(
            f"config.initial_weights = {large.initial_weights!r}: weights of another model have no "
            "base width; leave them out"
        )
    if not small.follows_width:
        raise InputError(
            f"the optimizer of the small run, {type(small.optimizer).__name__}, has no rule for "
            "the width: tune AdamW, Muon, Pace or ScheduleFreeAdamW, or a class of your own with "
            "follows_width = True"
        )


def _rates(small: Config, large: Config) -> str:
    """Says how the rates of the parameters differ from the small run's."""
    growth = large.model.width / _base_width(small)
    matrices = sorted(decoder.growing_matrices(large.model))
    peak = getattr(small.learning_rate, "peak", None)
    optimizer = _optimizer(small)
    if "scale" in optimizer:
        text = (
            f"the peak of {peak:g} for {', '.join(matrices)}, whose updates have the scale "
            f"{optimizer['scale']!r} of their shape, and {peak * optimizer['adam_rate']:g}"
        )
    else:
        text = f"the peak of {peak:g} over {growth:g} for {', '.join(matrices)}, and {peak:g}"
    return f"rates: {text} for all others; logits are divided by {growth:g}"


def _open_questions(small: Config, large: Config) -> Iterator[str]:
    if large.model.width < small.model.width:
        yield (
            f"nothing to a narrower model: {large.model.width} is less than the small run's "
            f"{small.model.width}, and what is best there was not tried"
        )
    if small.model.layers != large.model.layers:
        yield (
            f"the depth, {small.model.layers} to {large.model.layers} layers: no rule for it is "
            "here, so tune at the larger depth, or expect a smaller best peak"
        )
    tokens = [x.batch_size * x.model.length for x in (small, large)]
    if tokens[0] != tokens[1]:
        yield (
            f"the batch, {tokens[0]:,} to {tokens[1]:,} tokens: a larger one allows a larger peak, "
            "and times in steps are other numbers of tokens"
        )
    if _optimizer(small).get("scale") == "adam":
        yield (
            "Muon's scale 'adam': its changes of activations grow with the root of the width; "
            "tune the small run with optimizer.scale = 'fans'"
        )
    decay = _optimizer(small).get("weight_decay", 0.0)
    if decay and not isinstance(decay, str):  # "g2" follows the run
        yield (
            "the horizon of the weight decay: its memory is a number of updates, which suits the "
            "length of the small run"
        )


def _base_width(small: Config) -> int:
    return small.model.base_width or small.model.width


def _optimizer(config: Config) -> Mapping[str, Any]:
    return config.to_dict()["optimizer"]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return "-" if value is None else value if isinstance(value, str) else format_value(value)
