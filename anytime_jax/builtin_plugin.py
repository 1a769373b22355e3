"""Contents of this distribution: its commands, configurations and kinds."""

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
    "average": "Average models, such as checkpoints of any trainer.",
    "runs": "List runs and their checkpoints, and verify them.",
}

_KINDS = {
    "schedule": {
        "constant": "anytime_jax.schedules:Constant",
        "power": "anytime_jax.schedules:Power",
        "inverse_sqrt": "anytime_jax.schedules:InverseSqrt",
        "cosine": "anytime_jax.schedules:Cosine",
        "linear": "anytime_jax.schedules:Linear",
        "wsd": "anytime_jax.schedules:WSD",
    },
    "optimizer": {
        "adamw": "anytime_jax.optimizers:AdamW",
        "muon": "anytime_jax.optimizers:Muon",
        "schedule_free_adamw": "anytime_jax.optimizers:ScheduleFreeAdamW",
    },
    "model": {
        "olmo": "anytime_jax.config.model:Olmo",
        "olmo2": "anytime_jax.config.model:Olmo2",
        "llama": "anytime_jax.config.model:Llama",
        "qwen": "anytime_jax.config.model:Qwen",
    },
    "tracker": {
        "tensorboard": "anytime_jax.training.trackers:TensorBoard",
        "wandb": "anytime_jax.training.trackers:Wandb",
    },
    "source": {
        "files": "anytime_jax.corpus.file_source:FileSource",
        "builtin": "anytime_jax.corpus.builtin_source:BuiltinSource",
        "tfds": "anytime_jax.corpus.tfds_source:TfdsSource",
        "tokens": "anytime_jax.corpus.token_source:TokenSource",
    },
}

PLUGIN = Plugin(
    commands={
        name: Command(f"anytime_jax.commands.{name}", summary)
        for name, summary in _SUMMARIES.items()
    },
    folders=(Folder(CONFIGURATIONS, "configurations by name (--config=NAME)", local="configs"),),
    kinds=_KINDS,
)
