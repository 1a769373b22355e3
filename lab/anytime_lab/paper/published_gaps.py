"""Gap between the paper's horizon-free runs and its cosines, in parts, from the published losses.

    python -m anytime_lab.paper.published_gaps --page=lab/evidence/paper.md

A WSD branch is a constant run whose learning rate decays over its last tenth. Its loss splits the
gap of constant + f25 to the tuned cosine in two: what the constant rate gives away although it
decays at the end (`Gap.trunk`), and what the average gives away to that decay (`Gap.average`).
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from anytime_jax import figure_style
from anytime_jax.commands import argument_parser
from anytime_jax.tables import Table, numbers
from anytime_lab import page_block, schedule_styles
from anytime_lab.study import paper_losses
from anytime_lab.study.paper_losses import Published
from anytime_lab.table_text import to_markdown

_BLOCK = "published gaps"
_FIGURE = "paper_gaps.png"


@dataclasses.dataclass(frozen=True)
class Gap:
    """Parts of the gap to the tuned cosine at one budget, in nats per token.

    Attributes:
      losses: published losses at the budget.
      constant_tokens: tokens of the run over the tokens with which a tuned cosine reaches the loss
        of constant + f25; None where that is less than the smallest published budget.
      inverse_sqrt_tokens: the same for inverse square root + f25.
    """

    losses: Published
    constant_tokens: float | None
    inverse_sqrt_tokens: float | None

    @property
    def whole(self) -> float:
        """Loss of constant + f25 minus the cosine's."""
        return self.losses.constant - self.losses.cosine

    @property
    def trunk(self) -> float:
        """Loss of the best WSD branch minus the cosine's."""
        return self.losses.wsd - self.losses.cosine

    @property
    def average(self) -> float:
        """Loss of constant + f25 minus that of the best WSD branch."""
        return self.losses.constant - self.losses.wsd

    @property
    def inverse_sqrt(self) -> float:
        """Loss of inverse square root + f25 minus the cosine's."""
        return self.losses.inverse_sqrt - self.losses.cosine

    @property
    def averaged_wsd(self) -> float:
        """Loss of the WSD branch read out through f100 minus the cosine's."""
        return self.losses.wsd_f100 - self.losses.cosine


def published_gaps() -> list[Gap]:
    """Returns the gaps at every published model and budget."""
    return [
        Gap(x, _token_ratio(x, x.constant), _token_ratio(x, x.inverse_sqrt))
        for x in paper_losses.published()
    ]


def _token_ratio(at: Published, loss: float) -> float | None:
    """Returns the tokens at a budget over those with which tuned cosines have a loss.

    The loss of the tuned cosines is interpolated linearly in the log of the tokens.
    """
    envelope = [x for x in paper_losses.published() if x.model == at.model]
    losses = [-x.cosine for x in envelope]  # which rise
    if not losses[0] <= -loss <= losses[-1]:
        return None
    log_tokens = np.interp(-loss, losses, [math.log(x.tokens) for x in envelope])
    return at.tokens / math.exp(log_tokens)


def make_table(gaps: Sequence[Gap]) -> Table:
    """Returns the parts of every gap, a row for each."""
    change = numbers(
        *("constant + f25", "of it trunk", "of it average"),
        *("inverse square root + f25", "WSD through f100"),
        format="+.4f",
    )
    tokens = numbers("tokens, constant", "tokens, inverse square root", format=".3f")
    table = Table("", ["model", "budget", *change, *tokens])
    for gap in gaps:
        table.add_row(
            *(gap.losses.model, f"{gap.losses.multiple:g}x", gap.whole, gap.trunk, gap.average),
            *(gap.inverse_sqrt, gap.averaged_wsd, gap.constant_tokens, gap.inverse_sqrt_tokens),
        )
    return table


def draw(gaps: Sequence[Gap]) -> Figure:
    """Draws the gaps to the cosine, with the part of the average between two lines."""
    figure = Figure(figsize=(9.4, 4.2), layout="constrained")
    models = [*dict.fromkeys(gap.losses.model for gap in gaps)]
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        found = [gap for gap in gaps if gap.losses.model == model]
        multiples = [gap.losses.multiple for gap in found]
        whole, trunk = [gap.whole for gap in found], [gap.trunk for gap in found]
        axes.axhline(0, color=figure_style.VERMILION, lw=1.5, label="cosine tuned for the budget")
        axes.fill_between(
            multiples, trunk, whole, color=figure_style.SKY_BLUE, alpha=0.35, lw=0,
            label="part of the average",
        )  # fmt: skip
        styles = {kind: schedule_styles.schedule_style(kind) for kind in paper_losses.KINDS[1:]}
        axes.plot(multiples, whole, label="constant + f25", **styles["constant"])
        roots = [gap.inverse_sqrt for gap in found]
        axes.plot(multiples, roots, label=r"$1/\sqrt{t}$ + f25", **styles["inverse_sqrt"])
        axes.plot(multiples, trunk, label="WSD, live weights", **styles["wsd"])
        averaged = [gap.averaged_wsd for gap in found]
        hollow = {**styles["wsd"], "markerfacecolor": "none", "linewidth": 0.8}
        axes.plot(multiples, averaged, label="WSD + f100", **hollow)
        axes.set_xscale("log", base=2)
        axes.set_xticks(multiples)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("training budget")
        axes.set_title(model)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("loss minus the cosine's (nats per token)")
    schedule_styles.legend_below(figure, panels[0], columns=3)
    return figure


def main(argv: Sequence[str]) -> int:
    """Writes the table into the page and the figure beside it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", required=True, type=argument_parser.path, metavar="FILE")
    page = parser.parse_args(argv).page
    page_block.check(page)
    gaps = published_gaps()
    text = to_markdown(make_table(gaps))
    page_block.replace_block(page, _BLOCK, text, "Where the paper's gap to the cosine comes from")
    figure_style.save(draw(gaps), page.parent / _FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
