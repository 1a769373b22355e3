"""A trace of some updates, as the profiler's own reader sees it."""

import collections
import warnings

import jax
import pytest
import small_run
from training_runs import after, bits, start

from anytime_jax.errors import InputError
from anytime_jax.training.loop import Outcome
from anytime_jax.training.profiler import StepRange

PARTS = {f"Run.{name}" for name in ("read_batch", "update", "record", "save", "evaluate")}


def read_trace(run):
    """The numbers of the traced updates, and how often each part of them occurs."""
    (file,) = (run / "profile").glob("plugins/profile/*/*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    with warnings.catch_warnings():  # jaxlib 0.11.2's type of statistics lacks a module's name
        warnings.simplefilter("ignore", DeprecationWarning)
        steps = [dict(event.stats)["step_num"] for event in events if event.name == "train"]
    return sorted(steps), collections.Counter(x.name for x in events if x.name in PARTS)


def test_trace_has_the_updates_of_its_span_and_changes_no_bit(whole, dataset, tmp_path):
    _, output = start(tmp_path, dataset, profile=StepRange(2, 5), stop="2x")
    steps, parts = read_trace(tmp_path)
    assert steps == [3, 4, 5]
    assert parts == dict.fromkeys(PARTS, 3) | {"Run.save": 1, "Run.evaluate": 1}  # at 4 and 5
    assert f"--logdir={tmp_path / 'profile'}" in output.replace("\n", "")
    assert (tmp_path / "profile" / "memory.prof").stat().st_size > 100
    assert bits(tmp_path, 20) == bits(whole, 20)


@pytest.mark.slow
def test_trace_of_an_interrupted_run_has_its_updates(dataset, tmp_path):
    start(tmp_path, dataset, after(5), profile=StepRange(4, 7))
    assert read_trace(tmp_path)[0] == [5]


def test_span_beyond_the_stop_is_refused_before_anything_is_written(dataset, tmp_path):
    with pytest.raises(InputError, match=r"--profile=4:11") as caught:
        start(tmp_path / "run", dataset, profile=StepRange(4, 11), stop="10 steps")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_failure_of_the_profiler_does_not_end_the_run(dataset, tmp_path, monkeypatch):
    def fail(*unused, **options):
        raise RuntimeError("there may be one trace at a time")

    monkeypatch.setattr(jax.profiler, "start_trace", fail)
    outcome, output = start(tmp_path / "run", dataset, profile=StepRange(2, 5))
    assert outcome == Outcome(10, "stop")
    assert "profile  failed" in output


def test_operations_are_named_by_the_parts_of_the_update():
    config = small_run.config("run")
    program = small_run.program(config, small_run.mesh())
    text = program.lower_update().as_text(debug_info=True)
    for scope in ("blocks.attend/", "blocks.mlp/", "loss)/", "/optimizer/", "/averages/"):
        assert scope in text, scope
