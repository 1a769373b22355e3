"""The figure of one run, from synthetic rows."""

import matplotlib.image
import pytest

from anytime_jax.checkpoints.metric_records import Row
from anytime_jax.commands import loss_figure


def make_rows(evaluated, labels=("last", "f25")):
    rows = []
    for step in range(1, 41):
        values = {"train/loss": 6.0 / step, "lr": 1e-3, "train/grad_norm": 1.0}
        if step in evaluated:
            values |= {f"eval/{label}/loss": 5.0 / step + i for i, label in enumerate(labels)}
        rows.append(Row(step, 1000 * step, values))
    return rows


LATER = Row(80, 80_000, {"eval/last/loss": 0.1, "eval/f25/loss": float("nan")})
LABELS = ("last", "f6.25", "f12.5", "f25", "f50", "f100", "uniform", "ema0.9")


@pytest.mark.parametrize(
    "rows",
    [
        make_rows((10, 20, 40), LABELS),
        make_rows((40,), ("last",)),
        [*make_rows((10, 20, 30)), LATER, Row(90, 90_000, {"eval/f7/loss": 0.2})],
    ],
    ids=["many averages", "one point, no averages", "a NaN, and averages replaced"],
)
def test_figure_is_drawn(tmp_path, rows):
    path = loss_figure.draw(tmp_path, "a run_with $odd^ name", rows)
    assert path == tmp_path / "curves.png"
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 400
    assert image[..., :3].std() > 0.02  # not blank


@pytest.mark.parametrize("rows", [[], make_rows(())], ids=["no records", "no evaluation"])
def test_run_without_evaluation_has_no_figure(tmp_path, rows):
    assert loss_figure.draw(tmp_path, "run", rows) is None
    assert not list(tmp_path.iterdir())


def test_sets_have_a_part_of_their_own_and_step_0_no_place(tmp_path):
    """The axis of tokens is logarithmic."""
    first = Row(0, 0, {"eval/last/loss": 9.0, "eval/a/last/loss": 9.0, "eval/b/last/loss": 9.0})
    rows = make_rows((10, 20, 40), ("last", "a/last", "b/last", "f25"))
    plain = loss_figure.draw(tmp_path, "run", make_rows((10, 20, 40)))
    width = matplotlib.image.imread(plain).shape[1]
    with_sets = loss_figure.draw(tmp_path, "run", [first, *rows])
    assert matplotlib.image.imread(with_sets).shape[1] > width
    assert loss_figure.draw(tmp_path / "other", "run", [first]) is None
