"""Stand-ins for MLflow and Trackio where they are not installed, with the calls of docs/extend.md.

Names and arguments are those of mlflow 3.17 and trackio 0.43, with which the tests pass as well. As
Trackio does, a name that is resumed goes on; without `resume`, it gets a run of its own.
"""

import importlib.util
import itertools
import re
import sys
import types
from typing import ClassVar, NamedTuple

import pytest


class Metric(NamedTuple):
    """A value of a metric in MLflow."""

    key: str
    value: float
    timestamp: int
    step: int


class MlflowClient:
    """Experiments and runs by the address of their database."""

    _places: ClassVar[dict] = {}

    def __init__(self, tracking_uri: str):
        self._experiments = self._places.setdefault(tracking_uri, {})

    def get_experiment_by_name(self, name):
        known = name in self._experiments
        return types.SimpleNamespace(experiment_id=name) if known else None

    def create_experiment(self, name):
        self._experiments[name] = []
        return name

    def search_runs(self, experiment_ids, filter_string=""):
        runs = [run for name in experiment_ids for run in self._experiments[name]]
        return [x for x in runs if filter_string in ("", f"tags.anytime = '{x.tags['anytime']}'")]

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        info = types.SimpleNamespace(run_id=f"{len(self._experiments)}", run_name=run_name)
        info.status = "RUNNING"
        run = types.SimpleNamespace(info=info, tags=tags, metrics=[])
        self._experiments[experiment_id].append(run)
        return run

    def _run(self, run_id):
        runs = itertools.chain(*self._experiments.values())
        return next(run for run in runs if run.info.run_id == run_id)

    def log_batch(self, run_id, metrics):
        for metric in metrics:
            if not re.fullmatch(r"[\w./: -]+", metric.key):
                raise ValueError(f"Invalid value {metric.key!r} for parameter 'metrics'")
        self._run(run_id).metrics.extend(metrics)

    def set_terminated(self, run_id):
        self._run(run_id).info.status = "FINISHED"

    def get_metric_history(self, run_id, key):
        return [x for x in self._run(run_id).metrics if x.key == key]


class _TrackioRun:
    def __init__(self, logs):
        self._logs = logs

    def log(self, metrics, step=None):
        self._logs.append({**metrics, "step": step})

    def finish(self):
        pass


class SQLiteStorage:
    """The logs of Trackio by project and name."""

    _logs: ClassVar[dict] = {}

    @classmethod
    def get_logs(cls, project, run):
        return cls._logs[project, run]

    @classmethod
    def get_runs(cls, project):
        return [run for place, run in cls._logs if place == project]


def _init(project, name=None, config=None, resume="never"):
    del config
    logs = SQLiteStorage._logs
    if resume == "never" and (project, name) in logs:
        name = f"{name}-{len(logs)}"
    return _TrackioRun(logs.setdefault((project, name), []))


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stand-ins in place of packages that are not installed."""
    stubs = {
        "mlflow": {"MlflowClient": MlflowClient},
        "mlflow.entities": {"Metric": Metric},
        "trackio": {"init": _init},
        "trackio.sqlite_storage": {"SQLiteStorage": SQLiteStorage},
    }
    absent = {x for x in ("mlflow", "trackio") if importlib.util.find_spec(x) is None}
    for name, content in stubs.items():
        if name.partition(".")[0] in absent:
            module = types.ModuleType(name)
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, name, module)
