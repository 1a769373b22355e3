"""Classes of one's own that are wrong: their errors name the file, before anything is written."""

import sys

import pytest
import small_run

from anytime_jax.config import schema
from anytime_jax.errors import InputError
from anytime_jax.training import loop

MODULE = """
import dataclasses
import optax
from flax import linen as nn
from jax import numpy as jnp, random
from anytime_jax.config.model import Olmo2
from anytime_jax.models import decoder


@dataclasses.dataclass(frozen=True)
class Descent:
    def transform(self, run):
        TRANSFORM
        return optax.sgd(run.learning_rate)


def update(updates, state, params=None, **extra):
    UPDATE
    return updates, state


class Block(decoder.Block):
    def mlp(self, x, layer):
        MLP
        return x


@dataclasses.dataclass(frozen=True)
class Model(Olmo2):
    def block(self):
        BLOCK
        return Block
"""
READOUTS = """
import dataclasses
from typing import Any, NamedTuple
import jax
import optax
from jax import numpy as jnp


class State(NamedTuple):
    slow: Any

    def iterates(self):
        return {"slow": self.slow}

    def readouts(self):
        return {"fast": {"slow": jnp.float32(1.0)}}


def update(updates, state, params):
    return updates, State(jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, state.slow, params))


@dataclasses.dataclass(frozen=True)
class Descent:
    def transform(self, run):
        average = optax.GradientTransformation(lambda p: State(jax.tree.map(jnp.copy, p)), update)
        return optax.chain(optax.sgd(run.learning_rate), average)
"""
TRANSFORM = "return optax.GradientTransformation(lambda params: jnp.ones(2), update)"


@pytest.fixture
def train(dataset, tmp_path, monkeypatch):
    """Trains a run with a class of the module `stranger`, which has a text."""
    monkeypatch.chdir(tmp_path)

    def train(text, group, kind):
        (tmp_path / "stranger.py").write_text(text)
        source = small_run.settings(tmp_path / "run", dataset.path).to_dict()
        source[group] = {**(source[group] if group == "model" else {}), "kind": kind}
        loop.train(schema.build(source), mesh=small_run.mesh())

    yield train
    sys.modules.pop("stranger", None)


@pytest.mark.parametrize(
    ("group", "lines", "message"),
    [
        ("optimizer", {"TRANSFORM": "return"}, r"^config.optimizer: transform"),
        (
            "optimizer",
            {"TRANSFORM": TRANSFORM, "UPDATE": "return updates, state[:1]"},
            r"float32\[1\], .* float32\[2\]",
        ),
        (
            "optimizer",
            {"TRANSFORM": TRANSFORM.replace("ones(2)", "ones(2, bool)")},
            "^config.optimizer: .* is bool",
        ),
        ("model", {"BLOCK": "return"}, "^config.model: block"),
        ("model", {"MLP": "1 / 0"}, r"^stranger\.py, line 24, in mlp: ZeroDivisionError"),
        (
            "model",
            {"MLP": "x = x + self.param('a/b', nn.initializers.zeros, (x.shape[-1],))"},
            "^config.model: 'a/b'",
        ),
    ],
)
def test_error_of_a_class_is_named_before_anything_is_written(
    train, tmp_path, group, lines, message
):
    text = MODULE
    for name in ("TRANSFORM", "UPDATE", "MLP", "BLOCK"):
        text = text.replace(name, lines.get(name, "pass"))
    with pytest.raises(InputError, match=message):
        train(text, group, "stranger:Model" if group == "model" else "stranger:Descent")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"fast"', '"f25"', "'f25'"),
        ('{"slow": self.slow}', '{"z": self.slow}', "'fast' .* returns z"),
        ("1.0", "0.5", "'fast' sum to 0.5"),
    ],
)
def test_readouts_are_checked_before_anything_is_written(train, tmp_path, old, new, message):
    assert old in READOUTS
    with pytest.raises(InputError, match=message):
        train(READOUTS.replace(old, new), "optimizer", "stranger:Descent")
    assert not (tmp_path / "run").exists()
