"""Model FLOPs by hand."""

import pytest
from reference_decoders import PAPER

from anytime_jax.distributed.device_specs import DEVICE_SPECS
from anytime_jax.models import flops


def test_flops_per_token_of_a_paper_model():
    """The authors' speed on an H100, 300K tokens/s, is about 38% of its peak."""
    per_token = flops.flops_per_token(PAPER)
    # 6 (12 layers * 12 * 1024^2 + 32,128 * 1024), and 12 layers * 12 * 1024 * 1024.
    assert per_token == 1_103_364_096 + 150_994_944
    assert per_token * 300e3 / DEVICE_SPECS["h100"].peak_flops == pytest.approx(0.38, abs=0.01)
