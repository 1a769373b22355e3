"""Contents of this distribution: its commands, and the folder of its configurations."""

from pathlib import Path

from anytime_jax.plugins import Command, Folder, Plugin

_PACKAGE = Path(__file__).resolve().parent
# Beside the package in the repository, inside of it in a wheel.
CONFIGURATIONS = next(
    (path for path in (_PACKAGE / "configs", _PACKAGE.parent / "configs") if path.is_dir()),
    _PACKAGE / "configs",
)
_SUMMARIES = {
    "train": "Train a model, or resume its training.",
    "prepare": "Turn text into a dataset of tokens.",
    "evaluate": "Loss and perplexity of any weights of a run, or their scores in tasks.",
    "generate": "Generate text with any weights of a run.",
    "export": "Export weights of a run for other software.",
    "runs": "List runs and their checkpoints, and verify them.",
}

PLUGIN = Plugin(
    commands={
        name: Command(f"anytime_jax.commands.{name}", summary)
        for name, summary in _SUMMARIES.items()
    },
    folders=(Folder(CONFIGURATIONS, "configurations by name (--config=NAME)", local="configs"),),
)
