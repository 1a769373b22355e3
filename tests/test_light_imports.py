"""Imports load no heavy package that they do not need."""

import json
import subprocess
import sys

from paths import REPOSITORY

from anytime_jax import plugins

EXPORT = {"safetensors", "tokenizers"}  # of the extra `export`
HEAVY = EXPORT | {"array_record", "flax", "grain", "matplotlib", "ml_collections", "orbax", "rich"}
HEAVY |= {"sentencepiece", "tensorboardX", "tensorflow", "tensorflow_datasets", "wandb"}
# Half a second each, and not needed before the first update of a run.
LATE = {"matplotlib", "tensorboardX", "wandb"} | EXPORT


def loaded_by(*modules, without=()):
    """The packages, and the modules of ours, that a new interpreter has after the imports.

    It cannot import the packages in `without`.
    """
    code = (
        f"import json, sys\nsys.modules.update(dict.fromkeys({without!r}))\n"
        f"import {', '.join(modules)}\nprint(json.dumps(sorted(sys.modules)))"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert process.returncode == 0, process.stderr
    names = set(json.loads(process.stdout))
    ours = {name for name in names if name.split(".")[0] == "anytime_jax"}
    return {name.split(".")[0] for name in names}, ours


def test_schedules_averaging_and_optimizers_load_jax_optax_and_numpy_alone():
    modules = ("anytime_jax.schedules", "anytime_jax.averaging", "anytime_jax.optimizers")
    packages, ours = loaded_by(*modules)
    assert {"jax", "optax", "numpy"} <= packages
    assert not packages & HEAVY
    ours = {name for name in ours if not name.startswith("anytime_jax.optimizers.")}
    below = {"anytime_jax.checks", "anytime_jax.errors", "anytime_jax.rounding"}
    assert ours == {"anytime_jax", *below, *modules}


BASE = ("anytime_jax.checks", "anytime_jax.errors", "anytime_jax.config.clock")
BASE += ("anytime_jax.config.settings_reader",)


def test_lowest_layers_load_nothing_heavy():
    packages, _ = loaded_by(*BASE)
    assert not packages & (HEAVY | {"jax", "optax"})


def test_command_loads_no_other_command():
    """And their list no library of numbers, so that `--help` is quick."""
    packages, _ = loaded_by("anytime_jax.commands.dispatch as d; d.plugins.commands()")
    assert not packages & (HEAVY | {"jax", "numpy", "optax"})
    commands = {command.module for command in plugins.commands().values()}
    _, ours = loaded_by("anytime_jax.commands.dispatch as d; d.import_command('runs')")
    assert ours & commands == {"anytime_jax.commands.runs"}


def test_train_and_prepare_load_nothing_that_a_first_update_does_not_need():
    """They work without the extra `export`, and without what a run imports later."""
    modules = ("anytime_jax.commands.train", "anytime_jax.commands.prepare")
    packages, ours = loaded_by(*modules, without=sorted(EXPORT))
    assert {"anytime_jax.training.loop", "anytime_jax.corpus.vocabulary_files"} <= ours
    assert not packages & (LATE - EXPORT)
