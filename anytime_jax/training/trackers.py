"""Trackers of a run, which mirror its records elsewhere: TensorBoard, Weights & Biases, your own.

The setting `log.trackers` names them. A tracker is a frozen dataclass whose fields are its
settings. Its `open` returns a `Mirror`, which gets what the records get.

Training writes each of these names at most once a step:

    updates      `train/loss`, `train/grad_norm`, `train/clipped`, `train/update_norm`,
                 `train/spikes`, `train/skipped`, `lr`, `tokens_per_s`, `mfu`; with
                 `log.relative_updates` also `train/relative_update/PARAMETER`
    layers       `layers/0/weights`, `gradients`, `residual`, `attention`, `mlp` and `logit`, for
                 each layer; `layers/embedding/weights`, `gradients`, and of the head
    evaluations  `eval/LABEL/loss`, `eval_seconds`; with several sets also `eval/SET/LABEL/loss`;
                 with `eval.positions` also `eval/LABEL/loss_9_to_32`, of a range of positions
    tasks        `tasks/LABEL/TASK/METRIC`, `tasks_seconds`

`evaluate --tasks` writes scores too, into TensorBoard files beside those of the run.
"""

import dataclasses
import importlib.util
import json
import tempfile
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from anytime_jax.averaging import LIVE
from anytime_jax.checks import require
from anytime_jax.config.kinds import Kinds
from anytime_jax.config.run_config import Config
from anytime_jax.config.settings_reader import ByName, read_kind, setting_type
from anytime_jax.errors import InputError, RunError, describe_failure, within
from anytime_jax.storage.files import can_append
from anytime_jax.storage.paths import absolute_path, storage_path

TENSORBOARD = "tensorboard"  # the kind, and the directory of its event files in a run


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run that a tracker opens.

    Attributes:
      config: the configuration, with the run's `name` and `directory`.
      id: id of the run, the same in every start, wherever the directory is moved.
      step: updates before this start. Rows of later steps, by earlier starts, are superseded.
    """

    config: Config
    id: str
    step: int


class Mirror:
    """An open tracker. Every method does nothing here; a subclass has those that it needs.

    The primary process calls the methods between updates and waits for them. They may raise any
    error, which `Mirrors` prints.
    """

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Takes the values of a step, by name; `tokens` are the tokens seen."""

    def tell(self, event: str, step: int, text: str) -> None:
        """Hears in one line of a skipped update, or how the start has ended.

        `event` is "skip", "stop" (where `config.stop` is), "data" (all windows are used),
        "interrupted" or "failure". A process that is killed tells nothing.
        """

    def sync(self) -> None:
        """Stores everything written; called at every save and evaluation."""

    def close(self) -> None:
        """Stores everything that is not stored yet, and closes the mirror."""


@runtime_checkable
class Tracker(Protocol):
    """Place for metrics of runs. A subclass is a frozen dataclass, whose fields are settings."""

    def open(self, run: TrackedRun) -> Mirror:
        """Opens the place for a start of a run."""
        ...


TRACKERS = Kinds("tracker", Tracker)
_BY_NAME = setting_type(ByName)


def read_trackers(config: Config) -> dict[str, Tracker]:
    """Returns the trackers of `config.log.trackers` by name.

    Raises an InputError for a class that is missing or not trusted, or a wrong setting.
    """
    trackers: dict[str, Tracker] = {}
    for name, settings in config.log.trackers:
        with within("config.log.trackers"):
            values = {"kind": name, **dict(_BY_NAME.read(name, settings))}
            with within(name):
                trackers[name] = read_kind(TRACKERS, values, config.trust)
    return trackers


class Mirrors:
    """The mirrors of a start, which are told how it ends and closed when the block ends.

    An error of a mirror is printed and never ends the run. The mirror gets no more rows in this
    start; it still hears what the others hear.
    """

    def __init__(self, say: Callable[[str], None]):
        """`say` prints a line."""
        self._say = say
        self._mirrors: dict[str, Mirror] = {}
        self._failed: set[str] = set()
        self._step = 0
        self._ending: tuple[str, int, str] | None = None

    def open(self, trackers: Mapping[str, Tracker], run: TrackedRun) -> None:
        """Opens trackers by name."""
        self._step = run.step
        for name, tracker in trackers.items():
            if mirror := self._call(name, tracker.open, run):
                self._mirrors[name] = mirror

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Writes the values of a step to all mirrors."""
        self._step = step
        self._all("write", step, tokens, values)

    def sync(self) -> None:
        """Stores what all mirrors have."""
        self._all("sync")

    def tell(self, event: str, step: int, text: str) -> None:
        """Tells all mirrors of an event of `Mirror.tell`."""
        self._all("tell", event, step, text)

    def end(self, event: str, step: int, text: str) -> None:
        """Says what the end of the block is to tell, unless an error ends it."""
        self._ending = event, step, text

    def __enter__(self) -> "Mirrors":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self._ending = "failure", self._step, _describe(error)
        if self._ending:
            self.tell(*self._ending)
        self._all("close")

    def _all(self, method: str, *arguments: Any) -> None:
        for name, mirror in self._mirrors.items():
            if name not in self._failed or method in ("tell", "close"):
                self._call(name, getattr(mirror, method), *arguments)

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        package = type(getattr(method, "__self__", None)).__module__.partition(".")[0]

        def is_theirs(frame: types.FrameType) -> bool:
            return frame.f_globals.get("__name__", "").partition(".")[0] == package

        try:
            return method(*arguments)
        except (Exception, SystemExit) as error:  # code of anybody can raise anything
            self._failed.add(name)
            failure = _describe(error, is_theirs)
            self._say(f"tracker  {name} failed, and gets no more rows in this start: {failure}")
            return None


def _describe(
    error: BaseException, is_own: Callable[[types.FrameType], bool] = lambda frame: False
) -> str:
    """Returns an error in one line; an error of this package says itself what is wrong."""
    text = str(error) if isinstance(error, RunError) else describe_failure(error, is_own)
    return " ".join(text.split())


@dataclasses.dataclass(frozen=True)
class TensorBoard(Tracker):
    """Event files in `RUN/tensorboard`, with the settings as text.

    Values that earlier starts wrote after the step of this one are superseded.
    """

    def open(self, run: TrackedRun) -> Mirror:
        """Opens an event file; a run in a bucket has none."""
        if not can_append(storage_path(run.config.directory)):
            raise RunError("its files grow, which files in a bucket cannot")
        return _EventFile(run.config, run.step)


class _EventFile(Mirror):
    """Event file of a start.

    The files are written in the thread of the caller. The library's own writer has a thread that
    ends if the disk is full; a later write to the queue of this thread would wait forever.
    """

    def __init__(self, config: Config, from_step: int):
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        events: Any = event_pb2  # its names are made when it is imported
        self._scalar, self._event = summary.scalar, events.Event
        directory = storage_path(config.directory) / TENSORBOARD
        directory.mkdir(parents=True, exist_ok=True)
        self._events = EventsWriter(str(directory / "events"))
        start = events.SessionLog(status=events.SessionLog.START)
        self._add(from_step + 1, session_log=start)  # TensorBoard drops what is later
        settings = json.dumps(config.to_dict(), indent=1)
        # Of the step at which this start began, so that the settings of earlier ones stay.
        self._add(from_step, summary=summary.text("settings", f"```json\n{settings}\n```"))
        # On the page Custom Scalars, all weights are in one chart; tags are regular expressions.
        charts = {"all weights": ["Multiline", ["^eval/[^/]+/loss$"]]}
        if len(config.sets) > 1:
            charts[f"{LIVE}, each set"] = ["Multiline", [f"^eval/[^/]+/{LIVE}/loss$"]]
        self._add(from_step, summary=summary.custom_scalars({"validation loss": charts}))

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        del tokens
        for name, value in values.items():
            self._add(step, summary=self._scalar(name, value))

    def _add(self, step: int, **content: Any) -> None:
        event = self._event(wall_time=time.time(), step=step, **content)
        self._events.write_event(event)

    def sync(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()


@dataclasses.dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases.

    Attributes:
      project: project to mirror to.
    """

    project: str

    def __post_init__(self) -> None:
        ok = self.project.strip() and self.project.isprintable() and len(self.project) <= 200
        require(ok, "project", self.project, "up to 200 printable characters")
        if importlib.util.find_spec("wandb") is None:
            raise InputError("it needs Weights & Biases: pip install 'anytime_jax[wandb]'")

    def open(self, run: TrackedRun) -> Mirror:
        """Opens the run with the id of this one."""
        return _WandbRun(self.project, run)


class _WandbRun(Mirror):
    """Run of Weights & Biases, the same for every start in one run directory.

    The group of the run is the parent folder of the run directory. So the runs of a study are one
    group, and so are a trunk and its branches.

    The library drops rows below its own count of steps, so no row is logged under that count: the
    step is a value of the row, `step`, and the axis of all charts. Rows of earlier starts stay.
    """

    def __init__(self, project: str, run: TrackedRun):
        import wandb  # pyright: ignore[reportMissingImports]

        run_dir = storage_path(run.config.directory)
        folder = run_dir if can_append(run_dir) else tempfile.gettempdir()
        self._run = wandb.init(
            project=project,
            name=run.config.name,
            group=absolute_path(run_dir).parent.name,
            id=run.id,
            config=run.config.to_dict(),
            dir=str(folder),
            resume="allow",
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "tokens": tokens, "step": step})

    def close(self) -> None:
        self._run.finish()
