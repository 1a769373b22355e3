"""Learning-rate decay of a constant, inverse-square-root or power-law run: a branch of it.

    python -m anytime_jax.main --config=configs/decay.py:runs/quickstart
    python -m anytime_jax.main --config=configs/decay.py:runs/quickstart@2x

The branch has the settings of its trunk, the run that is given, which is only read. It starts from
the trunk's checkpoint at 90% of the horizon, such as 2x, and its learning rate falls linearly from
there to zero. With `@800` it starts from the checkpoint of step 800, which is then 90% of the
horizon. The default is the last doubling for which the trunk has a checkpoint at 90%, or else its
last checkpoint. `--config.decay.shape` is "linear", "1-sqrt" or "cosine", `--config.decay.floor`
the last learning rate over the peak.

Cost:   a tenth of a run to the horizon.
Result: validation loss of `last` at the horizon, to compare with the averages of the trunk there.
"""

from collections.abc import Collection

from ml_collections import ConfigDict

from anytime_jax.errors import InputError
from anytime_jax.storage.files import is_directory
from anytime_jax.storage.paths import storage_path
from anytime_jax.training import branching


def get_config(run: str = "", trust: Collection[str] = ()) -> ConfigDict:
    """Returns the configuration of a decay of the run in a directory, `DIR` or `DIR@POINT`."""
    if not run:
        raise InputError("no run: give its directory, as --config=decay:runs/NAME")
    trunk, mark, point = run.rpartition("@")
    if not mark or is_directory(storage_path(run)):  # the name of a directory may have an @
        trunk, point = run, ""
    return ConfigDict(branching.decay_settings(trunk, point, trust))
