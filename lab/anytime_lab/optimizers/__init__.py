"""Optimizers that were no better than simpler ones; a configuration names them by their class.

    --config.optimizer.kind=anytime_lab.optimizers:GPA

`primal_averaging.py` and `ema_nesterov.py` wrap a descent; `gpa.py` and `amuse.py` choose the
coefficients of the first. `normuon.py` is Muon with another scale, and `pace.py` is AdamW that is
pulled to its average.
"""

from anytime_lab.optimizers.amuse import AMUSE
from anytime_lab.optimizers.ema_nesterov import EMANesterov
from anytime_lab.optimizers.gpa import GPA
from anytime_lab.optimizers.normuon import NorMuon
from anytime_lab.optimizers.pace import Pace

__all__ = ["AMUSE", "GPA", "EMANesterov", "NorMuon", "Pace"]
