"""Benchmark of forecasts: its rows, with a law that is quickly fitted."""

import pytest

from lab.benchmarks import forecast, paper_forecast
from lab.benchmarks.rival_laws import PowerLaw


def test_rows_have_the_errors_of_every_law_and_size(read_record, monkeypatch):
    monkeypatch.setattr(forecast, "FITS", {"flat": lambda histories: PowerLaw(3.0, 0.0, 0.0)})
    monkeypatch.setattr(forecast, "_LONG", 10_000)
    monkeypatch.setattr(forecast, "_CUTS", (36_000,))
    monkeypatch.setattr(forecast, "_LONG_CURVES", ("constant_72000",))
    assert forecast.main(["--rounds=1"]) == 0
    record = read_record()
    names = [(row["size"], row["law"]) for row in record["rows"]]
    assert names == [
        (size, law) for size in ("25M", "100M") for law in ("published", "flat", "flat")
    ]
    for row in record["rows"]:
        close = row["law"] == "published"
        assert (0 < row["MAE"] < 0.005) == close
        assert (row["R2"] > 0.99) == close
        assert row["MAE"] < row["RMSE"]
        assert row["mean_relative"] < row["worst_relative"] < 1
    assert len(record["details"]["curves"]) == 6 * len(names)
    assert [row["at"] for row in record["details"]["cuts"]] == [72_000, 71_921] * 2


@pytest.mark.slow
def test_later_losses_of_the_paper_are_in_their_intervals(read_record):
    assert paper_forecast.main([]) == 0
    rows = read_record()["rows"]
    for row in rows:
        error, half_width = (float(x) for x in row["constant"].split(" ± "))
        assert abs(error) < half_width, row
    assert {row["model"] for row in rows} == {"150M", "300M"}
