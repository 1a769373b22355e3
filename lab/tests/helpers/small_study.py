"""Study of two small runs with branches, and processes that only pretend to train."""

import dataclasses
import hashlib
import json
import pathlib
import sys

import pytest
from paths import HELPERS, REPOSITORY
from run_files import run_file

from anytime_jax.checkpoints import run_json
from anytime_jax.checkpoints.metric_records import RecordWriter
from anytime_jax.checkpoints.run_json import BranchPoint
from anytime_lab.study import local_executor, study_files

STUDY = """
import sys
sys.path[:0] = [{helpers!r}, {repository!r}]
import small_run
from anytime_lab.study import plan

def get_study():
    config = small_run.settings("unused", {data!r}, stop="2x")
    config.schedule = {{"kind": "constant", "peak": 1e-2, "warmup": "3 steps"}}
    trunks = plan.runs("constant", config, plan.values("seed", 0, 1), {root!r})
    return plan.Study("tiny", {root!r}, plan.chain(trunks, {more}), "two seeds.")

def get_config(name=""):
    return get_study().run(name).config
"""
BRANCHES = "plan.decays('wsd', trunks, [1, 2])"

# Arguments: run directory, first step, last step, behaviour, content of run.json.
FAKE_TRAINING = """
import json, os, pathlib, signal, sys, time
run, begin, step, how = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
signals = []
signal.signal(signal.SIGINT, lambda *_: signals.append(1))
with open(run.parent / "order.txt", "a") as order:
    order.write(f"start {run.name} {sorted(os.sched_getaffinity(0))}\\n")
run.mkdir(exist_ok=True)
(run / "run.json").write_text(sys.argv[5])
if how == "fails":
    print("some output")
    sys.exit("error: it broke")
if how == "is killed":
    print("step 5", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if how == "rejects its configuration":
    print("error: invalid setting")
    sys.exit(2)
for _ in range(400 if how == "waits" else 2):
    time.sleep(0.05)
    if signals:
        sys.exit(0)
(run / "checkpoints" / str(step)).mkdir(parents=True)
(run / "checkpoints" / str(step) / "_CHECKPOINT_METADATA").touch()
(run / "records").mkdir()
rows = [{"format_version": 1, "from_step": begin, "version": "0.1.0"},
        {"step": step, "tokens": step * 64, "values": {"eval/last/loss": 1.0}}]
(run / "records" / "0000.jsonl").write_text("".join(json.dumps(x) + "\\n" for x in rows))
with open(run.parent / "order.txt", "a") as order:
    order.write(f"end {run.name} -\\n")
"""


@pytest.fixture(name="study")
def study_fixture(tmp_path):
    """Writes the study file; returns its path and the directory of its runs."""

    def write(more=BRANCHES, data="data"):
        file, root = tmp_path / "study.py", tmp_path / "runs"
        paths = {"helpers": str(HELPERS), "repository": str(REPOSITORY)}
        file.write_text(STUDY.format(data=str(data), root=str(root), more=more, **paths))
        return file, root

    return write


@pytest.fixture(name="fake_training")
def fake_training_fixture(monkeypatch, tmp_path):
    """Replaces training by a process that writes the files of a finished run.

    Keywords set behaviours by name of the run, with `_` for other characters:
    `constant_seed_0="fails"`; `fingerprint` is that of the data.
    """
    script = tmp_path / "fake_training.py"
    script.write_text(FAKE_TRAINING)

    def replace(fingerprint="abc", **behaviours):
        def make_command(file, name):
            is_branch = name.startswith("wsd")
            horizon = int(name[-2]) if is_branch else 2
            how = behaviours.get(name.replace("-", "_").replace("=", "_"), "succeeds")
            config = study_files.load_file(file).run(name).build()
            about = json.dumps(dataclasses.asdict(run_file(identity=config.identity(fingerprint))))
            steps = [str(9 * horizon if is_branch else 0), str(10 * horizon)]
            run_dir = str(tmp_path / "runs" / name)
            return [sys.executable, str(script), run_dir, *steps, how, about]

        monkeypatch.setattr(local_executor, "make_command", make_command)
        monkeypatch.setattr(local_executor, "_POLL_SECONDS", 0.02)

    return replace


def write_run(task, fingerprint="abc", stop_step=0, **identity):
    """Writes run file and records of a run as its training does, with every evaluation.

    Keywords change its identity, with `__` for dots.
    """
    config, run_dir = task.config, task.run.run_dir
    about = {"name": task.run.name, "config": config.to_dict()}
    saved = config.identity(fingerprint)
    if weights := config.initial_weights:
        file = pathlib.Path(weights, "model.safetensors")
        saved["initial_weights"] = hashlib.sha256(file.read_bytes()).hexdigest()
    if task.start_step:
        saved["branch.checkpoint"] = f"digest of {task.run.trunk}"
        from_run = str(run_dir.parent / task.run.trunk)
        about["branch"] = BranchPoint(from_run, task.start_step)
    saved |= {name.replace("__", "."): value for name, value in identity.items()}
    run_json.write_run_file(run_dir, run_file(identity=saved, **about))
    writer = RecordWriter(run_dir, task.start_step, {})
    for step in [x for x in (10, 20) if task.start_step < x <= stop_step]:
        losses = {f"eval/{label}/loss": 3 - step / 100 for label in ("last", "f6.25", "f25")}
        writer.write(step, config.clock.tokens(step), losses)
    writer.close()


def started(root):
    """Returns the names of the runs that were trained, in order."""
    order = read_order(root) if (root / "order.txt").exists() else []
    return [name for event, name, _ in order if event == "start"]


def read_order(root):
    """Returns the starts and ends of fake trainings, as (event, run, cores)."""
    lines = (root / "order.txt").read_text().splitlines()
    return [tuple(line.split(maxsplit=2)) for line in lines]
