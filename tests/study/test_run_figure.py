"""The picture of a run, from made-up records."""

import matplotlib.image
import pytest

from anytime_jax.checkpoints.records import RecordWriter, Row
from anytime_jax.study import loss_table, run_figure


def write_run(run, evaluations, labels=("last", "f25")):
    writer = RecordWriter(run, 0, {})
    for step in range(1, 41):
        values = {"train/loss": 6.0 / step, "lr": 1e-3, "train/grad_norm": 1.0}
        writer.write(step, 1000 * step, values)
        if step in evaluations:
            losses = {f"eval/{label}/loss": 5.0 / step + i for i, label in enumerate(labels)}
            writer.write(step, 1000 * step, {**losses, "eval_seconds": 0.1})
    writer.close()


@pytest.mark.parametrize(
    ("evaluations", "labels"),
    [
        ((10, 20, 40), ("last", "f6.25", "f12.5", "f25", "f50", "f100", "uniform", "ema0.9")),
        ((40,), ("last", "f25")),  # one point on logarithmic axes
        ((20, 40), ("last",)),  # no averages at all
    ],
    ids=["many", "one point", "no averages"],
)
def test_a_picture_is_drawn(tmp_path, evaluations, labels):
    write_run(tmp_path, evaluations, labels)
    path = run_figure.draw(tmp_path, "a run_with $odd^ name")
    assert path == tmp_path / "curves.png"
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 400
    assert image.shape[1] > 1000
    assert image[..., :3].std() > 0.02  # not a blank page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "records"]


def test_a_label_that_came_later_is_drawn_from_there(tmp_path):
    write_run(tmp_path, (10, 20), ("last", "f25"))
    writer = RecordWriter(tmp_path, 40, {})
    writer.write(80, 80_000, {"eval/last/loss": 0.1, "eval/f50/loss": 0.05})
    writer.close()
    assert run_figure.draw(tmp_path, "run") is not None


@pytest.mark.parametrize("evaluations", [(), None])
def test_without_an_evaluation_there_is_no_picture(tmp_path, evaluations):
    if evaluations is not None:
        write_run(tmp_path, evaluations)
    before = sorted(tmp_path.iterdir())
    assert run_figure.draw(tmp_path, "run") is None
    assert sorted(tmp_path.iterdir()) == before


def test_eval_losses_are_the_losses_of_the_rows_that_have_them():
    rows = [
        Row(1, 10, {"train/loss": 1.0}),
        Row(2, 20, {"train/loss": 1.0, "eval/last/loss": 2.0, "eval/f6.25/loss": 3.0}),
        Row(3, 30, {"eval_seconds": 1.0}),
    ]
    assert loss_table.eval_losses(rows) == [(rows[1], {"last": 2.0, "f6.25": 3.0})]
