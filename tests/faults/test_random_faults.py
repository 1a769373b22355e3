"""Random faults: of settings, options, calls, files, signals, streams, environment and storage.

    pytest tests/faults -m faults -s

After each, a command ends in time, with its result or with one line of error; no number is wrong,
and a run is completed with the bits of an unbroken one. ANYTIME_JAX_FAULTS is the number of faults,
ANYTIME_JAX_FAULT_SEED the seed, and ANYTIME_JAX_FAULT the number of a single one to repeat.
ANYTIME_JAX_FAULT_KIND is the only kind to make.
"""

import collections
import concurrent.futures
import os
import pathlib
import random
import shutil
import time

import pytest
from fault_kinds import KINDS
from fault_sandbox import Original, Sandbox
from forked_starts import Starts


def make_fault(number: int, seed: int, folder: pathlib.Path, original: Original, starts: Starts):
    """Makes one fault; returns its kind, description, problem if any, and how commands ended."""
    draw = random.Random(f"{seed}/{number}")
    wanted = os.environ.get("ANYTIME_JAX_FAULT_KIND")
    shares = {x: y for x, y in KINDS.items() if wanted in (None, x.__name__)}
    (kind,) = draw.choices(list(shares), list(shares.values()))
    box = Sandbox(folder / str(number), original, starts, draw)
    text, problem = "", ""
    try:
        text = kind(box)
    except Exception as error:  # a broken promise, or what else the fault brought about
        problem = f"{type(error).__name__}: {str(error)[-5000:]}"
    shutil.rmtree(box.folder, ignore_errors=True)
    return kind.__name__, text or box.description, problem, box.ended


def table(outcomes) -> list[str]:
    """Returns the outcomes by kind of fault, and their sum."""
    cells = "{:20} {:>6}  {:44} {:>9} {:>8}".format
    lines = [cells("kind", "faults", "commands by exit status", "slowest", "problems")]
    for kind in [*(kind.__name__ for kind in KINDS), "all"]:
        own = [x for x in outcomes if kind in (x[0], "all")]
        ended = [command for x in own for command in x[3]]
        statuses = collections.Counter(x.status for x in ended)
        text = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items()))
        slowest = max((x.seconds for x in ended), default=0.0)
        problems = sum(bool(x[2]) for x in own)
        lines.append(cells(kind, len(own), text, f"{slowest:.1f} s", problems))
    return lines


@pytest.mark.slow
@pytest.mark.faults
def test_random_faults_break_no_promise(tmp_path, capsys):
    count = int(os.environ.get("ANYTIME_JAX_FAULTS", "1000"))
    seed = int(os.environ.get("ANYTIME_JAX_FAULT_SEED", time.time_ns() % 10**6))
    single = os.environ.get("ANYTIME_JAX_FAULT")
    numbers = range(count) if single is None else [int(single)]
    began = time.monotonic()
    with capsys.disabled():
        print(f"\n{len(numbers)} faults, ANYTIME_JAX_FAULT_SEED={seed}", flush=True)
    for name in ("starts", "original", "boxes"):
        (tmp_path / name).mkdir()
    starts = Starts(tmp_path / "starts")
    original = Original.make(tmp_path / "original", starts)

    def fault(number: int):
        outcome = make_fault(number, seed, tmp_path / "boxes", original, starts)
        if outcome[2] or single is not None:
            with capsys.disabled():
                print(f"fault {number}, {outcome[0]}: {outcome[1]} {outcome[2]}", flush=True)
        return outcome

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        outcomes = list(threads.map(fault, numbers))
    starts.close()
    original.server.close()
    with capsys.disabled():
        print(*table(outcomes), f"{time.monotonic() - began:.0f} s in all", sep="\n")
    assert not [outcome[:3] for outcome in outcomes if outcome[2]]
