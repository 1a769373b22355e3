"""Starts of runs small enough for a test, and what they leave on disk.

Test files import the fixtures they use: `_shared_programs` is one that every test of them gets.
"""

import dataclasses
import io

import pytest
import small_run
import tensorstore
from rich.console import Console
from small_run import dataset_fixture  # noqa: F401

from anytime_jax.checkpoints.checkpoint_reader import ARRAY_ITEMS
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.checkpoints.records import TIMINGS, read_records
from anytime_jax.checkpoints.retention import retention_policy
from anytime_jax.config.schema import Config
from anytime_jax.training import preflight, trainer
from anytime_jax.training.progress import Display

MEANS = {"train/loss", "train/grad_norm", "train/clipped", "train/update_norm"}
TRAIN_NAMES = MEANS | {"lr", "train/spikes", "train/skipped"}
EVAL_NAMES = {"eval/last/loss", "eval/f6.25/loss", "eval/f25/loss"}


_updates = 0


def counting(config, mesh):
    """`tiny.program`, whose updates are counted."""
    program = small_run.program(config, mesh)

    def train_step(state, tokens, update_averages=True):
        global _updates
        _updates += 1
        return program.train_step(state, tokens, update_averages)

    return dataclasses.replace(program, train_step=train_step)


@pytest.fixture(autouse=True, name="_shared_programs")
def shared_programs_fixture(monkeypatch):
    """Runs of one configuration share compiled functions, which keep no state."""
    monkeypatch.setattr(preflight, "make_program", counting)


def start(run, dataset, interrupted=lambda: False, mesh=None, fall_back=False, **changes):
    """One start of a run; its outcome and what it said."""
    config = small_run.config(run, dataset.path, **changes)
    said = io.StringIO()
    display = Display(config.clock, Console(file=said, width=200))
    outcome = trainer.train(
        config, mesh or small_run.mesh(), dataset, display, interrupted, fall_back
    )
    return outcome, said.getvalue()


def after(updates, then=None):
    """An `interrupted` that is true, or raises, once so many updates of this start are made."""
    began = _updates

    def interrupted():
        due = _updates - began >= updates
        if due and then is not None:
            raise then
        return due

    return interrupted


def saved(run, step, config: Config | None = None, mesh=None):
    """What the checkpoint of a step holds."""
    config = config or small_run.config(run)
    program = small_run.program(config, mesh or small_run.mesh())
    checkpoints = CheckpointManager(run, retention_policy(config))
    restored = checkpoints.restore(step, program.abstract_state)
    checkpoints.close()
    return restored


def bits(run, step):
    """All that a checkpoint's files hold of its arrays, as TensorStore finds it: no code of ours.

    Shapes, types and compressed values by item and name. Ten times as fast as `saved`.
    """
    found = {}
    for item in ARRAY_ITEMS:
        base = f"file://{run}/checkpoints/{step}/{item}/"
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
        reads = {name: store.read(name) for name in store.list().result()}
        assert reads
        found |= {(item, name): read.result().value for name, read in reads.items()}
    return found


def records(run):
    """The rows without what depends on the machine and the moment."""
    rows = []
    for row in read_records(run):
        values = {name: x for name, x in row.values.items() if name not in TIMINGS}
        rows.append((row.step, row.tokens, values))
    return rows


def finished(factory, name, dataset, **changes):
    """A run that nothing broke, made once for all workers: none of them changes it."""

    def make(run):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(preflight, "make_program", small_run.program)
            assert start(run, dataset, **changes)[0].reason == "stop"

    return small_run.made_once(factory, name, make)


@pytest.fixture(scope="session", name="whole")
def whole_fixture(dataset, tmp_path_factory):
    """A run to 2x, 20 updates, that nothing broke."""
    return finished(tmp_path_factory, "whole", dataset, stop="2x")
