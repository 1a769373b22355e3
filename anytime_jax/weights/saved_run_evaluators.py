"""Evaluators of a saved run's weights, on its validation sets or on another dataset."""

import warnings
from collections.abc import Callable
from pathlib import Path

from jax.sharding import Mesh

from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.data.dataset_info import DatasetInfo, load_dataset
from anytime_jax.data.windows import count_windows
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.training.evaluator import (
    Evaluator,
    Evaluators,
    evaluated_sets,
    make_evaluator,
)
from anytime_jax.training.objective import document_rules
from anytime_jax.training.step import make_program
from anytime_jax.weights.saved_run import SavedRun, recorded_note


def open_evaluators(
    run: SavedRun,
    data: Path | None = None,
    split: str = "validation",
    tokens: int | None = None,
    batch_size: int | None = None,
    parts: int = 1,
    say: Callable[[str], object] = warnings.warn,
) -> Evaluators:
    """Returns evaluators of weights, each on a number of windows that `parts` divides.

    The default sets, tokens, batch size and weights of the mean are those of the evaluations in
    training, and so is the mesh, or `say` is told why not; `data` is one other dataset. Raises an
    InputError if data are missing, too few or of another vocabulary.
    """
    config = run.config
    mesh = sharding.make_mesh_or_replicate(config.mesh, say)
    if data is not None:
        dataset = load_dataset(data, "choose a dataset as data")
        _check_vocabulary(run, dataset, f"data = {dataset.path}")
        each = _make_evaluator(config, run.model, mesh, dataset, split, tokens, batch_size, parts)
        return Evaluators({"": each}, {"": 1.0})
    datasets = {name: _load_set(run, name) for name in config.sets}
    evaluators = {
        label: _make_evaluator(
            config, model, mesh, datasets[name], split, tokens, batch_size, parts
        )
        for label, name, model in evaluated_sets(config, run.step)
    }
    return Evaluators(evaluators, {x: y for x, y in run.set_weights.items() if y})


def _make_evaluator(
    config: Config,
    model: ModelConfig,
    mesh: Mesh,
    dataset: DatasetInfo,
    split: str,
    tokens: int | None,
    batch_size: int | None,
    parts: int,
) -> Evaluator:
    length = model.length
    windows, least = count_windows(dataset, split, length), length * parts
    available = windows * length
    tokens = tokens or config.eval_windows(windows, length) * length
    if not least <= tokens <= available:
        raise InputError(
            f"tokens = {tokens}: give at least {least}, {parts} x the length of a window, and at "
            f"most {available}, the {split} split of {dataset.path}"
        )
    # Equal batches need the least padding.
    part = tokens // length // parts
    batches = -(-part // (batch_size or config.eval_rows(length)))
    size = -(-part // batches)
    rules = document_rules(config.data, dataset.eos_id)
    program = make_program(config, mesh, rules, model=model)
    return make_evaluator(config, mesh, dataset, program, split, part * parts, size)


def _load_set(run: SavedRun, name: str) -> DatasetInfo:
    """Returns a validation set of a run; a source has to be the one that the run has read."""
    path = run.set_path(name)
    recorded = recorded_note(run.recorded_sets.get(name), path)
    advice = f"{recorded.removeprefix(', ')}; choose a dataset as data".lstrip("; ")
    dataset = load_dataset(path, advice)
    label = f"{dataset.path}" if len(run.config.sets) == 1 else f"the set {name} at {dataset.path}"
    _check_vocabulary(run, dataset, label)
    is_source = run.config.sets[name] in run.config.sources.values()
    if is_source and dataset.fingerprint not in {run.fingerprint, *run.sources}:
        raise InputError(
            f"{dataset.path} is not the dataset that {run.run_dir} was trained on{recorded}: to "
            f"score on it nevertheless, give data = {dataset.path}"
        )
    return dataset


def _check_vocabulary(run: SavedRun, dataset: DatasetInfo, label: str) -> None:
    if dataset.vocabulary_sha256 != run.vocabulary:
        raise InputError(
            f"{label} has another vocabulary than the data of {run.run_dir}: prepare the text "
            f"with --vocabulary={run.data_path}, or give another dataset as data"
        )
