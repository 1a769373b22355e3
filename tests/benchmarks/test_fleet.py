"""Benchmark of fleets, on a tiny model."""

import jax
import pytest

from benchmarks import fleet, harness, train_step


@pytest.mark.slow
def test_fleet_throughput_is_relative_to_a_single_run(model, read_record):
    arguments = ["--model", model, "--runs", "2", "--steps=1", "--rounds=1", "--batch=4"]
    assert fleet.main(arguments) == 0
    contents = read_record()
    single, both = contents["rows"]
    assert [(row["runs"], row["program"]) for row in (single, both)] == [
        (1, "single run"),
        (2, "fleet"),
    ]
    seconds = {runs: times[0] for runs, times in contents["details"]["seconds"].items()}
    assert contents["details"]["tokens_per_update"] == 32  # of one run
    assert both["tokens_per_s"] == pytest.approx(64 / seconds["2"], rel=1e-3)
    assert both["times_single"] == pytest.approx(2 * seconds["0"] / seconds["2"], rel=1e-3)
    assert both["state_MB"] == pytest.approx(2 * single["state_MB"], rel=1e-2)


def test_fleet_out_of_memory_is_a_row(model, read_record, monkeypatch):
    update = train_step.Update(harness.load_config(model), lambda: 0, 1, 1)
    message = "RESOURCE_EXHAUSTED: Out of memory"

    def make_fleet(config, runs, mesh):
        if runs > 2:
            raise jax.errors.JaxRuntimeError(message)
        return update

    monkeypatch.setattr(fleet, "make_update", lambda config, mesh: update)
    monkeypatch.setattr(fleet, "make_fleet", make_fleet)
    arguments = ["--model", model, "--runs", "16", "4", "2", "--steps=1", "--rounds=1"]
    assert fleet.main(arguments) == 0
    rows = [(row["runs"], row["program"], row["median_ms"]) for row in read_record()["rows"]]
    assert [row[:2] for row in rows] == [(1, "single run"), (2, "fleet"), (4, "out of memory")]
    assert [row[2] is None for row in rows] == [False, False, True]
    message = "INTERNAL: something else"
    assert fleet.main(arguments) == 1


def test_runs_of_a_fleet_differ(model):
    config = harness.load_config(model)
    runs = [fleet.vary(config, number) for number in (1, 2)]
    assert len({run.seed for run in runs}) == len({run.optimizer.b2 for run in runs}) == 2
    assert runs[0].learning_rate(20) == pytest.approx(2 * runs[1].learning_rate(20))
