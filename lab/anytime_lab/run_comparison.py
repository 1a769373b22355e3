"""Comparison of several runs: their last losses, and their losses after equally many tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.averaging import LIVE
from anytime_jax.checkpoints.run_json import is_same_evaluation, read_run_file
from anytime_jax.commands import loss_figure
from anytime_jax.commands.loss_table import evaluated_rows, name_at, weight_labels
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_count
from anytime_jax.storage.paths import storage_path
from anytime_jax.tables import Table, numbers
from anytime_lab.monitor.run_snapshot import Snapshot, shown_rows

FILE = "compared.png"

Losses = Mapping[str, float]
Loss = Callable[[Losses], float | None]


def describe(runs: Sequence[Snapshot]) -> Iterator[str | Table]:
    """Yields the tables of several runs, the differences to the first of them.

    Raises an InputError if a run is given twice, or has no evaluation.
    """
    names = list(_by_name(runs))
    for run in runs:
        if not run.evaluated:
            raise InputError(
                f"--run={run.run_dir} has no evaluation yet: leave it out, or train on"
            )
    yield _last_table(runs, names)
    tables = [
        _table_of_equal_tokens(runs, names, f"validation loss of the {weights}", loss)
        for weights, loss in (("live weights", _live), ("best weights", _best))
    ]
    if tables[1].rows:
        yield from tables
    else:
        yield f"  no run was evaluated after the same number of tokens as {names[0]}"
    files = [read_run_file(run.run_dir) for run in runs]
    first, *others = ([] if file is None else file.evaluations for file in files)
    for name, other in zip(names[1:], others, strict=True):
        if not is_same_evaluation([*first, *other]):
            yield f"  {name}: its losses are of other validation sets, weights or tokens"
    for name, run in zip(names, runs, strict=True):
        row, losses = run.evaluated[-1]
        late = [x for label in losses if (x := name_at(row, label)) != label]
        yield from (f"  {name}: at its last evaluation, {x}" for x in late)
        yield from (f"  {name}: {warning}" for warning in run.warnings)


def draw(directory: Path, runs: Sequence[Snapshot]) -> Path:
    """Draws the losses of the live and of the best weights of each run; returns the path.

    A branch is drawn with its trunk. Thin lines are training losses.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title("runs compared: validation loss of the live and of the best weights")
    drawn: list[float] = []
    for i, (name, run) in enumerate(_by_name(runs).items()):
        rows = loss_figure.late_rows([*run.trunk, *run.rows])
        evaluated = evaluated_rows(rows)
        label = name.replace("$", r"\$")  # not mathematics
        if label.startswith("_"):  # the legend leaves such labels out
            label = rf"$\_${label[1:]}"
        color = figure_style.PALETTE[i % 6]
        thin = {"color": color, "linewidth": 0.6, "alpha": 0.5}
        loss_figure.plot(axes, loss_figure.training_losses(rows), "", **thin)
        depth = 3 - 0.1 * i  # a branch lies under its trunk, where they are equal
        style = {"color": color, "marker": ".", "zorder": depth}
        for loss, line, weights in ((_live, "-", LIVE), (_best, "--", "best")):
            points = [(row, x) for row, losses in evaluated if (x := loss(losses)) is not None]
            loss_figure.plot(axes, points, f"{label}, {weights}", linestyle=line, **style)
            drawn += [x for _, x in points]
    if drawn:  # training losses, which begin higher, would press the differences together
        margin = 0.1 * (max(drawn) - min(drawn)) + 0.005
        axes.set_ylim(min(drawn) - margin, max(drawn) + margin)
    axes.set_ylabel(figure_style.LOSS)
    clocks = {run.clock.tokens(run.clock.chinchilla_steps): run.clock for run in runs}
    loss_figure.draw_frame(axes, columns=2, clock=runs[0].clock if len(clocks) == 1 else None)
    text = f"{LIVE}: the live weights; best: the weights with the lowest loss at each evaluation; "
    figure.supxlabel(f"{text}thin: training batches", fontsize=9)
    return figure_style.save(figure, storage_path(directory) / FILE, dpi=140)


def _by_name(runs: Sequence[Snapshot]) -> dict[str, Snapshot]:
    """The runs by name, or by directory if names are equal."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.run_dir) for run in runs]
    if len(set(names)) < len(names):
        raise InputError(f"--run: a run is given twice in {', '.join(names)}: give each once")
    return dict(zip(names, runs, strict=True))


def _last_table(runs: Sequence[Snapshot], names: Sequence[str]) -> Table:
    last = [run.evaluated[-1] for run in runs]
    averages = weight_labels(last, LIVE)
    columns = [
        "run",
        *numbers("steps", format=","),
        *numbers("tokens"),
        *numbers(LIVE, format=".4f"),
    ]
    title = "last evaluation: validation loss of the live weights, and each average minus it"
    table = Table(title, [*columns, *numbers(*averages, format="+z.4f")])
    for name, (row, losses) in zip(names, last, strict=True):
        live = _live(losses)
        gains = (_difference(losses.get(label), live) for label in averages)
        table.add_row(name, row.step, format_count(row.tokens), live, *gains)
    return table


def _table_of_equal_tokens(
    runs: Sequence[Snapshot], names: Sequence[str], what: str, loss: Loss
) -> Table:
    """Losses at the numbers of tokens at which the first run and another were evaluated."""
    first, *others = (
        {row.tokens: loss(losses) for row, losses in run.evaluated if row.tokens} for run in runs
    )
    shared = sorted(x for x in first if any(x in other for other in others))
    clock = runs[0].clock
    doublings = {row.tokens for row, _ in runs[0].evaluated if clock.is_doubling(row.step)}
    differences = [f"{name} minus {names[0]}" for name in names[1:]]
    columns = [*numbers("tokens"), *numbers(*names, format=".4f")]
    table = Table(
        f"{what} after equally many tokens", [*columns, *numbers(*differences, format="+z.4f")]
    )
    for tokens in shown_rows(shared, doublings.__contains__):
        start, ends = first[tokens], [other.get(tokens) for other in others]
        gaps = (_difference(end, start) for end in ends)
        table.add_row(format_count(tokens), start, *ends, *gaps)
    return table


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _live(losses: Losses) -> float | None:
    return losses.get(LIVE)


def _best(losses: Losses) -> float | None:
    return min(losses.values())
