"""Optimizers for training without a known end: frozen dataclasses that make Optax transforms.

Begin with `interface.py`: it says what an optimizer is, and what a run tells an optimizer.
`adamw.py`, `muon.py` and `schedule_free.py` have one optimizer each. `weight_decay.py` has the
weight decay that all three share, `moments.py` their moments in bfloat16, and `width_scaling.py`
the updates of a wider model (muP).
`readouts.py` finds, in an optimizer's state, the weights that a method evaluates.
`training/optimizer.py` builds the optimizer of a run, from these classes or a user's own.

    >>> run = optimizers.RunInfo(learning_rate=optax.constant_schedule(1e-3))
    >>> optimizer = optimizers.ScheduleFreeAdamW().transform(run)
    >>> opt_state = optimizer.init({"w": jnp.zeros(3)})
    >>> sorted(optimizers.readouts(opt_state))
    ['x']
"""

from anytime_jax.optimizers.adamw import AdamW
from anytime_jax.optimizers.interface import (
    INHERITED,
    Optimizer,
    RunInfo,
)
from anytime_jax.optimizers.moments import StoredMomentsState, store_moments
from anytime_jax.optimizers.muon import (
    Muon,
    MuonState,
    orthogonalize_momentum,
    partition_matrices,
    scale_by_muon,
)
from anytime_jax.optimizers.readouts import eval_params, iterates, readouts
from anytime_jax.optimizers.schedule_free import (
    ScheduleFreeAdamW,
    ScheduleFreeState,
)
from anytime_jax.optimizers.weight_decay import descend, is_decayed
from anytime_jax.optimizers.width_scaling import scale_with_width

__all__ = [
    "INHERITED",
    "AdamW",
    "Muon",
    "MuonState",
    "Optimizer",
    "RunInfo",
    "ScheduleFreeAdamW",
    "ScheduleFreeState",
    "StoredMomentsState",
    "descend",
    "eval_params",
    "is_decayed",
    "iterates",
    "orthogonalize_momentum",
    "partition_matrices",
    "readouts",
    "scale_by_muon",
    "scale_with_width",
    "store_moments",
]
