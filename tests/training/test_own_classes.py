"""Classes of one's own that are wrong: the checks of a start name what is."""

import dataclasses
from typing import Any, NamedTuple

import jax
import optax
import pytest
import small_run
from flax import linen as nn
from jax import numpy as jnp

from anytime_jax.config.kinds import explain_errors
from anytime_jax.config.model import Olmo2
from anytime_jax.errors import InputError
from anytime_jax.models import decoder
from anytime_jax.training import preflight, step


@dataclasses.dataclass(frozen=True)
class Descent:
    """An optimizer of one's own."""

    made: Any

    def transform(self, run):
        return self.made


@dataclasses.dataclass(frozen=True)
class Model(Olmo2):
    """A model with blocks of one's own."""

    own: Any = None

    def block(self):
        return self.own


class Raising(decoder.Block):
    def mlp(self, x, layer):
        return x / (1 / 0)


class Misnaming(decoder.Block):
    def mlp(self, x, layer):
        return x + self.param("a/b", nn.initializers.zeros, (x.shape[-1],))


def check(**groups):
    """Makes the checks of a start that a run with classes of one's own has to pass."""
    config, mesh = dataclasses.replace(small_run.config("run"), **groups), small_run.mesh()
    with explain_errors(config.packages()):
        preflight.check_update(step.make_program(config, mesh))


def keep(updates, state, params=None):
    return updates, state


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (None, "^config.optimizer: transform"),
        (
            optax.GradientTransformation(lambda params: jnp.ones(2), lambda u, s, p: (u, s[:1])),
            r"^config.optimizer: .*float32\[2\]', is 'float32\[1\]",
        ),
        (
            optax.GradientTransformation(lambda params: jnp.ones(2, bool), keep),
            "config.optimizer: .* is bool",
        ),
    ],
    ids=["no transform", "another state", "a state of no numbers"],
)
def test_wrong_optimizer_is_named(transform, message):
    with pytest.raises(InputError, match=message):
        check(optimizer=Descent(transform))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (None, "^config.model: block"),
        (Raising, r"^test_own_classes\.py, line \d+, in mlp: ZeroDivisionError"),
        (Misnaming, "^config.model .*a/b"),
    ],
)
def test_wrong_model_is_named(block, message):
    model = dataclasses.asdict(small_run.config("run").model)
    with pytest.raises(InputError, match=message):
        check(model=Model(**model, own=block))


@pytest.mark.parametrize(
    ("iterate", "readout", "share", "message"),
    [
        ("slow", "f25", 1.0, "^config.optimizer: 'f25'"),
        ("z", "fast", 1.0, "^config.optimizer: .*'fast' .* must be of last, z"),
        ("slow", "fast", 0.5, "^config.optimizer: .*'fast' .* sum to 0.5"),
    ],
    ids=["name of an average", "unknown iterate", "sum"],
)
def test_wrong_readout_is_named(iterate, readout, share, message, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")  # so that programs are compiled with options, as a user's

    class State(NamedTuple):
        slow: Any

        def iterates(self):
            return {iterate: self.slow}

        def readouts(self):
            return {readout: {"slow": jnp.float32(share)}}

    transform = optax.GradientTransformation(lambda p: State(jax.tree.map(jnp.copy, p)), keep)
    with pytest.raises(InputError, match=message):
        check(optimizer=Descent(transform))
