"""Records of a study that nobody trained: the losses are a formula that tests can compute again."""

import json
import math
import shutil

from ml_collections import ConfigDict

from anytime_jax.checkpoints.records import RecordWriter
from anytime_jax.config.clock import Clock
from anytime_jax.study import plan
from anytime_jax.study.plan import branches, chain, grid, runs, values
from configs import quickstart

FACTORS = {"last": 0.0, "f6.25": 6.25, "f12.5": 12.5, "f25": 25.0, "f50": 50.0, "f100": 100.0}


PEAKS = (3e-3, 1e-2, 3e-2)
HORIZONS = (1, 2, 4, 8)
CLOCK = Clock(32, 128, 480 * 32 * 128)  # 1x is 480 updates


def study():
    """Every kind of run that a report knows, with a second seed for the peaks of 1e-2."""
    peaks, middle = values("schedule.peak", *PEAKS), values("schedule.peak", 1e-2)
    horizons = values("schedule.horizon", *(f"{m}x" for m in HORIZONS))
    alphas = [values("schedule.alpha", alpha) for alpha in (480.0, 1920.0)]
    second = plan.paired(values("seed", 1), values("data.seed", 1))
    cosine = _given(kind="cosine", peak=0.0, horizon="", floor=0.1)
    cosine.stop = "horizon"
    inverse_sqrt = _given(kind="inverse_sqrt", peak=0.0, alpha=0.0)
    constant = _given(kind="constant", peak=0.0)
    trunks = runs("constant", constant, chain(peaks, grid(middle, second)), "made")
    roots = chain(grid(peaks, alphas[1]), grid(middle, alphas[0]))
    roots = chain(roots, grid(middle, alphas[1], second))
    floors = grid(middle, horizons[:3], values("schedule.floor", 0.0))
    listed = chain(
        runs("cosine", cosine, grid(peaks, horizons), "made"),
        runs("cosine", cosine, grid(middle, horizons, second), "made"),
        trunks,
        branches("wsd", trunks, HORIZONS),
        runs("inverse_sqrt", inverse_sqrt, roots, "made"),
        runs("cosine", cosine, floors, "made"),
        branches("wsd_to_0", trunks[1:2], HORIZONS, floor=0.0),
    )
    return plan.Study("made", "made", listed, "made for tests.")


def _given(**schedule):
    given = quickstart.get_config()
    given.chinchilla_tokens = CLOCK.chinchilla_tokens
    given.stop = "8x"
    given.schedule = ConfigDict({**schedule, "warmup": "192 steps", "warmup_init": 0.1})
    return given


def loss(run, multiple, label, seed=0):
    """A bowl in the logarithm of the peak, whose bottom moves with the budget."""
    schedule = run.settings["schedule"]
    kind, peak = schedule["kind"], schedule["peak"]
    base = 1.7 + 0.9 * multiple**-0.35
    best = -4.5 - 0.12 * math.log2(multiple)
    bowl = 0.02 * (math.log(peak) - best) ** 2
    live = {"constant": 0.09, "inverse_sqrt": 0.06, "wsd": 0.004}.get(kind, 0.02)
    if kind == "inverse_sqrt":
        bowl += 0.004 * math.log2(schedule["alpha"] / 960.0) ** 2
    if label != "last":
        live = 0.1 * live + 0.003 * abs(math.log2(FACTORS[label] / 25.0))
    if schedule.get("floor") == 0.0:
        live -= 0.006
    early = 0.0
    if kind == "cosine":
        horizon = float(schedule["horizon"].rstrip("x"))
        early = 0.05 * (1 - multiple / horizon)
    jitter = 0.002 * math.sin(7 * multiple + 13 * seed + len(kind) + math.log(peak))
    return base + bowl + live + early + jitter


def write_run(run, folder, until=None):
    """The records of one run, with an evaluation at every doubling up to its stop."""
    settings = run.settings
    begin = 0
    if settings["branch"]["from_run"]:
        stop = settings["branch"]["multiple"]
        begin = CLOCK.branch_step(CLOCK.steps(f"{stop}x"))
    elif settings["stop"] == "horizon":
        stop = float(settings["schedule"]["horizon"].rstrip("x"))
    else:
        stop = float(settings["stop"].rstrip("x"))
    stop = min(stop, until or stop)
    folder.mkdir(parents=True, exist_ok=True)
    identity = {"schedule.peak": settings["schedule"]["peak"], "seed": settings["seed"]}
    identity["data.fingerprint"] = "abc"
    about = {"name": run.name, "identity": identity, "config": settings}
    if begin:
        trunk = folder.absolute().parent / settings["branch"]["from_run"].rpartition("/")[2]
        about["branch"] = {"from_run": str(trunk), "step": begin}
    (folder / "run.json").write_text(json.dumps(about))
    writer = RecordWriter(folder, begin, {"version": "0.1.0"})
    multiple = 1.0
    while multiple <= stop:
        step = CLOCK.steps(f"{multiple}x")
        if step > begin:
            values = {f"eval/{k}/loss": loss(run, multiple, k, settings["seed"]) for k in FACTORS}
            trained = {"train/loss": loss(run, multiple, "last"), "lr": 1e-3, "tokens_per_s": 4e4}
            writer.write(step, CLOCK.tokens(step), {**values, **trained})
        multiple *= 2
    writer.close()


def write_study(root, leave_out=(), planned=None):
    """The study's directory with records of all runs but some; returns it as it is read back."""
    if root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    planned = planned or study()
    plan.write(planned, root)
    for run in planned.runs:
        if run.name not in leave_out:
            write_run(run, root / run.name)
    return plan.load(root)
