"""The figure of the layers of one run, from synthetic rows."""

import matplotlib.image
import pytest
import small_run

from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.commands import layer_figure

NAMES = ("weights", "gradients", "residual", "attention", "mlp", "logit")


def make_rows(layers=3, names=NAMES):
    """Measures that grow with the layer, and one row each without them and with a NaN."""
    rows = [Row(1, 10, {"train/loss": 5.0})]
    for step in (2, 4, 6):
        values = {f"layers/{i}/{x}": step * (i + 1.0) for i in range(layers) for x in names}
        values |= {"layers/head/weights": 9.0, "layers/embedding/weights": 8.0}
        rows.append(Row(step, 10 * step, {"train/loss": 5.0 / step, **values}))
    return [*rows, Row(8, 80, {name: float("nan") for name in rows[-1].values})]


def test_panels_have_a_curve_for_every_layer(tmp_path):
    config = small_run.config(tmp_path, name="a run_with $odd^ name")
    path = layer_figure.draw(tmp_path, config, make_rows(names=(*NAMES, "own")))
    assert matplotlib.image.imread(path)[..., :3].std() > 0.02  # not blank
    panels = layer_figure.make_figure(config, make_rows(names=(*NAMES, "own"))).axes
    loss, *measures = (axes for axes in panels if axes.get_title())
    assert list(loss.lines[0].get_xdata()) == [1, 2, 4, 6, 8]
    assert [len(axes.lines) for axes in measures] == [5, *[3] * 6]
    for axes in measures:
        assert axes.get_yscale() == "log"
        first, *_, last = (line for line in axes.lines if line.get_linestyle() == "-")
        assert list(first.get_xdata()) == [2, 4, 6, 8]
        assert list(first.get_ydata()[:3]) == [2, 4, 6]
        assert sum(first.get_color()[:3]) < sum(last.get_color()[:3])


@pytest.mark.parametrize("rows", [[], [Row(1, 10, {"train/loss": 5.0})]])
def test_run_without_layers_has_no_figure(tmp_path, rows):
    assert layer_figure.draw(tmp_path, small_run.config(tmp_path), rows) is None
    assert not list(tmp_path.iterdir())


def test_values_that_no_axis_has_are_counted(tmp_path):
    rows = [*make_rows(), Row(10, 100, {"layers/0/gradients": 0.0, "layers/1/mlp": float("inf")})]
    panels = layer_figure.make_figure(small_run.config(tmp_path), rows).axes
    counts = {x.get_title().partition("\n")[2]: x.get_yscale() for x in panels[1:7]}
    assert counts == {f"(not shown, zero, infinite or NaN: {n})": "log" for n in (5, 3, 4)}
    assert ["NaN: 4" in x.get_title() for x in panels[1:7]] == [
        False,
        True,
        *[False] * 2,
        True,
        False,
    ]
