"""Benchmark of forecasts: its rows, with a law that is quickly fitted."""

from anytime_jax.forecast.laws import PowerLaw
from benchmarks import forecast


def test_rows_have_the_errors_of_every_law_and_size(read_record, monkeypatch):
    monkeypatch.setattr(forecast, "FITS", {"flat": lambda histories: PowerLaw(3.0, 0.0, 0.0)})
    monkeypatch.setattr(forecast, "_LONG", 10_000)
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
