"""Tests of the evaluation of any weights, against the records of training and by hand."""

import functools
import math
import re
import sys

import jax
import numpy as np
import pytest
import small_run

from anytime_jax import weights
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.commands import evaluate
from anytime_jax.data.windows import Windows
from anytime_jax.models import decoder
from anytime_jax.models.loss import token_losses
from anytime_jax.weights import saved_run, weight_names
from anytime_jax.weights.post_hoc_averages import Mixture
from anytime_jax.weights.weight_names import MixtureLimits


def test_losses_equal_those_of_training(trained, command):
    status, out, _ = command(evaluate, f"--run={trained}")
    assert status == 0
    (row,) = [row for row in read_records(trained) if row.step == 40]
    for label in ("last", "f6.25", "f12.5", "f25", "f50", "f100"):
        printed = re.search(rf"^{re.escape(label)} +([0-9.]+) +([0-9.]+)", out, re.MULTILINE)
        loss = row.values[f"eval/{label}/loss"]
        assert float(printed[1]) == pytest.approx(loss, abs=6e-5)
        assert float(printed[2]) == pytest.approx(math.exp(loss), rel=2e-4)


def test_differences_are_paired(trained, dataset, command):
    _, out, _ = command(evaluate, f"--run={trained}", "--weights", "f25", "last")
    saved = saved_run.open_run(trained)
    order = {"length": small_run.LENGTH, "seed": 0}
    tokens = Windows(dataset, "validation", **order).batch(0, 10)
    apply = jax.jit(functools.partial(decoder.apply, saved.config.model))
    losses = []
    for label in ("f25", "last"):
        params = saved_run.load_weights(saved, Mixture((saved.weights[label],)))
        logits = apply(params, tokens[:, :-1])
        losses.append(np.asarray(token_losses(logits, tokens[:, 1:]).mean(axis=1), np.float64))
    gap = losses[1] - losses[0]
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    assert f"{gap.mean():+.4f} ± {error:.4f}" in out


def test_kernel_error_of_a_post_hoc_average_is_printed(trained, command):
    _, out, _ = command(evaluate, f"--run={trained}", "--weights", "f=35")
    mixture = weight_names.resolve(saved_run.open_run(trained), "f=35", MixtureLimits())
    assert f"{mixture.kernel_error:.2%}" in out


def test_long_name_has_a_line_of_its_own(trained, command):
    name = 'mix:{"last": 0.5, "f25": 0.25, "f50": 0.25}'
    _, out, _ = command(evaluate, f"--run={trained}", "--weights", name, "f25")
    lines = out.splitlines()
    assert name in lines
    assert max(len(line) for line in lines[1:] if line != name) <= 80


def test_tasks_need_the_extra(trained, rejected, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "anytime_jax.weights.task_evaluation", raising=False)
    monkeypatch.delattr(weights, "task_evaluation", raising=False)
    line = rejected(evaluate, f"--run={trained}", "--tasks=arc_easy")
    assert "anytime_jax[tasks]" in line
