"""The figure of one run, from synthetic rows."""

import matplotlib.colors
import matplotlib.image
import numpy as np
import pytest
import small_run

from anytime_jax import figure_style
from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.commands import loss_figure

BUDGET = small_run.CHINCHILLA_STEPS * small_run.BATCH * small_run.LENGTH


def make_rows(evaluated, labels=("last", "f25")):
    rows = []
    for step in range(1, 41):
        values = {"train/loss": 6.0 / step, "lr": 1e-3, "train/grad_norm": 1.0}
        if step in evaluated:
            values |= {f"eval/{label}/loss": 5.0 / step + i for i, label in enumerate(labels)}
        rows.append(Row(step, BUDGET // small_run.CHINCHILLA_STEPS * step, values))
    return rows


LATER = Row(80, 8 * BUDGET, {"eval/last/loss": 0.1, "eval/f25/loss": float("nan")})
LABELS = ("last", "f6.25", "f12.5", "f25", "f50", "f100", "uniform", "ema0.9")


@pytest.fixture(name="config")
def config_fixture(tmp_path):
    return small_run.config(tmp_path, name="a run_with $odd^ name")


@pytest.mark.parametrize(
    "rows",
    [
        make_rows((10, 20, 40), LABELS),
        make_rows((40,), ("last",)),
        [*make_rows((10, 20, 30)), LATER, Row(90, 9 * BUDGET, {"eval/f7/loss": 0.2})],
    ],
    ids=["many averages", "one point, no averages", "a NaN, and averages replaced"],
)
def test_figure_is_drawn(tmp_path, config, rows):
    path = loss_figure.draw(tmp_path, config, rows)
    assert path == tmp_path / "curves.png"
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 400
    assert image[..., :3].std() > 0.02  # not blank


@pytest.mark.parametrize("rows", [[], make_rows(())], ids=["no records", "no evaluation"])
def test_run_without_evaluation_has_no_figure(tmp_path, config, rows):
    assert loss_figure.draw(tmp_path, config, rows) is None
    assert not list(tmp_path.iterdir())


def test_weights_look_the_same_in_both_panels_and_with_other_averages(config):
    for labels in (LABELS, ("last", "f25", "f7")):
        panels = loss_figure.make_figure(config, make_rows((10, 20, 40), labels)).axes
        lines = [line for axes in panels for line in axes.lines]
        found = {line.get_label().split(", ")[-1]: line for line in lines[1:]}
        assert found.keys() == {*labels}
        for line in lines[1:]:  # the first one is the training loss
            style = figure_style.weight_style(line.get_label().split(", ")[-1])
            assert line.get_color() == style["color"]


def test_windows_differ_in_gray():
    colors = [figure_style.weight_style(x)["color"] for x in LABELS[:6]]
    gray = [np.dot(matplotlib.colors.to_rgb(x), (0.3, 0.59, 0.11)) for x in colors]
    assert np.diff(gray).min() > 0.1


def test_upper_axis_has_multiples_of_the_budget(config):
    figure = loss_figure.make_figure(config, make_rows((10, 20, 40)))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (upper,) = axes.child_axes
    low, high = axes.get_xlim()
    assert upper.get_xlim() == pytest.approx((low * 1e6 / BUDGET, high * 1e6 / BUDGET))


def test_early_losses_and_step_0_are_left_out():
    rows = [Row(0, 0, {"eval/last/loss": 9.0}), *make_rows((10, 20, 40))]
    assert [row.step for row in loss_figure.late_rows(rows)] == [*range(10, 41)]
    assert loss_figure.late_rows(make_rows((1, 40)))[0].step == 3  # 1/16 of the run
    assert loss_figure.late_rows(make_rows((40,)))[0].step == 10  # 1/4 of the run
    assert loss_figure.late_rows([*make_rows((1,)), LATER])[-1] == LATER
    assert loss_figure.late_rows([]) == []


def test_sets_have_a_part_of_their_own_and_stages_a_mark(config, tmp_path):
    rows = make_rows((10, 20, 40), ("last", "a/last", "b/last", "f25"))
    assert len(loss_figure.make_figure(config, rows).axes) == 3
    assert not any(axes.texts for axes in loss_figure.make_figure(config, rows).axes)
    staged = small_run.config(tmp_path, stages={"20 steps": {"length": 2 * small_run.LENGTH}})
    texts = [
        [x.get_text() for x in axes.texts] for axes in loss_figure.make_figure(staged, rows).axes
    ]
    assert texts == [["stage 2"]] * 3


def test_branch_is_drawn_with_its_trunk(tmp_path):
    points = {"branch__at": "20 steps", "decay__horizon": "40 steps", "stop": "horizon"}
    branch = small_run.config(tmp_path, branch__from_run="trunk", **points)
    rows = make_rows((10, 20, 40))
    alone = loss_figure.make_figure(branch, rows[20:])
    joined = loss_figure.make_figure(branch, rows[20:], rows[:20])
    assert [len(x.axes[1].lines[1].get_xdata()) for x in (alone, joined)] == [1, 3]
    assert [x.get_text() for x in joined.axes[0].texts] == ["branch"]


def test_legends_have_the_error_of_an_average_that_began_late(config):
    values = {"eval/last/loss": 3.0, "eval/f2/loss": 2.0, "eval/f2/kernel_error": 0.5}
    figure = loss_figure.make_figure(config, [*make_rows(()), Row(50, 5 * BUDGET, values)])
    for axes in figure.axes[:2]:
        texts = [x.get_text() for x in axes.get_legend().get_texts()]
        assert texts[-1].endswith("f2 (kernel error 50.00%)")


def test_long_legends_leave_the_panels_their_width(config, tmp_path):
    values = {f"eval/{label}/loss": 3.0 for label in LABELS}
    values |= {f"eval/{label}/kernel_error": 3.5 for label in LABELS[1:]}
    later = {name: x * 0.9 for name, x in values.items()}
    rows = [*make_rows(()), Row(50, 5 * BUDGET, values), Row(60, 6 * BUDGET, later)]
    figure = loss_figure.make_figure(config, rows)
    figure_style.save(figure, tmp_path / "drawn.png")
    assert all(axes.get_position().width > 0.35 for axes in figure.axes[:2])
