"""Decay of any run without a horizon: a branch with the settings of its trunk.

    python -m anytime_jax.main --config=configs/decay.py:runs/quickstart

The trunk is a constant, inverse-square-root or power-law run, and is only read. Its learning rate
goes on up to its checkpoint at 90% of the horizon, `--config.branch.multiple`, and falls linearly
to zero from there; the default is the last horizon for which the trunk has that checkpoint, or
else 10/9 of its last checkpoint.
`--config.schedule.shape` is "linear", "1-sqrt" or "cosine", `--config.schedule.floor` the last
learning rate over the peak. To leave the trunk at any other checkpoint, whose step is then 90% of
the horizon: `--config.branch.multiple=0 --config.branch.step=STEP --config.run_dir=DIR`.

Cost:   a tenth of a run to the horizon.
Result: validation loss of `last` at the horizon, beside the averages of the trunk there.
"""

import itertools
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FieldReference

from anytime_jax.checkpoints import checkpoint_listing, run_directory
from anytime_jax.config import schema
from anytime_jax.errors import InputError

_GAMMA = {"constant": 0.0, "inverse_sqrt": 0.5}  # as power laws


def get_config(trunk: str = "") -> ConfigDict:
    """Returns the configuration of a decay of the run in a directory."""
    about = run_directory.read_run_file(Path(trunk), "give another run") if trunk else None
    if about is None:
        raise InputError(f"{trunk!r} is no run: give its directory, as --config=decay:runs/NAME")
    settings = _tuples(about["config"])
    schedule = settings["schedule"]
    if schedule["kind"] not in ("constant", "inverse_sqrt", "power"):
        raise InputError(f"{trunk} has a schedule with an end: {schedule['kind']}")
    config = ConfigDict(settings)
    config.name += "_decay"
    config.stop = "horizon"
    config.initial_weights = ""
    config.eval.tokens = FieldReference(config.eval.tokens, field_type=object)  # or "all"
    multiple = _last_multiple(trunk, settings)
    step = 0 if multiple else max(checkpoint_listing.saved_steps(trunk), default=0)
    config.branch.update(from_run=trunk, multiple=multiple, step=step, data="", change=())
    at = config.branch.get_ref("multiple").to_str() + "x" if multiple else f"{step}"
    config.run_dir = f"{trunk.rstrip('/')}_decay_" + at
    if "data_path" in about and not Path(config.data.path).exists():
        config.data.path = about["data_path"]
    gamma = schedule.get("gamma", _GAMMA.get(schedule["kind"]))
    law = {"kind": "power_decay", "gamma": gamma, "alpha": schedule.get("alpha", 1.0)}
    decay = {"horizon": "branch", "floor": 0.0, "shape": "linear"}
    config.schedule = ConfigDict({**schedule, **law, **decay})
    return config


def _last_multiple(trunk: str, settings: dict[str, Any]) -> float:
    """The last doubling for which the trunk has a checkpoint at 90%; 0 without one."""
    clock, saved = schema.build(settings).clock, checkpoint_listing.saved_steps(trunk)
    leaves = (clock.branch_step(horizon) for horizon in clock.doublings())
    reached = itertools.takewhile(lambda step: step <= max(saved, default=0), leaves)
    return max((2.0**i for i, step in enumerate(reached) if step in saved), default=0.0)


def _tuples(value: Any) -> Any:
    """Settings as configuration files have them: JSON has lists for tuples."""
    if isinstance(value, dict):
        return {name: _tuples(x) for name, x in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
