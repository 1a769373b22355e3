"""What every optimizer keeps to: donation, structure, clear errors."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from noisy_quadratic import START, rate, run, start

from anytime_jax import optimizers
from anytime_jax.lab.optimizers import AMUSE, GPA, EMANesterov, NorMuon
from anytime_jax.optimizers import AdamW, Muon, Pace, RunInfo, ScheduleFreeAdamW


@dataclasses.dataclass(frozen=True)
class Adafactor:
    """A stranger's."""

    def transform(self, run):
        return optax.adafactor(run.learning_rate, min_dim_size_to_factor=2)


RUN = RunInfo(rate, warmup_steps=4, matrix_axes={"matrix": (-2, -1)})
KINDS = {
    "adamw": AdamW(weight_decay=0.1),
    "muon": Muon(),
    "schedule_free_adamw": ScheduleFreeAdamW(weight_decay=0.1),
    "pace": Pace(),
    "amuse": AMUSE(weight_decay=0.1),
    "gpa": GPA(),
    "gpa_muon": GPA(matrices="muon", x_average="f25"),
    "ema_nesterov": EMANesterov(),
    "ema_nesterov_muon": EMANesterov(matrices="muon"),
    "normuon": NorMuon(),
    "adafactor": Adafactor(),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def make(kind):
    return optax.with_extra_args_support(KINDS[kind].transform(RUN))


@kinds
def test_parameters_and_state_can_be_donated(kind):
    optimizer = make(kind)

    def step(params, state):
        moves, state = optimizer.update(params, state, params)
        return optax.apply_updates(params, moves), state

    compiled, plain = jax.jit(step, donate_argnums=(0, 1)), jax.jit(step)
    params, state = start(), optimizer.init(start())
    expected = plain(*plain(params, state))
    params = start()
    state = optimizer.init(params)
    for _ in range(2):
        old = jax.tree.leaves((params, state))
        params, state = compiled(params, state)
        assert all(leaf.is_deleted() for leaf in old if leaf.size > 1)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        (params, state),
        expected,
    )


@kinds
def test_iterates_start_at_the_parameters_and_it_learns(kind):
    optimizer = KINDS[kind].transform(RUN)
    params = start()
    for tree in optimizers.iterates(optimizer.init(params)).values():
        jax.tree.map(np.testing.assert_array_equal, tree, params)
    *_, (params, _) = run(optimizer)
    sizes = [np.sqrt(sum(np.sum(np.square(x)) for x in tree.values())) for tree in (params, START)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("kind", ["pace", "gpa", "amuse", "ema_nesterov"])
def test_missing_parameters_are_named(kind):
    optimizer = make(kind)
    with pytest.raises(ValueError, match="param"):
        optimizer.update(start(), optimizer.init(start()))


INVALID = [
    (AdamW, "b1", (1.0, 1 - 1e-9, -0.1, float("nan"), "0.9")),
    (AdamW, "b2", (1.0, True)),
    (AdamW, "epsilon", (0, 1e-60)),
    (AdamW, "weight_decay", (-0.1, 1.1)),
    (AdamW, "decay_mask", ("norms", None)),
    (AdamW, "weight_decay", ("g", "g0", "g-1", "2", "g1e3", "G2")),
    (ScheduleFreeAdamW, "decay_mask", ("",)),
    (Muon, "momentum", (1.0,)),
    (Muon, "b1", (1.0,)),
    (ScheduleFreeAdamW, "interpolation", (0, 1, 1 - 1e-9, 1e-40)),
    (Pace, "pullback", (-1, float("inf"))),
    (Pace, "ema_power", ("0.2",)),
    (GPA, "interpolation", (0.0, 1.0)),
    (GPA, "x_average", ("nonsense", "ema1.5", "")),
    (GPA, "matrices", ("adamw",)),
    (AMUSE, "interpolation_power", (-1, 1.5)),
    (AMUSE, "interpolation", (0,)),
    (EMANesterov, "ema_decay", (0, 1, 1e-40)),
    (EMANesterov, "extrapolation", (0, 1)),
    (NorMuon, "b2", (1.0,)),
]
CASES = [(kind, name, value) for kind, name, values in INVALID for value in values]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_bad_setting_is_named(kind, name, value):
    with pytest.raises(ValueError, match=f"^{name} = "):
        kind(**{name: value})
