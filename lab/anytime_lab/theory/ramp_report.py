"""Tables, figure and numbers of a comparison of ramps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anytime_jax import figure_style
from anytime_jax.tables import Table
from anytime_lab import schedule_styles
from anytime_lab.theory.batch_branches import (
    LABEL,
    MULTIPLES,
    RATE_POWERS,
    BatchBranches,
    DoubledBatch,
)
from anytime_lab.theory.problem import Problem
from anytime_lab.theory.ramps import (
    CONSTANT,
    MULTIPLIERS,
    SHARES,
    RampComparison,
    Run,
    TunedBatches,
)
from anytime_lab.theory.reports import new_table, write_finite_json

_TOLERANCE = 0.02
_NAMES = (CONSTANT, *SHARES)
_COLORS = (figure_style.BLUE, figure_style.GREEN, figure_style.ORANGE, figure_style.VERMILION)


def best_runs(comparison: RampComparison, noise: float) -> dict[str, Run]:
    """Returns the run of the lowest mean regret of each name, over growths and alphas."""
    runs = comparison.runs(noise)
    named = {name: [run for run in runs if run.ramp.name == name] for name in _NAMES}
    return {name: min(group, key=lambda run: run.mean) for name, group in named.items()}


def make_table(comparison: RampComparison, noise: float) -> Table:
    """Returns the regrets of the best ramp of each name at a noise level."""
    problem, lengths = comparison.problem, comparison.lengths
    title = (
        f"a = {problem.a:g}, b = {problem.b:g}, sigma^2 = {noise:g}: risk over that of the pair "
        "tuned for each number of samples"
    )
    names = ["", "G", "alpha", "c", "average", "mean", *(f"{x:,}" for x in lengths), "updates"]
    table = new_table(title, names)
    risks = (f"{risk:.3g}" for risk in comparison.pairs(noise))
    table.add_row("risk of the pair", "", "", "", "", "", *risks, f"{lengths[-1]:,}")
    peaks = (_peak(x) for x in comparison.pair_multipliers(noise))
    table.add_row("c of the pair", "", "", "", "", "", *peaks, "")
    for name, run in best_runs(comparison, noise).items():
        ramp = run.ramp
        shape = (f"{ramp.growth:.3g}", f"{ramp.alpha:g}") if ramp.growth else ("0", "")
        regrets = (f"{x:+.0%}" for x in (run.mean, *run.regrets))
        row = _peak(run.multiplier), run.average, *regrets, f"{run.updates[-1]:,}"
        table.add_row(name, *shape, *row)
    return table


def _peak(multiplier: float) -> str:
    is_edge = multiplier in (MULTIPLIERS[0], MULTIPLIERS[-1])
    return f"{multiplier:.3g}{'*' if is_edge else ''}"


def make_branch_tables(
    branches: BatchBranches, doubled: Mapping[str, DoubledBatch], noise: float
) -> list[Table]:
    """Returns what branches and noise scales say at each length, and batches that double."""
    cost = f"{_TOLERANCE:.0%}"
    title = (
        f"branches from n to 2n: the largest multiple of the batch up to which each costs {cost} "
    )
    title += "or less, the least risk by the multiple at the trunk's rate, and noise scales at n"
    names = ["n", "rate kept", "least risk", "rate times the multiple"]
    table = new_table(title, [*names, "noise scale, last", f"noise scale, {LABEL}"])
    kept, scaled = (branches.largest_free(rate, _TOLERANCE) for rate in RATE_POWERS)
    best = branches.excess["kept"].argmin(axis=1)
    for at, length in enumerate(branches.lengths):
        least = f"{branches.excess['kept'][at].min():+.0%} at {MULTIPLES[best[at]]}"
        scales = (f"{x[at]:,.0f}" for x in branches.noise_scales.values())
        table.add_row(f"{length:,}", f"{kept[at]}", least, f"{scaled[at]}", *scales)
    sizes = new_table("the batch up to n, where it may double", ["n", *doubled])
    for at, length in enumerate(next(iter(doubled.values())).lengths):
        sizes.add_row(f"{length:,}", *(f"{x.sizes[at]}" for x in doubled.values()))
    names = [f"{label}, {name}" for name in doubled for label in ("updates", "f6.25", LABEL)]
    of_risks = new_table("risks after n samples", ["n", *names])
    for at, n in enumerate(next(iter(doubled.values())).risks.checkpoints):
        cells = []
        for x in doubled.values():
            cells.append(f"{x.risks.updates[0, at]:,}")
            cells += [f"{x.risks.excess(noise, y)[0, at]:.3g}" for y in ("f6.25", LABEL)]
        of_risks.add_row(f"{n:,}", *cells)
    return [table, sizes, of_risks]


def write_branches(
    problem: Problem,
    multiplier: float,
    noise: float,
    branches: BatchBranches,
    doubled: Mapping[str, DoubledBatch],
    directory: Path,
) -> Path:
    """Writes all numbers of branches, `branches.json`; a branch that diverged has null."""
    errors = [branches.error, *(x.risks.error for x in doubled.values())]
    content = {
        "a": problem.a,
        "b": problem.b,
        "dimension": f"{problem.dimension:.0f}",
        "noise": noise,
        "multiplier": multiplier,
        "lengths": branches.lengths,
        "multiples": MULTIPLES,
        "excess": {rate: x.tolist() for rate, x in branches.excess.items()},
        "noise_scales": {label: x.tolist() for label, x in branches.noise_scales.items()},
        "doubled": {name: _describe_doubled(x, noise) for name, x in doubled.items()},
        "largest_relative_error": max(errors),
    }
    return write_finite_json(directory / "branches.json", content)


def _describe_doubled(doubled: DoubledBatch, noise: float) -> dict[str, object]:
    risks = doubled.risks
    return {
        "lengths": doubled.lengths,
        "sizes": doubled.sizes,
        "samples": risks.checkpoints.tolist(),
        "updates": risks.updates[0].tolist(),
        "risks": dict(zip(risks.labels, risks.excess(noise)[:, 0].tolist(), strict=True)),
    }


def make_batch_table(tuned: TunedBatches, noise: float) -> Table:
    """Returns the risks of constant batches, each tuned for every length, over the first one's."""
    title = (
        f"a = {tuned.problem.a:g}, b = {tuned.problem.b:g}, sigma^2 = {noise:g}: the least risk of "
        "a constant rate and batch with an average, tuned for each number of samples, over that of "
        "single samples"
    )
    table = new_table(title, ["batch", *(f"{x:,}" for x in tuned.lengths)])
    least = tuned.least(noise)
    for batch, risks in zip(tuned.batches, least, strict=True):
        table.add_row(f"{batch}", *(f"{x:+.0%}" for x in risks / least[0] - 1))
    return table


def write_batches(tuned: TunedBatches, noises: Sequence[float], directory: Path) -> Path:
    """Writes the risks of constant batches, `batches.json`."""
    content = {
        "a": tuned.problem.a,
        "b": tuned.problem.b,
        "dimension": f"{tuned.problem.dimension:.0f}",
        "samples": tuned.lengths,
        "batches": tuned.batches,
        "noises": [{"noise": x, "risks": tuned.least(x).tolist()} for x in noises],
        "largest_relative_error": tuned.error,
    }
    return write_finite_json(directory / "batches.json", content)


def write(comparison: RampComparison, noises: Sequence[float], directory: Path) -> list[Path]:
    """Writes a picture of the first noise, `ramps.png`, and all numbers, `ramps.json`."""
    content = {
        "a": comparison.problem.a,
        "b": comparison.problem.b,
        "dimension": f"{comparison.problem.dimension:.0f}",
        "samples": comparison.lengths,
        "largest_relative_error": comparison.error,
        "noises": [
            {
                "noise": noise,
                "pair": comparison.pairs(noise).tolist(),
                "pair_multipliers": comparison.pair_multipliers(noise),
                "runs": [_describe(run) for run in comparison.runs(noise)],
            }
            for noise in noises
        ],
    }
    return [
        figure_style.save(_plot(comparison, noises[0]), directory / "ramps.png", dpi=130),
        write_finite_json(directory / "ramps.json", content),
    ]


def _describe(run: Run) -> dict[str, object]:
    return {
        "name": run.ramp.name,
        "growth": run.ramp.growth,
        "batch_share": run.ramp.share,
        "alpha": run.ramp.alpha,
        "multiplier": run.multiplier,
        "average": run.average,
        "risks": run.risks.tolist(),
        "updates": run.updates.tolist(),
    }


def _plot(comparison: RampComparison, noise: float) -> Figure:
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths, problem = comparison.lengths, comparison.problem
    for color, (name, run) in zip(_COLORS, best_runs(comparison, noise).items(), strict=True):
        label = f"{name} (G = {run.ramp.growth:.3g}, {run.average})"
        left.plot(lengths, 1 + run.regrets, "o-", color=color, ms=3, lw=1.3, label=label)
        right.plot(lengths, run.updates, "o-", color=color, ms=3, lw=1.3)
    left.axhline(1, color="black", lw=1)
    left.set_ylabel("excess risk / risk of the pair tuned there")
    right.set_ylabel("updates")
    for axes, scale in ((left, "linear"), (right, "log")):
        _finish(axes, scale)
    figure.suptitle(f"a = {problem.a:g}, b = {problem.b:g}, $\\sigma^2$ = {noise:g}")
    schedule_styles.legend_below(figure, left, columns=2)
    return figure


def _finish(axes: Axes, scale: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale(scale)
    axes.set_xlabel("samples")
    axes.grid(alpha=0.3)
