"""The optimizers of the laboratory keep to what every optimizer does."""

import jax
import numpy as np
import optax
import optimizer_contract
import pytest
from noisy_quadratic import start
from optimizer_contract import RUN

from anytime_jax import optimizers
from anytime_lab.optimizers import AMUSE, GPA, EMANesterov, NorMuon, Pace
from anytime_lab.optimizers.ema_nesterov import ema_nesterov
from anytime_lab.optimizers.primal_averaging import primal_averaging

EVERY = [Pace, AMUSE, GPA, EMANesterov, NorMuon]
KINDS = {
    "pace": Pace(),
    "amuse": AMUSE(weight_decay=0.1),
    "gpa": GPA(),
    "gpa_muon": GPA(matrices="muon", x_average="f25"),
    "ema_nesterov": EMANesterov(),
    "ema_nesterov_muon": EMANesterov(matrices="muon"),
    "normuon": NorMuon(),
}
READOUTS = {
    "gpa": (GPA(interpolation=0.8), {"x": {"last": 1.25, "z": -0.25}}),
    "pace": (Pace(), {"ema": {"ema": 1.0}}),
    "ema_nesterov": (  # kappa = beta (1 - gamma) / gamma = 1/4
        EMANesterov(ema_decay=0.5, extrapolation=0.25),
        {"theta": {"last": 0.8, "ema": 0.2}, "ema": {"ema": 1.0}},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "check", [optimizer_contract.check_donation, optimizer_contract.check_start_and_learning]
)
def test_updates(kind, check):
    check(KINDS[kind])


@pytest.mark.parametrize("kind", [x for x in EVERY if x is not Pace])
def test_moments_in_bfloat16(kind):
    optimizer_contract.check_start_and_learning(kind(moments="bfloat16"))
    state = kind(moments="bfloat16").transform(RUN).init(start())
    iterates = jax.tree.leaves(optimizers.iterates(state))
    arrays = [x for x in jax.tree.leaves(state) if x.ndim]
    halves = [x for x in arrays if x.dtype == np.dtype("bfloat16")]
    assert len(halves) == len(arrays) - len(iterates) > 0


@pytest.mark.parametrize("kind", EVERY)
def test_weight_decay(kind):
    optimizer_contract.check_masked_decay(kind)
    optimizer_contract.check_growing_decay(kind, is_exact=kind is NorMuon)
    optimizer_contract.check_told_time(kind, is_exact=kind is NorMuon)


@pytest.mark.parametrize("kind", READOUTS)
def test_readouts(kind):
    optimizer, expected = READOUTS[kind]
    optimizer_contract.check_readouts(optimizer.transform(RUN), expected)


INVALID = [
    (Pace, "pullback", -1),
    (Pace, "ema_power", float("inf")),
    (Pace, "moments", "bfloat16"),
    (GPA, "interpolation", 0.0),
    (GPA, "x_average", "nonsense"),
    (GPA, "matrices", "adamw"),
    (AMUSE, "interpolation_power", 1.5),
    (AMUSE, "interpolation", 0),
    (AMUSE, "warmup_init", 2),
    (EMANesterov, "ema_decay", 1),
    (EMANesterov, "extrapolation", 1),
    (NorMuon, "b2", 1.0),
]


@pytest.mark.parametrize(("kind", "name", "value"), INVALID)
def test_a_bad_setting_is_named(kind, name, value):
    with pytest.raises(ValueError, match=f"^{name} = "):
        kind(**{name: value})


@pytest.mark.parametrize("kind", ["pace", "gpa", "ema_nesterov"])
def test_missing_parameters_are_named(kind):
    optimizer = optax.with_extra_args_support(KINDS[kind].transform(RUN))
    with pytest.raises(ValueError, match="param"):
        optimizer.update(start(), optimizer.init(start()))


WRAPPERS = {
    "primal": lambda inner: primal_averaging(inner, 0.9, 0.1),
    "ema_nesterov": lambda inner: ema_nesterov(inner, 0.9, 0.5),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_extra_arguments_reach_the_inner_optimizer(kind):
    def update(updates, state, params=None, *, value, **_):
        del params
        return jax.tree.map(lambda g: -value * g, updates), state

    inner = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    optimizer, params = WRAPPERS[kind](inner), start()
    state = optimizer.init(params)
    moves = [optimizer.update(params, state, params, value=x)[0]["bias"] for x in (0.0, 1.0)]
    assert not np.allclose(*moves)
