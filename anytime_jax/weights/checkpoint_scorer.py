"""Scores of tasks at the checkpoints of a saved run, which may be training.

Scores join the records of the run. TensorBoard files of the scores are in `RUN/tasks`: TensorBoard
reads only the newest file of a directory, and that of `RUN` belongs to the training.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import RecordWriter, read_records
from anytime_jax.checkpoints.run_ownership import is_locked
from anytime_jax.config.kinds import NOBODY, Trust
from anytime_jax.config.model import ModelConfig
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.distributed import sharding
from anytime_jax.storage.failures import storage_errors
from anytime_jax.training.task_evaluation import RunModel, Tasks, TaskScore, score_tasks
from anytime_jax.training.text_scorer import TextScorer, open_scorer
from anytime_jax.training.trackers import TENSORBOARD, Mirrors, TensorBoard, TrackedRun
from anytime_jax.weights import saved_run
from anytime_jax.weights.post_hoc_averages import WeightedSum
from anytime_jax.weights.saved_run import SavedRun

_DIRECTORY = "tasks"  # of TensorBoard files in a run


class CheckpointScorer:
    """Scores weights of the checkpoints of one run, with each model's programs compiled once."""

    def __init__(
        self,
        tasks: Tasks,
        vocabulary: Vocabulary,
        batch_size: int | None,
        say: Callable[[str], object],
    ):
        """The default batch size is that of the evaluations in training.

        If the mesh of the run does not fit the devices, `say` is told which mesh is taken instead.
        """
        self._tasks, self._vocabulary = tasks, vocabulary
        self._batch_size, self._say = batch_size, say
        self._scorers: dict[ModelConfig, TextScorer] = {}
        self._opened = contextlib.ExitStack()
        self._mirrors: Mirrors | None = None

    def score(self, run: SavedRun, weighted_sum: WeightedSum) -> list[TaskScore]:
        """Returns the scores of weights; raises a RunError if the weights are gone or damaged."""
        if run.model not in self._scorers:
            mesh = sharding.make_mesh_or_replicate(run.config.mesh, self._say)
            self._scorers[run.model] = open_scorer(run.config, run.model, mesh, self._batch_size)
        scorer = self._scorers[run.model]
        params = saved_run.load_weights(run, weighted_sum, scorer.mesh)
        begin = run.delimiters, self._tasks.like_hf
        return score_tasks(self._tasks, RunModel(scorer, params, self._vocabulary, *begin))

    def record(
        self, run: SavedRun, weights: str, scores: Sequence[TaskScore], kernel_error: float = 0.0
    ) -> str:
        """Records scores at the step of the weights; replaces scores of the same name.

        Returns "" if the scores were recorded, or the reason why they were not.
        """
        if self._tasks.limit is not None:
            return "scores of a part of the documents (--limit) are not recorded"
        if self._tasks.like_hf:
            return "scores of texts that begin otherwise than the data (--like-hf) are not recorded"
        values = self._tasks.name_scores(weights, scores, kernel_error)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            if self._mirrors is None:
                self._mirrors = self._opened.enter_context(_open_mirrors(run))
            self._mirrors.write(run.step, run.tokens, values)
            self._mirrors.sync()
            # A start of the training supersedes segments before it, so each row has a new one. The
            # records are last, as they say what is scored.
            writer = RecordWriter(run.run_dir, None, {"started": now})
            writer.amend(run.step, run.tokens, values)
            writer.close()
        except storage_errors() as error:
            return f"the scores are not recorded: {error}"
        return ""

    def close(self) -> None:
        """Closes the TensorBoard files."""
        self._opened.close()


def has_ended(run_dir: Path, last: int, trust: Trust = NOBODY) -> bool:
    """Whether a run whose last checkpoint is that of step `last` has saved at its stop.

    The stop is that of the last start; a run without one has not ended. With a stop such as "4x+",
    a run has ended where no process trains it.
    """
    config, _ = run_json.read_run(str(run_dir), "run", trust)
    stop = config.stop_rule
    if stop.step is None or last < stop.step:
        return False
    return not (stop.doubles and is_locked(run_dir))


def _open_mirrors(run: SavedRun) -> Mirrors:
    last = max([run.step, *(row.step for row in read_records(run.run_dir))])
    config = dataclasses.replace(run.config, directory=str(run.run_dir / _DIRECTORY))
    shown = {TENSORBOARD: TensorBoard()} if TENSORBOARD in dict(config.log.trackers) else {}
    mirrors = Mirrors(lambda text: None)
    mirrors.open(shown, TrackedRun(config, "", last))
    return mirrors
