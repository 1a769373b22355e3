"""Loss logs as CSV: headers of trackers, rates or a schedule, and files that are refused."""

import numpy as np
import pytest

from anytime_jax import schedules
from anytime_jax.averaging import LIVE
from anytime_jax.errors import InputError
from anytime_lab.forecast import loss_csv

SCHEDULE = schedules.cosine(1e-3, 2_000, 100)
STEPS = list(range(0, 2_000, 50))


def rows(header="step,lr,loss", steps=STEPS, loss=lambda step: 3 + 30 / (step + 10)):
    lines = [header]
    for step in steps:
        lines.append(f"{step},{SCHEDULE.evaluate(step):.9g},{loss(step):.6f}")
    return lines


@pytest.fixture
def write(tmp_path):
    def write(lines, encoding="utf-8"):
        path = tmp_path / "log.csv"
        path.write_bytes("\n".join(lines).encode(encoding))
        return path

    return write


def test_file_with_rates_has_their_schedule(write):
    history = loss_csv.read_csv(write(rows()))
    assert history.warmup_steps == 100
    assert history.step == 1_950
    assert history.labels == (LIVE,) * len(STEPS)
    assert history.first[0] == 1  # the least number of updates of a loss
    np.testing.assert_allclose(history.losses[1], 3.5)
    steps = [0, 75, 100, 1_000, 1_950]
    np.testing.assert_allclose(
        history.schedule.evaluate(steps), SCHEDULE.evaluate(steps), rtol=1e-3
    )
    assert len(history.check().losses) == len(STEPS) - 2


@pytest.mark.parametrize(
    "header",
    ["Step,run-7 - train/lr,run-7 - eval/loss", "\ufeffiter, learning_rate ,train_loss"],
)
def test_headers_of_trackers_are_known(write, header):
    assert loss_csv.read_csv(write(rows(header))).step == 1_950


def test_columns_have_names_of_the_callers(write):
    path = write(rows("n,speed,nll"))
    columns = {"step": "n", "lr": "speed", "loss": "nll"}
    assert loss_csv.read_csv(path, columns=columns).step == 1_950
    with pytest.raises(InputError, match=r"'bits'.*n, speed, nll"):
        loss_csv.read_csv(path, columns={**columns, "loss": "bits"})


def test_file_without_rates_takes_a_schedule(write):
    lines = [f"{step},{3 + 30 / (step + 10)}" for step in STEPS]
    path = write(["step,loss", *lines])
    history = loss_csv.read_csv(path, SCHEDULE)
    assert history.schedule is SCHEDULE
    assert history.warmup_steps == 100
    assert loss_csv.read_csv(path, SCHEDULE, warmup_steps=300).warmup_steps == 300


@pytest.mark.parametrize("late", [0, 1])
def test_rates_before_or_after_the_update_are_those_of_the_schedule(write, late):
    schedule = schedules.constant(1e-3, 10)
    lines = [f"{step},{schedule.evaluate(step - late):.9g},3" for step in range(1, 20)]
    path = write(["step,lr,loss", *lines])
    assert loss_csv.read_csv(path, schedule).schedule is schedule


@pytest.mark.parametrize("other", [schedules.constant(1e-3, 100), schedules.cosine(9e-4, 2_000)])
def test_other_schedule_than_that_of_the_log_is_refused(write, other):
    with pytest.raises(InputError, match="learning rate"):
        loss_csv.read_csv(write(rows()), other)


def test_log_longer_than_its_schedule_is_refused(write):
    with pytest.raises(InputError, match="1,950"):
        loss_csv.read_csv(write(rows()), schedules.cosine(1e-3, 1_000, 100))


def test_later_row_of_a_step_counts_and_order_does_not_matter(write):
    lines = rows()
    history = loss_csv.read_csv(write([lines[0], *lines[:0:-1], "1000,0.0005,2.5"]))
    assert (np.diff(history.last) > 0).all()
    assert history.losses[history.last == 1_000] == [2.5]


def test_rows_with_an_empty_cell_and_blank_lines_are_skipped(write):
    lines = rows()
    lines[5:5] = ["", "7,,3.0", "8,0.001,", "9,0.001"]
    assert len(loss_csv.read_csv(write(lines)).losses) == len(STEPS)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ('"1,000",0.001,3', "line 3: '1,000'"),
        ("60.5,0.001,3", "line 3: 60.5"),
        ("1e30,0.001,3", "line 3: 1e"),
        ("60,0.001,nan", "step 60"),
        ("60,0.001,1e-300", "step 60"),
        ("60,0.001,1e300", "step 60"),
        ("60,nan,3", "learning rate"),
        ("60,-0.001,3", "learning rate"),
        ("60,1e200,3", "learning rate"),
        ("21474836,0.001,3", "step 21,474,836"),
    ],
)
def test_cell_that_is_no_number_is_refused(write, line, names):
    lines = rows()
    lines[1:2] = ["", line]
    with pytest.raises(InputError, match=names):
        loss_csv.read_csv(write(lines))


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("epoch,lr,loss", "step.*epoch"),
        ("step,momentum,loss", "learning rates.*momentum"),
        ("step,a - loss,b - loss", "a - loss, b - loss"),
        ("step;lr;loss", "';'"),
    ],
)
def test_missing_and_ambiguous_columns_are_named(write, header, names):
    with pytest.raises(InputError, match=names):
        loss_csv.read_csv(write(rows(header)))


def test_rates_too_small_for_the_law_are_refused(write):
    log = [f"{step},9e-13,{3 + 30 / (step + 10)}" for step in STEPS]
    with pytest.raises(InputError, match="learning rate"):
        loss_csv.read_csv(write(["step,lr,loss", *log]))


@pytest.mark.parametrize("steps", [[5, 10, 10], [-1, 5, 10]])
def test_columns_have_each_step_once_from_0(steps):
    with pytest.raises(InputError, match="steps"):
        loss_csv.from_columns(steps, [3.0] * 3, schedule=SCHEDULE)


@pytest.mark.parametrize("lines", [[], ["step,lr,loss"]])
def test_file_without_losses_is_refused(write, lines):
    with pytest.raises(InputError, match=r"log\.csv"):
        loss_csv.read_csv(write(lines))


def test_file_that_cannot_be_read_is_refused(write, tmp_path):
    for path in (tmp_path / "none.csv", write(rows(), "utf-16")):
        with pytest.raises(InputError, match=path.name):
            loss_csv.read_csv(path)


@pytest.mark.parametrize(
    ("log", "named"),
    [
        (rows(steps=[500]), "too few"),
        (rows(loss=lambda step: 3 + step / 1_000), "rises"),
    ],
)
def test_losses_without_a_forecast_are_refused(write, log, named):
    history = loss_csv.read_csv(write(log))
    with pytest.raises(InputError, match=named):
        history.check()


@pytest.mark.parametrize(
    ("changes", "names"),
    [({"losses": ["x", 3.0, 3.0]}, "losses"), ({"schedule": lambda t: 1e-3}, "schedule = ")],
)
def test_wrong_columns_from_python_are_named(changes, names):
    columns = {"steps": [5, 10, 20], "losses": [3.0] * 3, "schedule": SCHEDULE} | changes
    with pytest.raises(InputError, match=names):
        loss_csv.from_columns(**columns)
