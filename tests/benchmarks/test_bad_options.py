"""Options that a benchmark rejects: exit status 2, and the option in the message."""

import pytest

from benchmarks import data, peak_rates, short_run


@pytest.mark.parametrize(
    ("benchmark", "arguments", "option"),
    [
        (peak_rates, ["--model", "none.py"], "--model=none.py"),
        (short_run, ["--data=none", "--updates=9"], "--updates=9"),
        (data, ["--documents=none"], "--vocabulary"),
    ],
)
def test_bad_option_is_rejected(benchmark, arguments, option, capsys):
    assert benchmark.main(arguments) == 2
    assert option in capsys.readouterr().err
