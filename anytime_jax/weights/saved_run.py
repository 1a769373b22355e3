"""Saved run at one of its checkpoints, and the weights stored up to that checkpoint.

The run may still be training. Nothing in the directory of the run is changed.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax.averaging import LIVE, GrowingWindow, Late, label_order
from anytime_jax.checkpoints import checkpoint_reader, run_json, run_ownership
from anytime_jax.checkpoints.checkpoint_listing import checkpoint_path, format_steps, saved_steps
from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.run_json import RunFile
from anytime_jax.checkpoints.tree_names import is_stacked, unflatten_by_name
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config, build_saved
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import Delimiters, load_dataset
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_count
from anytime_jax.models import decoder
from anytime_jax.models.decoder import Params
from anytime_jax.storage.paths import absolute_path, storage_path
from anytime_jax.weights.post_hoc_averages import StoredWeights, WeightedSum

_THREADS = 8  # which read an array each
_PARTS = 16  # of an array that is a sum
_DELETION_SECONDS = 0.5  # in which a run deletes a checkpoint


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """A run at one of its checkpoints.

    Attributes:
      config: configuration with which the checkpoint was written.
      meta: metadata of the checkpoint.
      run_file: content of the run file.
      trust: packages that are imported for the kinds that the run names.
    """

    run_dir: Path
    config: Config
    meta: Meta
    run_file: RunFile
    trust: Trust = NOBODY

    @property
    def step(self) -> int:
        """Number of updates at the checkpoint."""
        return self.meta.step

    @property
    def tokens(self) -> int:
        """Tokens seen at the checkpoint."""
        return self.meta.tokens

    @property
    def vocabulary(self) -> str:
        """SHA-256 of the vocabulary of the data."""
        return self.meta.vocabulary

    @property
    def delimiters(self) -> Delimiters:
        """The tokens that begin and end every document of the data.

        An old run file does not say, and the data do: an InputError is raised if they are gone.
        """
        if self.run_file.delimiters is not None:
            return self.run_file.delimiters
        advice = "the run does not record how its texts begin: bring the data back"
        return load_dataset(self.data_path, advice).delimiters

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data."""
        return self.meta.fingerprint

    @property
    def sources(self) -> frozenset[str]:
        """Fingerprints of the sources of all stages."""
        return frozenset(digest for x in self.meta.stages for digest, _ in x.sources)

    @property
    def model(self) -> ModelConfig:
        """The decoder of the last update before the checkpoint."""
        return self.config.stage_at(max(self.step - 1, 0)).model

    @property
    def title(self) -> str:
        """Directory, step and tokens, such as `runs/small at step 800 (3.28M tokens)`."""
        return f"{self.run_dir} at step {self.step:,} ({format_count(self.tokens)} tokens)"

    @property
    def set_weights(self) -> dict[str, float]:
        """Weight of every validation set in the mean; the sum is 1."""
        return self.run_file.set_weights(self.config)

    @property
    def recorded_paths(self) -> dict[str, Path]:
        """Absolute paths of the sources by name, as the last start recorded them."""
        return {name: storage_path(path) for name, path in self.run_file.data_paths.items()}

    @property
    def recorded_sets(self) -> dict[str, Path]:
        """Absolute paths of the validation sets by name, as the last start recorded them."""
        return {name: storage_path(path) for name, path in self.run_file.set_paths.items()}

    @property
    def data_path(self) -> Path:
        """Directory of the first source (`RunFile.find_source`)."""
        return storage_path(self.run_file.find_source(*next(iter(self.config.sources.items()))))

    def set_path(self, name: str) -> Path:
        """Returns the directory of a validation set (`RunFile.find_set`)."""
        return storage_path(self.run_file.find_set(name, self.config.sets[name]))

    @property
    def weights(self) -> dict[str, StoredWeights]:
        """The weights stored in this checkpoint by label, the live weights first."""
        return {x.label: x for x in _stored(self.meta, self.config)}

    @functools.cached_property
    def history(self) -> tuple[StoredWeights, ...]:
        """Live weights and averages stored in this checkpoint and all earlier ones, by step.

        The metadata of the earlier checkpoints are read here. A checkpoint whose metadata cannot be
        read is left out.
        """
        stored: list[StoredWeights] = []
        for step in saved_steps(self.run_dir):
            if step < self.step:
                with contextlib.suppress(RunError):  # which `runs --verify` reports
                    found = _read_checkpoint(self.run_dir, step, self.run_file, self.trust)
                    stored += _stored(*found)
        return (*stored, *self.weights.values())

    @property
    def iterates(self) -> dict[str, StoredWeights]:
        """Further iterates of the optimizer in this checkpoint, by label."""
        return {
            label: StoredWeights(self.step, label, prefix=prefix)
            for label, prefix in self.meta.iterates.items()
        }

    @property
    def readouts(self) -> dict[str, WeightedSum]:
        """The read-outs of the optimizer, such as "x", by label."""
        parts = {LIVE: StoredWeights(self.step, LIVE), **self.iterates}
        return {
            label: WeightedSum(tuple(parts[name] for name in terms), tuple(terms.values()))
            for label, terms in self.meta.readouts.items()
        }

    @property
    def times(self) -> np.ndarray:
        """The time after each update up to the checkpoint (`config.clock`)."""
        return self.config.clock.times(self.step)

    @property
    def labels(self) -> list[str]:
        """Labels of all weights that an evaluation of the run reports, the live weights first."""
        return [*self.weights, *self.readouts]

    @property
    def growing_windows(self) -> dict[str, float]:
        """The f of every growing window stored in this checkpoint, by label."""
        rules = {label: self.config.averaging_rules[label] for label in self.meta.averages}
        return {label: x.f for label, x in rules.items() if isinstance(x, GrowingWindow)}


def open_saved_run(run_dir: Path, step: str = "latest", trust: Trust = NOBODY) -> SavedRun:
    """Opens a run at a checkpoint.

    `step` is "latest", a number of updates, or a milestone such as "4x". `trust` says which
    packages are imported for the kinds that the run names.

    Raises:
      InputError: if there is no run or no such checkpoint; the message lists the checkpoints.
      RunError: if the metadata of the checkpoint are damaged.
    """
    run_ownership.check_name(absolute_path(run_dir), "run", str(run_dir))
    config, run_file = run_json.read_run(str(run_dir), "run", trust)
    steps = saved_steps(run_dir)
    if not steps:
        raise InputError("it has no checkpoint yet: train it to one", "run", str(run_dir))
    last = _find_step(step, steps, config, run_dir)
    meta, config = _read_checkpoint(run_dir, last, run_file, trust)
    return SavedRun(run_dir, config, meta, run_file, trust)


def find_vocabulary(run: SavedRun, file: Path | None = None) -> tuple[Path, Vocabulary]:
    """Returns the vocabulary of a run and its path: `file`, or by default that of the run's data.

    Raises an InputError if the file is missing or has another vocabulary than the run.
    """
    if file is None:
        recorded = run.recorded_paths.get(next(iter(run.config.sources)))
        advice = f"{run.run_dir} had its vocabulary there: give it with --vocabulary"
        advice = advise_on_data(recorded, run.data_path, advice)
        file = load_dataset(run.data_path, advice).vocabulary_path
    vocabulary = load_vocabulary(file)
    if vocabulary.sha256 != run.vocabulary:
        raise InputError(
            f"{file} has SHA-256 {vocabulary.sha256[:12]}..., and the vocabulary of {run.run_dir} "
            f"has {run.vocabulary[:12]}...: give that one",
            "--vocabulary",
        )
    return file, vocabulary


def advise_on_data(recorded: Path | None, path: Path, advice: str) -> str:
    """Returns `advice` about a run's data, after the recorded path if it differs from `path`."""
    if recorded is None or recorded == path.absolute():
        return advice
    state = "" if recorded.exists() else ", which does not exist"
    return f"the last start of the run found its data at {recorded}{state}; {advice}"


def load_weights(run: SavedRun, weighted_sum: WeightedSum, mesh: Mesh | None = None) -> Params:
    """Returns a weighted sum as float32 arrays in host memory, or on a mesh.

    A sum of one part with coefficient 1 has the bits that are stored. Every array is compared with
    its checksum; a missing or damaged array raises a RunError.
    """
    layers = read_layers(run, weighted_sum)

    def load(name: str) -> np.ndarray:
        parts = [*layers[name]]
        return np.stack(parts) if is_stacked(name) else parts[0]

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        params = unflatten_by_name(dict(zip(layers, threads.map(load, layers), strict=True)))
    return params if mesh is None else put_on_mesh(run, params, mesh)


def read_layers(run: SavedRun, weighted_sum: WeightedSum) -> dict[str, Iterator[np.ndarray]]:
    """Returns, by name, an iterator over each array of a weighted sum.

    The iterator of an array that is stacked over layers reads and yields one layer at a time.
    Iterators of other arrays yield the array. The checksum of an array is compared when its
    iterator ends.
    """
    places = [_find_part(run, part) for part in weighted_sum.parts]
    with _explain_deletion(run, weighted_sum):
        for path, item, _ in places:
            checkpoint_reader.check_item_files(path, item)
        stored = [(place, checkpoint_reader.read_meta(place[0], run.run_file)) for place in places]

    def read(name: str) -> Iterator[np.ndarray]:
        layers = (
            checkpoint_reader.read_layers(path, meta, item, prefix + name)
            for (path, item, prefix), meta in stored
        )
        with _explain_deletion(run, weighted_sum):
            for parts in zip(*layers, strict=True):
                yield mix(parts, weighted_sum.coefficients)

    (_, item, prefix), meta = stored[0]
    names = [name for name in meta.checksums[item] if name.startswith(prefix)]
    return {name: read(name) for name in (x.removeprefix(prefix) for x in names)}


def put_on_mesh(run: SavedRun, params: Params, mesh: Mesh) -> Params:
    """Copies weights of a run to the devices of a mesh, sharded as in training.

    Several trees may be stacked into one: arrays may have further axes in front.
    """
    axes = decoder.parameter_axes(run.model)
    return jax.device_put(params, sharding.parameter_shardings(params, axes, mesh))


def mix(arrays: Sequence[np.ndarray], coefficients: Sequence[float]) -> np.ndarray:
    """Returns a weighted sum of arrays as float32, computed in float64.

    One array with coefficient 1 is returned itself.
    """
    if tuple(coefficients) == (1.0,):
        return arrays[0]
    mixed = np.empty(arrays[0].shape, np.float32)
    rows = (np.array_split(np.atleast_1d(x), _PARTS) for x in (mixed, *arrays))
    for target, *parts in zip(*rows, strict=True):  # float64 takes the memory of a part
        weighted = zip(coefficients, parts, strict=True)
        target[...] = sum(coefficient * part.astype(np.float64) for coefficient, part in weighted)
    return mixed


def _find_step(text: str, steps: list[int], config: Config, run_dir: Path) -> int:
    if text == "latest":
        return steps[-1]
    try:
        step = int(text) if text.isdecimal() else config.clock.step_at(text, "step")
    except ValueError as error:
        raise InputError(
            'give "latest", a number, or a milestone such as "4x"', "step", text
        ) from error
    if step in steps:
        return step
    raise InputError(
        f"{run_dir} has no such checkpoint; it has those of steps {format_steps(steps)}",
        "step",
        step,
    )


def _read_checkpoint(
    run_dir: Path, step: int, run_file: RunFile, trust: Trust
) -> tuple[Meta, Config]:
    path = checkpoint_path(run_dir, step)
    meta = checkpoint_reader.read_meta(path, run_file)
    return meta, build_saved(meta.config, str(path), trust)


def _stored(meta: Meta, config: Config) -> list[StoredWeights]:
    """Returns the weights in a checkpoint, the live weights first."""
    stored = [StoredWeights(meta.step, LIVE)]
    for label in sorted(meta.averages, key=label_order):
        since, rule = meta.averages_since[label], config.averaging_rules[label]
        rule = Late(rule, config.clock.time(since)) if since else rule
        stored.append(StoredWeights(meta.step, label, rule))
    return stored


@contextlib.contextmanager
def _explain_deletion(run: SavedRun, weighted_sum: WeightedSum) -> Iterator[None]:
    """Explains an error of the block if the run has deleted the checkpoint that it reads."""
    try:
        yield
    except RunError:
        time.sleep(_DELETION_SECONDS)
        for part in weighted_sum.parts:
            _find_part(run, part)
        raise


def _find_part(run: SavedRun, part: StoredWeights) -> tuple[Path, str, str]:
    """Returns where weights are stored: a checkpoint, an item, and a prefix of the item's names."""
    path = checkpoint_path(run.run_dir, part.step)
    if not path.exists():
        raise RunError(
            f"the run has deleted the checkpoint of step {part.step:,} in the meantime: choose a "
            "step that is kept for ever, such as a milestone (1x, 2x, 4x, ...)"
        )
    if part.prefix is not None:
        return path, "opt", part.prefix
    return (path, "params", "") if part.rule is None else (path, "averages", f"{part.label}/")
