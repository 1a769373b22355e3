"""The results of the synthetic study, written once."""

import pytest
import synthetic_study

from anytime_jax.study.results import Results


@pytest.fixture(scope="session", name="results")
def results_fixture(tmp_path_factory):
    """Results of the whole synthetic study."""
    return Results(synthetic_study.write_study(tmp_path_factory.mktemp("study") / "all"))
