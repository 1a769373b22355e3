"""Data of a saved run: the windows on which its weights are scored, and its vocabulary."""

from pathlib import Path

from anytime_jax.corpus.vocabulary import Vocabulary, load_vocabulary
from anytime_jax.data.dataset import DatasetInfo, load_dataset
from anytime_jax.errors import InputError
from anytime_jax.weights.saved_run import SavedRun
from anytime_jax.weights.scoring import Scorer


def open_scorer(
    run: SavedRun,
    data: Path | None = None,
    split: str = "validation",
    tokens: int | None = None,
    batch_size: int | None = None,
    parts: int = 1,
) -> tuple[Scorer, int]:
    """Returns a scorer of weights, and the number of windows to score in `parts` equal parts.

    The default data, tokens and batch size are those of the evaluations in training. Raises an
    InputError if the data are missing, too few, or of another vocabulary.
    """
    config = run.config
    if data is None:
        dataset = _load_data_of_run(run, "choose a dataset with --data")
    else:
        dataset = load_dataset(data, "choose a dataset with --data")
    if dataset.vocabulary_sha256 != run.vocabulary:
        raise InputError(
            f"--data={dataset.path} has another vocabulary than the data of {run.run_dir}: prepare "
            f"the text with --vocabulary={run.data_path}"
        )
    if data is None and dataset.fingerprint != run.fingerprint:
        raise InputError(
            f"{dataset.path} is not the dataset that {run.run_dir} was trained on"
            f"{_recorded(run, dataset.path)}: to score on it nevertheless, give "
            f"--data={dataset.path}"
        )
    available = dataset.splits[split].windows * dataset.length
    windows = min(config.eval_windows(available // dataset.length), available // dataset.length)
    tokens = tokens or windows * dataset.length
    if not dataset.length <= tokens <= available:
        raise InputError(
            f"--tokens={tokens}: give {dataset.length} (one window) to {available}, the "
            f"{split} split of {dataset.path}"
        )
    count = tokens // dataset.length
    # Equal batches need the least padding.
    part = max(1, count // parts)
    batches = -(-part // (batch_size or config.eval.batch_size))
    return Scorer(config.model, dataset, split, -(-part // batches)), count


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
