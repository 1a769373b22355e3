"""Scores of a run's weights in its tasks, as it trains."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from jax.sharding import Mesh

from anytime_jax.config.model import ModelConfig
from anytime_jax.config.run_config import Config
from anytime_jax.corpus.vocabulary_files import load_vocabulary
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import DatasetInfo, Delimiters
from anytime_jax.models.decoder import Params
from anytime_jax.training.task_evaluation import (
    RunModel,
    Tasks,
    TaskScore,
    load_tasks,
    quiet,
    score_tasks,
)
from anytime_jax.training.text_scorer import TextScorer, open_scorer


class _Interrupted(Exception):
    """The run was asked to save and end."""


@dataclasses.dataclass(frozen=True)
class TaskEvaluator:
    """Scores weight trees in the tasks `config.eval.tasks`, whose data are loaded.

    Every process has the tasks, makes the same requests in the same order, and gets all scores.
    """

    config: Config
    mesh: Mesh
    tasks: Tasks
    vocabulary: Vocabulary
    delimiters: Delimiters
    _scorers: dict[ModelConfig, TextScorer] = dataclasses.field(default_factory=dict)

    def scores(
        self, step: int, trees: Mapping[str, Params], interrupted: Callable[[], bool]
    ) -> dict[str, Sequence[TaskScore]] | None:
        """Returns the scores of each tree, by label, after `step` updates.

        `interrupted` is called before each tree and after every batch. If it returns true, the
        result is None.
        """

        def check(done: int) -> None:
            del done
            if interrupted():
                raise _Interrupted

        scores = {}
        try:
            for label, params in trees.items():
                check(0)
                words = self.vocabulary, self.delimiters
                model = RunModel(self._scorer(step), params, *words, report=check)
                with quiet():
                    scores[label] = score_tasks(self.tasks, model)
        except _Interrupted:
            return None
        return scores

    def _scorer(self, step: int) -> TextScorer:
        model = self.config.stage_at(max(step - 1, 0)).model
        if model not in self._scorers:
            self._scorers[model] = open_scorer(self.config, model, self.mesh)
        return self._scorers[model]


def open_tasks(config: Config, mesh: Mesh, dataset: DatasetInfo) -> TaskEvaluator:
    """Loads the tasks of a configuration and their data.

    Raises an InputError as `load_tasks` does.
    """
    vocabulary = load_vocabulary(dataset.vocabulary_path)
    tasks = load_tasks(
        config.eval.tasks, vocabulary, min(config.lengths), setting="config.eval.tasks"
    )
    return TaskEvaluator(config, mesh, tasks, vocabulary, dataset.delimiters)
