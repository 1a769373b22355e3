"""Python API: train a run from a configuration; use its weights.

    from anytime_jax import api

    config = api.load_config("quickstart", {"stop": "1x", "run_dir": "runs/mine"})
    outcome = api.train(config)
    params = api.load("runs/mine", "f25")
    losses = api.evaluate("runs/mine", ["last", "f25", "f=35"])
    text = api.generate("runs/mine", "def main(", weights="f25", tokens=100)

A run is named by its directory, and may still be training. Names of weights are as in the
commands: "last", the live weights; labels such as "f25", the average of factor 25 that the run
tracks; and averages that it does not track, such as "f=35" (docs/readout.md). A warning names the
kernel error of an average that was added to an old run. Mistakes raise an `errors.InputError`,
failures an `errors.RunError`.
"""

import warnings
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from anytime_jax.checks import (
    require,
    require_bool,
    require_choice,
    require_count,
    require_directory,
)
from anytime_jax.config import python_files, run_config, settings_reader
from anytime_jax.config.kinds import EVERY_PACKAGE, Trust
from anytime_jax.config.run_config import Config
from anytime_jax.config.run_settings import Settings
from anytime_jax.data.dataset_info import SPLITS
from anytime_jax.distributed import jax_settings, sharding
from anytime_jax.formatting import name_weights
from anytime_jax.models import sampling
from anytime_jax.models.decoder import Params
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import loop
from anytime_jax.training.evaluator import EvaluationRequest
from anytime_jax.training.loop import Outcome
from anytime_jax.weights import saved_run, saved_run_evaluators, weight_names
from anytime_jax.weights.generation import generate_text
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun


def load_config(
    file: str | Path, changes: Mapping[str, Any] | None = None, *, trust: Trust = ()
) -> Config:
    """Returns the checked configuration of a file, or of a shipped one by its name.

    `file` is as on the command line, such as "quickstart", "mine.py" or "continued:DIR". `changes`
    are settings by dotted name, such as `{"schedule.peak": 3e-3}`. The file is executed; `trust`
    names packages whose classes a run that it reads may name.
    """
    changes = {} if changes is None else changes
    is_file = isinstance(file, str | Path)
    require(is_file, "file", file, 'a path, or the name of a configuration as "quickstart"')
    ok = isinstance(changes, Mapping) and all(isinstance(name, str) for name in changes)
    require(ok, "changes", changes, 'settings by name, such as {"schedule.peak": 3e-3}')
    _require_trust(trust)
    settings = python_files.get_config(str(file), trust)
    settings_reader.change(Settings, settings, changes)
    return run_config.build(settings, trust=EVERY_PACKAGE)


def train(config: Config, *, fall_back: bool = False, quiet: bool = False) -> Outcome:
    """Trains a run to its stop, or resumes its training; on return, the state is saved.

    Called again with the same configuration, it continues from the last checkpoint. Ctrl-C and
    SIGTERM save the run and end it, with the outcome "interrupted": it trains in the main thread
    alone. With `fall_back`, a damaged checkpoint is set aside and the newest intact one is
    restored.
    """
    require(isinstance(config, Config), "config", config, "what load_config returns")
    require_bool("fall_back", fall_back)
    require_bool("quiet", quiet)
    jax_settings.configure()
    console = Console(highlight=False, markup=False, soft_wrap=True, quiet=quiet)
    return loop.train(config, console, fall_back=fall_back)


def open_run(run_dir: str | Path, step: str | int = "latest", *, trust: Trust = ()) -> SavedRun:
    """Opens a run at a checkpoint: "latest", a step, or a milestone such as "4x".

    `trust` names packages whose classes the run may name: opening it imports them.

    `SavedRun.config` is its configuration and `SavedRun.weights` has the stored weights by label.
    """
    require_directory("run_dir", run_dir)
    _require_trust(trust)
    return saved_run.open_saved_run(storage_path(run_dir), str(step), trust)


def load(
    run_dir: str | Path,
    weights: str = "f25",
    step: str | int = "latest",
    on_mesh: bool = False,
    *,
    trust: Trust = (),
) -> Params:
    """Returns weights of a run by name, as nested dicts of float32 arrays.

    They are NumPy arrays, or with `on_mesh` JAX arrays on the devices of this process, sharded as
    `SavedRun.config.mesh` says. Every array is compared with its checksum.
    """
    _require_name(weights)
    require_bool("on_mesh", on_mesh)
    run = open_run(run_dir, step, trust=trust)
    mesh = sharding.make_mesh_or_replicate(run.config.mesh, warnings.warn) if on_mesh else None
    return saved_run.load_weights(run, _parse(run, weights), mesh)


def evaluate(
    run_dir: str | Path,
    weights: Iterable[str] = (),
    step: str | int = "latest",
    *,
    data: str | Path | None = None,
    split: str = "validation",
    tokens: int | None = None,
    trust: Trust = (),
) -> dict[str, float]:
    """Returns the mean token loss of weights in nats, by name; by default of all stored ones.

    The default data are the validation windows of the run's own evaluations, of which several sets
    have their mean; `data` is another dataset of the same vocabulary, `split` "validation" or
    "train".
    """
    is_list = isinstance(weights, Iterable) and not isinstance(weights, str | Mapping)
    require(is_list, "weights", weights, "a list of names, such as ['last', 'f25']")
    names = list(weights)
    for name in names:
        _require_name(name)
    if data is not None:
        require_directory("data", data)
    require_choice("split", split, SPLITS)
    if tokens is not None:
        require_count("tokens", tokens, least=1)
    run = open_run(run_dir, step, trust=trust)
    sums = {name: _parse(run, name) for name in names or run.labels}
    path = None if data is None else storage_path(data)
    request = EvaluationRequest(path, split, tokens)
    evaluators = saved_run_evaluators.open_evaluators(run, request, warnings.warn).of_mean
    mesh = evaluators.mesh
    trees = ((name, saved_run.load_weights(run, x, mesh)) for name, x in sums.items())
    return {name: evaluators.window_losses(tree).mean for name, tree in trees}


def generate(
    run_dir: str | Path,
    prompt: str = "",
    weights: str = "f25",
    step: str | int = "latest",
    *,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 0.95,
    seed: int = 0,
    trust: Trust = (),
) -> str:
    """Returns a prompt and its continuation by at most `tokens` tokens.

    Tokens are sampled as `models.sampling.SamplingSettings` describes; the same seed gives the same
    text.
    """
    _require_name(weights)
    settings = sampling.SamplingSettings(temperature, top_k, top_p, seed)
    require_count("tokens", tokens, least=1)
    require(isinstance(prompt, str) and _is_utf8(prompt), "prompt", prompt, "text")
    run = open_run(run_dir, step, trust=trust)
    weighted_sum = _parse(run, weights)
    _, words = saved_run.find_vocabulary(run)
    return "".join(generate_text(run, weighted_sum, words, prompt, settings, tokens))


def _parse(run: SavedRun, name: str) -> WeightedSum:
    """Parses a name of weights; warns of an average that began late."""
    weighted_sum = weight_names.parse(run, name)
    if weighted_sum.kernel_error > weight_names.DEFAULT_LIMITS.kernel_error:
        warnings.warn(name_weights(name, weighted_sum.kernel_error), stacklevel=3)
    return weighted_sum


def _require_name(value: Any) -> None:
    require(isinstance(value, str), "weights", value, "a name such as 'f25'")


def _require_trust(value: Any) -> None:
    is_list = isinstance(value, Collection) and not isinstance(value, str)
    require(is_list or value == EVERY_PACKAGE, "trust", value, "a list of names of packages")


def _is_utf8(text: str) -> bool:
    return text.isascii() or text.encode("utf-8", "ignore").decode("utf-8") == text
