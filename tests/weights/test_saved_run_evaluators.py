"""Tests of the losses of weights, window by window."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import small_run

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.training import evaluator as evaluation
from anytime_jax.training.evaluator import EvaluationRequest, mean_and_standard_error
from anytime_jax.weights import saved_run
from anytime_jax.weights.saved_run_evaluators import open_evaluators


def losses_of(saved, say=warnings.warn):
    request = EvaluationRequest(tokens=11 * saved.config.model.length, batch_size=8)
    evaluators = open_evaluators(saved, request, say)
    (evaluator,) = evaluators.by_set.values()
    weighted_sum = saved_run.WeightedSum((saved.weights["f25"],))
    params = saved_run.load_weights(saved, weighted_sum, evaluator.mesh)
    return evaluator.window_losses(params), evaluator, params


def with_settings(saved, **settings):
    settings = {"data__path": str(saved.data_path), "averages": saved.config.averages, **settings}
    config = small_run.config(saved.run_dir, **settings)
    return dataclasses.replace(saved, config=config)


def test_mesh_is_that_of_the_run_if_it_fits(trained):
    """There are eight devices."""
    saved, said = saved_run.open_saved_run(trained), []
    expected, *_ = losses_of(saved)
    for mesh, shape, lines in (
        (MeshConfig(data=2, fsdp=2, tensor=2), (2, 2, 2), 0),
        (MeshConfig(data=1, fsdp=16, tensor=1), (8, 1, 1), 1),
    ):
        losses, evaluator, params = losses_of(
            dataclasses.replace(saved, config=dataclasses.replace(saved.config, mesh=mesh)),
            say=said.append,
        )
        assert (*evaluator.mesh.shape.values(),) == shape
        assert len(said) == lines
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        head = params["head"]
        assert head.addressable_shards[0].data.size == head.size // math.prod(shape)
    assert all(str(size) in said[0] for size in (16, 8))


@pytest.mark.parametrize("attention", ["cudnn", "splash"])
def test_run_with_a_kernel_that_is_not_here_is_evaluated(trained, attention):
    saved = saved_run.open_saved_run(trained)
    losses, *_ = losses_of(with_settings(saved, model__attention=attention))
    np.testing.assert_allclose(losses, losses_of(saved)[0], rtol=1e-5)


def test_sets_of_one_length_share_a_program(trained, monkeypatch):
    """A program is compiled by itself, which for a large model takes minutes."""
    made, make_program = [], evaluation.make_program
    monkeypatch.setattr(
        evaluation, "make_program", lambda *x, **y: made.append(y) or make_program(*x, **y)
    )
    saved = saved_run.open_saved_run(trained)
    path = str(saved.data_path)
    two = with_settings(saved, eval__sets={"a": path, "b": path})
    evaluators = open_evaluators(two, EvaluationRequest(), warnings.warn)
    assert [*evaluators.by_set] == ["a", "b"]
    assert len(made) == 1


def test_standard_error_of_independent_values():
    values = np.random.default_rng(0).normal(size=400)
    mean, error = mean_and_standard_error(values)
    assert (mean, error) == (pytest.approx(values.mean()), pytest.approx(1 / 20, rel=0.1))
    assert math.isnan(mean_and_standard_error(np.ones(1))[1])
