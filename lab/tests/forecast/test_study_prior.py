"""Prior knowledge from a study: which runs it takes, and how far it is believed."""

import copy
import dataclasses

import numpy as np
import pytest
import synthetic_study
from loss_laws import LAW

from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.errors import InputError
from anytime_lab.forecast import study_prior
from anytime_lab.forecast.functional_law_fit import FunctionalFit
from anytime_lab.forecast.loss_history import LossHistory
from anytime_lab.forecast.run_loss_history import RecordedRun


def recorded(peak, seed=0, until=3840, data="abc", **changes):
    """A run of the law, evaluated at 12 points; `model__layers=3` changes a setting."""
    run = synthetic_study.make_study().run("constant-peak=0.01")
    config = copy.deepcopy(run.config)
    config.update_from_flattened_dict(
        {"schedule.peak": peak, "seed": seed, "data.seed": seed}
        | {name.replace("__", "."): value for name, value in changes.items()}
    )
    config = run_config.build(config.to_dict(), trust=NOBODY)
    steps = np.unique(np.geomspace(200, until, 12).astype(int))
    losses = LAW.losses(config.learning_rate, steps)
    labels, training = ("last",) * len(steps), np.zeros(len(steps), bool)
    history = LossHistory(config.learning_rate, 192, steps, steps, losses, labels, training)
    return RecordedRun(f"peak {peak:g} seed {seed}", config, data, history)


@pytest.fixture(name="fitted")
def fitted_fixture(monkeypatch):
    """Replaces the fit by one that records what is fitted."""
    calls = []

    class Fit:
        def __init__(self, histories, prior, samples):
            calls.append([(x.schedule.peak, x.step) for x in histories])

        def beliefs(self, history):
            return dict.fromkeys(study_prior._SPREADS, 0.0)

    monkeypatch.setattr(study_prior, "FunctionalFit", Fit)
    return calls


def test_nearest_peak_is_fitted_and_a_far_one_believed_less(fitted):
    others = [recorded(x, seed) for x in (3e-3, 1e-2, 1e-1) for seed in (1, 2)]
    near = study_prior.from_runs(recorded(1e-2), others, "here")
    far = study_prior.from_runs(recorded(2e-2), others, "here")
    assert fitted == [[(1e-2, 3840)] * 2] * 2
    for name in study_prior._SPREADS:
        ratio = getattr(far, name).sd / getattr(near, name).sd
        assert ratio == pytest.approx(1 + 4 * np.log(2)), name


def test_long_runs_are_fitted_first_and_short_ones_not_at_all(fitted):
    others = [recorded(1e-2, seed, until=3840 - seed) for seed in range(1, 20)]
    study_prior.from_runs(recorded(1e-2), [recorded(1e-2, 30, until=300), *others], "here")
    assert fitted == [[(1e-2, 3840 - seed) for seed in range(1, 13)]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model__layers": 3}, "model.layers"),
        ({"optimizer__b2": 0.9}, "optimizer.b2"),
        ({"data": "other text"}, "data"),
    ],
)
def test_runs_of_another_model_batch_optimizer_or_data_are_refused(fitted, change, named):
    other = recorded(1e-2, 1, **change)
    with pytest.raises(InputError) as error:
        study_prior.from_runs(recorded(1e-2), [other], "--study=here")
    assert "--study=here" in str(error.value)
    assert named in str(error.value)
    study_prior.from_runs(recorded(1e-2), [other, recorded(3e-2)], "--study=here")
    assert fitted == [[(3e-2, 3840)]]


def test_run_itself_is_left_out_of_its_study(fitted, monkeypatch):
    """Also under another name, and not its other seed."""
    run, other_seed = recorded(1e-2), recorded(1e-2, seed=1, until=3000)
    copy_of_it = dataclasses.replace(run, name="copy")
    study = [(x, None) for x in (run, copy_of_it, other_seed)]
    monkeypatch.setattr(
        study_prior.run_loss_history, "read_study", lambda path, warn, **options: study
    )
    study_prior.from_study(run, "here")
    assert fitted == [[(1e-2, 3000)]]
    study.pop()
    with pytest.raises(InputError, match="--study=here"):
        study_prior.from_study(run, "here")


def test_prior_of_runs_of_one_law_predicts_from_a_few_losses():
    others = [recorded(1e-2, 1)]
    run = recorded(1e-2, until=480)
    prior = study_prior.from_runs(run, others, "here")
    predicted = FunctionalFit([run.history], prior, 8).predict(run.history.schedule, [3840])
    general = study_prior.general(run)
    wide = FunctionalFit([run.history], general, 8).predict(run.history.schedule, [3840])
    actual = LAW.losses(run.history.schedule, [3840])[0]
    assert predicted.losses[0, 0] == pytest.approx(actual, abs=0.01)
    assert predicted.low[0, 0] < actual < predicted.high[0, 0]
    assert 3 * predicted.sd[0, 0] < wide.sd[0, 0]


def test_general_prior_of_a_narrow_decoder_has_weights_that_grow_slower():
    """Its initial weights are larger, of variance 1 / width."""
    run = recorded(1e-2, model__kind="olmo")
    width = run.config.model.width
    growth = study_prior.general(run).weight_growth.mean
    assert np.exp(growth) == pytest.approx(0.3 * width)
