"""Benchmarks of the machine's limits and of an update, on a tiny model."""

import pytest

from anytime_jax.distributed.device_specs import DeviceSpec
from benchmarks import peak_rates
from lab.benchmarks import train_step


def test_ceiling_rates_are_work_over_median(model, read_record, tmp_path, capsys):
    assert peak_rates.main(["--model", model, "--steps=1", "--rounds=2"]) == 0
    # 8 sequences of 8 tokens; width 16, MLP 32, 304 rows
    name, copy = "mlp_in 64 x 16 x 32", "copy of 4.1 kB"
    assert name in capsys.readouterr().out
    details = read_record()["details"]
    rates, medians = details["rates"], details["medians"]
    assert rates[name] == pytest.approx(2 * 64 * 16 * 32 / medians[name])
    assert rates[copy] == pytest.approx(2 * 4096 / medians[copy])
    assert all(len(times) == 2 for times in details["seconds"].values())
    assert str(tmp_path) not in (tmp_path / "results.jsonl").read_text()


@pytest.mark.slow
def test_train_step_reports_tokens_and_share_of_peak(model, read_record, monkeypatch):
    monkeypatch.setattr(train_step, "device_spec", lambda _: DeviceSpec(1e12, 1e11))
    arguments = ["--model", model, "--steps=1", "--rounds=1", "--averages=off", "--batch=4"]
    assert train_step.main([*arguments, "--attention=plain"]) == 0
    contents = read_record()
    (row,), details = contents["rows"], contents["details"]
    name = "tiny, batch 4 in 1, plain attention, 0 averages"
    assert row["what"] == name
    assert details["tokens_per_update"] == {name: 32}
    flops, seconds = details["model_flops_per_update"][name], row["median_ms"] / 1e3
    assert row["tokens_per_s"] == pytest.approx(32 / seconds, rel=1e-2)
    share = flops / seconds / details["peak_flops_per_s"]
    assert row["of_peak"] == pytest.approx(share, rel=1e-2)
    assert row["roofline_ms"] > 1e3 * flops / 1e12
    assert row["of_roofline"] == pytest.approx(row["roofline_ms"] / row["median_ms"], rel=1e-2)


def test_averages_cost_is_relative_to_no_averages():
    seconds = {"a, 0 averages": 2.0, "a, 5 averages": 2.5, "b, 5 averages": 9.0}
    assert train_step.averages_cost(seconds) == {"a, 5 averages": 0.25}
