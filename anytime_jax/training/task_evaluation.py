"""Tasks of lm-evaluation-harness, scored with weights of a run.

The harness makes the requests of a task and computes the metrics. This module answers the requests
as `HFLM` of the harness answers them for an exported model, with the same truncation and ends of a
text. A text begins as the documents of the run's data do (`Delimiters`), whatever the tokenizer
puts before a text. Where the tokenizer puts a BOS there, `HFLM` counts rolling likelihoods after
two of them.
"""

import contextlib
import dataclasses
import io
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytime_jax.checkpoints.metric_records import KERNEL_ERROR, TASKS
from anytime_jax.corpus.vocabulary_interface import Vocabulary
from anytime_jax.data.dataset_info import Delimiters
from anytime_jax.errors import InputError, nearest, needs_extra
from anytime_jax.models.decoder import Params
from anytime_jax.models.sampling import SamplingSettings
from anytime_jax.training.text_scorer import TextScorer

with needs_extra("tasks"):
    import tqdm  # pyright: ignore[reportMissingModuleSource]
    from lm_eval import utils  # pyright: ignore[reportMissingImports]
    from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]
    from lm_eval.defaults import (  # pyright: ignore[reportMissingImports]
        DEFAULT_OTHER_SEED,
        DEFAULT_RANDOM_SEED,
    )
    from lm_eval.evaluator import evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.models.utils import (  # pyright: ignore[reportMissingImports]
        handle_stop_sequences,
        normalize_gen_kwargs,
        postprocess_generated_text,
    )
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

_GENERATED = 256  # tokens to generate where a task does not say: HFLM's default
_BOOTSTRAP = 1000  # resamples for standard errors that have no formula


@dataclasses.dataclass(frozen=True)
class TaskScore:
    """A metric of a task or of a group of tasks, with its standard error (None if it has none).

    Attributes:
      shots: number of examples in the prompts; None for a group.
    """

    task: str
    shots: int | None
    metric: str
    value: float
    error: float | None


@dataclasses.dataclass(frozen=True)
class _Generation:
    until: list[str]
    count: int
    sampling: SamplingSettings


class RunModel(TemplateLM):
    """Weights of a run as a model of the harness."""

    def __init__(
        self,
        scorer: TextScorer,
        params: Params,
        vocabulary: Vocabulary,
        delimiters: Delimiters,
        like_hf: bool = False,
        report: Callable[[int], object] | None = None,
    ):
        """With `like_hf`, texts begin as those of `HFLM`, not as `delimiters` say.

        `report` is called with the number of requests after each batch; the default is a bar.
        """
        super().__init__()
        self._report = report
        self._scorer, self._params, self._vocabulary = scorer, params, vocabulary
        self._delimiters, self._like_hf = delimiters, like_hf

    @property
    def eot_token_id(self) -> int:
        """The id that ends a document."""
        return self._vocabulary.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The id before a text that has no context."""
        if self._like_hf:
            return Delimiters(self._vocabulary.named_bos_id, self.eot_token_id).before_text
        return self._delimiters.before_text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **unused: Any
    ) -> list[int]:
        """Encodes a text, by default with the tokens that begin a document."""
        del unused
        if self._like_hf and add_special_tokens is not False:
            return self._vocabulary.encode_by_itself(string)
        begin = () if add_special_tokens is False else self._delimiters.begin
        return [*begin, *self._vocabulary.encode([string])[0].tolist()]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **unused: Any
    ) -> list[tuple[float, bool]]:
        del unused
        length = self._scorer.config.length
        for texts, _, continuation in requests:
            if not 1 <= len(continuation) <= length:
                raise InputError(
                    f"the continuation of a request has {len(continuation)} tokens, and the model "
                    f"takes 1 to {length}: {texts!r}"
                )
        with self._progress(len(requests), "likelihoods") as report:
            pairs = [(context, continuation) for _, context, continuation in requests]
            return self._scorer.log_likelihoods(self._params, pairs, report)

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Returns the log-likelihood of whole texts; each token has as much context as fits."""
        del disable_tqdm
        windows, owners = [], []
        for owner, request in enumerate(requests):
            for window in utils.get_rolling_token_windows(
                # The prefix is the BOS, if there is one.
                token_list=self.tok_encode(request.args[0], None if self._like_hf else False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._scorer.config.length,
                context_len=1,
            ):
                windows.append((None, *utils.make_disjoint_window(window)))
                owners.append(owner)
        sums = [0.0] * len(requests)
        for owner, (value, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            sums[owner] += value
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Returns the continuation of each context, which ends before one of the request's ends."""
        del disable_tqdm
        results = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(number)
        with self._progress(len(requests), "continuations") as report:
            for numbers in groups.values():
                contexts = [requests[number].args[0] for number in numbers]
                settings = requests[numbers[0]].args[1]
                texts = self._generate(contexts, settings, report)
                for number, text in zip(numbers, texts, strict=True):
                    results[number] = text
        return results

    @contextlib.contextmanager
    def _progress(self, total: int, what: str) -> Iterator[Callable[[int], object]]:
        """Yields a function that is told of each batch; a bar is shown on a terminal only."""
        if self._report is not None:
            yield self._report
            return
        with tqdm.tqdm(total=total, desc=what, disable=None, leave=False) as bar:
            yield bar.update

    def _generate(
        self, contexts: Sequence[str], settings: Mapping[str, Any], report: Callable[[int], object]
    ) -> list[str]:
        vocabulary = self._vocabulary
        generation = _parse_generation(settings, vocabulary, self._scorer.config.length)
        room = self._scorer.config.length - generation.count
        prompts = [self.tok_encode(x)[-room:] or [self.prefix_token_id] for x in contexts]
        decoders = [vocabulary.incremental_decoder() for _ in prompts]
        texts = [""] * len(prompts)

        def is_end(number: int, token: int) -> bool:
            texts[number] += decoders[number].decode(token)
            until = generation.until
            return token == vocabulary.eos_id or any(end in texts[number] for end in until if end)

        new = self._scorer.continuations(
            self._params, prompts, generation.sampling, generation.count, is_end, report
        )
        return [
            postprocess_generated_text(vocabulary.decode(ids), generation.until, None)
            for ids in new
        ]


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Tasks and their data, loaded once, to be scored with several weights.

    Attributes:
      loaded: tasks and groups of tasks by name, as the harness loaded them.
      shots: number of examples in the prompts; None for the default of each task.
      limit: number of documents of each task; None for all.
      like_hf: whether texts begin as those of the harness's `HFLM`.
    """

    names: list[str]
    loaded: Mapping[str, Any]
    shots: int | None = None
    limit: int | None = None
    like_hf: bool = False

    def name_scores(
        self, weights: str, scores: Sequence[TaskScore], kernel_error: float = 0.0
    ) -> dict[str, float]:
        """Returns scores of weights, and a kernel error of the weights, as records name them."""
        values = {f"{TASKS}{weights}/{KERNEL_ERROR}": kernel_error} if kernel_error else {}
        for x in scores:
            shots = self.shots if x.shots is None else x.shots
            values[f"{self._prefix(weights, x.task, shots)}{x.metric}"] = x.value
        return values

    def are_scored(self, weights: str, values: Iterable[str]) -> bool:
        """Whether names of recorded values include scores of these weights in every task."""
        prefixes = (
            self._prefix(weights, name, task.get_config("num_fewshot"))
            for name, task in self.loaded["tasks"].items()
        )
        values = [*values]
        return all(any(x.startswith(prefix) for x in values) for prefix in prefixes)

    def _prefix(self, weights: str, task: str, shots: int | None) -> str:
        return f"{TASKS}{weights}/{task if self.shots is None else f'{task}-{shots}shot'}/"


def load_tasks(
    names: Sequence[str],
    vocabulary: Vocabulary,
    length: int,
    shots: int | None = None,
    limit: int | None = None,
    like_hf: bool = False,
    setting: str = "--tasks",
) -> Tasks:
    """Loads tasks and their data; a name is one of the harness, or the path of a task's file.

    Raises an InputError of `setting` if a task is unknown, if it cannot be loaded, or if its
    requests do not fit a model of this `length`.
    """
    names = [*dict.fromkeys(names)]
    # Finding the names of the harness takes seconds, which files of one's own do not need.
    manager = TaskManager(include_defaults=not all(map(_is_file, names)))
    for name in names:
        if name not in manager.all_tasks and not _is_file(name):
            raise InputError(
                f"{setting}: lm_eval has no task {name!r}: give names of its tasks, or paths of "
                f"YAML files{nearest(name, manager.all_tasks)}"
            )
    _seed()
    try:
        loaded = manager.load(names)
        for task in loaded["tasks"].values():
            # A task that sets 0 examples has none to give.
            own = task.get_config("num_fewshot")
            task.set_config("num_fewshot", own or 0 if shots is None or own == 0 else shots)
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
            with quiet():
                task.build_all_requests(limit=1)  # a first document that fails is told here
    except Exception as error:  # tasks are code of others
        raise InputError(
            f"{setting}={','.join(names)} cannot be loaded ({type(error).__name__}: {error}): fix "
            "the task; without a network, use a task of local files, or load its data once before"
        ) from error
    for name, task in loaded["tasks"].items():
        _check_task(name, task, vocabulary, length)
    return Tasks(names, loaded, shots, limit, like_hf)


def quiet() -> contextlib.AbstractContextManager[Any]:
    """Returns a context without the progress bars of the harness."""
    return contextlib.redirect_stderr(io.StringIO())


def score_tasks(tasks: Tasks, model: RunModel) -> list[TaskScore]:
    """Returns all scores of a model, in the order of the harness."""
    _seed()
    for task in tasks.loaded["tasks"].values():
        task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)  # the same examples for all weights
    # It would fork processes for the bootstrap, which may deadlock once JAX has threads.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    with contextlib.redirect_stdout(sys.stderr):  # it prints that it bootstraps
        task_dict: Any = tasks.loaded
        found: Any = evaluate(
            lm=model,
            task_dict=task_dict,
            limit=tasks.limit,
            bootstrap_iters=_BOOTSTRAP,
            log_samples=False,
        )
    scores = []
    for task, metrics in found["results"].items():
        shots = None if task in found.get("groups", {}) else found["n-shot"].get(task)
        for key, value in metrics.items():
            metric, _, variant = key.partition(",")
            if not variant or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            error = metrics.get(f"{metric}_stderr,{variant}")
            error = float(error) if isinstance(error, (int, float)) else None
            metric = metric if variant == "none" else f"{metric} ({variant})"
            scores.append(TaskScore(task, shots, metric, float(value), error))
    return scores


def _check_task(name: str, task: Any, vocabulary: Vocabulary, length: int) -> None:
    """Raises an InputError if this model cannot answer the requests of a task."""
    if getattr(task, "UNSAFE_CODE", False):
        raise InputError(
            f"task {name} runs code that the model writes, which evaluate does not: export the "
            "weights, and run lm_eval where that code can do no harm"
        )
    if getattr(task, "MULTIMODAL", False):
        raise InputError(f"task {name} has images or sound, and the model reads text only")
    metrics = getattr(task, "_metric_fn_list", {})
    unknown = [metric for metric, function in metrics.items() if function is None]
    if unknown and task.get_config("process_results") is None:
        raise InputError(f"task {name}: lm_eval has no metric {', '.join(unknown)}")
    if task.get_config("output_type") == "generate_until":
        try:
            _parse_generation(task.get_config("generation_kwargs") or {}, vocabulary, length)
        except InputError as error:
            raise InputError(f"task {name}: {error}") from error


def _parse_generation(
    settings: Mapping[str, Any], vocabulary: Vocabulary, length: int
) -> _Generation:
    """Reads the `generation_kwargs` of a task; raises an InputError for unsupported ones."""
    try:
        rest: dict[str, Any] = dict(normalize_gen_kwargs(dict(settings), _GENERATED))
        until = handle_stop_sequences(rest.pop("until"), eos=vocabulary.eos_text)
        if not all(isinstance(end, str) for end in until):
            raise ValueError("until is a list of texts")
        count = rest.pop("max_gen_toks")
        temperature = rest.pop("temperature", 1.0) if rest.pop("do_sample") else 0.0
        rest.pop("temperature", None)
        sampling = SamplingSettings(
            float(temperature),
            int(rest.pop("top_k", 0)),
            float(rest.pop("top_p", 1.0)),
            DEFAULT_OTHER_SEED,
        )
    except (ValueError, TypeError) as error:
        raise InputError(f"generation_kwargs = {dict(settings)}: {error}") from error
    if rest:
        raise InputError(
            f"generation_kwargs has {', '.join(sorted(rest))}, which is not supported: it may have "
            "until, max_gen_toks, do_sample, temperature, top_k and top_p"
        )
    if not 1 <= count < length:
        raise InputError(
            f"max_gen_toks = {count} does not fit a model of {length} tokens: set it in "
            f"generation_kwargs to at least 1 and at most {length - 1}"
        )
    return _Generation(until, count, sampling)


def _seed() -> None:
    """Seeds the random number generators that tasks may use, as the harness does."""
    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()
