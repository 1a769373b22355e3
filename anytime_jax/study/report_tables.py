"""Tables of a study: the comparison with the paper, and cells of losses and settings."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from anytime_jax import plotting
from anytime_jax.checks import is_number
from anytime_jax.study import published
from anytime_jax.study.report_figures import Series
from anytime_jax.study.results import LossCurve, Results

Table = Sequence[Sequence[str]]  # rows of cells, the header first
Key = TypeVar("Key", float, str)  # a multiple or a weight label


def comparison_table(series: Sequence[Series], multiples: Sequence[float]) -> Table:
    """Returns losses, differences to the envelope, and the paper's differences."""
    rows = [["", *headers(multiples), "mean"]]
    for each in series:
        cells = loss_cells(each.losses, multiples)
        rows.append([f"{each.name(math=False)}: loss, first seed", *cells, ""])
    for each in series[1:]:
        name = f"{each.name(math=False)}: minus cosine"
        means = {m: gap.mean for m, gap in each.gaps.items()}
        noise = {m: f" ± {gap.stderr:.4f}" for m, gap in each.gaps.items() if gap.seeds > 1}
        cells = loss_cells(means, multiples, "+")
        cells = [cell + noise.get(m, "") for m, cell in zip(multiples, cells, strict=True)]
        rows.append([name, *cells, mean_cell(means, multiples)])
        others = {m: gap.others for m, gap in each.gaps.items() if gap.seeds > 1}
        if others:
            cells = [*loss_cells(others, multiples, "+"), mean_cell(others, multiples)]
            rows.append([f"{name}, seeds that did not choose", *cells])
    for model in published.losses():
        for kind, theirs in published.differences(model).items():
            cells = [*loss_cells(theirs, multiples, "+"), mean_cell(theirs, multiples)]
            rows.append([f"the paper, {model}, {name_cell(kind)}: minus cosine", *cells])
    return rows


def headers(multiples: Iterable[float]) -> list[str]:
    """Returns column headers."""
    return [f"{m:g}x" for m in multiples]


def name_cell(kind: str) -> str:
    """Returns the name of a kind of schedule."""
    return plotting.schedule_name(kind, math=False)


def loss_cells(losses: Mapping[Key, float], keys: Sequence[Key], sign: str = "") -> list[str]:
    """Returns cells of losses, or of differences with `sign="+"`; empty where there is none."""
    return [f"{losses[key]:{sign}.4f}" if key in losses else "" for key in keys]


def mean_cell(numbers: Mapping[float, float], multiples: Sequence[float]) -> str:
    """Returns the mean over the multiples; empty unless each of them has a number."""
    complete = all(m in numbers for m in multiples)
    return f"{statistics.fmean(numbers[m] for m in multiples):+.4f}" if complete else ""


def setting_names(results: Results, kinds: Collection[str]) -> list[str]:
    """Returns the short names of the settings of some kinds, without those of a decay."""
    names = [name for x in results.all_curves if x.kind in kinds for name in x.settings]
    return [x for x in dict.fromkeys(names) if x not in ("floor", "shape")]


def setting_cells(curve: LossCurve, names: Sequence[str]) -> list[str]:
    """Returns the settings of a curve, or `-`, as cells."""
    values = [curve.settings.get(name, "-") for name in names]
    return [f"{value:g}" if is_number(value) else str(value) for value in values]
