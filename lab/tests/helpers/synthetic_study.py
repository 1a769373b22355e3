"""Synthetic study whose losses are a formula that tests can evaluate."""

import dataclasses
import math

from ml_collections import ConfigDict
from run_files import run_file

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.checkpoints.run_json import BranchPoint
from anytime_jax.config.clock import Clock
from anytime_lab.study import study_files
from anytime_lab.study.plan import Study, chain, decays, grid, paired, runs, values
from configs import quickstart

FACTORS = {"last": 0.0, "f6.25": 6.25, "f12.5": 12.5, "f25": 25.0, "f50": 50.0, "f100": 100.0}
PEAKS = (3e-3, 1e-2, 3e-2)
HORIZONS = (1, 2, 4, 8)
MULTIPLES = [1.0, 2.0, 4.0, 8.0]
CLOCK = Clock(32, 128, 480 * 32 * 128)  # 1x is 480 updates
ROOT = "synthetic"


def make_study():
    """Returns a study with every kind of run in a report, and two seeds for peaks of 1e-2."""
    peaks, middle = values("schedule.peak", *PEAKS), values("schedule.peak", 1e-2)
    horizons = values("schedule.horizon", *(f"{m}x" for m in HORIZONS))
    short, long = (values("schedule.alpha", alpha) for alpha in (480.0, 1920.0))
    second_seed = paired(values("seed", 1), values("data.seed", 1))
    cosine = _config(kind="cosine")
    cosine.stop = "horizon"
    inverse_sqrt, constant = _config(kind="inverse_sqrt"), _config(kind="constant")
    trunks = runs("constant", constant, chain(peaks, grid(middle, second_seed)), ROOT)
    roots = chain(grid(peaks, long), grid(middle, short), grid(middle, long, second_seed))
    floors = grid(middle, horizons[:3], values("schedule.floor", 0.0))
    study_runs = chain(
        runs("cosine", cosine, grid(peaks, horizons), ROOT),
        runs("cosine", cosine, grid(middle, horizons, second_seed), ROOT),
        trunks,
        decays("wsd", trunks, HORIZONS),
        runs("inverse_sqrt", inverse_sqrt, roots, ROOT),
        runs("cosine", cosine, floors, ROOT),
        decays("wsd_to_0", trunks[1:2], HORIZONS, floor=0.0),
    )
    return Study("synthetic", ROOT, study_runs, "synthetic losses.", published="150M")


def with_copy(name, change):
    """Returns the study with one more run: a changed copy of the run called `name`."""
    study = make_study()
    run = study.run(name)
    (copy,) = runs("copy", run.config, [change], ROOT)
    copy = dataclasses.replace(copy, trunk=run.trunk)
    return dataclasses.replace(study, runs=[*study.runs, copy])


def _config(**schedule):
    config = quickstart.get_config()
    config.chinchilla_tokens = CLOCK.chinchilla_tokens
    config.stop = "8x"
    config.schedule = ConfigDict({**schedule, "warmup": "192 steps"})
    return config


def loss(run, multiple, label, seed=0):
    """Returns the loss, a parabola in the log of the peak whose minimum moves with the budget."""
    settings = run.settings
    schedule, decay = settings["schedule"], settings.get("decay", {})
    kind, peak = "wsd" if decay else schedule["kind"], schedule["peak"]
    best = -4.5 - 0.12 * math.log2(multiple)
    total = 1.7 + 0.9 * multiple**-0.35 + 0.02 * (math.log(peak) - best) ** 2
    if kind == "inverse_sqrt":
        total += 0.004 * math.log2(schedule["alpha"] / 960.0) ** 2
    live = {"constant": 0.09, "inverse_sqrt": 0.06, "wsd": 0.004}.get(kind, 0.02)
    if label != "last":
        live = 0.1 * live + 0.003 * abs(math.log2(FACTORS[label] / 25.0))
    if (decay or schedule).get("floor") == 0.0:
        live -= 0.006
    if kind == "cosine":  # before the end of its horizon
        live += 0.05 * (1 - multiple / float(schedule["horizon"].rstrip("x")))
    noise = 0.002 * math.sin(7 * multiple + 13 * seed + len(kind) + math.log(peak))
    return total + live + noise


def set_losses(run, multiple, label, seed):
    """Returns the losses on validation sets by name, if the study has several."""
    del run, multiple, label, seed
    return {}


def position_losses(loss):
    """Returns the losses at ranges of positions by name, if they are recorded."""
    del loss
    return {}


def expected_loss(name, multiple, label, seed=0):
    """Returns the loss of the run called `name`."""
    return loss(make_study().run(name), multiple, label, seed)


def write_run(run, run_dir, until=None):
    """Writes the records of a run, with an evaluation at every doubling up to its stop."""
    config = run.build()
    clock = config.clock
    first, stop = config.branch_step or 0, clock.multiple(config.stop_rule.step)
    run_dir.mkdir(parents=True, exist_ok=True)
    identity = {"schedule.peak": config.learning_rate.peak, "seed": config.seed}
    identity["data.fingerprint"] = "abc"
    if config.initial_weights:
        identity["initial_weights"] = "a digest"
    paths = {"data": str(run_dir.absolute().parent / "data")}
    about = {"name": run.name, "identity": identity, "config": run.settings, "data_paths": paths}
    if first:
        trunk = run_dir.absolute().parent / config.branch.from_run.rpartition("/")[2]
        about["branch"] = BranchPoint(str(trunk), first)
    run_json.write_run_file(run_dir, run_file(**about))
    writer = RecordWriter(run_dir, first, {})
    for multiple in MULTIPLES:
        step = clock.step_at(f"{multiple}x")
        is_seen = config.branch_step is None or step > first
        if is_seen and multiple <= min(stop, until or stop):
            row = {f"eval/{k}/loss": loss(run, multiple, k, config.seed) for k in FACTORS}
            row |= {
                f"eval/{name}/{k}/loss": x
                for k in FACTORS
                for name, x in set_losses(run, multiple, k, config.seed).items()
            }
            for name, x in list(row.items()):
                row |= {f"{name}_{part}": y for part, y in position_losses(x).items()}
            row |= {"train/loss": loss(run, multiple, "last"), "lr": 1e-3, "tokens_per_s": 4e4}
            writer.write(step, clock.tokens(step), row)
    writer.close()


def write_study(root, leave_out=(), study=None):
    """Writes the plan and the records of all runs but some; returns the study with these paths."""
    study = dataclasses.replace(study or make_study(), root=str(root))
    study_files.write_plan(study)
    for run in study.runs:
        if run.name not in leave_out:
            write_run(run, root / run.name)
    with study_files.open_study(root) as written:
        return written
