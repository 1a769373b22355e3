"""Evaluators of a saved run's weights, on its validation sets or on another dataset."""

from collections.abc import Callable

from anytime_jax.data.dataset_info import DatasetInfo, check_rows, load_dataset
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.training import run_data
from anytime_jax.training.evaluator import (
    EvaluationRequest,
    Evaluators,
    RunEvaluators,
    make_evaluator,
)
from anytime_jax.training.objective import document_rules
from anytime_jax.training.step import make_program
from anytime_jax.weights.saved_run import SavedRun, advise_on_data


def open_evaluators(
    run: SavedRun, request: EvaluationRequest, say: Callable[[str], object]
) -> Evaluators:
    """Returns evaluators of weights on what is requested.

    The mesh is that of the run; if this does not fit the devices, `say` is told which mesh is taken
    instead. With several sets, the weights of the mean are those of the run. Raises an InputError
    if data are missing, have too few tokens or have another vocabulary.
    """
    config = run.config
    mesh = sharding.make_mesh_or_replicate(config.mesh, say)
    if request.data is None:
        sets = {name: _load_set(run, name) for name in config.sets}
        return RunEvaluators(config, mesh, sets, run.set_weights, {}, request).at(run.step)
    dataset = load_dataset(request.data, "choose a dataset as data")
    _check_tokens(run, dataset, "data")
    rules = document_rules(config.data, dataset.delimiters)
    program = make_program(config, mesh, rules, model=run.model)
    return Evaluators({"": make_evaluator(dataset, program, request)}, {"": 1.0})


def _load_set(run: SavedRun, name: str) -> DatasetInfo:
    """Returns a validation set of a run; a source must have the tokens that the run has read."""
    path, recorded = run.set_path(name), run.recorded_sets.get(name)
    dataset = load_dataset(path, advise_on_data(recorded, path, "choose a dataset as data"))
    _check_tokens(run, dataset)
    is_source = run.config.sets[name] in run.config.sources.values()
    if is_source and dataset.fingerprint not in {run.fingerprint, *run.sources}:
        advice = f"to score on it nevertheless, give data = {dataset.path}"
        raise InputError(
            f"{dataset.path} is not the dataset that {run.run_dir} was trained on: "
            + advise_on_data(recorded, path, advice)
        )
    return dataset


def _check_tokens(run: SavedRun, dataset: DatasetInfo, setting: str = "") -> None:
    what, path = str(dataset.path), run.data_path
    run_data.check_tokens(setting, what, dataset, path, run.vocabulary, run.delimiters)
    check_rows(dataset, run.model.embedding_rows)
