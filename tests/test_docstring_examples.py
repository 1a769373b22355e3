"""The examples in the docstrings of the library: each public name has one, and all of them run."""

import doctest
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anytime_jax import averaging, optimizers, rounding, schedules

# What the examples expect to be imported.
NAMES = {"jax": jax, "jnp": jnp, "np": np, "optax": optax}
NAMES |= {"averaging": averaging, "schedules": schedules}
NAMES |= {"optimizers": optimizers, "rounding": rounding}
MODULES = ["anytime_jax.schedules", "anytime_jax.averaging", "anytime_jax.rounding"]
MODULES += ["anytime_jax.weights.post_hoc_averages"]
MODULES += ["anytime_jax.optimizers"]
MODULES += [f"anytime_jax.optimizers.{m.name}" for m in pkgutil.iter_modules(optimizers.__path__)]
MODULES += ["anytime_jax.config.clock", "anytime_jax.data.mixture"]
MODULES += ["anytime_jax.models.loss", "anytime_jax.training.step"]


def public_members(module):
    """The functions and classes that a module defines and does not hide."""
    for name, value in vars(module).items():
        is_ours = getattr(value, "__module__", None) == module.__name__
        is_member = inspect.isfunction(value) or inspect.isclass(value)
        if is_ours and is_member and not name.startswith("_"):
            yield value


@pytest.mark.parametrize(
    "members",
    [
        list(public_members(schedules)),
        list(public_members(averaging)),
        list(public_members(rounding)),
        [getattr(optimizers, name) for name in optimizers.__all__ if name != "INHERITED"],
    ],
    ids=["schedules", "averaging", "rounding", "optimizers"],
)
def test_every_public_name_has_an_example(members):
    assert [x.__qualname__ for x in members if ">>> " not in (x.__doc__ or "")] == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name), extraglobs=NAMES).failed == 0
