"""Start of a run: what a failure and a refusal leave."""

import contextlib
import os

import pytest
import small_run
from run_files import run_file

from anytime_jax.checkpoints import run_json, run_ownership
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.errors import InputError
from anytime_jax.training import loop
from anytime_jax.training import plan as plan_lib
from anytime_jax.training.active_run import open_run
from anytime_jax.training.plan import make_plan
from anytime_jax.training.progress import Display


def start(config):
    """Plans a run, and opens it."""
    return open_run(make_plan(config, small_run.mesh()))


class Injected(Exception):
    """A fault of a test."""


@pytest.fixture(autouse=True)
def _compiled_once(monkeypatch):
    monkeypatch.setattr(plan_lib, "make_program", small_run.program)


@pytest.mark.parametrize(
    ("owner", "function"), [(CheckpointManager, "restore_latest"), (Display, "__enter__")]
)
def test_run_that_fails_is_in_the_way_of_no_other(owner, function, dataset, tmp_path, monkeypatch):
    """While it starts, first or last under its lock, or in its loop."""
    config = small_run.config(tmp_path / "run", dataset.path)

    def fail(*unused, **options):
        assert run_ownership.is_locked(tmp_path / "run")
        raise Injected

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, fail)
        with pytest.raises(Injected), start(config):
            pytest.fail("the loop would have begun")
    assert not run_ownership.is_locked(tmp_path / "run")
    with contextlib.suppress(Injected), start(config) as run:
        assert (run.plan.step, run.plan.stop) == (0, 10)
        raise Injected
    assert not run_ownership.is_locked(tmp_path / "run")


def contents(folder):
    """Content and time of every file under a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), os.stat(path).st_mtime_ns) for path in files}


FOREIGN = {"another run": {"seed": 1}, "a run on other data": {"data.fingerprint": "0"}}


@pytest.mark.parametrize("owner", [*FOREIGN, "no run"])
def test_foreign_directory_stays_as_it_is(owner, dataset, tmp_path):
    run = tmp_path / "run"
    config = small_run.config(run, dataset.path)
    run.mkdir()
    (run / "lock").write_text("another process\n")
    (run / "notes").write_text("mine")
    if owner in FOREIGN:
        identity = config.identity(dataset.fingerprint) | FOREIGN[owner]
        run_json.write_run_file(run, run_file(identity=identity))
    before = contents(run)

    with pytest.raises(InputError, match=r"config\.run_dir"), start(config):
        pass
    assert contents(run) == before


def test_identity_is_compared_under_the_lock(dataset, tmp_path, monkeypatch):
    """Another process makes the directory its own after this one has found it empty."""
    run, lock = tmp_path / "run", run_ownership.lock
    other = run_file(identity={"seed": 5})

    @contextlib.contextmanager
    def taken(*arguments):
        run_json.write_run_file(run, other)
        with lock(*arguments):
            yield

    monkeypatch.setattr(run_ownership, "lock", taken)
    config = small_run.config(run, dataset.path)
    with pytest.raises(InputError, match="seed was 5"), start(config):
        pass
    assert run_json.read_run_file(run) == other
    assert {path.name for path in run.iterdir()} == {"run.json", "lock"}


def test_run_at_its_stop_is_told_so_and_not_touched(whole, dataset):
    before, config = contents(whole), small_run.config(whole, dataset.path, stop="2x")
    plan = make_plan(config, small_run.mesh())
    assert (plan.step, plan.stop, plan.reason, plan.is_complete()) == (20, 20, "stop", True)
    assert loop.train(config, mesh=small_run.mesh()).step == 20
    assert contents(whole) == before
