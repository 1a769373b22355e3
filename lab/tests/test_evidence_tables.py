"""The tables by which the pages of evidence begin, recomputed from the packed records."""

import itertools
import json
import re
import tarfile

import numpy as np
import pytest
from lab_paths import EVIDENCE
from run_command import run_command
from scipy import stats

from anytime_lab import differences, fine_tunes, larger_batches
from anytime_lab.study import study_files
from anytime_lab.study.results import COSINE, Results
from anytime_lab.study.selection import best_at_each, losses_by_seed
from anytime_lab.width import best_peaks

pytestmark = pytest.mark.slow


def read_results(name):
    with study_files.open_study(EVIDENCE / name) as study:
        return Results(study)


def read_table(page, number=0, block=None):
    """The rows of a table of a page, or of a block of it, of the first one by default."""
    text = (EVIDENCE / page).read_text("utf-8")
    if block:
        text = text.split(f"<!-- {block} -->")[1].split("<!-- end -->")[0]
    lines = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[number].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def read_page(name):
    """The text of a page with single spaces."""
    return " ".join((EVIDENCE / name).read_text("utf-8").split())


def read_lines(study, metric="loss"):
    """The loss on each reported set, from the lines of an archive: by run, step and weights."""
    losses = {}
    with tarfile.open(EVIDENCE / study / "records.tar.xz") as archive:
        for member in archive:
            run, *rest = member.name.split("/")
            if rest[:1] != ["records"]:
                continue
            for line in archive.extractfile(member).read().decode("utf-8").splitlines():
                row = json.loads(line)
                for name, loss in row.get("values", {}).items():
                    parts = name.split("/")  # eval/SET/WEIGHTS/loss
                    if len(parts) == 4 and parts[0] == "eval" and parts[3] == metric:
                        losses.setdefault((run, row["step"], parts[2]), {})[parts[1]] = loss
    return losses


def power_for_the_margin(half_width, seeds):
    """The probability that a two-sided t test at 5% finds a true difference of 0.01."""
    edge = stats.t.ppf(0.975, seeds - 1)
    shift = 0.01 * edge / half_width
    if shift > 8:  # from about there on the noncentral t has no number
        return 1.0
    found = stats.nct.sf(edge, seeds - 1, shift) + stats.nct.cdf(-edge, seeds - 1, shift)
    return float(found)


def holm(p_values):
    """What Holm's correction at 5% leaves, the least p first."""
    left = []
    for number, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > 0.05 / (len(p_values) - number):
            break
        left.append(name)
    return left


def half_width_of(each):
    """Half of the 95% interval of differences [seeds, sets], over seeds or sets."""
    return max(
        stats.t.ppf(0.975, x.size - 1) * stats.sem(x)
        for x in (each.mean(axis=1), each.mean(axis=0))
    )


def check_difference(cell, each):
    """Checks `-0.023 ± 0.008, better` against differences [seeds, sets]; returns the half width."""
    shown = re.fullmatch(r"([+-][0-9.]+) ± ([0-9.]+)(?:, (better|worse|equal))?", cell)
    assert shown, cell
    mean, half_width = each.mean(), half_width_of(each)
    decimals = len(shown[1].partition(".")[2])
    assert f"{mean:+.{decimals}f}" == shown[1], cell
    assert abs(half_width - float(shown[2])) < 0.0011, cell
    low, high = mean - half_width, mean + half_width
    decided = {"better": high < -0.01, "worse": low > 0.01, "equal": -0.01 < low < high < 0.01}
    assert shown[3] == next((x for x, holds in decided.items() if holds), None), cell
    return half_width


METHODS = {
    ("AdamW", "cosine"): "cosine",
    ("AdamW", "constant"): "constant",
    ("AdamW", "constant 48"): "constant-48",
    ("AdamW", "power"): "power",
    ("Muon", "cosine"): "muon-cosine",
    ("Muon", "constant"): "muon-constant",
    ("PACE", "constant"): "pace",
    ("schedule-free AdamW", "constant"): "schedule_free_adamw",
}


def losses_of_seeds(lines, pattern, step, label="f25"):
    """The losses on each set of the runs whose names begin with a pattern, by the seed's number."""
    found = {}
    for (run, at, of), sets in lines.items():
        if (at, of) == (step, label) and re.match(pattern, run):
            seed = re.search(r"-seed=(\d+)", run)[1]
            assert seed not in found, run
            found[seed] = np.array([sets[x] for x in sorted(sets)])
    return found


def losses_of_method(lines, text, multiple):
    """The losses of "Muon, cosine, f25" on each set at a multiple, by the seed's number."""
    optimizer, schedule, label = text.split(", ")
    name, label = METHODS[optimizer, schedule], label.replace("live", "last")
    horizon = f"-horizon={multiple}x" if schedule == "cosine" else ""
    pattern = rf"{name}{horizon}-peak=[0-9.]+-seed=[0-9]+$"
    return losses_of_seeds(lines, pattern, 480 * multiple, label)


def test_differences_of_the_leaderboard():
    """By hand, from the lines of the records."""
    lines, p_values = read_lines("leaderboard"), {}
    for one, other, *cells, powers in read_table("leaderboard.md"):
        found = []
        for multiple, cell in zip((1, 2, 4), cells, strict=True):
            ours, theirs = (losses_of_method(lines, x, multiple) for x in (one, other))
            assert ours.keys() == theirs.keys() == {str(x) for x in range(11, 19)}
            each = np.stack([ours[seed] - theirs[seed] for seed in sorted(ours)])
            assert each.shape == (8, 32)
            p_values[one, other, multiple] = float(stats.ttest_1samp(each.mean(axis=1), 0).pvalue)
            found.append(power_for_the_margin(check_difference(cell, each), 8))
        assert [float(x) for x in powers.split(", ")] == pytest.approx(found, abs=0.03)
    page = read_page("leaderboard.md")
    assert f"There are {len(p_values)} comparisons" in page
    assert f"leave out zero in {sum(p < 0.05 for p in p_values.values())}" in page
    assert f"leaves {len(holm(p_values))}" in page


def test_seeds_of_the_leaderboard_differ_at_late_positions():
    names = ("loss", "loss_1_to_8", "loss_9_to_32", "loss_33_to_64", "loss_65_to_128")
    lines = [read_lines("leaderboard", x) for x in names]
    rows = read_table("leaderboard.md", 2)
    assert len(rows) == 6
    for method, *cells in rows:
        each = [losses_of_method(x, method, 4) for x in lines]
        assert {len(x) for x in each} == {8}
        found = [np.std([y.mean() for y in x.values()], ddof=1) for x in each]
        assert cells == [f"{x:.3f}" for x in found], method


def test_differences_of_the_laptop_study():
    """Over the seeds that did not select, to cosines with the best peak at each budget."""
    results = read_results("laptop")
    kinds = {"constant": "constant", "inverse square root": "inverse_sqrt", "WSD": "wsd"}
    labels = {"live": "last", "f25": "f25"}
    for run, peak, cosine, *cells in read_table("laptop/README.md"):
        kind, label = run.split(", ")
        (curve,) = (
            x.read_through(labels[label])
            for x in results.comparable_curves(kinds[kind])
            if x.settings["peak"] == float(peak)
        )
        curves = [x.read_through(labels[cosine]) for x in results.comparable_curves(COSINE)]
        expected = []
        for m, base in best_at_each(curves, results.multiples).items():
            ours, theirs = (losses_by_seed(results, x, m) for x in (curve, base))
            each = [float(ours[x][0] - theirs[x][0]) for x in ours if x != curve.seed]
            assert len(each) == 4
            interval = stats.t.interval(0.95, 3, np.mean(each), stats.sem(each))
            expected.append(f"{np.mean(each):+.3f} ± {np.ptp(interval) / 2:.3f}")
        assert cells == expected, (run, peak, cosine)


# Larger and growing batches


def read_f25(study):
    """The losses through f25 on each set, by run and step."""
    found = {}
    for (run, step, label), sets in read_lines(study).items():
        if label == "f25":
            found.setdefault(run, {})[step] = np.array([sets[x] for x in sorted(sets)])
    return found


def larger_batch_costs():
    """Each row of the table of branches with its differences [seeds, sets], from the records."""
    losses = read_f25("batches")
    assert len(losses) == 84
    for row in read_table("batches.md", 0, "larger batches"):
        start, stop, batch, rate, others, _, updates, *_ = row
        multiple = 1 if batch.startswith("as") else int(batch.split()[0])
        root = multiple**0.5
        factor = {"kept": 1, "times the root": root}.get(rate) or float(rate.split()[1])
        name = "scaled" if others != "-" else "root" if factor == root else "kept"
        name = f"rate_at_{start}" if multiple == 1 else name
        growth = f"-batch_growth={32 * multiple}_at_{start}" if multiple > 1 else ""
        peak = f"-peak={float(f'{0.0111 * factor:.3g}')}" if factor != 1 else ""
        step, of_trunk = int(updates.replace(",", "")), int(480 * float(stop.rstrip("x")))
        each = []
        for seed in range(21, 25):
            found = (x for x in losses if f"{x}-".startswith(f"{name}-seed={seed}{growth}{peak}-"))
            (run,) = found
            each.append(losses[run][step] - losses[f"trunk-seed={seed}"][of_trunk])
        yield row, multiple, np.stack(each)


def free_multiple(costs):
    """Where the line through costs by the log of the multiple crosses 0.01."""
    points = sorted({1: 0.0, **costs}.items())
    for (before, low), (after, high) in itertools.pairwise(points):
        if high > 0.01:
            return before * (after / before) ** ((0.01 - low) / (high - low))
    return np.inf


def test_larger_batches():
    """By hand, from the lines of the records: differences, and the power of the free multiples."""
    scaled = {}
    for row, multiple, each in larger_batch_costs():
        assert each.shape == (4, 12)
        check_difference(row[9], each)
        if row[4] != "-":
            for number, cost in enumerate(each.mean(axis=1)):
                scaled.setdefault((row[0], number), {})[multiple] = cost
    free = {key: free_multiple(costs) for key, costs in scaled.items()}
    powers = [np.log(free["4x", k] / free["1x", k]) / np.log(4) for k in range(4)]
    half_width = stats.t.ppf(0.975, 3) * stats.sem(powers)
    rows = read_table("batches.md", 2, "larger batches")
    (shown,) = (row[3] for row in rows if row[1] != "-")
    assert shown == f"{np.mean(powers):.2f} ± {half_width:.2f}"


def test_branches_that_the_page_begins_with():
    """They are those of the table of all branches, with three decimals."""
    kinds = {"kept": "rate kept", "times the root": "scaled"}
    kinds |= {"times 0.707": "rate over the root of 2", "times 1.41": "rate times the root of 2"}
    expected = {}
    for row, multiple, each in larger_batch_costs():
        is_alone = row[3:5] == ["times the root", "-"]
        kind = "rate times the root alone" if is_alone else kinds[row[3]]
        batch = "the trunk's batch" if multiple == 1 else f"{multiple} times the batch"
        expected[f"{batch}, {kind}", row[0]] = each
    for name, *cells in read_table("batches.md", 2):
        for start, cell in zip(("1x", "4x"), cells, strict=True):
            if cell:
                check_difference(cell, expected[name, start])


# The start of the names of each way's runs, and its updates to 2x and 4x.
WAYS = {
    "trunk": ("constant-peak", {2: 960, 4: 1920}),
    "ramp": ("ramp", {2: 840, 4: 1180}),
    "falling": ("falling", {2: 960, 4: 1920}),
    "larger": ("larger", {2: 720, 4: 1200}),
    "late": ("constant-peak", {2: 960}, "late", {4: 1200}),
    "Seesaw's steps": ("constant-peak", {2: 960}, "seesaw", {4: 1381}),
    "64 from the start": ("constant-64", {2: 481, 4: 961}),
    "cosine": ("cosine-horizon=2x", {2: 960}, "cosine-horizon=4x", {4: 1920}),
}


def losses_of_way(lines, text, multiple):
    """The losses of "ramp" or "ramp, live" on each set at a multiple, by the seed's number."""
    name, _, label = text.partition(", ")
    label = "last" if label == "live" else "f25"
    way, found = WAYS[name], {}
    for start, updates in zip(way[::2], way[1::2], strict=True):
        found |= losses_of_seeds(lines, rf"{start}[-=]", updates.get(multiple), label)
    return found


def test_ramps():
    """By hand, from the lines of the records."""
    lines, p_values = read_lines("batch_ramps"), {}
    rows = read_table("batches.md")
    for one, other, *cells in rows:
        for multiple, cell in zip((2, 4), cells, strict=True):
            if cell:
                ours, theirs = (losses_of_way(lines, x, multiple) for x in (one, other))
                assert ours.keys() == theirs.keys() == {str(x) for x in range(11, 19)}
                each = np.stack([ours[x] - theirs[x] for x in sorted(ours)])
                check_difference(cell, each)
                p_values[one, other, multiple] = stats.ttest_1samp(each.mean(axis=1), 0).pvalue
    page = read_page("batches.md")
    small = sum(p < 0.05 for p in p_values.values())
    left = f"Of {len(p_values)} intervals {small} leave out zero, and Holm's correction leaves "
    assert f"{left}{len(holm(p_values))};" in page


def test_a_cosine_with_64_windows():
    """Prediction 6 of the ramps, of the two seeds and the packages that select."""
    lines, page = read_lines("batch_peaks"), read_page("batches.md")
    means = {
        (name, peak): losses_of_runs(lines, f"{name}-horizon=4x-peak={peak}-", step, "last").mean()
        for name, step in (("cosine-64", 961), ("cosine", 1920))
        for peak in {"cosine-64": (0.0085, 0.017, 0.034), "cosine": (0.006, 0.012, 0.024)}[name]
    }
    of_64 = {peak: loss for (name, peak), loss in means.items() if name == "cosine-64"}
    least = min(loss for (name, _), loss in means.items() if name == "cosine")
    assert min(of_64, key=of_64.get) == 0.034
    square, slope, level = np.polyfit(np.log2([*of_64]), [*of_64.values()], 2)
    vertex = level - slope**2 / (4 * square)
    assert f"is {of_64[0.034] - least:.3f} above the one with 32" in page
    assert f"its least value {vertex - least:.3f} above" in page


def losses_of_runs(lines, pattern, step, label="f25"):
    """The losses [seeds, sets] of the runs with such names."""
    found = losses_of_seeds(lines, pattern, step, label)
    return np.stack([found[seed] for seed in sorted(found)])


def test_what_the_text_says_of_branches():
    lines, page = read_lines("batches"), read_page("batches.md")
    found, noises = {}, {}
    for at, of_trunk, of_twice, of_four in (("1x", 720, 600, 540), ("4x", 2880, 2400, 2160)):
        twice = rf"kept-seed=\d+-batch_growth=64_at_{at}", of_twice
        lower = rf"rate_at_{at}-seed=\d+-peak=0.00785", of_trunk
        root, scaled = (
            losses_of_runs(lines, rf"{x}-seed=\d+-batch_growth=128_at_{at}", of_four)
            for x in ("root", "scaled")
        )
        live, averaged = (
            [
                losses_of_runs(lines, *x, label).mean(axis=1)
                for x in ((r"trunk", of_trunk), twice, lower)
            ]
            for label in ("last", "f25")
        )
        trunk, *others = np.subtract(live, averaged)
        noises[at] = [np.mean(x / trunk) for x in others]
        rate = losses_of_runs(lines, *twice) - losses_of_runs(lines, *lower)
        found[at] = [f"{x.mean():+.3f} ± {half_width_of(x):.3f}" for x in (rate, scaled - root)]
    assert f"is {found['1x'][0]} at 1.5x and {found['4x'][0]} at 6x" in page
    assert f"{found['1x'][1][1:]} and {found['4x'][1][1:]} more" in page
    (a, b), (c, d) = noises.values()
    noise = f"{a:.2f} and {c:.2f} of the trunk's with twice the batch, {b:.2f} and {d:.2f} with"
    assert noise in page


def test_what_the_text_says_of_ramps():
    """Other averages, and other methods of the leaderboard minus the same trunk."""
    lines, page = read_lines("batch_ramps"), read_page("batches.md")
    other = []
    for label in ("f12.5", "f50"):
        trunk = losses_of_runs(lines, "constant-peak", 1920, label)
        other.append((losses_of_runs(lines, "ramp", 1180, label) - trunk).mean())
        each = losses_of_runs(lines, "ramp", 1180, label) - losses_of_runs(
            lines, "falling", 1920, label
        )
        assert each.shape == (8, 32)
        assert abs(each.mean()) + half_width_of(each) < 0.01
    assert "is {:.3f} and {:.3f} through f12.5 and f50".format(*other) in page
    ramp, start = (losses_of_way(lines, x, 4) for x in ("ramp", "64 from the start"))
    at_2x = np.mean([*losses_of_way(lines, "ramp", 2).values()])
    mean, end = (np.mean([*x.values()]) for x in (start, ramp))
    assert f"at {mean:.3f}, after" in page
    assert f"between {at_2x:.3f} (2x) and {end:.3f} (4x)" in page
    early = (
        losses_of_runs(lines, "constant-64", step, "f25")
        - losses_of_runs(lines, "constant-peak", of_trunk, "f25")
        for step, of_trunk in ((241, 480), (481, 960))
    )
    assert "they are {:.3f} and {:.3f} above".format(*(x.mean() for x in early)) in page
    lines = read_lines("leaderboard")
    trunk = losses_of_method(lines, "AdamW, constant, f25", 4)
    for method, name in (("power", "`power` is"), ("constant 48", "warmup of 48")):
        base = losses_of_method(lines, f"AdamW, {method}, f25", 4)
        each = np.stack([ramp[x] - base[x] for x in sorted(ramp)])
        assert f"{name} {each.mean():.3f} ± {half_width_of(each):.3f}" in page
    for method, name in {
        "AdamW, constant 48, f25": "warmup of 48",
        "Muon, constant, f25": "Muon",
        "AdamW, power, f25": "(`power`)",
        "PACE, constant, f25": "PACE",
        "schedule-free AdamW, constant, x": "schedule-free AdamW",
    }.items():
        losses = losses_of_method(lines, method, 4)
        assert f"{name} {np.mean([losses[k] - trunk[k] for k in trunk]):.3f}" in page


@pytest.mark.parametrize(
    ("command", "study", "name", "options"),
    [
        (larger_batches, "batches", "batches.md", []),
        (best_peaks, "batch_peaks", "batches.md", []),
        (
            differences,
            "batch_ramps",
            "batches.md",
            ["--base=constant-peak=0.0111", "--average=f25"],
        ),
        (differences, "decay_seeds", "decay.md", ["--base=constant-g1"]),
        (
            fine_tunes,
            "finetunes",
            "finetunes.md",
            ["--base=wsd", "--sets", "report-english", "report-python"],
        ),
    ],
)
def test_blocks_are_what_the_commands_write(command, study, name, options, tmp_path):
    page, text = tmp_path / "page.md", (EVIDENCE / name).read_text("utf-8")
    page.write_text(text, "utf-8")
    assert run_command(command, [f"--study={EVIDENCE / study}", f"--page={page}", *options]) == 0
    assert page.read_text("utf-8") == text


# Ramps of the batch in linear regression


def read_ramps(name):
    return json.loads((EVIDENCE / "ramps" / f"{name}.json").read_text("utf-8"))


def regrets_of(run, pairs):
    return np.array(run["risks"]) / pairs - 1


def mean_of(regrets):
    return float(np.expm1(np.log1p(regrets).mean()))


def best_of(runs, name, pairs):
    """The run of a name with the least mean regret."""
    named = (run for run in runs if run["name"] == name)
    return min(named, key=lambda run: mean_of(regrets_of(run, pairs)))


@pytest.mark.parametrize(("number", "prefix"), [(1, ""), (2, "long_")])
def test_regrets_of_ramps(number, prefix):
    for spectrum, noise, *cells in read_table("ramps.md", number):
        record = read_ramps(prefix + spectrum.replace(", ", "_"))
        (level,) = (x for x in record["noises"] if x["noise"] == float(noise))
        for name, cell in zip(
            ("constant", "rate falls", "both", "batch grows"), cells, strict=True
        ):
            run = best_of(level["runs"], name, level["pair"])
            regrets = regrets_of(run, level["pair"])
            expected = f"{mean_of(regrets):+.0%}, {regrets[-1]:+.0%}"
            expected += f", {run['updates'][-1]:,}" * (name in ("both", "batch grows"))
            if run["growth"]:
                expected += f" (G {run['growth']:.3g}, alpha {run['alpha']:g})"
            assert cell == expected, (spectrum, noise, name)


def power_of(lengths, values):
    """The power of n that values follow from 10^4 samples on."""
    late = np.array(lengths) >= 10_000
    return np.polyfit(np.log(lengths)[late], np.log(values)[late], 1)[0]


def largest_free(costs, multiples):
    """The largest multiple up to which each costs at most 2%; a cost is null where it diverged."""
    costly = [k for k, x in enumerate(costs) if x is None or x > 0.02]
    return multiples[min(costly, default=len(multiples)) - 1]


def test_constant_batches_of_ramps():
    for spectrum, noise, *cells in read_table("ramps.md", 3):
        record = read_ramps("batches_" + spectrum.replace(", ", "_"))
        (level,) = (x for x in record["noises"] if x["noise"] == float(noise))
        expected = []
        for length in (10**3, 10**4, 10**5, 10**6, 10**7):
            if length not in record["samples"]:
                expected.append("")
                continue
            at = record["samples"].index(length)
            risks = [x[at] for x in level["risks"]]
            costs = [None if x is None else x / risks[0] - 1 for x in risks]
            expected.append(str(largest_free(costs, record["batches"])))
        assert cells == expected, (spectrum, noise)


def test_branches_of_ramps():
    for spectrum, noise, rate, *cells in read_table("ramps.md", 4):
        a, b = map(float, spectrum.split(", "))
        name = spectrum.replace(", ", "_")
        record, ramps = read_ramps(f"branches_{name}_{noise}"), read_ramps(name)
        free = {
            rate: [largest_free(x, record["multiples"]) for x in costs]
            for rate, costs in record["excess"].items()
        }
        scaled, doubled = free["times the multiple"], record["doubled"]
        scales = [power_of(record["lengths"], x) for x in record["noise_scales"].values()]
        by_trial = doubled["by trial"]
        batch = power_of(by_trial["lengths"], by_trial["sizes"])
        (level,) = (x for x in ramps["noises"] if x["noise"] == float(noise))
        late = [n for n in by_trial["samples"] if n >= 10_000]
        pairs = np.array([level["pair"][ramps["samples"].index(n)] for n in late])
        regrets = []
        for rule in ("by trial", "never", "always"):
            of_rule = doubled[rule]
            risks = [of_rule["risks"]["f6.25"][of_rule["samples"].index(n)] for n in late]
            regrets.append(mean_of(np.array(risks) / pairs - 1))
        grown = (run for run in level["runs"] if run["name"] == "batch grows")
        late_risks = (np.array(run["risks"])[-len(late) :] for run in grown)
        regrets.append(min(mean_of(risks / pairs - 1) for risks in late_risks))
        assert rate == f"{record['multiplier']:g}"
        assert cells == [
            ", ".join(str(free["kept"][k]) for k in (0, 3, 6, 9)),
            f"{min(scaled)} to {max(scaled)}",
            f"{record['noise_scales']['last'][-1]:,.0f}; " + ", ".join(f"{x:.2f}" for x in scales),
            f"{by_trial['sizes'][-1]}, {batch:.2f}",
            f"{max(1 - a / b, 0):.2f}",
            ", ".join(f"{x:+.0%}" for x in regrets),
        ], (spectrum, noise)


def test_outcomes_of_predictions_at_one_rate_for_all():
    """Items 9 to 12 under "What came of them" of `ramps.md`, at the rate of 0.2/tr(H)."""
    doublings, powers, above = {}, {}, {}
    for file in sorted((EVIDENCE / "ramps").glob("fixed_rate_*.json")):
        record = json.loads(file.read_text("utf-8"))
        spectrum, noise = file.stem.removeprefix("fixed_rate_").rsplit("_", 1)
        (level,) = (x for x in read_ramps(spectrum)["noises"] if x["noise"] == float(noise))
        key = spectrum.replace("_", ", "), noise
        scaled, kept = (
            [largest_free(x, record["multiples"]) for x in record["excess"][rate]]
            for rate in ("times the multiple", "kept")
        )
        doublings[key] = np.log2(max(scaled) / min(scaled))
        at = dict(zip(record["lengths"], kept, strict=True))
        if key == ("1.1, 2.2", "0.1"):
            assert (at[2000], at[32_000]) == (1, 32)
        elif key == ("1.5, 2", "0.1"):
            assert (at[16_000], at[512_000]) == (1, 8)
        else:
            assert min(kept) >= 8 or max(kept) == 1, key
        live, averaged = (power_of(record["lengths"], x) for x in record["noise_scales"].values())
        doubled = record["doubled"]
        powers[key] = averaged
        a, b = map(float, key[0].split(", "))
        assert abs(live) < 0.01, key
        assert abs(power_of(doubled["lengths"], doubled["sizes"]) - max(1 - a / b, 0)) < 0.15, key
        late = [k for k, n in enumerate(doubled["samples"]) if n >= 10_000]
        risks = np.array([doubled["risks"]["f25"][k] for k in late])
        grown = [np.array(x["risks"]) for x in level["runs"] if x["name"] == "batch grows"]
        pairs = np.array(level["pair"])[-len(late) :]
        best = min(mean_of(x[-len(late) :] / pairs - 1) for x in grown)
        above[key] = 100 * (mean_of(risks / pairs - 1) - best)
    assert {x: k for x, k in doublings.items() if x[0] == "1.1, 2.2"} == {
        ("1.1, 2.2", "0.1"): 1,
        ("1.1, 2.2", "1"): 2,
    }
    assert max(k for x, k in doublings.items() if x[0] != "1.1, 2.2") == 1
    assert {f"{x:.2f}" for key, x in powers.items() if key[0] != "1.1, 2.2"} == {"0.95", "0.96"}
    assert all(abs(x - 0.835) < 0.01 for key, x in powers.items() if key[0] == "1.1, 2.2")
    assert above.pop(("1.1, 2.2", "0.1")) < 10
    assert (round(min(above.values())), round(max(above.values()))) == (20, 147)


# Fine-tunes


STARTS = ("constant", "constant_f25", "wsd", "cosine")


def losses_of_tuned(lines, start, length, peak, prefix, step):
    """The losses [seeds, sets] on the sets that a prefix names."""
    names = [f"{start}-horizon={length}-peak={peak}-seed={seed}" for seed in range(11, 16)]
    rows = [lines[name, step, "last"] for name in names]
    return np.array([[row[x] for x in sorted(row) if x.startswith(prefix)] for row in rows])


def test_fine_tunes():
    """By hand, from the lines of the records."""
    lines, best = read_lines("finetunes"), {}
    steps = {"0.25x": 120, "0.0625x": 30}
    for start, (length, step) in itertools.product(STARTS, steps.items()):
        means = {
            peak: losses_of_tuned(lines, start, length, peak, "selection", step).mean()
            for peak in ("0.002", "0.004", "0.008", "0.016", "0.032")
        }
        least = min(means.values())
        best[start, length] = next(x for x, mean in means.items() if mean <= least + 0.001)
    rows = read_table("finetunes.md", 0, "fine-tunes")
    assert [(row[0], row[1]) for row in rows] == [*itertools.product(("0x", *steps), STARTS)]
    for length, start, peak, _, *cells, _ in rows:
        of, step = (length, steps[length]) if length != "0x" else ("0.25x", 0)
        assert peak in (best[start, of], "-")
        for cell, prefix, count in zip(
            cells, ("report-english", "report-python"), (8, 32), strict=True
        ):
            ours, base = (
                losses_of_tuned(lines, x, of, best[x, of], prefix, step) for x in (start, "wsd")
            )
            assert ours.shape == (5, count)
            if start == "wsd":
                assert cell == "0"
            else:
                check_difference(cell, ours - base)


def test_what_the_text_says_of_fine_tunes():
    """Live weights minus f25, what is forgotten, and that neither learns as much as WSD."""
    lines, page = read_lines("finetunes"), read_page("finetunes.md")

    def losses(start, length, peak, step, prefix="report-english"):
        return losses_of_tuned(lines, start, length, peak, prefix, step)

    short, long = ("0.0625x", 30), ("0.25x", 120)
    for prefix in ("report-english", "report-python"):
        before, *after = (
            losses("constant", length, peak, step, prefix)
            - losses("constant_f25", length, other, step, prefix)
            for length, peak, other, step in (
                ("0.25x", "0.008", "0.008", 0),
                (short[0], "0.008", "0.004", short[1]),
                (long[0], "0.008", "0.008", long[1]),
            )
        )
        one, other = (f"{x.mean():.3f} ± {half_width_of(x):.3f}" for x in after)
        found = re.search(rf"{before.mean():.2f}(?: before the tuning)?, {one} ", page)
        assert found
        assert f"and {other}" in page[found.end() : found.end() + 50]
    rises = (
        losses(start, *long[:1], "0.008", step, "report-python").mean()
        for start in ("cosine", "wsd", "constant_f25")
        for step in (long[1], 0)
    )
    cosine, wsd, f25 = (f"{next(rises) - next(rises):.3f}" for _ in range(3))
    assert f"rose by {cosine}, that of WSD by {wsd} and that of f25 by {f25}" in page
    level = losses("wsd", "0.25x", "0.008", 120).mean()
    peaks = ("0.002", "0.004", "0.008", "0.016", "0.032")
    for start in ("constant", "constant_f25"):
        assert min(losses(start, "0.25x", x, 120).mean() for x in peaks) > level


# Weight decay

DECAYS = {
    ("AdamW", "0.1"): "constant-peak",
    ("AdamW", "0.045"): "constant-weight_decay=0.045",
    ("AdamW", "none"): "constant-weight_decay=0-",
    ("AdamW", "g1"): "constant-g1",
    ("AdamW", "g3"): "constant-g3",
    ("AdamW", "g5.8"): "constant-g5.8",
    ("Muon", "0.1"): "muon-constant-peak",
    ("Muon", "0.045"): "muon-constant-weight_decay=0.045",
    ("Muon", "none"): "muon-constant-weight_decay=0-",
    ("Muon", "g1"): "muon-constant-g1",
}


def test_weight_decays():
    """By hand, from the lines of the records."""
    lines = read_lines("decay_seeds")
    rows = read_table("decay.md")
    fixed = ("0.1", "0.045", "none")
    assert {tuple(x[:3]) for x in rows} >= {(y, "g1", z) for y in ("AdamW", "Muon") for z in fixed}
    for optimizer, one, other, *cells in rows:
        for multiple, cell in zip((1, 2, 4), cells, strict=True):
            ours, base = (
                losses_of_seeds(lines, DECAYS[optimizer, x], 480 * multiple) for x in (one, other)
            )
            seeds = sorted(ours.keys() & base.keys())
            assert len(seeds) == {"g3": 3 * (multiple < 4), "g5.8": 3 * (multiple < 4)}.get(one, 8)
            if cell:
                check_difference(cell, np.stack([ours[x] - base[x] for x in seeds]))
