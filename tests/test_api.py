"""Python API: the same results as the commands give."""

import concurrent.futures
import os

import jax
import numpy as np
import pytest
import small_run
from run_command import run_command
from training_runs import bits, recording, records

from anytime_jax import api
from anytime_jax.commands import generate as generate_command
from anytime_jax.distributed import sharding
from anytime_jax.errors import InputError
from anytime_jax.training import plan as plan_lib
from anytime_jax.training.loop import Outcome


def test_training_equals_that_of_the_command(whole, dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(api.jax_settings, "configure", lambda: None)  # of the whole process
    file = small_run.write_config(tmp_path / "mine.py", tmp_path / "run", dataset.path, stop="1x")
    mesh = small_run.mesh()
    monkeypatch.setattr(sharding, "make_mesh", lambda config: mesh)
    monkeypatch.setattr(plan_lib, "make_program", recording)  # compiled once
    assert api.train(api.load_config(str(file))) == Outcome(10, "stop")
    assert "from     0 steps" in capsys.readouterr().out
    longer = api.load_config(file, {"stop": "2x"})
    assert api.train(longer, quiet=True) == Outcome(20, "stop")
    assert capsys.readouterr().out == ""
    assert bits(tmp_path / "run", 20) == bits(whole, 20)
    assert records(tmp_path / "run") == records(whole)


@pytest.mark.parametrize("name", ["last", "f25", "f=12"])
def test_weights_are_those_of_the_run(whole, name):
    params = api.load(whole, name)
    assert all(type(x) is np.ndarray and x.dtype == np.float32 for x in jax.tree.leaves(params))
    on_mesh = api.load(whole, name, on_mesh=True)
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(on_mesh))
    assert small_run.same_bits(params, on_mesh)
    if name == "last":
        assert small_run.same_bits(params, api.load(whole, name, step=20))
        assert not small_run.same_bits(params, api.load(whole, name, step="1x"))


def test_losses_are_those_that_the_run_recorded(whole, tmp_path, monkeypatch):
    """By a path that goes up, which TensorStore does not take, and names from an iterator."""
    monkeypatch.chdir(tmp_path)
    up = os.path.relpath(whole)
    assert ".." in up
    losses = api.evaluate(up, (x for x in ("last", "f6.25", "f25")))
    recorded = {name: x for step, _, row in records(whole) if step == 20 for name, x in row.items()}
    for label, loss in losses.items():
        assert loss == pytest.approx(recorded[f"eval/{label}/loss"], rel=1e-6)
    assert len(losses) == 3


def test_text_is_that_of_the_command(whole, capsys):
    assert run_command(generate_command, [f"--run={whole}", "--prompt=ab", "--tokens=9"]) == 0
    assert capsys.readouterr().out == api.generate(whole, "ab", tokens=9) + "\n"


def test_run_trains_in_the_main_thread_alone(dataset, tmp_path):
    """Another thread could not save once the main one has ended."""
    file = small_run.write_config(tmp_path / "mine.py", tmp_path / "run", dataset.path)
    config = api.load_config(file)
    with concurrent.futures.ThreadPoolExecutor(thread_name_prefix="mine") as threads:
        future = threads.submit(api.train, config)
    with pytest.raises(InputError, match="mine_0"):
        future.result()
    assert not (tmp_path / "run").exists()


def test_errors_are_input_errors(whole, tmp_path):
    config = api.load_config("quickstart")
    for call in (
        lambda: api.load_config(3),
        lambda: api.load_config("quickstart", ["seed"]),
        lambda: api.load_config("quickstart", trust="my_package"),
        lambda: api.load(tmp_path),
        lambda: api.load(whole, "f99999"),
        lambda: api.load(whole, ["f25"]),
        lambda: api.load(whole, on_mesh="False"),
        lambda: api.evaluate(whole, "f25"),
        lambda: api.evaluate(whole, tokens=0),
        lambda: api.evaluate(whole, tokens="all"),
        lambda: api.evaluate(whole, split="test"),
        lambda: api.evaluate(whole, data=5),
        lambda: api.open_run("a\0b"),
        lambda: api.open_run(whole, trust=None),
        lambda: api.generate(whole, None),
        lambda: api.generate(whole, seed="3"),
        lambda: api.generate(whole, "\udcff"),
        lambda: api.train("quickstart"),
        lambda: api.train(config, quiet=0),
    ):
        with pytest.raises(InputError):
            call()
