"""Run files and metadata of checkpoints that say as little as they may."""

from typing import Any

from anytime_jax.checkpoints.checkpoint_reader import Meta
from anytime_jax.checkpoints.run_json import RunFile

META = Meta(
    config={},
    origin={},
    fingerprint="",
    stages=(),
    vocabulary="",
    microbatches=1,
    version="",
    jax="",
)


def run_file(**changes: Any) -> RunFile:
    """Returns a run file without content, but for the changes."""
    return RunFile(**{"identity": {}, "name": "run", "version": "", "config": {}, **changes})
