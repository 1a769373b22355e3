"""Evaluation of a saved run: its mesh, its data, and its vocabulary."""

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax.config.schema import MeshConfig
from anytime_jax.corpus.vocabulary import Vocabulary, load_vocabulary
from anytime_jax.data.dataset_info import DatasetInfo, load_dataset
from anytime_jax.data.windows import count_windows
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.training.evaluator import Evaluator, make_evaluator
from anytime_jax.training.step import make_program
from anytime_jax.weights.saved_run import SavedRun


def open_evaluator(
    run: SavedRun,
    data: Path | None = None,
    split: str = "validation",
    tokens: int | None = None,
    batch_size: int | None = None,
    parts: int = 1,
    say: Callable[[str], object] = warnings.warn,
) -> Evaluator:
    """Returns an evaluator of weights, on a number of windows that `parts` divides.

    The default data, tokens and batch size are those of the evaluations in training, and so is the
    mesh, or `say` is told why not. Raises an InputError if the data are missing, too few or of
    another vocabulary.
    """
    config = run.config
    dataset = _load_evaluation_data(run, data)
    length = config.model.length
    windows, least = count_windows(dataset, split, length), length * parts
    available = windows * length
    tokens = tokens or min(config.eval_windows(windows), windows) * length
    if not least <= tokens <= available:
        raise InputError(
            f"--tokens={tokens}: give at least {least}, {parts} x the length of a window, and at "
            f"most {available}, the {split} split of {dataset.path}"
        )
    mesh = make_mesh(config.mesh, say)
    # Equal batches need the least padding.
    part = tokens // length // parts
    batches = -(-part // (batch_size or config.eval.batch_size))
    size = -(-part // batches)
    config = dataclasses.replace(config, end_of_text=dataset.eos_id)
    program = make_program(config, mesh)
    return make_evaluator(config, mesh, dataset, program, split, part * parts, size)


def mean_and_standard_error(values: np.ndarray) -> tuple[float, float]:
    """Returns the mean of values and its standard error, assuming independent windows."""
    if len(values) < 2:
        return float(values.mean()), float("nan")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def _load_evaluation_data(run: SavedRun, data: Path | None) -> DatasetInfo:
    if data is None:
        dataset = _load_data_of_run(run, "choose a dataset with --data")
    else:
        dataset = load_dataset(data, "choose a dataset with --data")
    if dataset.vocabulary_sha256 != run.vocabulary:
        raise InputError(
            f"--data={dataset.path} has another vocabulary than the data of {run.run_dir}: prepare "
            f"the text with --vocabulary={run.data_path}"
        )
    if data is None and dataset.fingerprint not in {run.fingerprint, *run.sources}:
        raise InputError(
            f"{dataset.path} is not the dataset that {run.run_dir} was trained on"
            f"{_recorded(run, dataset.path)}: to score on it nevertheless, give "
            f"--data={dataset.path}"
        )
    return dataset


def make_mesh(config: MeshConfig, say: Callable[[str], object]) -> Mesh:
    """Returns the mesh of a run, or one that copies the weights to every device."""
    try:
        return sharding.make_mesh(config)
    except InputError:
        say(
            f"the run's mesh of data x fsdp x tensor = {config.data} x {config.fsdp} x "
            f"{config.tensor} does not fit {jax.device_count()} devices: each gets all weights"
        )
        return sharding.make_mesh(MeshConfig(data=-1, fsdp=1, tensor=1))


def find_vocabulary(run: SavedRun, file: Path | None = None) -> tuple[Path, Vocabulary]:
    """Returns the vocabulary of a run and its path, from a file or else from the run's data.

    Raises an InputError if it is missing or is not the run's.
    """
    if file is None:
        advice = f"{run.run_dir} had its vocabulary there: give it with --vocabulary"
        file = _load_data_of_run(run, advice).vocabulary_path
    vocabulary = load_vocabulary(file)
    if vocabulary.sha256 != run.vocabulary:
        raise InputError(
            f"--vocabulary={file} has SHA-256 {vocabulary.sha256[:12]}..., the vocabulary of "
            f"{run.run_dir} {run.vocabulary[:12]}...: give that one"
        )
    return file, vocabulary


def _load_data_of_run(run: SavedRun, advice: str) -> DatasetInfo:
    recorded = _recorded(run, run.data_path)
    return load_dataset(run.data_path, f"{recorded.removeprefix(', ')}; {advice}".lstrip("; "))


def _recorded(run: SavedRun, path: Path) -> str:
    """Names the recorded path of a run's data in a message, if it is another one."""
    recorded = run.recorded_data_path
    if recorded is None or recorded == path.absolute():
        return ""
    state = "" if recorded.exists() else ", which does not exist"
    return f", whose data were at {recorded} at its last start{state}"
