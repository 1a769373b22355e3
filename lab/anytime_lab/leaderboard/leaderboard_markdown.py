"""Leaderboard page of a study: Markdown tables between two markers, and a CSV of all settings.

The text around the markers is written by hand and stays.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from anytime_jax.config.run_config import Config
from anytime_jax.formatting import format_count
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.tables import Table
from anytime_lab import page_block
from anytime_lab.leaderboard.leaderboard import Leaderboard, Standing
from anytime_lab.study.results import LOSS, Results
from anytime_lab.study.selection import EDGE, MARGIN, Gap
from anytime_lab.table_text import to_csv, to_markdown


def write(page: Path, results: Results, board: Leaderboard) -> list[Path]:
    """Writes the page and its CSV in the same directory, and returns both.

    An existing page keeps everything outside the markers.

    Raises:
      InputError: if the page exists and does not have the markers once.
    """
    table = page.with_suffix(".csv")
    page_block.replace_block(
        page, "leaderboard", _block(results, board, table.name), title="Leaderboard"
    )
    with atomic_write(table) as part:
        part.write_text(to_csv(_csv_table(board), line_end="\n"), encoding="utf-8")
    return [page, table]


def _block(results: Results, board: Leaderboard, table: str) -> str:
    last, average = f"{board.multiples[-1]:g}x", board.average_reference.read_out
    reference, others = board.reference, len(board.not_selected)
    paragraphs = [
        _facts(results),
        _definitions(results, board, last),
        f"Methods as they are meant to be read out: through `{average}`, live at a horizon, and "
        "through what the optimizer itself evaluates.",
        _table(board.primary, board),
        f"Against {reference.optimizer} with {reference.schedule}, tuned and read out through "
        f"`{average}`:",
        _gap_table(board.primary, board, [x.average_gaps for x in board.primary]),
        "Against the tuned cosine of the same optimizer, live weights against its live weights, "
        f"others against its `{average}`:",
        _gap_table(board.primary, board, [x.own_gaps for x in board.primary]),
        *_of_positions(results, board, last),
        f"Other read-outs, and entries of which no settings were trained to {last}, at those "
        f"with the least gap where they got furthest. [{table}]({table}) has these tables"
        f"{f', {others} more rows of single settings,' * bool(others)} and the number of seeds "
        "and the 95% interval of every gap.",
        _table(board.rest, board),
    ]
    return "\n\n".join(x for x in paragraphs if x)


def _facts(results: Results) -> str:
    config, clock = next(iter(results.configs.values())), results.clock
    model, runs = config.model, results.runs
    finished = sum(x.state == "finished" for x in runs)
    title = f": {title.rstrip('.')}" if (title := results.study.title) else ""
    return (
        f"Study `{results.study.name}`{title}. {model.layers} layers "
        f"of width {model.width}, windows of {model.length} tokens, {config.batch_size} in an "
        f"update, a vocabulary of {model.vocab_size:,}. 1x is "
        f"{format_count(clock.tokens(clock.chinchilla_steps))} tokens, "
        f"{clock.chinchilla_steps:,} updates. {_validation(config)} {finished} of {len(runs)} runs "
        "are finished."
    )


def _validation(config: Config) -> str:
    tokens, sets = config.eval.tokens, len(config.sets)
    of_each = f" of each of {sets} sets" if sets > 1 else ""
    return (
        f"Losses are over {tokens:,} validation tokens{of_each}." if isinstance(tokens, int) else ""
    )


def _definitions(results: Results, board: Leaderboard, last: str) -> str:
    """Says what every column of the tables is, one column a line."""
    reference = f"{board.reference.optimizer} with {board.reference.schedule}"
    lines = [
        f"**Reference**: {reference}, tuned at each budget and read out through the live weights "
        f"(`{board.reference.read_out}`).",
        "**settings**: of a schedule without a horizon, those of one run to "
        f"{last}: the one whose largest gap is least. With a horizon, the best at each budget. "
        f"{EDGE} marks the least or the largest number that was tried."
        if _chooses(results)
        else f"**settings**: of a schedule without a horizon, those of one run to {last}.",
        *_of_gaps(results),
        f"**Decision**: *better* if all of the interval is below -{MARGIN:g}, *worse* if all is "
        f"above {MARGIN:g}, *equal* if all is between; otherwise nothing is decided.",
        f"**power**: the probability that a two-sided t test at 5% finds a true difference of "
        f"{MARGIN:g}, by the standard error of each gap.",
        "**worst** and **mean**: the largest gap, by which rows are sorted, and the mean gap.",
        f"**tokens**: the tokens to the reference's loss at {last}, over the reference's tokens; "
        "interpolated in the log of the tokens.",
        "**memory**: copies of the weights in the optimizer's state, plus one for an average.",
        "**time**: the time of an update over that of AdamW, without averages, for the first batch "
        "size.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _of_gaps(results: Results) -> list[str]:
    """Defines a gap, its interval and the seeds, by what the study reports."""
    sets = len(results.reported_sets)
    over_sets = f"{sets} validation sets, and over " * (sets > 1)
    others = " that did not select" * results.selects_elsewhere
    which = "on other sets" if results.selects_elsewhere else "on the same validation tokens"
    lines = [
        "**1x, 2x, ...**: the gap, which is the validation loss minus the reference's, in nats per "
        f"token. It is the mean over {over_sets}the seeds{others} of the paired difference. The "
        "two runs of a pair have the same initial weights and the same data.",
        "**±**: half of the 95% interval over the seeds, by Student's t"
        + (
            "; or over the sets, by their bootstrap, whichever is wider."
            if sets > 1
            else ". A row with one seed has none."
        ),
        "**seeds**: the number of seeds of the gap with the fewest."
        + " With 0, the gaps are those of the seed that selected and compare with each other "
        "alone; these rows come last." * results.selects_elsewhere,
    ]
    if _chooses(results):
        lines.append(f"**Selection**: with the first seed, {which}.")
    return lines


def _chooses(results: Results) -> bool:
    """Whether some method has several settings at a multiple, of which one is selected."""
    for family in results.families(*dict.fromkeys(run.kind for run in results.runs)):
        multiples = [m for curve in family for m in curve.losses]
        if len(multiples) > len({*multiples}):
            return True
    return False


def _of_positions(results: Results, board: Leaderboard, last: str) -> list[str]:
    """The gaps at ranges of positions in the window at the last multiple, if they were recorded."""
    metrics = results.position_metrics
    if not metrics:
        return []
    names = [x.removeprefix(f"{LOSS}_").replace("_", " ") for x in metrics]
    table = Table("", ["optimizer", "schedule", "read-out", *names])
    for standing in board.primary:
        if standing.entry != board.reference:
            table.add_row(*standing.entry, *map(_gap_cell, standing.position_gaps.values()))
    return [
        f"At {last}, by the position in the window, against the reference's live weights:",
        to_markdown(table),
    ]


def _table(standings: Sequence[Standing], board: Leaderboard) -> str:
    if not standings:
        return ""
    gaps = [f"{m:g}x" for m in board.multiples]
    names = ["optimizer", "schedule", "read-out", "settings", "seeds", *gaps, "power"]
    names += ["worst", "mean", "tokens", "memory", "time"]
    return to_markdown(Table("", names, [_cells(x, board) for x in standings]))


def _gap_table(
    standings: Sequence[Standing], board: Leaderboard, of_each: Sequence[Mapping[float, Gap]]
) -> str:
    """A table of some gaps of standings; those without any are left out."""
    names = [f"{m:g}x" for m in board.multiples]
    table = Table("", ["optimizer", "schedule", "read-out", *names, "power"])
    for standing, gaps in zip(standings, of_each, strict=True):
        if any(gap.mean or gap.half_width for gap in gaps.values()):  # not of a cosine to itself
            cells = (_gap_cell(gaps.get(m)) for m in board.multiples)
            table.add_row(*standing.entry, *cells, _powers(gaps.values()))
    return to_markdown(table)


def _cells(standing: Standing, board: Leaderboard) -> list[str]:
    is_reference = standing.entry == board.reference
    gaps = (_gap_cell(standing.gaps.get(m), is_reference) for m in board.multiples)
    optimizer, schedule, read_out = standing.entry
    return [
        optimizer,
        f"{schedule} (reference)" if is_reference else schedule,
        read_out,
        standing.settings,
        str(standing.seeds),
        *gaps,
        "-" if is_reference else _powers(standing.gaps.values()),
        *(_number_cell(x, "+.4f") for x in (standing.worst, standing.mean)),
        _fraction_cell(standing.fraction),
        _number_cell(standing.copies, ".2f"),
        _number_cell(standing.time, ".2f"),
    ]


def _powers(gaps: Iterable[Gap]) -> str:
    return ", ".join(_number_cell(gap.power, ".2f") for gap in gaps)


def _summaries(standing: Standing) -> tuple[float, ...]:
    return standing.worst, standing.mean, standing.worst_to_average, standing.worst_to_own


def _gap_cell(gap: Gap | None, is_reference: bool = False) -> str:
    if gap is None:
        return "-"
    return "0" if is_reference else str(gap)


def _fraction_cell(fraction: float) -> str:
    return "> 1" if fraction == math.inf else _number_cell(fraction, ".2f")


def _number_cell(value: float | None, form: str) -> str:
    return _number(value, form) or "-"


def _csv_table(board: Leaderboard) -> Table:
    average = board.average_reference.read_out
    header = ["optimizer", "schedule", "read_out", "settings", "selected", "tried"]
    for m in board.multiples:
        names = ("gap", "stderr", "stderr_of_sets", "half_width_95", "seeds")
        header += [f"{name}_{m:g}x" for name in names]
        for other in (f"cosine_{average}", "own"):
            header += [f"{name}_to_{other}_{m:g}x" for name in ("gap", "half_width_95")]
    header += ["worst", "mean", f"worst_to_cosine_{average}", "worst_to_own"]
    table = Table("", [*header, "tokens_fraction", "copies", "time"])
    for standing in (*board.primary, *board.rest, *board.not_selected):
        row = [*standing.entry, standing.settings]
        row += ["yes" if standing.selected else "no", str(standing.tried)]
        for m in board.multiples:
            row += _csv_gap(standing.gaps.get(m))
            for gaps in (standing.average_gaps, standing.own_gaps):
                gap, _, _, half_width, _ = _csv_gap(gaps.get(m))
                row += [gap, half_width]
        row += [_number(x, ".6f") for x in _summaries(standing)]
        costs = standing.fraction, standing.copies, standing.time
        table.add_row(*row, *(_number(x, ".4f") for x in costs))
    return table


def _csv_gap(gap: Gap | None) -> list[str]:
    if gap is None:
        return [""] * 4 + ["0"]
    of_sets = gap.stderr_of_sets if gap.sets > 1 else None
    noise = (gap.stderr if gap.seeds > 1 else None, of_sets, gap.half_width)
    return [f"{gap.mean:.6f}", *(_number(x, ".6f") for x in noise), str(gap.reported_seeds)]


def _number(value: float | None, form: str) -> str:
    return "" if value is None or math.isnan(value) else f"{value:{form}}"
