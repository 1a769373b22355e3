"""Options that select a saved run, its weights and data, and what they select."""

import argparse
from pathlib import Path

from anytime_jax.checks import is_number
from anytime_jax.commands.command_line import positive_int
from anytime_jax.data.dataset import DatasetInfo, load_dataset
from anytime_jax.data.vocabulary import Vocabulary, load_vocabulary
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.saved_run import SavedRun
from anytime_jax.weights.scoring import Scorer
from anytime_jax.weights.weight_names import MixtureLimits

_LIMITS = MixtureLimits()


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a saved run and of its post-hoc averages."""
    add = parser.add_argument
    add("--run", type=Path, required=True, metavar="DIR", help="run directory")
    add("--step", default="latest", help='checkpoint: "latest", a step, or a milestone such as 4x')
    add(
        "--max-error",
        type=float,
        default=_LIMITS.kernel_error,
        metavar="ERROR",
        help="largest relative error of the averaging kernel of a post-hoc average",
    )
    add(
        "--checkpoints",
        type=positive_int,
        default=_LIMITS.checkpoints,
        metavar="N",
        help="largest number of checkpoints to mix",
    )


def add_weights(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Adds the option that selects one weight tree, or several."""
    text = f"last, a label such as f25, or {weight_names.FORMS}"
    if several:
        text += " (default: all in the checkpoint)"
        parser.add_argument("--weights", nargs="+", metavar="NAME", help=text)
    else:
        parser.add_argument("--weights", default="f25", metavar="NAME", help=text)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select the evaluation data."""
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="prepared dataset (default: that of the run)")
    add("--split", choices=("validation", "train"), default="validation", help="part of it")
    add("--tokens", type=positive_int, metavar="N", help="(default: as many as in training)")
    add("--batch-size", type=positive_int, metavar="N", help="windows (default: as in training)")


def add_vocabulary(parser: argparse.ArgumentParser) -> None:
    """Adds the option that selects a vocabulary file."""
    text = "vocabulary of the run (default: the one beside its data)"
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help=text)


def mixture_limits(arguments: argparse.Namespace) -> MixtureLimits:
    """Returns the limits of a post-hoc average; raises an InputError if they are out of range."""
    if not (is_number(arguments.max_error) and arguments.max_error >= 0):
        raise InputError(f"--max-error={arguments.max_error}: give a number from 0, such as 0.05")
    return MixtureLimits(arguments.max_error, arguments.checkpoints)


def load_named_weights(run: SavedRun, name: str, limits: MixtureLimits) -> tuple[Mixture, Params]:
    """Returns weights of a run by name, float32 in host memory, and the mixture that gave them."""
    mixture = weight_names.resolve(run, name, limits)
    return mixture, saved_run.load_weights(run, mixture)


def open_scorer(run: SavedRun, arguments: argparse.Namespace, parts: int = 1) -> tuple[Scorer, int]:
    """Returns a scorer of weights on the selected data, and the number of windows.

    They are scored in so many equal parts. Raises an InputError if the data are missing, too few,
    or of another vocabulary.
    """
    config = run.config
    if arguments.data is None:
        dataset = _load_data_of_run(run, "choose a dataset with --data")
    else:
        dataset = load_dataset(arguments.data, "choose a dataset with --data")
    if dataset.vocabulary_sha256 != run.vocabulary:
        raise InputError(
            f"--data={dataset.path} has another vocabulary than the data of {run.run_dir}: prepare "
            "the text with the vocabulary.model of those"
        )
    if arguments.data is None and dataset.fingerprint != run.fingerprint:
        raise InputError(
            f"{dataset.path} is not the dataset that {run.run_dir} was trained on"
            f"{_recorded(run, dataset.path)}: to score on it nevertheless, give "
            f"--data={dataset.path}"
        )
    available = dataset.splits[arguments.split].windows * dataset.length
    windows = min(config.eval_windows(available // dataset.length), available // dataset.length)
    tokens = arguments.tokens or windows * dataset.length
    if not dataset.length <= tokens <= available:
        raise InputError(
            f"--tokens={tokens}: give {dataset.length} (one window) to {available}, the "
            f"{arguments.split} split of {dataset.path}"
        )
    count = tokens // dataset.length
    # Equal batches need the least padding.
    part = max(1, count // parts)
    batches = -(-part // (arguments.batch_size or config.eval.batch_size))
    return Scorer(config.model, dataset, arguments.split, -(-part // batches)), count


def find_vocabulary(run: SavedRun, file: Path | None) -> tuple[Path, Vocabulary]:
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
