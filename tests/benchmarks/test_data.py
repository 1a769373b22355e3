"""Benchmark of preparing and reading data."""

import json

from run_command import run_command

from anytime_jax.commands import prepare
from benchmarks import data


def test_data_reports_rates_of_preparing_and_reading(tmp_path, read_record):
    documents, prepared = tmp_path / "documents.jsonl", tmp_path / "prepared"
    lines = [json.dumps({"text": f"{i} " + "words to prepare " * 20}) for i in range(300)]
    documents.write_text("\n".join(lines) + "\n")
    source = [f"--input={documents}", "--validation-fraction=0.2"]
    settings = ["--train-vocabulary=300", f"--output={prepared}"]
    assert run_command(prepare, [*source, *settings]) == 0
    arguments = [f"--documents={documents}", f"--vocabulary={prepared / 'vocabulary.model'}"]
    arguments += ["--megabytes=0.5", "--length=8", "--batches", "4", "--seconds=0.01"]
    assert data.main(arguments) == 0
    rows = read_record()["rows"]
    assert [row["what"] for row in rows] == [
        "preparing",
        "reading: batch, 4 windows",
        "reading: read_ahead, 4 windows",
        "reading: mixture, 4 windows",
    ]
    assert all(row["tokens_per_s"] > 0 for row in rows)
