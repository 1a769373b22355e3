"""Averages that began late: their kernel errors wherever a name of weights is read."""

import json
import shutil

import numpy as np
import pytest
from training_runs import start

from anytime_jax import api, averaging
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands import evaluate, export, generate
from anytime_jax.errors import InputError
from anytime_jax.weights.saved_run import open_saved_run
from anytime_jax.weights.weight_names import SumLimits, parse

SINCE, STEP = 20, 24  # f2 is added at one, and read at the other


def kernel(f, since=0):
    """The recursion, update by update."""
    weights = np.eye(STEP + 1)[since]
    for t in range(since + 1, STEP + 1):
        old = 2 ** (-f / t)
        weights *= old
        weights[t] += 1 - old
    return weights


def relative_error(true, named):
    return np.linalg.norm(true - named) / np.linalg.norm(named)


ERROR = relative_error(kernel(2, SINCE), kernel(2))  # 3.562


@pytest.fixture(name="late", scope="module")
def late_fixture(whole, dataset, tmp_path_factory):
    """A run with f6.25 and f25 from its start, and f2 from 2x on."""
    copied = shutil.copytree(whole, tmp_path_factory.mktemp("averages") / "late")
    averages, stop = ("f2", "f6.25", "f25"), f"{STEP} steps"
    start(copied, dataset, averages=averages, stop=stop, eval__every="1 steps")
    return copied


def test_stored_average_has_the_error_of_its_kernel(late):
    saved = open_saved_run(late)
    assert parse(saved, "f2").kernel_error == pytest.approx(ERROR, rel=1e-12)
    assert parse(saved, "f25").kernel_error == parse(saved, "last").kernel_error == 0


def test_mix_has_the_error_of_what_its_names_stand_for(late):
    true, named = (0.25 * kernel(2, since) + 0.75 * kernel(25) for since in (SINCE, 0))
    weighted_sum = parse(open_saved_run(late), 'mix:{"f2": 0.25, "f25": 0.75}')
    assert weighted_sum.kernel_error == pytest.approx(relative_error(true, named), rel=1e-12)


def test_late_average_of_that_f_is_fitted_like_any_other(late):
    """And the stored one takes part, with its own kernel."""
    saved = open_saved_run(late)
    with pytest.raises(InputError, match="kernel error"):
        parse(saved, "f=2")
    fitted = parse(saved, "f=2", SumLimits(ERROR, checkpoints=1))
    stored = {"f2": kernel(2, SINCE), "f6.25": kernel(6.25), "f25": kernel(25)}
    assert [x.label for x in fitted.parts] == list(stored)
    sums = fitted.coefficients @ np.stack([*stored.values()])
    error = relative_error(sums, kernel(2))
    assert fitted.kernel_error == pytest.approx(error, rel=1e-9)
    assert error < ERROR


def test_records_and_commands_say_the_error(late, tmp_path, command):
    row = read_records(late)[-1].values
    assert row["eval/f2/since"] == SINCE
    assert row["eval/f2/kernel_error"] == pytest.approx(ERROR, rel=1e-12)
    assert not any(name.endswith(("25/since", "25/kernel_error")) for name in row)
    assert not any("since" in name for x in read_records(late)[:-4] for name in x.values)
    text = f"{ERROR:.2%}"
    _, out, _ = command(evaluate, f"--run={late}")
    assert {line.split()[0]: text in line for line in out.splitlines()[2:]} == {
        "last": False, "f2": True, "f6.25": False, "f25": False,
    }  # fmt: skip
    _, out, errors = command(generate, f"--run={late}", "--weights=f2", "--prompt=a", "--tokens=1")
    assert text in errors + out
    folder = tmp_path / "exported"
    _, out, _ = command(export, f"--run={late}", "--weights=f2", f"--output={folder}")
    assert text in out
    about = json.loads((folder / "provenance.json").read_text())
    assert about["kernel_error"] == pytest.approx(ERROR, rel=1e-12)


def test_python_api_warns_of_it_alone(late):
    names = ["last", "f2", "f25"]
    with pytest.warns(UserWarning, match="f2") as caught:
        assert list(api.evaluate(late, names)) == names
    assert len(caught) == 1


def test_branch_inherits_when_an_average_began(late, dataset, tmp_path):
    changes = {"averages": ("f2", "f6.25", "f25"), "branch__from_run": str(late)}
    horizon = {"branch__at": "24 steps", "decay__horizon": "26 steps", "stop": "horizon"}
    start(tmp_path / "branch", dataset, **changes, **horizon)
    rule = open_saved_run(tmp_path / "branch").weights["f2"].rule
    assert rule == averaging.Late(averaging.GrowingWindow(2.0), SINCE)
    assert read_records(tmp_path / "branch")[-1].values["eval/f2/since"] == SINCE


def test_time_counts_where_the_batch_grows():
    """Three updates of time 1, then two of time 2; the average begins after the first update."""
    times = np.array([1, 2, 3, 5, 7])
    named, true = np.eye(6)[0], np.eye(6)[1]
    for i, (t, span) in enumerate(zip(times, np.diff(times, prepend=0), strict=True), start=1):
        old = np.prod([2.0 ** (-4 / s) for s in range(t - span + 1, t + 1)])
        for weights in (named, true) if i > 1 else (named,):
            weights *= old
            weights[i] += 1 - old
    late = averaging.Late(averaging.GrowingWindow(4.0), since=1)
    np.testing.assert_allclose(late.kernel(times), true, rtol=1e-12)
    assert late.kernel_error(times) == pytest.approx(relative_error(true, named), rel=1e-12)
