"""Learning-rate decay of a constant, inverse-square-root or power-law run: a branch of it.

    python -m anytime_jax.main --config=configs/decay.py:runs/quickstart
    python -m anytime_jax.main --config=configs/decay.py:runs/quickstart@2x

The branch has the settings of its trunk, the run that is given, which is only read. It starts from
the trunk's checkpoint at 90% of the horizon, such as 2x, and its learning rate falls linearly from
there to zero. With `@800` it starts from the checkpoint of step 800, which is then 90% of the
horizon. The default is the last doubling for which the trunk has a checkpoint at 90%, or else its
last checkpoint. `--config.schedule.shape` is "linear", "1-sqrt" or "cosine",
`--config.schedule.floor` the last learning rate over the peak.

Cost:   a tenth of a run to the horizon.
Result: validation loss of `last` at the horizon, beside the averages of the trunk there.
"""

import itertools
from typing import Any

from ml_collections import ConfigDict, FieldReference

from anytime_jax.checkpoints import checkpoint_listing, run_directory
from anytime_jax.config import schema
from anytime_jax.errors import InputError
from anytime_jax.storage.paths import storage_path

_GAMMA = {"constant": 0.0, "inverse_sqrt": 0.5}  # as power laws


def get_config(run: str = "") -> ConfigDict:
    """Returns the configuration of a decay of the run in a directory, `DIR` or `DIR@POINT`."""
    if not run:
        raise InputError("no run: give its directory, as --config=decay:runs/NAME")
    trunk, _, point = run.partition("@")
    about = run_directory.read_run_file(storage_path(trunk), "give another run")
    if about is None:
        raise InputError(f"{trunk!r} is not a run directory (it has no run.json): give another")
    try:
        schema.build(about["config"])
    except (InputError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{trunk}/run.json has no usable settings ({error})") from error
    settings = _tuples(about["config"])
    schedule = settings["schedule"]
    if schedule["kind"] not in ("constant", "inverse_sqrt", "power"):
        raise InputError(f"{trunk} has a schedule with an end: {schedule['kind']}")
    config = ConfigDict(settings)
    config.name += "_decay"
    config.stop = "horizon"
    config.initial_weights = ""
    config.eval.tokens = FieldReference(config.eval.tokens, field_type=object)  # or "all"
    multiple, step = _branch_point(trunk, point, settings)
    config.branch.update(from_run=trunk, multiple=multiple, step=step, data="", change=())
    at = config.branch.get_ref("multiple").to_str() + "x" if multiple else f"{step}"
    config.run_dir = f"{trunk.rstrip('/')}_decay_" + at
    if isinstance(about.get("data_path"), str) and not storage_path(config.data.path).exists():
        config.data.path = about["data_path"]
    gamma = schedule.get("gamma", _GAMMA.get(schedule["kind"]))
    law = {"kind": "power_decay", "gamma": gamma, "alpha": schedule.get("alpha", 1.0)}
    decay = {"horizon": "branch", "floor": 0.0, "shape": "linear"}
    config.schedule = ConfigDict({**schedule, **law, **decay})
    return config


def _branch_point(trunk: str, point: str, settings: dict[str, Any]) -> tuple[float, int]:
    """The multiple at which the decay ends, or the step at which it starts; the other one is 0."""
    built, saved = schema.build(settings), checkpoint_listing.saved_steps(trunk)
    clock, warmup = built.clock, built.clock.step_at(built.schedule.warmup)
    last = max(saved, default=0)
    if last <= warmup:
        raise InputError(
            f"{trunk} has been trained to {clock.describe(last)}, not beyond its warmup of "
            f"{warmup:,} steps: train it further first"
        )
    if point.isdecimal():
        return 0.0, int(point)
    if point:
        return clock.multiple(clock.step_at(point, "the horizon")), 0
    leaves = (clock.branch_step(horizon) for horizon in clock.doublings())
    reached = itertools.takewhile(lambda step: step <= last, leaves)
    multiples = [2.0**i for i, step in enumerate(reached) if step in saved and step > warmup]
    return (multiples[-1], 0) if multiples else (0.0, last)


def _tuples(value: Any) -> Any:
    """Settings as configuration files have them: JSON has lists for tuples."""
    if isinstance(value, dict):
        return {name: _tuples(x) for name, x in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
