"""The benchmarks run on a tiny model, and count what they say they count."""

import json
import math
import os
import sys

import jax
import pytest
import small_run

from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError, RunError
from anytime_jax.training import step
from benchmarks import ceiling, fleet, measure, peers, train_step

# Stands in for an interpreter with torch: answers with the losses it is told, a second an update.
_FAKE = """#!{python}
import json, sys
import numpy as np
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "start":
        names = np.load(asked["arrays"]).files
        answer = {{"names": names, "compiled": asked["compiled"], "averages": asked["averages"]}}
        answer["how"] = "eager"
    else:
        answer = {{"seconds": 1.0 * asked["count"], "losses": {losses}}}
    {last}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(name="model")
def model_file(tmp_path):
    """A configuration file with a tiny model."""
    path = tmp_path / "model.py"
    path.write_text(
        "import small_run\n"
        "get_config = lambda: small_run.settings('run', 'data', model__layers=1)\n"
    )
    return str(path)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    mesh = small_run.mesh()
    monkeypatch.setattr(sharding, "make_mesh", lambda config, devices=None: mesh)
    monkeypatch.setattr(ceiling, "_LARGE", {"cpu": 32})
    monkeypatch.setattr(ceiling, "_COPIED", {"cpu": 4096})


def fake(folder, losses, last=""):
    path = folder / "python"
    path.write_text(_FAKE.format(python=sys.executable, losses=losses, last=last))
    path.chmod(0o755)
    return f"--torch-python={path}"


def record(path):
    return json.loads(path.read_text())


def test_blocks_take_turns_and_the_first_round_is_not_kept():
    clock = iter(range(100))
    order = []

    def block(name):
        order.append(name)
        return float(next(clock))

    seconds = measure.in_turn({"a": lambda: block("a"), "b": lambda: block("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert seconds == {"a": [2.0, 4.0, 6.0], "b": [3.0, 5.0, 7.0]}
    assert measure.medians(seconds) == {"a": 4.0, "b": 5.0}


def test_ceiling(model, tmp_path, capsys):
    output = tmp_path / "new" / "ceiling.json"
    arguments = ["--model", model, "--steps=1", "--rounds=2", "--output", str(output)]
    assert ceiling.main(arguments) == 0
    # 8 sequences of 8 tokens; width 16, MLP 32, 304 rows
    name, made = "mlp_in 64 x 16 x 32", record(output)
    assert name in capsys.readouterr().out
    rates, middle = made["details"]["rates"], made["details"]["medians"]
    assert rates[name] == pytest.approx(2 * 64 * 16 * 32 / middle[name])
    copy = "copy of 4.1 kB"
    assert rates[copy] == pytest.approx(2 * 4096 / middle[copy])
    assert all(len(times) == 2 for times in made["details"]["seconds"].values())
    assert str(tmp_path) not in output.read_text()  # whose machine it was is nobody's business


@pytest.mark.slow
def test_train_step(model, tmp_path):
    output = tmp_path / "train_step.json"
    arguments = ["--model", model, "--steps=1", "--rounds=1", "--averages=off", "--batch=4"]
    assert train_step.main([*arguments, "--attention=plain", "--output", str(output)]) == 0
    made = record(output)
    name = "tiny, batch 4 in 1, plain attention, 0 averages"
    (row,) = made["rows"]
    assert row["what"] == name
    assert made["details"]["tokens_per_update"] == {name: 32}
    flops, seconds = made["details"]["model_flops_per_update"][name], row["median_ms"] / 1e3
    assert row["tokens_per_s"] == pytest.approx(32 / seconds, rel=1e-2)
    ceiling = made["details"]["ceiling_flops_per_s"]
    assert row["of_ceiling"] == pytest.approx(flops / seconds / ceiling, rel=1e-2)


def test_fleet(model, tmp_path):
    output = tmp_path / "fleet.json"
    arguments = ["--model", model, "--runs", "2", "--steps=1", "--rounds=1", "--batch=4"]
    assert fleet.main([*arguments, "--output", str(output)]) == 0
    made = record(output)
    alone, both = made["rows"]
    assert [(row["runs"], row["how"]) for row in made["rows"]] == [(1, "alone"), (2, "one program")]
    seconds = {runs: times[0] for runs, times in made["details"]["seconds"].items()}
    assert made["details"]["tokens_per_update"] == 32  # of one run
    assert both["tokens_per_s"] == pytest.approx(64 / seconds["2"], rel=1e-3)
    assert both["times_alone"] == pytest.approx(2 * seconds["0"] / seconds["2"], rel=1e-3)
    assert both["held_MB"] == pytest.approx(2 * alone["held_MB"], rel=1e-2)


def test_a_fleet_without_room_is_a_row(model, tmp_path, monkeypatch):
    update = train_step.Update(measure.load_config(model), lambda: 0, 1, 1)

    def make(config, runs, mesh):
        if runs > 2:
            raise jax.errors.JaxRuntimeError(told)
        return update

    monkeypatch.setattr(fleet, "make_update", lambda config, mesh: update)
    monkeypatch.setattr(fleet, "make_fleet", make)
    told = "RESOURCE_EXHAUSTED: Out of memory"
    output = tmp_path / "fleet.json"
    arguments = ["--model", model, "--runs", "16", "4", "2", "--steps=1", "--rounds=1"]
    arguments += ["--output", str(output)]
    assert fleet.main(arguments) == 0
    rows = [(row["runs"], row["how"], row["median_ms"] is None) for row in record(output)["rows"]]
    assert rows == [(1, "alone", False), (2, "one program", False), (4, "no room", True)]
    told = "INTERNAL: something else"
    assert fleet.main(arguments) == 1


def test_runs_of_a_fleet_differ(model, capsys):
    config = measure.load_config(model)
    runs = [fleet.vary(config, number) for number in (1, 2)]
    assert len({run.seed for run in runs}) == len({run.optimizer.b2 for run in runs}) == 2
    assert runs[0].schedule(20) == pytest.approx(2 * runs[1].schedule(20))
    assert fleet.main(["--model", model, "--runs", "0"]) == 2
    assert capsys.readouterr().err == "error: --runs has 0: give numbers of runs from 1\n"


def test_the_cost_of_averages():
    seconds = {"a, 0 averages": 2.0, "a, 5 averages": 2.5, "b, 5 averages": 9.0}
    assert train_step.costs_of_averages(seconds) == {"a, 5 averages": 0.25}


@pytest.mark.slow
def test_peers(model, tmp_path, monkeypatch):
    config = measure.load_config(model)
    program = step.make_program(config, sharding.make_mesh(config.mesh))
    monkeypatch.setattr(step, "make_program", lambda config, mesh: program)  # compiled once
    ours = peers.Ours(config)
    losses = [float(ours.update()) for _ in range(6)]
    assert len(set(losses)) == 6  # the batches and the weights change
    output = tmp_path / "peers.json"
    arguments = [fake(tmp_path, losses), "--model", model, "--steps=2", "--rounds=2"]
    assert peers.main([*arguments, "--kinds", "eager", "--output", str(output)]) == 0
    assert [row["how"] for row in record(output)["rows"]] == [None, "eager"]
    made = record(output)["details"]
    assert made["seconds"]["PyTorch, eager"] == [1.0, 1.0]
    assert made["ratios"]["PyTorch, eager"] == pytest.approx(1 / made["medians"]["anytime_jax"])
    about = made["peers"]["PyTorch, eager"]
    assert about["averages"] == [6.25, 25.0]
    assert about["compiled"] is False
    assert {"tokens", "transformer.wte.weight", "transformer.blocks.0.att_proj.weight"} <= set(
        about["names"]
    )


class Fixed:
    """Either side of a comparison, with losses that are known."""

    def __init__(self, losses):
        self.losses = losses
        self.left = iter(losses)

    def update(self):
        return next(self.left)

    def ask(self, do, count):
        assert (do, count) == ("steps", 6)
        return {"losses": self.losses}


@pytest.mark.parametrize(
    ("index", "off", "fits"),
    [(0, 9e-5, True), (0, -2e-4, False), (5, 9e-4, True), (5, 2e-3, False), (0, math.nan, False)],
)
def test_no_ratio_of_what_differs(index, off, fits):
    ours = [5.0 - i for i in range(6)]
    theirs = [loss + off * (i == index) for i, loss in enumerate(ours)]
    if fits:
        found = peers.compare_losses(Fixed(ours), {"other": Fixed(theirs)})
        assert found == {"anytime_jax": ours, "other": theirs}
        return
    with pytest.raises(RunError, match=f"other has the loss .* after {index} updates"):
        peers.compare_losses(Fixed(ours), {"other": Fixed(theirs)})


def test_a_worker_that_ends_is_noticed(tmp_path):
    ours = Fixed([])
    ours.arrays = {}
    settings = {"arrays": str(tmp_path / "arrays.npz"), "averages": []}
    python = fake(tmp_path, [], "sys.exit(3)").partition("=")[2]
    with (
        pytest.raises(RunError, match="the PyTorch worker ended with status 3"),
        peers.start_peers(python, ours, settings, ["eager"]),
    ):
        pass


def test_a_run_that_the_peer_cannot_repeat(model, tmp_path, capsys):
    config = small_run.config("run", model__architecture="olmo2")
    with pytest.raises(InputError, match=r"it must have model\.architecture olmo"):
        peers.peer_settings(config, "arrays.npz", 1)
    for command, more in ((ceiling, ()), (train_step, ()), (peers, ("--torch-python=python",))):
        assert command.main([*more, "--model", str(tmp_path / "none.py")]) == 2
        assert "is neither quickstart, 150m, 300m nor a" in capsys.readouterr().err


@pytest.mark.oracle
def test_torch_computes_the_same(model):
    python = os.environ.get("ANYTIME_JAX_OLMO_PYTHON")
    if not python:
        pytest.skip("ANYTIME_JAX_OLMO_PYTHON names no interpreter (tests/oracles/README.md)")
    arguments = ["--model", model, "--steps=1", "--rounds=1", "--kinds", "eager"]
    assert peers.main([f"--torch-python={python}", *arguments]) == 0
