"""Start from pretrained weights, in another library's files.

Moments and clocks start at zero, averages start from the pretrained weights, and the data start at
the beginning. The first start alone reads the weights. If their directory still exists, later
starts compare it with the recorded digest.
"""

import dataclasses
import shlex
from pathlib import Path

from anytime_jax.checkpoints.run_json import RunFile
from anytime_jax.config.model import MODELS
from anytime_jax.config.run_config import Config
from anytime_jax.corpus.vocabulary_files import find_vocabulary_file, load_vocabulary
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.errors import InputError, within
from anytime_jax.formats import model_reader
from anytime_jax.formats.model_reader import ModelDescription
from anytime_jax.train_state import TrainState
from anytime_jax.training.step import Program


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model to start from, with the digest of its weight files.

    `description` is None once the run has checkpoints of its own.
    """

    description: ModelDescription | None
    digest: str


def find_pretrained(config: Config, own: RunFile | None) -> Pretrained | None:
    """Returns the model that a run starts from, checked; None for random weights.

    `own` is the run file of a run that resumes from a checkpoint of its own; such a run needs
    nothing but the digest. Raises an InputError if the model is missing or has another shape.
    """
    if not config.initial_weights:
        return None
    path = Path(config.initial_weights)
    if own is not None:
        try:
            return Pretrained(None, model_reader.weights_digest(path))
        except (InputError, OSError):  # deleted since the first start, and no longer needed
            return Pretrained(None, str(own.identity.get("initial_weights")))
    with within("config.initial_weights"):
        description = model_reader.read_description(path)
    _check_shape(config, description)
    with within("config.initial_weights"):
        model_reader.check_params(description, config.model)
        digest = model_reader.check_digests(path)
        model_reader.check_values(description, config.model)
        return Pretrained(description, digest)


def init_from_pretrained(pretrained: Pretrained, config: Config, program: Program) -> TrainState:
    """Returns the initial state of a run that starts from pretrained weights.

    Raises an InputError if the run was started before and has lost its checkpoints.
    """
    if pretrained.description is None:
        reason = "it has lost its checkpoints: choose a new run_dir"
        raise InputError(reason, "config.run_dir", config.directory)
    abstract = program.abstract_state.params
    params = model_reader.read_params(pretrained.description, config.model, abstract)
    return program.init_from_params(params)


def _check_shape(config: Config, description: ModelDescription) -> None:
    model = MODELS.to_dict(config.model)
    for name, theirs in description.shape.items():
        ours = model[name]
        # Rotary positions have no table, so shorter sequences are no other shape.
        if ours != theirs and not (name == "length" and ours < theirs):
            of_length = f"at most {theirs}, as max_position_embeddings and sliding_window say"
            allowed = of_length if name == "length" else repr(theirs)
            raise InputError(
                f"the model in {description.directory} is of another shape: it must be {allowed} "
                "(configs/continued.py takes the whole shape from there)",
                f"config.model.{name}",
                ours,
            )


def check_vocabulary(pretrained: Pretrained, dataset: DatasetInfo) -> None:
    """Raises an InputError unless the data have the vocabulary and BOS of the pretrained model.

    Data that were prepared with an own choice of `--bos` may begin otherwise.
    """
    if pretrained.description is None:
        return
    directory = pretrained.description.directory
    file = find_vocabulary_file(directory)
    if file is None:
        return
    vocabulary = load_vocabulary(file)
    if vocabulary.sha256 != dataset.vocabulary_sha256:
        raise InputError(
            f"the dataset at {dataset.path} was made with another vocabulary than the model in "
            f"{directory}: prepare the text with {shlex.quote(f'--vocabulary={file}')}",
            "config.initial_weights",
        )
    if vocabulary.begin != dataset.delimiters.begin and "bos" not in dataset.settings:
        raise InputError(
            f"the tokenizer of {directory} puts the tokens {[*vocabulary.begin]} before a text, "
            f"and the documents of {dataset.path} {dataset.delimiters}: prepare the text again, "
            "with --bos if that is meant",
            "config.initial_weights",
        )
