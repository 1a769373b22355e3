"""The paper's published losses."""

import pytest

from anytime_lab.study import paper_losses


def test_losses_are_those_of_the_paper():
    """Two numbers as its text and tables print them, and their differences."""
    losses = paper_losses.losses()
    assert {k: len(v["cosine"]) for k, v in losses.items()} == {"150M": 6, "300M": 5}
    assert losses["150M"]["constant"][1.0] == pytest.approx(3.0259, abs=5e-5)
    assert losses["300M"]["wsd"][16.0] == pytest.approx(2.6296, abs=5e-5)
    differences = paper_losses.differences("150M")
    assert differences["inverse_sqrt"][32.0] == pytest.approx(0.0041, abs=5e-5)
