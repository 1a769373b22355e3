"""Settings to begin with: an empty group for each, so that a file names only what it changes.

A configuration is Python and returns an `ml_collections.ConfigDict`. docs/settings.md explains each
setting; the defaults are the paper's 150M model and optimizer, and a file has to give a `name` and
a `schedule`. Change any setting on the command line: `--config.batch_size=64 --config.stop=4x`.
"""

from ml_collections import ConfigDict

from anytime_jax.config.run_settings import group_names


def get_config() -> ConfigDict:
    """Returns the base configuration, which is not a run yet."""
    # The types of settings are checked when all are known; a point may be a number or a text.
    # A dictionary that is a value, such as {"0.5x": {"length": 2048}}, stays one.
    options = {"type_safe": False, "convert_dict": False}
    return ConfigDict({x: ConfigDict(**options) for x in group_names()}, **options)
