"""Where a run begins that does not begin from random weights: a model from another library's files.

Moments are zero, every average starts from these weights, the clocks stand at 0, and the data are
read from their beginning. The directory is read at the first start; later ones only compare what
is still there with what the run began from.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytime_jax import averaging
from anytime_jax.checkpoints import checkpoint_directory, run_directory
from anytime_jax.checkpoints.train_state import TrainState
from anytime_jax.config.schema import Config
from anytime_jax.data.dataset import VOCABULARY_NAME, DatasetInfo
from anytime_jax.data.vocabulary import load_vocabulary
from anytime_jax.errors import InputError
from anytime_jax.formats import model_reader
from anytime_jax.formats.model_reader import ModelDescription
from anytime_jax.training.step import Program


@dataclasses.dataclass(frozen=True)
class Initial:
    """A model to begin from.

    Attributes:
      described: the model, but for its weights; None once the run has checkpoints of its own.
      digest: of its files of weights.
    """

    described: ModelDescription | None
    digest: str


def find_initial(config: Config, dataset: DatasetInfo) -> Initial | None:
    """Finds and checks the model that a run begins from; None for random weights.

    Args:
      config: the run.
      dataset: the data it reads.

    Raises:
      InputError: if there is none, it is of another shape, or the data were made with another
        vocabulary; the message says what to do.
    """
    if not config.initial_weights:
        return None
    path, run_dir = Path(config.initial_weights), Path(config.run_dir)
    if checkpoint_directory.saved_steps(run_dir):  # they have been read
        began = str((run_directory.read_identity(run_dir) or {}).get("initial_weights"))
        try:
            return Initial(None, model_reader.weights_digest(path))
        except (InputError, OSError):  # they are gone, and not needed
            return Initial(None, began)
    try:
        described = model_reader.describe(path)
        _check_shape(config, described)
        model_reader.check_params(described, config.model)
        _check_vocabulary(dataset, described)
        return Initial(described, model_reader.weights_digest(path))
    except InputError as error:
        raise InputError(f"config.initial_weights: {error}") from error


def initial_state(initial: Initial, config: Config, program: Program) -> TrainState:
    """Returns the state at step 0 of a run that starts from pretrained weights.

    Args:
      initial: what `find_initial` found.
      config: the run.
      program: its functions.

    Raises:
      InputError: if there is nothing to begin from any more.
    """
    if initial.described is None:
        raise InputError(
            f"config.run_dir = {config.run_dir!r} has lost its checkpoints: choose a new run_dir"
        )
    params = model_reader.read_params(initial.described, config.model)
    state, placement = program.init(), program.state_shardings
    for array in jax.tree.leaves((state.params, averaging.averages(state.opt_state))):
        array.delete()  # before others take as much memory again
    placed = averaging.averages(placement.opt_state)
    trees = {label: _put(params, places) for label, places in placed.items()}
    opt_state = averaging.replace_averages(state.opt_state, trees)
    return state._replace(params=_put(params, placement.params), opt_state=opt_state)


def _put(params: Any, places: Any) -> Any:
    """The arrays on the devices, each process giving its share; no buffer twice."""

    def put(array: np.ndarray, place: jax.sharding.Sharding) -> jax.Array:
        return jax.make_array_from_callback(array.shape, place, lambda index: array[index].copy())

    return jax.tree.map(put, params, places)


def _check_shape(config: Config, described: ModelDescription) -> None:
    for name, theirs in described.shape.items():
        ours = getattr(config.model, name)
        # Rotary positions have no table: shorter sequences are seen in training already.
        if ours != theirs and not (name == "length" and ours < theirs):
            allowed = f"at most {theirs}" if name == "length" else repr(theirs)
            raise InputError(
                f"{described.directory} is of another shape: config.model.{name} = {ours!r} must "
                f"be {allowed} (configs/continued.py takes all of them from there)"
            )


def _check_vocabulary(dataset: DatasetInfo, described: ModelDescription) -> None:
    """Checks that the data were made with the vocabulary that lies beside the weights, if any."""
    names = (VOCABULARY_NAME, model_reader.TOKENIZER)
    file = next((x for name in names if (x := described.directory / name).is_file()), None)
    if file and load_vocabulary(file).sha256 != dataset.vocabulary_sha256:
        raise InputError(
            f"the dataset at {dataset.path} was made with another vocabulary than the model in "
            f"{described.directory}: prepare the text with --vocabulary={file}"
        )
