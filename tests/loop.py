"""Starts of runs small enough for a test, and what they leave on disk.

Test files import the fixtures they use: `_shared_programs` is one that every test of them gets.
"""

import dataclasses
import io

import pytest
import tiny
from rich.console import Console
from tiny import dataset_fixture  # noqa: F401

from anytime_jax import preflight, train
from anytime_jax.checkpoint import Checkpoints
from anytime_jax.config import Config
from anytime_jax.progress import Display
from anytime_jax.records import TIMINGS, read_records
from anytime_jax.retention import retention
from anytime_jax.train import Outcome

MEANS = {"train/loss", "train/grad_norm", "train/clipped", "train/update_norm"}
TRAIN_NAMES = MEANS | {"lr", "train/spikes", "train/skipped"}
EVAL_NAMES = {"eval/last/loss", "eval/f6.25/loss", "eval/f25/loss"}


_updates = 0


def counting(config, mesh):
    """`tiny.program`, whose updates are counted."""
    program = tiny.program(config, mesh)

    def train_step(state, tokens, moves=True):
        global _updates
        _updates += 1
        return program.train_step(state, tokens, moves)

    return dataclasses.replace(program, train_step=train_step)


@pytest.fixture(autouse=True, name="_shared_programs")
def shared_programs_fixture(monkeypatch):
    """Runs of one configuration share compiled functions, which keep no state."""
    monkeypatch.setattr(preflight, "make_program", counting)


def start(run, dataset, interrupted=lambda: False, mesh=None, fall_back=False, **changes):
    """One start of a run; its outcome and what it said."""
    config = tiny.config(run, dataset.path, **changes)
    said = io.StringIO()
    display = Display(config.clock, Console(file=said, width=200))
    outcome = train.train(config, mesh or tiny.mesh(), dataset, display, interrupted, fall_back)
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
    config = config or tiny.config(run)
    program = tiny.program(config, mesh or tiny.mesh())
    checkpoints = Checkpoints(run, retention(config))
    restored = checkpoints.restore(step, program.abstract_state)
    checkpoints.close()
    return restored


_bits = {}


def bits(run, step):
    """The bytes of a checkpoint's state; one that has not been written again is read once."""
    seal = (run / "checkpoints" / str(step) / "_CHECKPOINT_METADATA").stat()
    key = (run, step, seal.st_ino, seal.st_mtime_ns)
    if key not in _bits:
        _bits[key] = {k: x.tobytes() for k, x in tiny.leaves(saved(run, step).state).items()}
    return _bits[key]


def records(run):
    """The rows without what depends on the machine and the moment."""
    rows = []
    for row in read_records(run):
        values = {name: x for name, x in row.values.items() if name not in TIMINGS}
        rows.append((row.step, row.tokens, values))
    return rows


@pytest.fixture(scope="module", name="whole")
def whole_fixture(dataset, tmp_path_factory):
    """A run to 2x, 20 updates, that nothing broke."""
    patch = pytest.MonkeyPatch()
    patch.setattr(preflight, "make_program", tiny.program)
    run = tmp_path_factory.mktemp("whole")
    outcome, said = start(run, dataset, stop="2x")
    patch.undo()
    assert outcome == Outcome(20, "stop")
    assert "from     0 steps (0x, 0 tokens) to 20 steps (2x, 1.28K tokens)" in said
    return run
