"""AdamW and its weight decay against Optax's."""

import dataclasses

import numpy as np
import optax
import pytest
from noisy_quadratic import rate, run, start

from anytime_jax.lab.optimizers import AMUSE, GPA, EMANesterov, NorMuon
from anytime_jax.optimizers import AdamW, Muon, Pace, RunInfo, ScheduleFreeAdamW

RUN = RunInfo(rate, 4, matrix_axes={"matrix": (-2, -1)}, matrices={"matrix", "head"})
DECAY = 0.1


def assert_same(one, other, names=("matrix", "bias")):
    for (params, _), (expected, _) in zip(one, other, strict=True):
        for name in names:
            np.testing.assert_array_equal(params[name], expected[name])


@pytest.mark.parametrize("mask", ["all", "matrices"])
def test_it_is_the_adamw_of_optax(mask):
    ours = AdamW(0.9, 0.95, 1e-3, DECAY, mask).transform(RUN)
    only = {"matrix": True, "bias": False} if mask == "matrices" else None
    assert_same(run(ours), run(optax.adamw(rate, 0.9, 0.95, 1e-3, weight_decay=DECAY, mask=only)))


@pytest.mark.parametrize(
    "kind", [AdamW, Muon, ScheduleFreeAdamW, Pace, AMUSE, GPA, EMANesterov, NorMuon]
)
def test_matrices_decay_as_with_all_and_the_rest_as_without_decay(kind):
    masked = kind(weight_decay=DECAY, decay_mask="matrices")
    every = dataclasses.replace(masked, decay_mask="all")
    without = dataclasses.replace(masked, weight_decay=0.0)
    runs = {name: list(run(x.transform(RUN), 20)) for name, x in
            (("masked", masked), ("every", every), ("without", without))}  # fmt: skip
    assert_same(runs["masked"], runs["every"], ["matrix"])
    assert_same(runs["masked"], runs["without"], ["bias"])
    for name in ("matrix", "bias"):  # the decay is seen in both
        last = [params[name] for params, _ in (runs["every"][-1], runs["without"][-1])]
        assert np.abs(last[0] - last[1]).max() > 1e-3


@pytest.mark.parametrize("kind", [AdamW, ScheduleFreeAdamW, Pace])
def test_decay_of_matrices_without_their_names_is_refused(kind):
    method = kind(weight_decay=DECAY, decay_mask="matrices").transform(RunInfo(rate))
    with pytest.raises(ValueError, match="decay_mask"):
        method.update(start(), method.init(start()), start())
