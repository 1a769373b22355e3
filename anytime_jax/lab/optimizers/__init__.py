"""Optimizers that were no better than simpler ones; a configuration names them by their class.

    --config.optimizer.kind=anytime_jax.lab.optimizers:GPA

`primal_averaging.py` and `ema_nesterov.py` wrap a descent; `gpa.py` and `amuse.py` choose the
coefficients of the first. `normuon.py` is Muon with another scale.
"""

from anytime_jax.lab.optimizers.amuse import AMUSE
from anytime_jax.lab.optimizers.ema_nesterov import EMANesterov
from anytime_jax.lab.optimizers.gpa import GPA
from anytime_jax.lab.optimizers.normuon import NorMuon

__all__ = ["AMUSE", "GPA", "EMANesterov", "NorMuon"]
