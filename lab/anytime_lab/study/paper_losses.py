"""Losses published in the paper, for comparison with a study.

Source: the numbers of Figure 2 (Meterez et al., "Anytime Pretraining"): validation loss
in nats per token on C4 of the cosine envelope, of the constant and the inverse-square-root run read
out through the average f25, and of the last iterate of WSD branches.
"""

import csv
import functools
from pathlib import Path

FILE = Path(__file__).with_name("published.csv")
KINDS = ("cosine", "constant", "inverse_sqrt", "wsd")


@functools.cache
def losses() -> dict[str, dict[str, dict[float, float]]]:
    """Returns the published losses by model ("150M", "300M"), kind and multiple."""
    models: dict[str, dict[str, dict[float, float]]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kinds = models.setdefault(row["model"], {kind: {} for kind in KINDS})
            for kind in KINDS:
                kinds[kind][float(row["multiple"])] = float(row[kind])
    return models


def differences(model: str) -> dict[str, dict[float, float]]:
    """Returns the published losses minus the cosine's, by kind and multiple."""
    by_kind = losses()[model]
    cosine = by_kind["cosine"]
    return {kind: {m: x - cosine[m] for m, x in by_kind[kind].items()} for kind in KINDS[1:]}
