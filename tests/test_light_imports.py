"""The two pieces for any Optax user load nothing that only the trainer needs."""

import json
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
HEAVY = {
    "array_record",
    "flax",
    "grain",
    "matplotlib",
    "ml_collections",
    "orbax",
    "rich",
    "safetensors",
    "sentencepiece",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "tokenizers",
    "wandb",
}
# What the extra `export` brings, and nothing else.
EXPORT = {"safetensors", "tokenizers"}
# What a start of training does not need before its first update: the picture at its end, and
# what is asked for in the configuration.
LATER = {"matplotlib", "tensorboardX", "wandb"} | EXPORT


def loaded_by(*modules, without=()):
    """The packages, and our own modules, that an interpreter holds after the imports.

    Those named by `without` cannot be imported in it.
    """
    code = (
        f"import json, sys\nsys.modules.update(dict.fromkeys({without!r}))\n"
        f"import {', '.join(modules)}\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    names = set(json.loads(done.stdout))
    ours = {name for name in names if name.split(".")[0] == "anytime_jax"}
    return {name.split(".")[0] for name in names}, ours


def test_schedules_and_averages_need_only_jax_and_optax():
    packages, ours = loaded_by("anytime_jax.schedules", "anytime_jax.averaging")
    assert {"jax", "optax", "numpy"} <= packages
    assert not packages & HEAVY
    assert ours == {f"anytime_jax{m}" for m in ("", ".schedules", ".averaging", ".checks")}


@pytest.mark.parametrize(
    "modules",
    [
        ("anytime_jax",),
        (
            "anytime_jax.checks",
            "anytime_jax.errors",
            "anytime_jax.config.clock",
            "anytime_jax.config.fields",
        ),
    ],
)
def test_the_lowest_rooms_load_nothing_heavy(modules):
    packages, _ = loaded_by(*modules)
    assert not packages & (HEAVY | {"jax", "optax"})


def test_a_start_of_training_loads_nothing_that_its_first_update_can_do_without():
    """Half a second each, of the few that a start may take; they come where they are used."""
    packages, ours = loaded_by("anytime_jax.commands.train")
    assert {"anytime_jax.training.trainer", "anytime_jax.data.token_files"} <= ours
    assert not packages & LATER


def test_training_and_preparing_do_without_the_extra():
    _, ours = loaded_by(
        "anytime_jax.commands.train", "anytime_jax.commands.prepare", without=sorted(EXPORT)
    )
    assert {"anytime_jax.training.trainer", "anytime_jax.data.vocabulary"} <= ours
