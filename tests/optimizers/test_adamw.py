"""AdamW and its weight decay against Optax's."""

import optax
import optimizer_contract
import pytest
from noisy_quadratic import rate, run, start
from optimizer_contract import RUN, assert_same

from anytime_jax.optimizers import AdamW, Muon, RunInfo, ScheduleFreeAdamW

DECAY = 0.1


@pytest.mark.parametrize("mask", ["all", "matrices"])
def test_it_is_the_adamw_of_optax(mask):
    ours = AdamW(0.9, 0.95, 1e-3, DECAY, mask).transform(RUN)
    only = {"matrix": True, "bias": False} if mask == "matrices" else None
    assert_same(run(ours), run(optax.adamw(rate, 0.9, 0.95, 1e-3, weight_decay=DECAY, mask=only)))


@pytest.mark.parametrize("kind", [AdamW, Muon, ScheduleFreeAdamW])
def test_matrices_decay_as_with_all_and_the_rest_as_without_decay(kind):
    optimizer_contract.check_masked_decay(kind)


@pytest.mark.parametrize("kind", [AdamW, ScheduleFreeAdamW])
def test_decay_of_matrices_without_their_names_is_refused(kind):
    method = kind(weight_decay=DECAY, decay_mask="matrices").transform(RunInfo(rate))
    with pytest.raises(ValueError, match="decay_mask"):
        method.update(start(), method.init(start()), start())
