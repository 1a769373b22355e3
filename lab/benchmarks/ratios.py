"""Is this tree slower than the one that was accepted last? Its parts, in units of a product.

    make bench
    make bench OPTIONS=--accept

Times the update of a model, a cached start of the quickstart, the reading of batches, a save, and
the exact risk of the theory. A large matrix product is timed before and after each: the ratio of a
part is its time over their mean, so that neither the speed of a shared machine nor what else runs
on it moves the ratio much. The update is compared with a product by JAX on the device, and all else
with one by NumPy on the host.

Everything is timed in several processes. A part has moved if its median differs by more than 5%
from the accepted one and no process of either measured what one of the other did. `--accept` writes
this tree's ratios to `accepted_ratios.json`, which has those of each kind of machine.
"""

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytime_jax import schedules
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.corpus.builtin_source import BuiltinSource
from anytime_jax.corpus.preparation import prepare
from anytime_jax.data.dataset_info import DatasetInfo, load_dataset
from anytime_jax.data.prefetch import read_ahead
from anytime_jax.data.windows import Windows
from anytime_jax.distributed import sharding
from anytime_jax.distributed.jax_settings import configure
from anytime_jax.errors import RunError
from anytime_jax.training import step
from anytime_lab import theory
from benchmarks import checkpoint, gpu, harness, peak_rates, record, startup
from lab.benchmarks.train_step import make_update

ACCEPTED = Path(__file__).with_name("accepted_ratios.json")
PARTS = ("update", "cached start", "reading", "save", "theory")
LEAST_MOVE = 0.05
_LIMIT = 240.0  # seconds of a process

Timer = Callable[[], float]


def main(argv: Sequence[str]) -> int:
    parser = harness.make_parser("lab.benchmarks.ratios", __doc__, rounds=3)
    add = parser.add_argument
    add("--model", help=f"of the update: {harness.MODEL_HELP} (default: small, on a GPU 150m)")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    add("--processes", type=positive_int, default=3, help="that measure, in turn (default 3)")
    add("--accept", action="store_true", help="accept this tree's ratios")
    add("--once", action="store_true", help="measure in this process, and compare nothing")
    return record.run(parser, argv, _measure)


def _measure(options: argparse.Namespace) -> record.Result:
    if options.once:
        return _measure_once(options)
    if options.model:
        harness.config_file(options.model)  # before processes are started
    found: dict[str, list[float]] = {}
    machine: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(options.processes):
            command = [sys.executable, "-m", "lab.benchmarks.ratios", "--once"]
            command += [f"--rounds={options.rounds}"]
            command += [f"--model={options.model}"] if options.model else []
            command += ["--parts", *options.parts]
            outcome = gpu.run_part(command, Path(scratch) / f"{i}.json", _LIMIT)
            if outcome.failure:
                raise RunError(f"process {i} {outcome.failure}")
            machine = outcome.record["machine"]
            for row in outcome.record["rows"]:
                of_model = (
                    f" of {options.model}" if options.model and row["what"] == "update" else ""
                )
                found.setdefault(row["what"] + of_model, []).append(row["ratio"])
    kind = machine_kind(machine)
    accepted = json.loads(ACCEPTED.read_text(encoding="utf-8"))
    before = accepted.get(kind, {"ratios": {}})
    rows = compare(found, before["ratios"])
    if options.accept:
        accepted[kind] = {"date": time.strftime("%Y-%m-%d"), "jax": jax.__version__}
        accepted[kind] |= {"ratios": {**before["ratios"], **found}}
        record.write(accepted, ACCEPTED)
        print(f"accepted: {ACCEPTED}")
    of = "no other, as none is accepted for such a machine (--accept)"
    if before["ratios"]:
        of = f"those accepted on {before['date']} (jax {before['jax']})"
    title = f"{kind}: times in units of a matrix product, beside {of}"
    return record.Result(title, rows, {"ratios": found})


def machine_kind(machine: Mapping[str, Any]) -> str:
    """Returns the name of a machine's kind, from `record.describe_machine`."""
    device = "" if machine["platform"] == "cpu" else f"{machine['devices']}, "
    return f"{device}{machine['cpu']}, {machine['cores']} cores"


def compare(
    found: Mapping[str, Sequence[float]], accepted: Mapping[str, Sequence[float]]
) -> list[record.Row]:
    """Returns a row for each part: its ratios, the accepted ones, and whether it has moved.

    Both arguments have the ratios of all processes by part; `accepted` may lack parts.
    """
    rows = []
    for part, now in found.items():
        before = accepted.get(part, ())
        change = statistics.median(now) / statistics.median(before) - 1 if before else None
        apart = bool(before) and (max(now) < min(before) or min(now) > max(before))
        moved = None if change is None else "no"
        if change is not None and apart and abs(change) > LEAST_MOVE:
            moved = "slower" if change > 0 else "faster"
        rows.append(
            {
                "what": part,
                "ratio": statistics.median(now),
                "range": _range(now),
                "accepted": statistics.median(before) if before else None,
                "accepted range": _range(before) if before else None,
                "change": f"{change:+.1%}" if change is not None else None,
                "moved": moved,
            }
        )
    return rows


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4g} to {max(values):.4g}"


def _measure_once(options: argparse.Namespace) -> record.Result:
    ratios: dict[str, list[float]] = {name: [] for name in options.parts}
    with tempfile.TemporaryDirectory() as scratch:
        timers = {name: _make_timer(name, options.model, Path(scratch)) for name in options.parts}
        for i, (name, (timer, product)) in itertools.product(
            range(options.rounds + 1), timers.items()
        ):
            before, seconds, after = product(), timer(), product()
            if i:  # the first round is a warm-up
                ratios[name].append(2 * seconds / (before + after))
    rows = [{"what": name, "ratio": statistics.median(x)} for name, x in ratios.items()]
    return record.Result("One process", rows, {"ratios": ratios})


def _make_timer(part: str, model: str | None, scratch: Path) -> tuple[Timer, Timer]:
    """Returns the timers of a part and of the product that it is compared with."""
    match part:
        case "update":
            return _update_timers(model)
        case "cached start":
            return _start_timer(scratch), _host_product
        case "reading":
            return _reading_timer(scratch), _host_product
        case "save":
            return _save_timer(scratch), _host_product
    return _theory_seconds, _host_product


def _update_timers(model: str | None) -> tuple[Timer, Timer]:
    on_gpu = jax.default_backend() == "gpu"
    config = harness.load_config(model or ("150m" if on_gpu else "small"))
    update = make_update(config, sharding.make_mesh(config.mesh))
    tasks = peak_rates.make_tasks(config)
    product = next(task for name, task in tasks.items() if name.startswith("large"))
    return (
        functools.partial(harness.seconds_per_call, update.function, 4),
        functools.partial(harness.seconds_per_call, product.function, 50 if on_gpu else 1),
    )


def _host_product() -> float:
    x = np.ones((1024, 1024), np.float32)
    return harness.seconds_per_call(lambda: x @ x, 4)


def _prepare(scratch: Path) -> DatasetInfo:
    """Returns a small dataset, which is prepared once."""
    path = scratch / "data"
    if not path.exists():
        prepare(BuiltinSource(3.0), path, vocabulary=512)
    return load_dataset(path)


def _start_timer(scratch: Path) -> Timer:
    """Returns a timer of starts; the first fills the cache of compiled programs."""
    numbers, info = itertools.count(), _prepare(scratch)
    command = harness.train_command("quickstart", info.path, {"stop": "1 steps"})

    def start() -> float:
        run_dir = scratch / f"run-{next(numbers)}"
        flags = [f"--config.run_dir={run_dir}", "--config.log.trackers=()"]
        return startup.time_start([*command, *flags], scratch / "cache")["seconds"]

    return start


def _reading_timer(scratch: Path) -> Timer:
    info = _prepare(scratch)

    def read() -> float:
        windows = Windows.from_dataset(info, "train", length=256, seed=0, repeat=True)
        start = time.perf_counter()
        batches = read_ahead(windows.batch, 0, itertools.repeat(64))
        for _ in itertools.islice(batches, 200):
            pass
        return time.perf_counter() - start

    return read


def _save_timer(scratch: Path) -> Timer:
    """Returns a timer of saves of 13 million numbers of noise, until they are on the disk."""
    shape = {"width": 256, "mlp_width": 1024, "layers": 2, "layer_loop": "scan"}
    config = harness.load_config("small", model=shape)
    program = step.make_program(config, sharding.make_mesh(config.mesh))
    state = checkpoint.add_noise(program.init())
    start_save, wait, _ = checkpoint.open_manager(str(scratch / "saves"), config)
    numbers = itertools.count(1)

    def save() -> float:
        numbered = state._replace(step=jnp.full_like(state.step, next(numbers)))
        start = time.perf_counter()
        start_save(numbered)
        wait()
        return time.perf_counter() - start

    return save


def _theory_seconds() -> float:
    problem = theory.Problem(a=1.5, b=3.0)
    runs = [schedules.Power(c / problem.trace, gamma=0.5) for c in np.geomspace(0.25, 1.0, 8)]
    start = time.perf_counter()
    theory.excess_risk(problem, runs, [6.25, 25.0, 100.0], checkpoints=[300, 1_000])
    return time.perf_counter() - start


if __name__ == "__main__":
    configure()
    sys.exit(main(sys.argv[1:]))
