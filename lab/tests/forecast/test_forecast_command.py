"""The forecast command: a run, a log, a run that trains, JSON, bad options."""

import json
import re
import shutil
from random import Random

import odd_logs
import pytest
from lab_paths import EVIDENCE
from synthetic_run import RecordedRun

from anytime_jax.errors import InputError
from anytime_lab.forecast import forecast_command as forecast
from anytime_lab.forecast.forecast_subject import forecast_run
from anytime_lab.forecast.run_forecast import DecayPlan
from anytime_lab.study import study_files


@pytest.fixture(scope="module", name="forecasted")
def forecasted_fixture(tmp_path_factory):
    """A run with enough evaluations."""
    run_dir = tmp_path_factory.mktemp("forecast") / "run"
    return RecordedRun(run_dir).add(*range(60, 500, 60), *range(500, 961, 20))


@pytest.fixture(name="log")
def log_fixture(tmp_path):
    """The option of a log without rates."""
    lines = [f"{s},{2 + 6 * s**-0.35}" for s in range(100, 4001, 100)]
    (tmp_path / "log.csv").write_text("\n".join(["_step,train/loss", *lines]))
    return f"--csv={tmp_path / 'log.csv'}"


@pytest.mark.usefixtures("quick_fits")
def test_forecast_of_a_run(forecasted, command):
    status, out, err = command(forecast, f"--run={forecasted.run_dir}")
    assert (status, err) == (0, "")
    assert "forecast of recorded from 960 steps (2x, 3.93M tokens)" in out
    assert "3,840" in out.split()  # four times the run so far
    assert out.count("±") > 8
    assert (forecasted.run_dir / "forecast.png").exists()


@pytest.mark.usefixtures("quick_fits")
def test_numbers_are_printed_where_the_figure_cannot_be_written(forecasted, command, tmp_path):
    run_dir = shutil.copytree(forecasted.run_dir, tmp_path / "run")
    (run_dir / "forecast.png").unlink(missing_ok=True)
    (run_dir / "forecast.png").mkdir()
    status, out, _ = command(forecast, f"--run={run_dir}", "--to=4x")
    assert status == 0
    assert f"could not be drawn in {run_dir}" in out


@pytest.mark.usefixtures("quick_fits")
def test_json_has_the_numbers_of_the_python_call(forecasted, command, tmp_path):
    (forecasted.run_dir / "forecast.png").unlink(missing_ok=True)
    arguments = (f"--run={forecasted.run_dir}", "--to=4x", "--json", "--decay=1-sqrt:0.2:0")
    status, out, _ = command(forecast, *arguments, f"--output={tmp_path / 'new'}")
    assert status == 0
    assert out.count("\n") == 1
    values = json.loads(out)
    assert [row["step"] for row in values["rows"]] == [1920]
    assert 0.2 in [x["fraction"] for x in values["decays"]]
    found = forecast_run(forecasted.run_dir, "4x", decay=DecayPlan("1-sqrt", 0.2, 0.0)).rows[0]
    assert found.decayed.loss == pytest.approx(values["rows"][0]["decayed"]["loss"])
    assert found.losses["last"].low == pytest.approx(values["rows"][0]["losses"]["last"]["low"])
    assert values["now"]["kernel_errors"] == dict.fromkeys(found.losses, 0)
    assert (tmp_path / "new" / "forecast.png").exists()
    assert not (forecasted.run_dir / "forecast.png").exists()


def test_wrong_arguments_from_python_are_named(tmp_path):
    for name in ("run_dir", "to", "study", "decay"):
        with pytest.raises(InputError, match=f"^{name} = "):
            forecast_run(**{"run_dir": tmp_path, name: 5})


@pytest.mark.usefixtures("quick_fits")
def test_log_has_a_forecast_and_no_figure(log, command, tmp_path):
    words = log, "--schedule=constant:peak=3e-3", "--to=6000 steps"
    status, out, _ = command(forecast, *words, "--tokens-per-step=1000")
    assert status == 0
    assert "from step 4,000" in out
    assert {"6,000", "6M"} <= set(out.split())
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--schedule=cosine:peak=3e-3", "horizon"),
        ("--schedule=cosine:peak=3e-3,end=2000", "end:"),
        ("--schedule=cosine:peak=-1,horizon=5000", "peak"),
        ("--schedule=sine:peak=3e-3", "'sine'"),
        ("--schedule=constant:peak=3e-3,peak=2e-3", "peak"),
        ("--schedule=constant:peak=3e-3,warmup=1.5", "warmup"),
        ("--decay=linear", "--decay"),
        ("--decay=linear:0.1:", "floor"),
        ("--columns=lr=lr,lr=loss", "lr"),
        ("--columns=step", "--columns"),
    ],
)
def test_bad_option_is_named(log, rejected, option, named):
    assert named in rejected(forecast, log, option)


@pytest.mark.usefixtures("quick_fits")
@pytest.mark.filterwarnings("error")
def test_random_logs_have_a_forecast_or_one_line_that_says_why_not(tmp_path, command):
    """And none has a traceback, a warning of a library, or a number that is not finite."""
    path, seen = tmp_path / "log.csv", {0: 0, 2: 0}
    for seed in range(80):
        random = Random(seed)
        path.write_text("\n".join(odd_logs.lines(random)))
        options = odd_logs.options(random)
        status, out, err = command(forecast, f"--csv={path}", "--json", *options)
        case = seed, options, err
        assert status in seen, case
        seen[status] += 1
        if status == 2:
            assert (out, err.count("\n"), err[:7]) == ("", 1, "error: "), case
        else:
            assert err == "", case
            assert not {"NaN", "Infinity"} & set(re.findall(r"\w+", out)), case
            for row in json.loads(out)["rows"]:
                for x in row["losses"].values():
                    assert 0 < x["low"] < x["loss"] < x["high"], case
    assert min(seen.values()) >= 15


def test_watch_prints_anew_where_the_run_went_on(tmp_path, command, meanwhile, monkeypatch):
    """At an evaluation, or 5% later; not in between; a short run is waited for."""
    shown = []

    def show(arguments, console):
        shown.append(run.last)
        if run.last < 300:
            raise forecast.InputError("too few")

    class Growing(RecordedRun):
        last = 0

        def add(self, *steps, **options):
            self.last = steps[-1]
            return super().add(*steps, **options)

    monkeypatch.setattr(forecast, "_show", show)
    run = Growing(tmp_path / "run")
    meanwhile(
        lambda: run.add(120, 240),
        lambda: run.add(260, evaluate=False),
        lambda: run.add(300),
        lambda: None,
        lambda: run.add(310, evaluate=False),
        lambda: run.add(330, evaluate=False),
        lambda: run.add(332),
    )
    status, out, _ = command(forecast, f"--run={run.run_dir}", "--watch")
    assert status == 0
    assert shown == [240, 260, 300, 330, 332]
    assert out.count("too few") == 1


@pytest.mark.slow
def test_study_makes_the_intervals_narrower():
    """Of a run of the first laptop study, which is left out of what is known of it."""
    study = str(EVIDENCE / "first_laptop")
    with study_files.open_study(study) as opened:
        run_dir = opened.run("constant-peak=0.01").run_dir
        general, related = (forecast_run(run_dir, "16x", study=x).rows[0] for x in (None, study))
    label = general.best_average
    assert related.losses[label].half_width < 0.7 * general.losses[label].half_width
