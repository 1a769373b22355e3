"""The examples in the docstrings of the library: each public name has one, and it runs."""

import doctest
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anytime_jax import averaging, schedules, theory

NAMES = {
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "optax": optax,
    "averaging": averaging,
    "schedules": schedules,
    "theory": theory,
}
MODULES = ["schedules", "averaging"]


def public_names(module):
    """The functions and classes that a module defines and does not hide."""
    for name, value in vars(module).items():
        ours = getattr(value, "__module__", None) == module.__name__
        if (
            ours
            and not name.startswith("_")
            and (inspect.isfunction(value) or isinstance(value, type))
        ):
            yield name, value


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_an_example(name):
    module = importlib.import_module(f"anytime_jax.{name}")
    without = [name for name, value in public_names(module) if ">>> " not in (value.__doc__ or "")]
    assert without == []


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(f"anytime_jax.{name}")
    assert doctest.testmod(module, extraglobs=NAMES).failed == 0
