"""What the doors that open a saved run share: options, weights by name, the vocabulary."""

import argparse
from pathlib import Path

from anytime_jax.checks import is_number
from anytime_jax.data.dataset import METADATA_NAME, load_dataset
from anytime_jax.data.vocabulary import Vocabulary, load_vocabulary
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc import Mixture
from anytime_jax.weights.saved_run import SavedRun
from anytime_jax.weights.scoring import Scorer
from anytime_jax.weights.weight_names import MixtureLimits

_DEFAULT = MixtureLimits()


def add_options(parser: argparse.ArgumentParser, many: bool = False) -> None:
    """Adds the options that say which weights of which run.

    Args:
      parser: of a door.
      many: whether several weight trees may be named.
    """
    add_run_options(parser)
    add = parser.add_argument
    about = f"last, a label such as f25, or {weight_names.FORMS}"
    if many:
        add("--weights", nargs="+", metavar="NAME", help=f"{about} (default: all that are kept)")
    else:
        add("--weights", default="f25", metavar="NAME", help=f"{about} (default: f25)")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which run, where, and what of a mix is refused."""
    add = parser.add_argument
    add("--run", type=Path, required=True, metavar="DIR", help="the run's directory")
    add("--step", default="latest", help='checkpoint: "latest", a number, or a point such as 4x')
    add(
        "--max-error",
        type=float,
        default=_DEFAULT.kernel_error,
        help=f"largest kernel error of a mix (default {_DEFAULT.kernel_error})",
    )
    add(
        "--checkpoints",
        type=int,
        default=_DEFAULT.checkpoints,
        help=f"most checkpoints to mix from (default {_DEFAULT.checkpoints})",
    )


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say on which data."""
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="prepared token windows (default: the run's own)")
    add("--split", choices=("validation", "train"), default="validation", help="of them")
    add("--tokens", type=int, help="how many (default: as many as in training, or all)")
    add("--batch-size", type=int, help="windows computed at once (default: as in training)")


def open_scorer(saved: SavedRun, arguments: argparse.Namespace) -> tuple[Scorer, int]:
    """Returns what computes losses on the data that were asked for, and the number of windows.

    Raises:
      InputError: if the data are not there, were made with another vocabulary or are too few.
    """
    config = saved.config
    dataset = load_dataset(arguments.data or config.data.path, "name data with --data")
    if dataset.vocabulary_sha256 != saved.vocabulary:
        raise InputError(
            f"the dataset at {dataset.path} was made with another vocabulary than the data of "
            f"{saved.run_dir}: prepare the text with the vocabulary.model of those"
        )
    if arguments.data is None and dataset.fingerprint != saved.fingerprint:
        raise InputError(
            f"the dataset at {dataset.path} is not the one that {saved.run_dir} was trained on: "
            f"--data={dataset.path} takes it all the same"
        )
    for name in ("tokens", "batch_size"):
        given = getattr(arguments, name)
        if given is not None and given < 1:
            raise InputError(f"--{name.replace('_', '-')}={given}: give a number from 1")
    held = dataset.splits[arguments.split].windows * dataset.length
    wanted = arguments.tokens or min(config.eval.tokens, held)
    if not dataset.length <= wanted <= held:
        raise InputError(
            f"--tokens={wanted}: the {arguments.split} split of {dataset.path} has {held:,}, in "
            f"windows of {dataset.length}: give a number from one window to all"
        )
    count = wanted // dataset.length
    batch_size = min(arguments.batch_size or config.eval.batch_size, count)
    return Scorer(config.model, dataset, arguments.split, batch_size), count


def limits(arguments: argparse.Namespace) -> MixtureLimits:
    """Returns what of a mix is refused.

    Raises:
      InputError: if an option is out of range.
    """
    if not (is_number(arguments.max_error) and arguments.max_error >= 0):
        raise InputError(f"--max-error={arguments.max_error}: give a number from 0, such as 0.05")
    if arguments.checkpoints < 1:
        raise InputError(f"--checkpoints={arguments.checkpoints}: give a number from 1")
    return MixtureLimits(arguments.max_error, arguments.checkpoints)


def load(saved: SavedRun, spec: str, allowed: MixtureLimits) -> tuple[Mixture, Params]:
    """Returns what weights of a run are made from, and the weights, float32 in host memory."""
    mix = weight_names.resolve(saved, spec, allowed)
    return mix, saved_run.load_weights(saved, mix)


def find_vocabulary(saved: SavedRun, given: Path | None) -> tuple[Path, Vocabulary]:
    """Returns the vocabulary that a run was trained with, and where it lies.

    Args:
      saved: the run.
      given: its file, if it is not with the data of the run.

    Raises:
      InputError: if it cannot be found, or is another one.
    """
    path = given
    if path is None:
        data = Path(saved.config.data.path)
        if not (data / METADATA_NAME).is_file():
            raise InputError(
                f"the data of the run, {data}, are not here, nor the vocabulary with them: give "
                "its file with --vocabulary"
            )
        path = load_dataset(data).vocabulary_path
    vocabulary = load_vocabulary(path)
    if vocabulary.sha256 != saved.vocabulary:
        raise InputError(
            f"vocabulary {path} is not the one that {saved.run_dir} was trained with: its SHA-256 "
            f"begins with {vocabulary.sha256[:12]}, that one's with {saved.vocabulary[:12]}; give "
            "that file with --vocabulary"
        )
    return path, vocabulary
