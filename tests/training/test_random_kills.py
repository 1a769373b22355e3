"""Runs killed at any moment and started again, which end as an unbroken one to the bit.

Real processes and SIGKILL. `pytest tests/training/test_random_kills.py -m slow -s` prints counts;
ANYTIME_JAX_KILLS and ANYTIME_JAX_KILL_SEED set the number of kills and the seed.
"""

import collections
import dataclasses
import os
import pathlib
import random
import time

import pytest
from forked_starts import MOMENTS, Starts
from small_run import CHANGES, write_config
from training_runs import bits, records

from anytime_jax.checkpoints import checkpoint_listing, checkpoint_reader


def arguments(folder: pathlib.Path, name: str, stop: str) -> list[str]:
    """Arguments of a run whose data are prepared by its first start."""
    run = folder / name
    run.mkdir()
    file = write_config(run / "config.py", run / "run", run / "builtin", **CHANGES)
    return [f"--config={file}", f"--config.stop={stop}"]


def outcome(folder: pathlib.Path):
    """Meta and arrays of every checkpoint, the records, and the files of the dataset."""
    checkpoints = {}
    for step in checkpoint_listing.saved_steps(folder / "run"):
        meta = checkpoint_reader.read_meta(folder / "run" / "checkpoints" / str(step))
        meta = dataclasses.replace(meta, config={})  # which depends on the run directory
        checkpoints[step] = (meta, bits(folder / "run", step))
    dataset = {p.name: p.read_bytes() for p in (folder / "builtin").iterdir() if p.is_file()}
    dataset.pop("anytime_jax.json")
    return {"checkpoints": checkpoints, "records": records(folder / "run"), "dataset": dataset}


def complete(starts: Starts, argv: list[str]) -> None:
    start = starts.launch(*argv)
    assert start.wait() == 0, start.output


# (moment, skip): each update, save and batch of an evaluation is a moment.
IN_TURN = (("preparation", 0), ("update", 6), ("save", 1), ("evaluation", 8))


@pytest.mark.slow
def test_kills_at_each_kind_of_moment_leave_no_trace(starts, tmp_path):
    assert {moment for moment, _ in IN_TURN} == set(MOMENTS)
    complete(starts, arguments(tmp_path, "whole", "2x"))
    argv = arguments(tmp_path, "killed", "2x")
    for moment, skip in IN_TURN:
        start = starts.launch(*argv, moment=moment, skip=skip)
        assert start.wait() == -9, start.output
    complete(starts, argv)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_kills_at_random_moments_leave_no_trace(tmp_path, capsys):
    """Runs of 160 updates, each started again until it is complete."""
    kills = int(os.environ.get("ANYTIME_JAX_KILLS", "100"))
    seed = int(os.environ.get("ANYTIME_JAX_KILL_SEED", time.time_ns() % 10**6))
    with capsys.disabled():
        print(f"\n{kills} kills, ANYTIME_JAX_KILL_SEED={seed}")
    draw = random.Random(seed)
    (tmp_path / "starts").mkdir()
    starts = Starts(tmp_path / "starts")
    began = time.monotonic()
    complete(starts, arguments(tmp_path, "whole", "16x"))
    seconds = time.monotonic() - began
    expected = outcome(tmp_path / "whole")
    phases, half_written, runs = collections.Counter(), 0, 0
    while phases.total() < kills:
        runs += 1
        argv, status = arguments(tmp_path, f"run{runs}", "16x"), -9
        while phases.total() < kills:
            start = starts.launch(*argv)
            # A start continues where the last one got to: most runs are killed once or more.
            time.sleep(draw.uniform(0, seconds / 2))
            start.kill()
            status = start.wait()
            if status == 0:
                break
            assert status == -9, start.output
            phases[start.phase] += 1
            entries = checkpoint_listing.list_entries(tmp_path / f"run{runs}" / "run")
            half_written += any(x.state == "half-written" for x in entries)
        if status:
            complete(starts, argv)
        assert outcome(tmp_path / f"run{runs}") == expected
    starts.close()
    with capsys.disabled():
        print(
            f"{phases.total()} kills over {runs} runs: {dict(phases)}; a save was half-written "
            f"{half_written} times; a run takes {seconds:.1f} s unbroken; "
            f"{time.monotonic() - began:.0f} s in all"
        )
