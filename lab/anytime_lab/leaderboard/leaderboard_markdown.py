"""Leaderboard page of a study: Markdown tables between two markers, and a CSV of all settings.

The text around the markers is written by hand and stays.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from anytime_jax.config.run_config import Config
from anytime_jax.formatting import format_count
from anytime_jax.storage.atomic import atomic_write
from anytime_jax.tables import Table
from anytime_lab import page_block
from anytime_lab.leaderboard.leaderboard import EDGE, Leaderboard, Standing
from anytime_lab.study.results import Results
from anytime_lab.study.selection import Gap
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
    last = f"{board.multiples[-1]:g}x"
    paragraphs = [
        _facts(results),
        _selection(results, board, last),
        _table(board.best, board),
        f"Other read-outs, and entries of which no settings were trained to {last}, at those "
        f"with the least gap where they got furthest. [{table}]({table}) has these tables, "
        f"{len(board.not_selected)} more rows of single settings, and "
        "the number of seeds and the 95% interval of every gap.",
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


def _noise(results: Results) -> str:
    """Says what gaps are means of, what their errors are, and what selected the settings."""
    if not results.reported_sets:
        return (
            "Gaps are means over seeds of the paired difference (same initial weights, same data) "
            "± its standard error (the 95% interval is ± 4.3 of these with three seeds, ± 2.8 with "
            "five). A single seed compares with a mean of several no better than their spread. "
            "**Settings** were selected with the first seed, on the same validation tokens"
        )
    selecting = len(next(iter(results.configs.values())).sets) - len(results.reported_sets)
    return (
        f"Gaps are means over {len(results.reported_sets)} validation sets, and over the seeds "
        "that did not select, of the paired difference (same initial weights, same data) ± the "
        "larger of two standard errors: over the seeds, and by the bootstrap over the sets. With "
        "*seeds* 0 they are the gaps of the seed that selected, without an error, which compare "
        "with each other alone: these rows are the last ones. **Settings** "
        "and the read-outs of the first table were selected with the first seed, by the mean of "
        f"{selecting} other sets"
    )


def _selection(results: Results, board: Leaderboard, last: str) -> str:
    reference = f"{board.reference.optimizer} with {board.reference.schedule}"
    average = board.average_reference.read_out
    return (
        "**Gaps** are validation losses in nats per token minus the reference's: "
        f"{reference}, tuned at each budget and read out through the live weights "
        f"(`{board.reference.read_out}`). {_noise(results)}; "
        f"{EDGE} marks the least or largest of several values, but not of warmups. Settings that "
        "are words, but for warmups, make entries of their own. A schedule without a horizon is "
        f"one trajectory for all budgets: of those trained to {last}, the one whose worst gap is "
        "least. A schedule with a horizon has the best settings at each budget, a run for each. "
        f"*Tried* counts all settings, including the ones not trained to {last}, *seeds* the "
        "seeds of the gap with the fewest. Rows are sorted by the **worst** of these means, and "
        "the first table has the read-out of each optimizer and schedule whose worst gap is least. "
        f"*Worst to cosine {average}* is the worst gap to the tuned cosine "
        f"read out through `{average}`, its settings selected for that, "
        "and *worst to own* the worst gap to the same optimizer's cosine: of the live weights to "
        f"its live weights, of an average to its `{average}`. "
        f"*Tokens* are the tokens to the reference's loss at {last} over {last}, "
        "interpolated in the log of the tokens. *Memory* is copies of the weights, without "
        "the parameters and the gradient: the optimizer's state, and the average if there is one. "
        "*Time* is the time of an update over AdamW's, without averages, for the first batch size."
    )


def _table(standings: Sequence[Standing], board: Leaderboard) -> str:
    if not standings:
        return ""
    gaps = [f"{m:g}x" for m in board.multiples]
    average = board.average_reference.read_out
    names = ["optimizer", "schedule", "read-out", "settings", "tried", "seeds", *gaps]
    names += ["worst", "mean", f"worst to cosine {average}", "worst to own"]
    names += ["tokens", "memory", "time"]
    return to_markdown(Table("", names, [_cells(x, board) for x in standings]))


def _cells(standing: Standing, board: Leaderboard) -> list[str]:
    is_reference = standing.entry == board.reference
    gaps = (_gap_cell(standing.gaps.get(m), is_reference) for m in board.multiples)
    optimizer, schedule, read_out = standing.entry
    return [
        optimizer,
        f"{schedule} (reference)" if is_reference else schedule,
        read_out,
        standing.settings,
        str(standing.tried),
        str(standing.seeds),
        *gaps,
        *(_number_cell(x, "+.4f") for x in _summaries(standing)),
        _fraction_cell(standing.fraction),
        _number_cell(standing.copies, ".2f"),
        _number_cell(standing.time, ".2f"),
    ]


def _summaries(standing: Standing) -> tuple[float, ...]:
    return standing.worst, standing.mean, standing.worst_to_average, standing.worst_to_own


def _gap_cell(gap: Gap | None, is_reference: bool = False) -> str:
    if gap is None:
        return "-"
    if is_reference:
        return "0"
    if math.isnan(gap.mean):
        return "diverged"
    error = max(gap.stderr, gap.stderr_of_sets)
    return f"{gap.mean:+.4f}" + (f" ± {error:.4f}" if gap.seeds > 1 else "")


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
    for standing in (*board.best, *board.rest, *board.not_selected):
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
