"""The tables by which the pages of evidence begin, recomputed from the packed records."""

import json
import re

import numpy as np
import pytest
from lab_paths import EVIDENCE
from scipy import optimize, stats

from anytime_lab.study import study_files
from anytime_lab.study.results import COSINE, Results
from anytime_lab.study.selection import best_at_each, closest, gap_at, losses_by_seed
from anytime_lab.weight_decay_regrets import decay_of

pytestmark = pytest.mark.slow


def read_results(name):
    with study_files.open_study(EVIDENCE / name) as study:
        return Results(study)


def read_table(page, number=0):
    """The rows of a table of a page, of the first one by default."""
    text = (EVIDENCE / page).read_text("utf-8")
    lines = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)[number].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def family_of(results, optimizer, kind):
    """The curves of the seed that selects, of an optimizer's class and a kind of schedule."""
    return next(
        curves
        for curves in results.families(kind)
        if type(results.config_of(curves[0]).optimizer).__name__ == optimizer
    )


def cosines_of(results, optimizer, label):
    curves = [x.read_through(label) for x in family_of(results, optimizer, COSINE)]
    return best_at_each(curves, results.multiples)


def true_difference_found(stderr, seeds, power=0.8):
    """The true difference that a two-sided t test at 5% finds with this probability."""
    edge = stats.t.ppf(0.975, seeds - 1)
    found = optimize.brentq(lambda x: stats.nct.sf(edge, seeds - 1, x) - power, 0.1, 20)
    return found * stderr


def power(difference, stderr, seeds):
    """The probability that a two-sided t test at 5% finds a true difference."""
    edge, shift = stats.t.ppf(0.975, seeds - 1), difference / stderr
    found = stats.nct.sf(edge, seeds - 1, shift) + stats.nct.cdf(-edge, seeds - 1, shift)
    return float(found)


def holm(p_values):
    """What Holm's correction at 5% leaves, the least p first."""
    left = []
    for number, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > 0.05 / (len(p_values) - number):
            break
        left.append((*name, f"{p:.4f}"))
    return left


def test_differences_of_the_leaderboard():
    results = read_results("leaderboard")
    p_values, powers = {}, []
    reference = cosines_of(results, "AdamW", "last")
    classes = {"schedule-free AdamW": "ScheduleFreeAdamW", "PACE": "Pace"}
    for one_run, cosine, *cells, found in read_table("leaderboard.md"):
        name, label = one_run.split(", ")
        family = family_of(results, classes.get(name, name), "constant")
        curve = closest([x.read_through(label) for x in family], reference, summarize=max)
        of_cosine, of_label = cosine.replace("live", "last").split(", ")
        cosines = cosines_of(results, of_cosine, of_label)
        gaps = [gap_at(results, curve, m, cosines) for m in results.multiples]
        assert cells == [f"{gap.mean:+.3f} ± {gap.half_width:.3f}" for gap in gaps], one_run
        assert {gap.reported_seeds for gap in gaps} == {4}
        expected = [f"{true_difference_found(gap.stderr, 4):.3f}" for gap in gaps]
        assert found == ", ".join(expected), (one_run, cosine)
        for m, gap in zip(results.multiples, gaps, strict=True):
            p = 2 * stats.t.sf(abs(gap.mean / gap.stderr), 3)
            p_values[one_run, cosine, m] = float(p)
            powers.append(power(0.01, gap.stderr, 4))
    page = " ".join((EVIDENCE / "leaderboard.md").read_text("utf-8").split())
    assert f"There are {len(p_values)} comparisons.** Seven intervals" in page
    assert sum(p < 0.05 for p in p_values.values()) == 7
    assert f"a probability of {100 * min(powers):.0f} to {100 * max(powers):.0f}%" in page
    assert holm(p_values) == [
        ("Muon, f25", "Muon, f25", 1, "0.0012"),
        ("Muon, f25", "Muon, live", 1, "0.0014"),
    ]


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


def test_differences_of_each_seed_of_the_decays():
    results = read_results("decays")
    family = [x for x in results.all_curves if x.kind == "constant" and x.settings["peak"] < 0.009]
    family = [x for x in family if type(results.config_of(x).optimizer).__name__ == "AdamW"]
    losses = {
        (decay_of(results, x), m): losses_by_seed(results, x, m)
        for x in family
        for m in results.multiples
        if x.seed == results.runs[0].seed
    }
    seeds = {"1": (1, 1), "2": (2, 2), "the one that selects": results.runs[0].seed}
    for decay, seed, *cells in read_table("decay.md"):
        of = {
            m: (losses[0.0 if decay == "none" else decay, m], losses[0.135, m])
            for m in results.multiples
        }
        means = [
            float((ours[seeds[seed]] - base[seeds[seed]]).mean()) for ours, base in of.values()
        ]
        assert cells == [f"{x:+.3f}" for x in means], (decay, seed)


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
