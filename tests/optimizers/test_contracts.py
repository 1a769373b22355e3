"""What every optimizer keeps to: donation, structure, clear errors."""

import dataclasses

import optax
import optimizer_contract
import pytest

from anytime_jax.optimizers import AdamW, Muon, ScheduleFreeAdamW


@dataclasses.dataclass(frozen=True)
class Adafactor:
    """A stranger's."""

    def transform(self, run):
        return optax.adafactor(run.learning_rate, min_dim_size_to_factor=2)


KINDS = {
    "adamw": AdamW(weight_decay=0.1),
    "muon": Muon(),
    "schedule_free_adamw": ScheduleFreeAdamW(weight_decay=0.1),
    "adafactor": Adafactor(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "check", [optimizer_contract.check_donation, optimizer_contract.check_start_and_learning]
)
def test_updates(kind, check):
    check(KINDS[kind])


INVALID = [
    (AdamW, "b1", (1.0, 1 - 1e-9, -0.1, float("nan"))),
    (AdamW, "b2", (1.0,)),
    (AdamW, "epsilon", (0, 1e-60)),
    (AdamW, "weight_decay", (-0.1, 1.1, "g0", "g1e3", "2")),
    (AdamW, "decay_mask", ("norms",)),
    (Muon, "momentum", (1.0,)),
    (ScheduleFreeAdamW, "interpolation", (0, 1, 1e-40)),
]
CASES = [(kind, name, value) for kind, name, values in INVALID for value in values]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_bad_setting_is_named(kind, name, value):
    with pytest.raises(ValueError, match=f"^{name} = "):
        kind(**{name: value})
