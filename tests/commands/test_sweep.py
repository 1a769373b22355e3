"""The door to studies: what it lists, in which order it runs, and what it refuses.

Most runs here are pretended by a small process that leaves what a finished run leaves; one study
is really trained.
"""

import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from small_run import dataset_fixture  # noqa: F401
from small_study import BRANCHES, HELPERS, REPOSITORY, study_fixture  # noqa: F401

from anytime_jax.checkpoints.checkpoint_directory import saved_steps
from anytime_jax.commands import fleet, sweep
from anytime_jax.config import schema
from anytime_jax.data.dataset import METADATA_NAME
from anytime_jax.study import plan

PRETENDED = """
import json, os, pathlib, signal, sys, time
run, begin, step, how = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
with open(run.parent / "order.txt", "a") as order:
    order.write(f"begin {run.name} {sorted(os.sched_getaffinity(0))}\\n")
run.mkdir(exist_ok=True)
(run / "run.json").write_text(sys.argv[5])
if how == "fails":
    print("all is well")
    sys.exit("error: it broke")
if how == "refuses":
    print("error: this cannot be")
    sys.exit(2)
for _ in range(400 if how == "waits" else 2):
    time.sleep(0.05)
    if asked:
        sys.exit(0)
(run / "checkpoints" / str(step)).mkdir(parents=True)
(run / "checkpoints" / str(step) / "_CHECKPOINT_METADATA").touch()
(run / "records").mkdir()
rows = [{"format_version": 1, "from_step": begin},
        {"step": step, "tokens": step * 64, "values": {"eval/last/loss": 1.0}}]
(run / "records" / "0000.jsonl").write_text("".join(json.dumps(x) + "\\n" for x in rows))
with open(run.parent / "order.txt", "a") as order:
    order.write(f"end {run.name} -\\n")
"""


@pytest.fixture(name="pretend")
def pretend_fixture(monkeypatch, tmp_path):
    """Makes runs pretend, each in its own way."""

    def arrange(**how):
        script = tmp_path / "pretend.py"
        script.write_text(PRETENDED)

        def command(file, name):
            horizon = int(name[-2]) if name.startswith("wsd") else 2
            begin = 9 * horizon if name.startswith("wsd") else 0
            way = how.get(name.replace("-", "_").replace("=", "_"), "ends")
            run = str(tmp_path / "runs" / name)
            built = schema.build(plan.load(file).run(name).settings)
            about = json.dumps({"identity": built.identity("abc")})
            return [sys.executable, str(script), run, str(begin), str(10 * horizon), way, about]

        monkeypatch.setattr(sweep, "command", command)
        monkeypatch.setattr(sweep, "_POLL_SECONDS", 0.02)

    return arrange


def order(root):
    return [tuple(line.split(maxsplit=2)) for line in (root / "order.txt").read_text().splitlines()]


def run(file, *arguments):
    return sweep.main([f"--study={file}", "--run", *arguments])


def test_the_list_says_what_each_run_costs(study, capsys):
    file, root = study()
    assert sweep.main([f"--study={file}", "--list", "--tokens_per_s=0.01"]) == 0
    said = capsys.readouterr().out
    assert "tiny: two seeds. Hours at 0 tokens/s, training only." in said
    rows = {
        x.split()[0]: x.split()[1:] for x in said.splitlines() if x.strip().startswith(("c", "w"))
    }
    assert len(rows) == 6
    assert rows["constant-seed=0"][:3] == ["missing", "2x", "1.28K"]
    assert rows["wsd-seed=1-horizon=2x"][:3] == ["missing", "2x", "128"]  # two updates of 64 tokens
    assert rows["constant-seed=0"][-1] == f"{1280 / 0.01 / 3600:.3g}"
    params = 4 * (2 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 304 * 16 + 16 * (2 * 4 + 1)) * 5
    disk = sweep.check(plan.load(file))[0].disk_bytes / (4 + 2)  # 9, 10, 18, 20 and 2 rolling
    assert 0.98 * params < disk < 1.1 * params + 2**18
    assert not root.exists()


def test_hours_on_a_named_device(study, capsys):
    file, _ = study()
    assert sweep.main([f"--study={file}", "--list", "--device=H100", "--mfu=0.5"]) == 0
    assert "Hours at 50% of the peak of one H100" in capsys.readouterr().out
    job = sweep.check(plan.load(file))[0]
    arguments = sweep._parser().parse_args(["--study=x", "--list", "--mfu=0.5"])
    assert sweep._speed(arguments, [job]) == 0.5 * 989e12


def test_branches_run_after_their_trunk_and_a_finished_study_does_nothing(study, pretend, capsys):
    file, root = study()
    pretend()
    assert run(file) == 0
    assert "6 of 6 runs are finished" in capsys.readouterr().out
    told = [(what, name) for what, name, _ in order(root)]
    assert len(told) == 12
    for seed in (0, 1):
        ended = told.index(("end", f"constant-seed={seed}"))
        for m in (1, 2):
            assert told.index(("begin", f"wsd-seed={seed}-horizon={m}x")) > ended
    assert json.loads((root / "study.json").read_text())["name"] == "tiny"
    assert run(file) == 0
    assert "all 6 runs of tiny are finished" in capsys.readouterr().out
    assert len(order(root)) == 12


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_at_once_have_a_core_each(study, pretend):
    file, root = study("[]")
    pretend()
    pathlib.Path(root.parent / "data").mkdir()
    (root.parent / "data" / METADATA_NAME).touch()
    file.write_text(file.read_text().replace("'data'", repr(str(root.parent / "data"))))
    assert run(file, "--jobs=2") == 0
    told = order(root)
    assert [what for what, *_ in told[:2]] == ["begin", "begin"]
    assert told[0][2] != told[1][2]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_runs_that_must_prepare_the_same_data_do_not_race(study, pretend):
    file, root = study("[]")  # no data are there
    pretend()
    assert run(file, "--jobs=2") == 0
    assert [what for what, *_ in order(root)] == ["begin", "end", "begin", "end"]


def test_a_run_that_breaks_takes_only_its_branches_with_it(study, pretend, capsys):
    file, root = study()
    pretend(constant_seed_0="fails")
    assert run(file) == 1
    said = capsys.readouterr().out
    assert "FAILED   constant-seed=0, after 0s: error: it broke" in said
    assert "3 of 6 runs are finished" in said
    assert "wsd-seed=0-horizon=1x: its trunk constant-seed=0 failed" in said
    assert "all is well" in (root / "logs" / "constant-seed=0.log").read_text()
    pretend()
    assert run(file) == 0  # what is missing, and no more
    assert [name for what, name, _ in order(root)].count("constant-seed=1") == 2


def test_what_every_run_refuses_ends_the_sweep(study, pretend, capsys):
    """One refusal is that run's own; the same a second time is everyone's."""
    file, root = study()
    pretend(constant_seed_0="refuses")
    assert run(file) == 1
    said = capsys.readouterr().out
    assert "error: this cannot be (exit status 2; the whole of it:" in said
    assert "3 of 6 runs are finished" in said
    shutil.rmtree(root)
    file, root = study(f"plan.runs('more', given, plan.values('seed', 2), {str(root)!r})")
    pretend(constant_seed_0="refuses", constant_seed_1="refuses")
    assert run(file) == 1
    assert "1 more were not begun, for the same would be said" in capsys.readouterr().out
    assert [name for _, name, _ in order(root)] == ["constant-seed=0", "constant-seed=1"]


def test_a_run_that_another_process_holds_is_waited_for(study, pretend):
    file, root = study("[]")
    pretend()
    settings = sweep.check(plan.load(file))[0].config
    folder = root / "constant-seed=0"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"identity": settings.identity("abc")}))
    holder = f"""
import fcntl, time
with open({str(folder / "lock")!r}, "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    time.sleep(1.5)
"""
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    assert run(file) == 0
    process.communicate()
    begun = [name for what, name, _ in order(root) if what == "begin"]
    assert begun == ["constant-seed=1", "constant-seed=0"]


def test_nothing_is_left_running_when_the_sweep_breaks(study, pretend, monkeypatch):
    file, root = study("[]")
    pretend(constant_seed_0="waits")
    monkeypatch.setattr(sweep._Sweep, "_drop_orphans", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(file)
    assert not (root / "constant-seed=0" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("together", "sizes"), [(1, [1] * 6), (3, [2, 3, 1]), (8, [2, 4])], ids=str
)
def test_runs_of_one_shape_share_a_process(study, pretend, monkeypatch, together, sizes):
    """Trunks first, then their branches, as many together as are asked for."""
    file, root = study()
    pretend()
    alone, begun = sweep.command, []

    def command(file, name, *others):
        begun.append([name, *others])
        each = [shlex.join(alone(file, one)) for one in (name, *others)]
        return ["sh", "-c", " && ".join(each)]

    monkeypatch.setattr(sweep, "command", command)
    assert run(file, f"--fleet={together}") == 0
    assert [len(names) for names in begun] == sizes
    names = [name for group in begun for name in group]
    assert sorted(names) == sorted(x.name for x in plan.load(file).runs)
    assert len([x for x in order(root) if x[0] == "end"]) == 6


def test_a_run_of_another_shape_stays_out(study, capsys):
    """A batch that grows, another number of layers: each is a process of its own."""
    other = """plan.runs("other", given, plan.chain(
        plan.values("model.layers", 1), plan.values("batch_growth", (("1x", 16),))), {root!r})"""
    file, _ = study(more=other.replace("{root!r}", "trunks[0].config.run_dir + '_other'"))
    jobs = {job.run.name: job.shape for job in sweep.check(plan.load(file))}
    trunks = {shape for name, shape in jobs.items() if name.startswith("constant")}
    assert len(trunks) == 1
    assert None not in trunks
    others = [name for name in jobs if name.startswith("other")]
    layers, growing = (jobs[name] for name in others)
    assert layers not in trunks
    assert growing is None
    for names, message in (
        (["constant-seed=0", others[0]], "are not of one shape: give runs that differ in seeds"),
        (["constant-seed=0", others[1]], f"{others[1]} cannot share a program: its batch grows"),
        (["constant-seed=0", "constant-seed=7"], "has no run 'constant-seed=7'; did you mean"),
    ):
        assert fleet.main([f"--study={file}", *names]) == 2
        assert message in capsys.readouterr().err


def test_only_some(study, pretend, capsys):
    file, root = study()
    pretend()
    assert run(file, "--only=constant-*1") == 0
    assert [name for _, name, _ in order(root)] == ["constant-seed=1"] * 2
    assert sweep.main([f"--study={file}", "--list", "--only=x"]) == 2
    assert "--only=x matches no run of tiny: see --list" in capsys.readouterr().err
    assert run(file, "--only=wsd-seed=0*") == 2
    assert "leaves out constant-seed=0, which wsd-seed=0-horizon=1x" in capsys.readouterr().err
    assert run(file, "--only=wsd-seed=1*") == 0  # its trunk is there


def test_an_interrupt_lets_the_runs_save(study, pretend, tmp_path):
    file, root = study()
    pretend(constant_seed_0="waits")
    program = f"""
import sys
sys.path[:0] = [{str(HELPERS)!r}, {str(REPOSITORY)!r}]
from anytime_jax.commands import sweep
script = {str(tmp_path / "pretend.py")!r}
sweep.command = lambda file, name: [sys.executable, script, {str(root)!r} + "/" + name, "0", "20",
                                    "waits", "{{}}"]
sys.exit(sweep.main(["--study={file}", "--run"]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (root / "order.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "; the same line goes on" in said
    assert [what for what, *_ in order(root)] == ["begin"]


# What is refused, in one line


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "plan.branches('wsd', [plan.StudyRun('gone-a', trunks[0].config)], [1])",
            "begins from gone-a, which is not a run before it",
        ),
        (
            "[plan.StudyRun('far', x.config) for x in plan.branches('wsd', trunks[:1], [1])]",
            "run far: config.branch.from_run = ",
        ),
        ("plan.branches('wsd', trunks[:1], [4])", "after its last checkpoint: train the trunk"),
        ("plan.branches('wsd', trunks[:1], [1.5])", "where it keeps none: train the trunk"),
        ("plan.branches('wsd', trunks[:1], [0.1])", "must be over before the decay begins"),
        (
            "[plan.StudyRun(x.name, x.config.copy_and_resolve_references() "
            "if x.config.schedule.update(peak=0.5) else x.config, x.trunk) "
            "for x in plan.branches('wsd', trunks[:1], [1])]",
            "schedule.peak was 0.01, is 0.5",
        ),
        (
            "plan.runs('endless', given, plan.values('stop', 'never'), 'x')",
            "config.stop = 'never': a run of a study has one stop",
        ),
        ("plan.runs('more', given, plan.values('stop', '2x+'), 'x')", "config.stop = '2x+'"),
        (
            "[plan.StudyRun(x.name, x.config, 'constant-seed=1')"
            " for x in plan.branches('wsd', trunks[:1], [1])]",
            "it comes after constant-seed=1, but its config.branch.from_run = ",
        ),
        ("plan.runs('a/b', given, [{}], 'x')", "'a/b' cannot be the name of a run"),
        ("[plan.StudyRun('again', trunks[0].config)]", "constant-seed=0 and again share"),
        ("plan.runs('bad', given, plan.values('batch_size', 0), 'x')", "config.batch_size = 0"),
        ("plan.runs('constant', given, plan.values('seed', 0), 'x')", "two runs are called"),
    ],
)
def test_a_study_that_cannot_be_run(more, message, study, capsys):
    file, root = study(more)
    for what in ("--list", "--run"):
        assert sweep.main([f"--study={file}", what]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        assert message in error
    assert not root.exists()


def test_a_directory_of_another_run_is_refused(study, capsys):
    file, root = study()
    settings = sweep.check(plan.load(file))[0].config
    folder = root / "constant-seed=0"
    folder.mkdir(parents=True)
    theirs = {**settings.identity("abc"), "schedule.peak": 0.5}
    (folder / "run.json").write_text(json.dumps({"identity": theirs}))
    assert run(file) == 2
    error = capsys.readouterr().err
    assert "run constant-seed=0: config.run_dir" in error
    assert "schedule.peak was 0.5, is 0.01" in error
    assert sorted(x.name for x in root.iterdir()) == ["constant-seed=0"]


def test_a_directory_of_other_files_is_refused(study, capsys):
    file, root = study()
    (root / "wsd-seed=1-horizon=2x").mkdir(parents=True)
    (root / "wsd-seed=1-horizon=2x" / "mine.txt").touch()
    assert run(file) == 2
    assert "holds files but is no run" in capsys.readouterr().err


def test_a_packed_study_is_not_run(study, pretend, capsys):
    file, root = study()
    pretend()
    assert run(file) == 0
    before = (root / "study.json").read_bytes()
    assert run(root) == 2
    assert "is a directory: runs are made from a study's file" in capsys.readouterr().err
    assert (root / "study.json").read_bytes() == before
    file.write_text(file.read_text().split("def get_config")[0])
    assert run(file) == 2
    assert "has no get_config(name), by which each of its runs is made" in capsys.readouterr().err


def test_a_study_on_two_data_sets_is_refused(study, capsys):
    file, root = study()
    for seed, fingerprint in enumerate(("abc", "abd")):
        settings = sweep.check(plan.load(file))[0].config
        (root / f"constant-seed={seed}").mkdir(parents=True)
        identity = {**settings.identity(fingerprint), "seed": seed}
        (root / f"constant-seed={seed}" / "run.json").write_text(json.dumps({"identity": identity}))
        if seed == 0:
            assert sweep.main([f"--study={file}", "--list", "--tokens_per_s=1"]) == 0
    assert run(file) == 2
    assert "it was begun on other data than constant-seed=0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens_per_s=nan", "--list"], "--tokens_per_s=nan: give a speed above 0"),
        (["--jobs=0", "--run"], "--jobs=0: give 1 to"),
        (["--jobs=9999", "--run"], "--jobs=9999: give 1 to"),
        (["--fleet=0", "--run"], "--fleet=0: give a number of runs from 1"),
        (["--device=abacus", "--list"], "--device=abacus: its peak is not known; give one of"),
        (["--mfu=2", "--list"], "--mfu=2: give a fraction above 0"),
        (["--tokens_per_s=0", "--list"], "--tokens_per_s=0: give a speed above 0"),
    ],
)
def test_bad_flags(arguments, message, study, capsys):
    file, _ = study()
    assert sweep.main([f"--study={file}", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_each_job_gets_its_gpu(monkeypatch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    shares = [x["CUDA_VISIBLE_DEVICES"] for x in sweep.share_machine(2)]
    assert shares == ["3,7", "5"]
    assert "CUDA_VISIBLE_DEVICES" not in sweep.share_machine(1)[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ValueError, match="this machine has 1 GPUs, one for each job"):
        sweep.share_machine(2)


@pytest.mark.slow
def test_a_study_is_trained_as_fleets(study, dataset, capsys):
    """The real thing: two trunks as one program, then their branches as another."""
    file, root = study("plan.branches('wsd', trunks, [2])", data=dataset.path)
    assert run(file, "--fleet=2") == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    for name in ("constant-seed=0", "constant-seed=1", "wsd-seed=0-horizon=2x"):
        assert saved_steps(root / name)[-1] == 20
        assert "validation" in (root / "logs" / f"{name}.log").read_text()
        assert (root / name / "curves.png").is_file()


@pytest.mark.slow
def test_a_study_is_trained_interrupted_and_resumed(study, dataset, capsys):
    """The real thing: two trunks and a branch of each, killed on the way; every run ends."""
    file, root = study("plan.branches('wsd', trunks, [2])", data=dataset.path)
    process = subprocess.Popen(
        [sys.executable, "-m", "anytime_jax", "sweep", f"--study={file}", "--run"], cwd=REPOSITORY
    )
    deadline = time.monotonic() + 120
    while not saved_steps(root / "constant-seed=0") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()  # its run lives on: the next sweep waits for that, and then goes on
    process.wait()
    assert run(file) == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    assert saved_steps(root / "wsd-seed=1-horizon=2x")[-1] == 20
    files = sorted(path for path in root.rglob("*") if path.is_file())
    before = [(path, path.stat().st_mtime_ns) for path in files]
    assert run(file) == 0
    assert "all 4 runs of tiny are finished" in capsys.readouterr().out
    assert [(path, path.stat().st_mtime_ns) for path in files] == before
    assert sorted(path for path in root.rglob("*") if path.is_file()) == files
