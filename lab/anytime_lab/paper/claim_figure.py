"""The figure of the README: one run at a constant rate against a cosine for each length.

    python -m anytime_lab.paper.claim_figure --output=docs/images/claim.png

The losses of the left part and two lines of the right one are the paper's. The other two lines are
the leaderboard's, whose records `anytime leaderboard --study=lab/evidence/leaderboard` reads.
"""

import argparse
import csv
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_lab.study import paper_losses

LEADERBOARD = Path("lab/evidence/leaderboard.csv")
_MULTIPLES = (1, 2, 4, 8, 16, 32)


def read_gaps(file: Path, column: str) -> dict[int, tuple[float, float]]:
    """Returns gaps of AdamW's constant rate through f25, and halves of their 95% intervals.

    Args:
      file: the leaderboard's table.
      column: "" for the gap to the tuned cosine's live weights, "_to_cosine_f25" for the gap to
        its f25.
    """
    wanted = {"optimizer": "adamw", "schedule": "constant", "read_out": "f25", "selected": "yes"}
    with file.open(newline="", encoding="utf-8") as lines:
        (row,) = [x for x in csv.DictReader(lines) if wanted.items() <= x.items()]
    return {
        m: (float(row[f"gap{column}_{m}x"]), float(row[f"half_width_95{column}_{m}x"]))
        for m in _MULTIPLES
        if f"gap{column}_{m}x" in row
    }


def draw(leaderboard: Path) -> Figure:
    """Draws the paper's losses (left), and the gaps to the cosines of paper and leaderboard."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_losses(left, paper_losses.losses()["150M"])
    label = "level with the cosines"
    right.axhline(0, color=figure_style.VERMILION, linewidth=1.5, label=label)
    for model, style in {"150M": "o-", "300M": "s--"}.items():
        gaps = paper_losses.differences(model)["constant"]
        right.plot(
            *_points(gaps), style, color=figure_style.BLUE, label=f"the paper, {model} parameters"
        )
    ours = {
        "": ("here, 98K, AdamW (95% intervals)", figure_style.GREEN, 0.97),
        "_to_cosine_f25": ("the same, minus f25 of the cosines", figure_style.ORANGE, 1.03),
    }
    for column, (label, color, shift) in ours.items():
        gaps = read_gaps(leaderboard, column)
        x = [m * shift for m in gaps]  # error bars do not cover each other
        y, error = zip(*gaps.values(), strict=True)
        right.errorbar(x, y, error, fmt="^:", capsize=3, color=color, label=label)
    right.set_ylim(top=0.09)  # the legend covers no line
    right.set_ylabel("difference of losses (nats; lower is better)")
    right.set_title("one run at a constant rate + f25, minus cosines")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(_MULTIPLES, [f"{m}x" for m in _MULTIPLES])
        axes.set_xlabel("training tokens (1x is about 20 for each block parameter)")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


def _draw_losses(axes: Axes, losses: Mapping[str, Mapping[float, float]]) -> None:
    run, cosines = losses["constant"], losses["cosine"]
    hollow = {"markerfacecolor": "none", "markersize": 9}
    label = "cosines: a run for each length"
    axes.plot(*_points(cosines), "D", color=figure_style.VERMILION, label=label, **hollow)
    label = "constant rate + f25: one run"
    axes.plot(*_points(run), "o-", color=figure_style.BLUE, markersize=4, label=label)
    axes.set_ylabel("validation loss (nats per token; lower is better)")
    axes.set_title("the paper's 150M on C4: losses")


def _points(by_multiple: Mapping[float, float]) -> tuple[list[float], list[float]]:
    return list(by_multiple), list(by_multiple.values())


def main() -> None:
    """Draws the figure into a file."""
    parser = argparse.ArgumentParser(description="Draw the figure of the README.")
    parser.add_argument("--leaderboard", type=Path, default=LEADERBOARD)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    print(figure_style.save(draw(arguments.leaderboard), arguments.output, dpi=120))


if __name__ == "__main__":
    main()
