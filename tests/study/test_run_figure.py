"""The figure of one run, from synthetic records."""

import matplotlib.image
import pytest

from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.study import run_figure


def write_run(run_dir, evaluated, labels=("last", "f25")):
    writer = RecordWriter(run_dir, 0, {})
    for step in range(1, 41):
        values = {"train/loss": 6.0 / step, "lr": 1e-3, "train/grad_norm": 1.0}
        writer.write(step, 1000 * step, values)
        if step in evaluated:
            losses = {f"eval/{label}/loss": 5.0 / step + i for i, label in enumerate(labels)}
            writer.write(step, 1000 * step, {**losses, "eval_seconds": 0.1})
    writer.close()


@pytest.mark.parametrize(
    ("evaluated", "labels"),
    [
        ((10, 20, 40), ("last", "f6.25", "f12.5", "f25", "f50", "f100", "uniform", "ema0.9")),
        ((40,), ("last", "f25")),
        ((20, 40), ("last",)),
    ],
    ids=["many averages", "one point", "no averages"],
)
def test_figure_is_drawn(tmp_path, evaluated, labels):
    write_run(tmp_path, evaluated, labels)
    path = run_figure.draw(tmp_path, "a run_with $odd^ name")
    assert path == tmp_path / "curves.png"
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 400
    assert image.shape[1] > 1000
    assert image[..., :3].std() > 0.02  # not blank
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "records"]


def test_average_added_later_is_drawn_from_there(tmp_path):
    write_run(tmp_path, (10, 20))
    writer = RecordWriter(tmp_path, 40, {})
    writer.write(80, 80_000, {"eval/last/loss": 0.1, "eval/f50/loss": 0.05})
    writer.close()
    assert run_figure.draw(tmp_path, "run") is not None


@pytest.mark.parametrize("evaluated", [(), None])
def test_run_without_evaluation_has_no_figure(tmp_path, evaluated):
    if evaluated is not None:
        write_run(tmp_path, evaluated)
    before = sorted(tmp_path.iterdir())
    assert run_figure.draw(tmp_path, "run") is None
    assert sorted(tmp_path.iterdir()) == before
