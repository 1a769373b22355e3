"""Start of a run: the order in which it acquires what the loop needs, and what a refusal leaves."""

import contextlib
import json
import os
import types

import pytest
import small_run

from anytime_jax.checkpoints import run_directory
from anytime_jax.checkpoints.manager import CheckpointManager
from anytime_jax.errors import InputError
from anytime_jax.training import preflight, run_data
from anytime_jax.training import start as start_lib
from anytime_jax.training.metric_recorder import Recorder
from anytime_jax.training.progress import Display
from anytime_jax.training.start import AtStop, start

# What a start acquires. It checks whose the directory is without data, with them, and under the
# lock.
READ = ["paths", "identity", "data", "program", "identity"]
WRITTEN = ["lock", "identity", "checkpoints", "state", "records", "batches", "display"]
ORDER = READ + WRITTEN
RELEASED = {"lock", "checkpoints", "records", "batches", "display"}


class Injected(Exception):
    """A fault of a test."""


class Batches:
    """Batches that say when they are closed."""

    def __init__(self, log):
        self.close = lambda: log.append("-batches")


@pytest.fixture
def log(monkeypatch):
    """Names of what starts acquire, and with a minus of what they release.

    The attribute `fault` is the position at which an acquisition fails.
    """
    log = types.SimpleNamespace(names=[], fault=None)

    def acquire(name):
        log.names.append(name)
        if len(log.names) - 1 == log.fault:
            raise Injected

    def watch(name, owner, attribute, replacement=None):
        function = replacement or getattr(owner, attribute)

        def watched(*arguments, **keywords):
            acquire(name)
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, attribute, watched)

    def watch_release(name, owner, attribute):
        function = getattr(owner, attribute)

        def watched(*arguments):
            log.names.append(f"-{name}")
            return function(*arguments)

        monkeypatch.setattr(owner, attribute, watched)

    lock = run_directory.lock

    @contextlib.contextmanager
    def watched_lock(*arguments):
        acquire("lock")
        try:
            with lock(*arguments) as confirm:
                yield confirm
        finally:
            log.names.append("-lock")

    monkeypatch.setattr(run_directory, "lock", watched_lock)
    watch_release("checkpoints", CheckpointManager, "close")
    watch_release("records", Recorder, "close")
    watch_release("display", Display, "__exit__")
    watch("paths", preflight, "check_paths")
    watch("identity", run_directory, "check_identity")
    watch("data", run_data, "open_datasets")
    watch("program", start_lib, "make_program", small_run.program)  # compiled once
    watch("checkpoints", start_lib, "CheckpointManager")
    watch("state", CheckpointManager, "restore_latest")
    watch("records", start_lib, "Recorder")
    watch("batches", run_data, "iterate_batches", lambda *arguments: Batches(log.names))
    watch("display", Display, "__enter__")
    return log


def released(acquired):
    return [f"-{name}" for name in reversed(acquired) if name in RELEASED]


def test_resources_are_acquired_by_cost_and_released_in_reverse(log, dataset, tmp_path):
    config = small_run.config(tmp_path / "run", dataset.path)
    with contextlib.suppress(Injected), start(config, mesh=small_run.mesh()) as run:
        assert (log.names, run.step, run.stop) == (ORDER, 0, 10)
        assert run_directory.is_locked(tmp_path / "run")
        raise Injected
    assert log.names == ORDER + released(ORDER)
    assert not run_directory.is_locked(tmp_path / "run")


@pytest.mark.parametrize("fault", [len(READ), len(ORDER) - 3, len(ORDER) - 1])
def test_failed_acquisition_releases_what_was_acquired_before(fault, log, dataset, tmp_path):
    log.fault = fault
    config = small_run.config(tmp_path / "run", dataset.path)
    with pytest.raises(Injected), start(config, mesh=small_run.mesh()):
        pytest.fail("the loop would have begun")
    acquired = ORDER[: fault + 1]
    assert log.names == acquired + released(acquired[:-1])
    assert (tmp_path / "run").exists() == (fault > len(READ))
    assert not run_directory.is_locked(tmp_path / "run")
    log.fault = None
    with start(config, mesh=small_run.mesh()) as run:  # nothing is in the way of another start
        assert run.step == 0


def contents(folder):
    """Content and time of every file under a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: (path.read_bytes(), os.stat(path).st_mtime_ns) for path in files}


FOREIGN = {
    "another run": {"seed": 1},
    "a run on other data": {"data.fingerprint": "0"},
    "a branch": {"branch.checkpoint": "0"},
}


@pytest.mark.parametrize(
    ("owner", "is_prepared"),
    [("a branch", True), *((name, False) for name in (*FOREIGN, "no run"))],
)
def test_foreign_directory_stays_as_it_is(owner, is_prepared, dataset, tmp_path, monkeypatch):
    """Before the built-in corpus would be prepared, unless the data tell whose it is."""
    run = tmp_path / "run"
    data = dataset.path if is_prepared else tmp_path / "builtin"
    config = small_run.config(run, data, data__builtin_megabytes=0.0 if is_prepared else 0.1)
    run.mkdir()
    (run / "lock").write_text("another process\n")
    (run / "notes").write_text("mine")
    if owner in FOREIGN:
        identity = config.identity(dataset.fingerprint) | FOREIGN[owner]
        (run / "run.json").write_text(json.dumps({"identity": identity}))
    before, prepared = contents(run), []
    monkeypatch.setattr(start_lib, "make_program", small_run.program)

    def prepare(*unused):
        prepared.append(owner)
        return dict.fromkeys(config.sources, dataset)

    monkeypatch.setattr(run_data, "prepare_builtin", prepare)
    with pytest.raises(InputError, match=r"config\.run_dir"), start(config, mesh=small_run.mesh()):
        pass
    assert contents(run) == before
    told_by_settings = owner in ("another run", "no run")
    assert bool(prepared) == (not is_prepared and not told_by_settings)


def test_identity_is_compared_under_the_lock(dataset, tmp_path, monkeypatch):
    """Another process makes the directory its own after this one has found it empty."""
    run, lock = tmp_path / "run", run_directory.lock
    other = json.dumps({"identity": {"seed": 5}})

    @contextlib.contextmanager
    def taken(*arguments):
        run.mkdir()
        (run / "run.json").write_text(other)
        with lock(*arguments) as confirm:
            yield confirm

    monkeypatch.setattr(run_directory, "lock", taken)
    monkeypatch.setattr(start_lib, "make_program", small_run.program)
    config = small_run.config(run, dataset.path)
    with pytest.raises(InputError, match="seed was 5"), start(config, mesh=small_run.mesh()):
        pass
    assert (run / "run.json").read_text() == other
    assert {path.name for path in run.iterdir()} == {"run.json", "lock"}


REFUSED = {
    "device memory": {},
    "trunk": {"branch__from_run": "none", "branch__at": "5 steps", "stop": "2x"},
    "wandb": {"log__wandb_project": "mine"},
    "place of the data": {"data__path": "runs/data"},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_corpus_is_prepared_after_all_checks_that_need_no_data(reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start_lib, "make_program", small_run.program)
    monkeypatch.setattr(run_data, "prepare", lambda *unused, **settings: pytest.fail("prepared"))
    if reason == "device memory":
        monkeypatch.setattr(preflight.sharding, "device_memory", lambda mesh: 200_000)
    settings = {"data__builtin_megabytes": 0.1} | REFUSED[reason]
    config = small_run.config("run", "builtin", **settings)
    with pytest.raises(InputError), start(config, mesh=small_run.mesh()):
        pass
    assert not list(tmp_path.iterdir())


def test_run_at_its_stop_is_told_so_and_not_touched(whole, dataset, log):
    before, config = contents(whole), small_run.config(whole, dataset.path, stop="2x")
    with (
        pytest.raises(AtStop, match=r"config\.stop") as caught,
        start(config, mesh=small_run.mesh()),
    ):
        pytest.fail("the loop would have begun")
    plan = caught.value.plan
    assert (plan.step, plan.stop, plan.reason) == (20, 20, "stop")
    assert log.names == READ
    assert contents(whole) == before
