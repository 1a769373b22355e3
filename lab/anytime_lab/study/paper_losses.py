"""Losses published in the paper, for comparison with a study.

Source: the numbers of Figure 2 (Meterez et al., "Anytime Pretraining"): validation loss
in nats per token on C4 of the cosine envelope, of the constant and the inverse-square-root run read
out through the average f25, and of WSD branches read out through the last iterate. Their file also
has the branches read out through the average f100, which an evaluator had written over the last
iterate's metric.
"""

import csv
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("published.csv")
KINDS = ("cosine", "constant", "inverse_sqrt", "wsd")


class Published(NamedTuple):
    """Losses of a model at a multiple of its Chinchilla budget."""

    model: str
    multiple: float
    tokens: float
    cosine: float
    constant: float
    inverse_sqrt: float
    wsd: float
    wsd_f100: float


@functools.cache
def published() -> Sequence[Published]:
    """Returns the published losses, by model and multiple."""
    with FILE.open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    names = Published._fields[1:]
    return tuple(Published(row["model"], *(float(row[name]) for name in names)) for row in rows)


@functools.cache
def losses() -> dict[str, dict[str, dict[float, float]]]:
    """Returns the published losses by model ("150M", "300M"), kind and multiple."""
    models: dict[str, dict[str, dict[float, float]]] = {}
    for each in published():
        kinds = models.setdefault(each.model, {kind: {} for kind in KINDS})
        for kind in KINDS:
            kinds[kind][each.multiple] = getattr(each, kind)
    return models


def differences(model: str) -> dict[str, dict[float, float]]:
    """Returns the published losses minus the cosine's, by kind and multiple."""
    by_kind = losses()[model]
    cosine = by_kind["cosine"]
    return {kind: {m: x - cosine[m] for m, x in by_kind[kind].items()} for kind in KINDS[1:]}
