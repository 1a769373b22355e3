"""Tests of the losses of weights, window by window."""

import dataclasses
import math

import numpy as np
import pytest

from anytime_jax.errors import InputError
from anytime_jax.weights import saved_run
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.scoring import Scorer, mean_and_standard_error


def test_losses_do_not_depend_on_the_batch_size(run, dataset):
    saved = saved_run.open_run(run)
    params = saved_run.load_weights(saved, Mixture((saved.weights["f25"],)))
    scorers = [Scorer(saved.config.model, dataset, "validation", size) for size in (1, 8, 24)]
    losses, *others = [scorer.losses(params, 11) for scorer in scorers]
    assert len(losses) == 11
    for other in others:
        np.testing.assert_allclose(losses, other, rtol=1e-5)


def test_standard_error_of_independent_values():
    values = np.random.default_rng(0).normal(size=400)
    mean, error = mean_and_standard_error(values)
    assert (mean, error) == (pytest.approx(values.mean()), pytest.approx(1 / 20, rel=0.1))
    assert math.isnan(mean_and_standard_error(np.ones(1))[1])


def test_windows_longer_than_those_of_training_are_rejected(run, dataset):
    config = dataclasses.replace(saved_run.open_run(run).config.model, length=4)
    with pytest.raises(InputError, match="windows of 8"):
        Scorer(config, dataset, "validation", 8)
