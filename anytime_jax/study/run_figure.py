"""One run in a picture, from its records alone.

Apart from the table, which a start of a run shows too: importing Matplotlib takes half a second.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anytime_jax import plotting
from anytime_jax.checkpoints.records import Row, read_records
from anytime_jax.study.loss_table import LIVE, eval_losses

FILE = "curves.png"


def draw(run_dir: str | Path, title: str) -> Path | None:
    """Draws the curves of a run into `RUN/curves.png`.

    Left: training and validation loss. Right: what each average gains over the live weights.

    Args:
      run_dir: the run's directory.
      title: the picture's title.

    Returns:
      the picture's path; None if nothing was evaluated yet.
    """
    rows = read_records(run_dir)
    evaluated = eval_losses(rows)
    if not evaluated:
        return None
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, parse_math=False)
    _draw_losses(left, rows, evaluated)
    _draw_gains(right, evaluated)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("training tokens (millions)")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.grid(alpha=0.3)
        # Under the axes, where it covers no line.
        axes.legend(
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=6,
            columnspacing=1.2,
        )
    return plotting.save(figure, Path(run_dir) / FILE, dpi=140)


def _millions(rows: list[Row]) -> list[float]:
    return [row.tokens / 1e6 for row in rows]


def _draw_losses(
    axes: Axes, rows: list[Row], evaluated: list[tuple[Row, dict[str, float]]]
) -> None:
    first = evaluated[0][0].tokens / 4
    trained = [row for row in rows if "train/loss" in row.values and row.tokens >= first]
    losses = [row.values["train/loss"] for row in trained]
    axes.plot(_millions(trained), losses, color="0.75", linewidth=0.8, label="training")
    _, last = evaluated[-1]
    best = min(last, key=lambda label: last[label])
    for label, colour in ((LIVE, "black"), (best, plotting.BLUE)):
        points = [(row, losses[label]) for row, losses in evaluated if label in losses]
        if label == LIVE or best != LIVE:
            x = _millions([row for row, _ in points])
            axes.plot(x, [y for _, y in points], ".-", color=colour, label=f"validation, {label}")
    axes.set_ylabel("loss (nats per token)")


def _draw_gains(axes: Axes, evaluated: list[tuple[Row, dict[str, float]]]) -> None:
    labels = [label for label in evaluated[-1][1] if label != LIVE]
    axes.axhline(0, color="black", linewidth=1, label=LIVE)
    for i, label in enumerate(labels):
        points = [(row, losses) for row, losses in evaluated if label in losses]
        x = _millions([row for row, _ in points])
        y = [losses[label] - losses[LIVE] for _, losses in points]
        style = {"color": plotting.PALETTE[i % 6], "linestyle": plotting.DASHES[i % 6]}
        axes.plot(x, y, marker=".", label=label, **style)
    # The widest averages still hold the initial weights early on: their start would set the scale.
    late = [losses[label] - losses[LIVE] for _, losses in evaluated[2:] for label in labels]
    if late:
        low, high = min(*late, 0.0), max(*late, 0.0)
        margin = 0.1 * (high - low) or 0.01
        axes.set_ylim(low - margin, min(high, -2 * low if low < 0 else high) + margin)
    axes.set_ylabel(f"validation loss minus that of {LIVE} (nats)")
