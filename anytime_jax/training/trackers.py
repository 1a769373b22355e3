"""Trackers of a run: TensorBoard and Weights & Biases, beside the records.

Training writes each of these names at most once a step:

    updates      `train/loss`, `train/grad_norm`, `train/clipped`, `train/update_norm`,
                 `train/spikes`, `train/skipped`, `lr`, `tokens_per_s`, `mfu`; with
                 `log.relative_updates` also `train/relative_update/PARAMETER`
    layers       `layers/0/weights`, `gradients`, `residual`, `attention`, `mlp` and `logit`, for
                 each layer; `layers/embedding/weights`, `gradients`, and of the head
    evaluations  `eval/LABEL/loss`, `eval_seconds`; with several sets also `eval/SET/LABEL/loss`

`evaluate --tasks` writes `tasks/WEIGHTS/TASK/METRIC` later, and replaces an earlier score.
"""

import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints import run_json
from anytime_jax.config.run_config import Config
from anytime_jax.config.run_settings import LogConfig
from anytime_jax.errors import InputError
from anytime_jax.storage.files import can_append
from anytime_jax.storage.paths import absolute_path, storage_path

TENSORBOARD = "tensorboard"  # directory of its event files in a run


class Tracker(Protocol):
    """Destination of metrics, such as the records of a run or TensorBoard."""

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        """Writes the values of a step, by name; `tokens` are the tokens seen."""
        ...

    def sync(self) -> None:
        """Stores everything written; raises an OSError if the records cannot be stored."""
        ...

    def close(self) -> None:
        """Stores everything that is not stored yet and closes the destination."""
        ...


class _TensorBoard:
    """Event files in `RUN/tensorboard`, with the settings as text.

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


class _Wandb:
    """Run of Weights & Biases, the same for every start in one run directory.

    The group of the run is the parent folder of the run directory. So the runs of a study are one
    group, and so are a trunk and its branches.

    The library drops rows below its own count of steps, so no row is logged under that count: the
    step is a value of the row, `step`, and the axis of all charts.
    """

    def __init__(self, config: Config):
        import wandb  # pyright: ignore[reportMissingImports]

        run_dir = storage_path(config.directory)
        folder = run_dir if can_append(run_dir) else tempfile.gettempdir()
        self._run = wandb.init(
            project=config.log.wandb_project,
            name=config.name,
            group=absolute_path(run_dir).parent.name,
            id=run_json.run_id(run_dir),
            config=config.to_dict(),
            dir=str(folder),
            resume="allow",
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, tokens: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "tokens": tokens, "step": step})

    def sync(self) -> None:
        pass  # the library sends by itself

    def close(self) -> None:
        self._run.finish()


def open_trackers(config: Config, from_step: int, say: Callable[[str], None]) -> list[Tracker]:
    """Opens TensorBoard and Weights & Biases where configured, and returns them.

    In TensorBoard, values that earlier starts wrote after step `from_step` are superseded; in
    Weights & Biases they stay. A run in a bucket has no TensorBoard files, and `say` is told so.
    """
    trackers: list[Tracker] = []
    if config.log.wandb_project:
        trackers.append(_Wandb(config))
    if config.log.tensorboard and can_append(storage_path(config.directory)):
        trackers.append(_TensorBoard(config, from_step))
    elif config.log.tensorboard:
        say("tensorboard left out: its files grow, which files in a bucket cannot")
    return trackers


def check_wandb(log: LogConfig) -> None:
    """Raises an InputError if Weights & Biases is configured and not installed."""
    if log.wandb_project and importlib.util.find_spec("wandb") is None:
        raise InputError(
            "it needs Weights & Biases: pip install 'anytime_jax[wandb]', or leave it empty",
            "config.log.wandb_project",
            log.wandb_project,
        )
