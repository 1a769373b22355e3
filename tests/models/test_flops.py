"""Model FLOPs by hand."""

import dataclasses

import pytest
from reference_decoders import PAPER

from anytime_jax.distributed.device_specs import DEVICE_SPECS
from anytime_jax.models import flops


@pytest.mark.parametrize(
    ("layers", "matrices", "attention", "tokens_per_s", "mfu"),
    [
        # 6 (12 layers * 12 * 1024^2 + 32,128 * 1024), and 12 layers * 12 * 1024 * 1024.
        (12, 1_103_364_096, 150_994_944, 300e3, 0.38),
        (24, 2_009_333_760, 301_989_888, 160e3, 0.37),
    ],
)
def test_flops_per_token_of_paper_models(layers, matrices, attention, tokens_per_s, mfu):
    """The authors' speeds on an H100 are about 38% and 37% of its peak."""
    per_token = flops.flops_per_token(dataclasses.replace(PAPER, layers=layers))
    assert per_token == matrices + attention
    peak = DEVICE_SPECS["h100"].peak_flops
    assert per_token * tokens_per_s / peak == pytest.approx(mfu, abs=0.01)
