"""The examples in the docstrings of the laboratory: each public name of the theory has one."""

import doctest
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import anytime_lab.optimizers
from anytime_jax import averaging, optimizers, schedules
from anytime_lab import theory
from anytime_lab.optimizers import amuse, pace

# What the examples expect to be imported.
NAMES = {"jax": jax, "jnp": jnp, "np": np, "optax": optax}
NAMES |= {"averaging": averaging, "schedules": schedules, "optimizers": optimizers}
NAMES |= {"theory": theory, "amuse": amuse, "pace": pace}
MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (theory, anytime_lab.optimizers)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", theory.__all__)
def test_public_name_has_an_example(name):
    assert ">>> " in getattr(theory, name).__doc__


@pytest.mark.parametrize("name", ["anytime_lab.theory", "anytime_lab.seesaw", *MODULES])
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name), extraglobs=NAMES).failed == 0
