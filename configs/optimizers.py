"""The quickstart with another optimizer: muon, schedule_free_adamw, or one of your own.

    python -m anytime_jax.main --config=configs/optimizers.py:muon

docs/optimizers.md has the methods and what they evaluate, and docs/extend.md how to add one, which
is named by its class: --config=optimizers:my_module:MyOptimizer.

Cost:   as the quickstart, about 3 minutes on two CPU cores.
Result: validation losses in runs/quickstart_KIND, to compare with the quickstart's.
"""

from ml_collections import ConfigDict

from anytime_jax.errors import InputError
from configs import quickstart


def get_config(kind: str = "") -> ConfigDict:
    """Returns the quickstart with an optimizer of this kind and a constant rate."""
    if not kind:
        raise InputError("no optimizer: give one, as --config=optimizers:muon")
    config = quickstart.get_config()
    config.name = f"quickstart_{kind.rpartition(':')[2].lower()}"
    config.schedule = ConfigDict({"kind": "constant", "peak": 1e-2, "warmup": "48 steps"})
    config.optimizer = ConfigDict({"kind": kind})
    return config
