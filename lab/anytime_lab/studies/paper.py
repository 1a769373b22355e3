"""Runs of the paper's sweeps: cosines, constant and inverse-square-root runs, branches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from anytime_lab.study.plan import StudyRun, chain, decays, runs
from configs import paper_settings as settings


def experiment(
    root: str,
    model: Callable[[str], ConfigDict],
    horizons: Sequence[int],
    *,
    cosines: Sequence[Mapping[str, Any]],
    constants: Sequence[Mapping[str, Any]],
    inverse_sqrts: Sequence[Mapping[str, Any]],
) -> list[StudyRun]:
    """Returns the runs of one of the paper's sweeps, with a branch of every constant run.

    Args:
      root: directory of the study.
      model: a model of `configs/paper_settings.py`.
      horizons: Chinchilla multiples of the branches.
      cosines: peak, b2 and horizon of each cosine.
      constants: peak and b2 of each constant run.
      inverse_sqrts: peak, b2 and alpha of each inverse square root.
    """
    trunks = runs("constant", settings.constant(model("constant"), 0.0, 0.0), constants, root)
    inverse = settings.inverse_sqrt(model("inverse_sqrt"), 0.0, 0.0, 0.0)
    return chain(
        runs("cosine", settings.cosine(model("cosine"), 0.0, 0.0, ""), cosines, root),
        trunks,
        runs("inverse_sqrt", inverse, inverse_sqrts, root),
        decays("wsd", trunks, horizons),
    )
