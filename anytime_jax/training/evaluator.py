"""Losses of weight trees on the same windows, in training and for a saved run."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from anytime_jax import averaging, optimizers
from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.data.dataset_info import DatasetInfo
from anytime_jax.data.windows import Windows, count_windows
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count
from anytime_jax.models import decoder
from anytime_jax.train_state import TrainState
from anytime_jax.training.objective import document_rules
from anytime_jax.training.step import Program, make_program

_ORDER = 0  # seed of the order of evaluations, the same for all runs


@dataclasses.dataclass(frozen=True)
class EvaluationRequest:
    """What an evaluation is asked for; the defaults are those of an evaluation in training.

    Attributes:
      data: dataset that is evaluated in place of the run's validation sets.
      split: "validation" or "train".
      tokens: number of tokens that are predicted in a set, rounded down to whole windows.
      batch_size: largest number of windows in a batch.
      parts: number of equal parts into which the windows of a set can be split.
    """

    data: Path | None = None
    split: str = "validation"
    tokens: int | None = None
    batch_size: int | None = None
    parts: int = 1


def weight_trees(state: TrainState) -> dict[str, decoder.Params]:
    """Returns the live weights, every average, and the read-outs of the optimizer, by label.

    Averages are in the order of the numbers in their labels.
    """
    averages = averaging.averages(state.opt_state)
    # JAX sorts the keys of a dict as strings, f100 before f6.25.
    labels = sorted(averages, key=averaging.label_order)
    opt_state = averaging.replace_averages(state.opt_state, {})
    stored = optimizers.iterates(opt_state)
    computed = _computed(opt_state, state.params) if stored else {}
    read_out = jax.eval_shape(optimizers.readouts, opt_state)
    of_optimizer = {
        label: stored[label] if label in stored else computed[label] for label in read_out
    }
    averages = {label: averages[label] for label in labels}
    return {averaging.LIVE: state.params, **averages, **of_optimizer}


@jax.jit
def _computed(opt_state: Any, params: decoder.Params) -> dict[str, decoder.Params]:
    """Returns the read-outs that are no iterate of the state, and so must be computed.

    A read-out that the state stores is left out, because jit would copy it.
    """
    stored = optimizers.iterates(opt_state)
    trees = optimizers.eval_params(opt_state, params)
    return {label: tree for label, tree in trees.items() if label not in stored}


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Evaluates weight trees on the first `count` windows of a split in a fixed random order.

    Attributes:
      windows: windows of the split; they repeat, so that the last batch can be filled up.
    """

    program: Program
    dataset: DatasetInfo
    windows: Windows
    count: int
    batch_size: int

    @property
    def mesh(self) -> Mesh:
        """The mesh of the program."""
        return self.program.mesh

    @property
    def length(self) -> int:
        """Number of tokens predicted in a window."""
        return self.program.model.length

    def position_losses(
        self, trees: Mapping[str, decoder.Params], interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, np.ndarray] | None:
        """Returns the mean loss in nats of each tree at each position in a window, float64[L].

        `interrupted` is called before every batch. If it returns true, the result is None.
        """
        eval_step = self.program.eval_step
        sums: list[dict[str, Any]] = []
        for batch in self.batches(self.count):
            if interrupted():
                return None
            sums.append({label: eval_step(tree, *batch) for label, tree in trees.items()})
            # One batch is computed while the next is read; more would pile up on the device.
            if len(sums) > 1:
                sums[-2] = jax.device_get(sums[-2])
        return {
            label: np.asarray(np.sum([x[label] for x in sums], 0, np.float64) / self.count)
            for label in trees
        }

    def window_losses(self, params: decoder.Params) -> np.ndarray:
        """Returns the mean token loss in nats of each window, float64.

        This works in a single process only.
        """
        losses = [self.program.window_losses(params, x) for x, _ in self.batches(self.count)]
        return np.concatenate(losses).astype(np.float64)[: self.count] / self.length

    def batches(self, count: int) -> Iterator[tuple[jax.Array, jax.Array]]:
        """Yields the tokens of the first `count` windows in batches, and a weight for each row.

        The last batch is filled up with windows of weight 0; the other windows have weight 1.
        """
        size, rows = self.batch_size, sharding.local_rows(self.mesh, self.batch_size)
        for start in range(0, count, size):
            weights = (np.arange(start, start + size) < count).astype(np.float32)[rows]
            read = self.windows.batch(start, size, rows)
            self.program.rules.check(read, f"the evaluation of {self.dataset.path}")
            batch = read, weights
            tokens_BxT, weights_B = (sharding.put_batch(self.mesh, x, size) for x in batch)
            yield tokens_BxT, weights_B


@dataclasses.dataclass(frozen=True)
class WindowLosses:
    """Mean token loss in nats of each window of some sets, float64.

    Attributes:
      by_set: the losses by the label of the set.
      weights: weight of each set that counts in the mean; their sum is 1.
    """

    by_set: Mapping[str, np.ndarray]
    weights: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The weighted mean of the mean losses of the sets."""
        return math.fsum(x * self.by_set[name].mean() for name, x in self.weights.items())

    def halves(self) -> tuple["WindowLosses", "WindowLosses"]:
        """Returns two halves of the windows of every set, which must have an even number."""
        halves = {name: np.split(losses, 2) for name, losses in self.by_set.items()}
        first, second = ({name: x[i] for name, x in halves.items()} for i in range(2))
        return WindowLosses(first, self.weights), WindowLosses(second, self.weights)

    def minus(self, other: "WindowLosses") -> tuple[float, float]:
        """Returns the difference of the two means, and the standard error of this difference.

        The error follows from the differences in each window, which are taken as independent. With
        a set of one window, the error is NaN.
        """
        gaps = {
            name: mean_and_standard_error(self.by_set[name] - other.by_set[name])
            for name in self.weights
        }
        gap = math.fsum(x * gaps[name][0] for name, x in self.weights.items())
        return gap, math.hypot(*(x * gaps[name][1] for name, x in self.weights.items()))


@dataclasses.dataclass(frozen=True)
class Evaluators:
    """Evaluators of weights on some sets, by label, on one mesh.

    Attributes:
      by_set: the evaluator of each set by its label.
      weights: weight of each set that counts in the mean; their sum is 1.
      positions: ends of ranges of positions, as in `EvalConfig`.
    """

    by_set: Mapping[str, Evaluator]
    weights: Mapping[str, float]
    positions: Sequence[int] = ()

    @property
    def mesh(self) -> Mesh:
        """The mesh of all evaluators."""
        return next(iter(self.by_set.values())).mesh

    @property
    def of_mean(self) -> "Evaluators":
        """The evaluators on the sets that count in the mean."""
        return Evaluators({name: self.by_set[name] for name in self.weights}, self.weights)

    def losses(
        self, trees: Mapping[str, decoder.Params], interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Returns the mean token loss in nats of each tree, as LABEL/loss.

        With several sets, the result also has the loss on each set, as SET/LABEL/loss. After each
        loss come those of the ranges of positions, such as LABEL/loss_9_to_32. `interrupted` is as
        in `Evaluator.position_losses`.
        """
        by_set: dict[str, dict[str, np.ndarray]] = {}
        for name, evaluator in self.by_set.items():
            losses = evaluator.position_losses(trees, interrupted)
            if losses is None:
                return None
            by_set[name] = losses
        return self.name_losses(by_set)

    def name_losses(self, by_set: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, float]:
        """Returns the losses by name from those at each position, by set and label of a tree."""
        labels = next(iter(by_set.values()))
        named = {
            label: np.sum([x * by_set[name][label] for name, x in self.weights.items()], axis=0)
            for label in labels
        }
        if len(by_set) > 1:
            named |= {f"{name}/{x}": loss for name, y in by_set.items() for x, loss in y.items()}
        return {
            f"{name}/{metric}": float(losses_L[first:end].mean())
            for name, losses_L in named.items()
            for metric, first, end in _ranges(self.positions, len(losses_L))
        }

    def window_losses(self, params: decoder.Params) -> WindowLosses:
        """Returns the loss of each window; in a single process only."""
        losses = {name: each.window_losses(params) for name, each in self.by_set.items()}
        return WindowLosses(losses, self.weights)

    def describe(self, split: str, parts: int = 1) -> str:
        """Returns a text with the tokens of one part of the windows of each set, and its weight."""
        sizes = {
            name: f"{format_count(each.count // parts * each.length)} tokens"
            for name, each in self.by_set.items()
        }
        if len(sizes) == 1:
            return f"{next(iter(sizes.values()))} of {split}"
        each = (f"{name} ({self.weights.get(name, 0):.3g}) {x}" for name, x in sizes.items())
        return f"{split} of each set (weight): {', '.join(each)}"


def _ranges(ends: Sequence[int], length: int) -> Iterator[tuple[str, int, int]]:
    """Yields the name of a loss, and the range of positions that it is the mean of."""
    yield "loss", 0, length
    edges = sorted({0, *(min(end, length) for end in ends), length})
    if ends:
        for first, end in itertools.pairwise(edges):
            yield f"loss_{first + 1}_to_{end}", first, end


class RunEvaluators:
    """The evaluators of a run, on its validation sets at each length that it has had.

    The mean is over the sets at the first length, with fixed weights. So it does not jump when the
    mixture or the length changes.

    Args:
      sets: the dataset of every set, by name.
      weights: weight of every set in the mean, by name.
      programs: programs of the run, by the model of a stage; those that are missing are made.
      request: the windows of each set; `request.data` is ignored.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        sets: Mapping[str, DatasetInfo],
        weights: Mapping[str, float],
        programs: Mapping[ModelConfig, Program],
        request: EvaluationRequest = EvaluationRequest(),
    ):
        self._config, self._mesh, self._sets, self._request = config, mesh, sets, request
        self._weights = {name: weight for name, weight in weights.items() if weight}
        self._programs = {(model, x.rules): x for model, x in programs.items()}
        self._evaluators: dict[tuple[str, ModelConfig], Evaluator] = {}

    def at(self, step: int) -> Evaluators:
        """Returns the evaluators after `step` updates."""
        by_set = {
            label: self._evaluator(model, name)
            for label, name, model in evaluated_sets(self._config, step)
        }
        return Evaluators(by_set, self._weights, self._config.eval.positions)

    def losses(
        self, step: int, trees: Mapping[str, decoder.Params], interrupted: Callable[[], bool]
    ) -> dict[str, float] | None:
        """Returns the losses of weight trees after `step` updates, as `Evaluators.losses` does."""
        return self.at(step).losses(trees, interrupted)

    def _evaluator(self, model: ModelConfig, name: str) -> Evaluator:
        if (name, model) not in self._evaluators:
            dataset = self._sets[name]
            program = self._program(model, dataset)
            self._evaluators[name, model] = make_evaluator(dataset, program, self._request)
        return self._evaluators[name, model]

    def _program(self, model: ModelConfig, dataset: DatasetInfo) -> Program:
        rules = document_rules(self._config.data, dataset.delimiters)
        if (model, rules) not in self._programs:
            self._programs[model, rules] = make_program(
                self._config, self._mesh, rules, model=model
            )
        return self._programs[model, rules]


def evaluated_sets(config: Config, step: int) -> Iterator[tuple[str, str, ModelConfig]]:
    """Yields what a run evaluates after `step` updates: a label, the name of a set, and a model.

    Every set is evaluated at each length that the run has had. The rest of the model is that of
    update `step`, the last one. The label is the name of the set at the first length, and
    NAME@LENGTH at another length.
    """
    last = max(step - 1, 0)
    model, first = config.stage_at(last).model, config.model.length
    for length in dict.fromkeys(x.model.length for x in config.run_stages if x.step <= last):
        for name in config.sets:
            label = name if length == first else f"{name}@{length}"
            yield label, name, dataclasses.replace(model, length=length)


def make_evaluator(dataset: DatasetInfo, program: Program, request: EvaluationRequest) -> Evaluator:
    """Returns an evaluator on windows of a dataset, of the length of the program's model.

    A batch has at most as many windows as one of `request.parts`, rounded up to a number that the
    devices can share. Raises an InputError if the split has too few tokens.
    """
    config, length = program.config, program.model.length
    split, parts = request.split, request.parts
    available = count_windows(dataset, split, length)
    tokens = request.tokens or config.eval_windows(available, length) * length
    part = tokens // length // parts
    if not 1 <= part <= available // parts:
        raise InputError(
            f"give at least {parts * length}, {parts} x the length of a window, and at most "
            f"{available * length}, the {split} split of {dataset.path}",
            "tokens",
            tokens,
        )
    windows = Windows.from_dataset(dataset, split, length=length, seed=_ORDER, repeat=True)
    rows = min(request.batch_size or config.eval_rows(length), part)
    size = sharding.round_up_rows(program.mesh, rows)
    return Evaluator(program, dataset, windows, part * parts, size)


def mean_and_standard_error(values: np.ndarray) -> tuple[float, float]:
    """Returns the mean of independent values and the standard error of this mean."""
    if len(values) < 2:
        return float(values.mean()), float("nan")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))
