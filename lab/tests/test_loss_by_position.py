"""Losses by position: every token counts at its place, and the ranges cover a window."""

import warnings

import jax
import numpy as np
import pytest
from run_command import run_command

from anytime_jax import api
from anytime_jax.checkpoints.metric_records import read_records
from anytime_jax.models import decoder
from anytime_jax.training.evaluator import EvaluationRequest
from anytime_jax.weights import saved_run, saved_run_evaluators
from anytime_lab import loss_by_position


@pytest.mark.parametrize("length", [1, 3, 24])
def test_ranges_cover_a_window(length):
    positions = [range(*x) for x in loss_by_position._ranges(length)]
    assert all(positions)
    assert [x for each in positions for x in each] == list(range(length))
    assert [range(*x) for x in loss_by_position._ranges(128)][1] == range(8, 32)


def test_losses_are_those_of_the_tokens_at_a_position(trained):
    run = saved_run.open_saved_run(trained)
    evaluators = saved_run_evaluators.open_evaluators(run, EvaluationRequest(), warnings.warn)
    (evaluator,) = evaluators.by_set.values()
    found = loss_by_position.position_losses(evaluators, api.load(trained, "f25"))
    tokens = evaluator.windows.batch(0, evaluator.count)
    logits = np.asarray(
        decoder.apply(
            run.config.model, api.load(trained, "f25"), jax.numpy.asarray(tokens[:, :-1])
        ),
        np.float64,
    )
    largest = logits.max(-1, keepdims=True)
    of_all = largest[..., 0] + np.log(np.exp(logits - largest).sum(-1))
    chosen = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(found, (of_all - chosen).mean(0), rtol=2e-5)


def test_mean_is_the_recorded_loss_and_the_command_prints_it(trained, capsys):
    values = [row.values for row in read_records(trained)]
    recorded = [x["eval/f25/loss"] for x in values if "eval/f25/loss" in x][-1]
    assert run_command(loss_by_position, [f"--run={trained}"]) == 0
    row = next(x for x in capsys.readouterr().out.splitlines() if x.split()[:1] == [trained.name])
    assert float(row.split()[1]) == pytest.approx(recorded, abs=1e-4)
