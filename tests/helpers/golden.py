"""Golden files: the settings and the parameters of every shipped run, as text in tests/golden.

`make golden` runs this file, which writes them; `tests/config/test_golden.py` compares them.
"""

import argparse
import contextlib
import dataclasses
import functools
import io
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from paths import REPOSITORY

from anytime_jax.checkpoints.tree_names import flatten_by_name
from anytime_jax.commands import config_file
from anytime_jax.config.run_settings import OPTIMIZERS
from anytime_jax.distributed.sharding import UNCONSTRAINED
from anytime_jax.models import decoder
from anytime_jax.training.optimizer import make_optimizer

FOLDER = REPOSITORY / "tests" / "golden"
# Configurations without a golden file, and why.
WITHOUT = {
    "base": "is no run: it has no schedule",
    "continued": "takes its shape from a model, which it needs",
    "decay": "takes its settings from a trunk, which it needs",
    "own_text": "takes its vocabulary from a dataset, which it needs",
    "paper_settings": "is what the paper's runs share",
}
_RATE = 2.0**-10


def names():
    """Returns the shipped runs, as `--config` names them."""
    files = sorted(x.stem for x in (REPOSITORY / "configs").glob("[!_]*.py"))
    kinds = [x for x in OPTIMIZERS.classes if x != OPTIMIZERS.default]
    runs = [x for x in files if x not in WITHOUT and x != "optimizers"]
    return [*runs, *(f"optimizers:{x}" for x in sorted(kinds))]


def file_of(name):
    return FOLDER / f"{name.replace(':', '_')}.txt"


def render(name):
    """Returns what `--print-config` prints of a run, and a table of its parameters."""
    arguments = argparse.Namespace(config=[name], overrides=[], trust=[])
    config, output = config_file.load(arguments), io.StringIO()
    with contextlib.redirect_stdout(output):
        config_file.print_config(config, arguments)
    table = [("parameter", "shape", "axes", "initial", "decay", "rate"), *_rows(config)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
    return "\n".join([output.getvalue().rstrip(), _LEGEND, *lines, ""])


_LEGEND = """
Parameters. The initial value of an element is a constant, or normal with this sigma, truncated at
three sigma; a sigma that changes with the layer is given for the first and the last one. The decay
is the share of the parameter that an update takes, the rate the root mean square of the first
update, both over the learning rate.
"""


def _rows(config):
    model = config.model
    shapes, initial = flatten_by_name(decoder.param_shapes(model)), _initial_values(model)
    decays, rates = _updates(config)
    known = decoder.parameter_axes(model)
    for name, leaf in shapes.items():
        axes = known.get(name.rpartition("/")[2], ())
        axes = ("layers",) * (len(axes) == leaf.ndim - 1) + axes if axes else ()
        yield (
            name,
            " x ".join(map(str, leaf.shape)),
            ", ".join(x or "-" for x in axes) or "replicated",
            initial[name],
            f"{decays[name]:.3g}",
            f"{rates[name]:.3g}",
        )


@functools.cache
def _initial_values(model):
    """Returns how every parameter begins, by name: its sigma, or the number that it is filled with.

    The model's own code makes each initializer, which is called for a single number, with a normal
    distribution whose draws are 1. So no array of a parameter's size is computed.
    """
    model = dataclasses.replace(model, attention="plain")
    drawn = set()

    def unit(*_, **__):
        def draw(key, shape, dtype=jnp.float32):
            drawn.add(current[-1])
            return jnp.ones(shape, dtype)

        return draw

    current, create, key = [], nn.Module.param, jax.random.key(0)

    def trace(layer):
        found = {}

        def param(module, name, initializer, *args, **options):
            current.append("/".join((*module.path, name)))
            found[current[-1]] = initializer(key, ())
            return create(module, name, initializer, *args, **options)

        with mock.patch.object(nn.Module, "param", param):
            decoder.init_params.__wrapped__(model, key)
            outside = {x: y for x, y in found.items() if not x.startswith("blocks/")}
            found.clear()
            block = decoder.block_class(model)(model, UNCONSTRAINED, position=0, name="blocks")
            block.init(key, jnp.zeros((1, 1, model.width)), layer, None)
        return outside | {f"blocks/{x}": y for x, y in found.items()}

    with mock.patch.object(nn.initializers, "truncated_normal", unit):
        ends = jax.jit(jax.vmap(trace))(jnp.array([0, model.layers - 1]))
    texts = {x: " to ".join(dict.fromkeys(f"{y:.4g}" for y in pair)) for x, pair in ends.items()}
    drawn |= {f"blocks/{x}" for x in drawn}
    return {x: f"sigma {text}" if x in drawn else text for x, text in texts.items()}


def _updates(config):
    """Returns the decay and the size of the first update of every parameter, by name.

    They are measured on small parameters of the same names. A gradient has the signs of orthogonal
    matrices, in which Adam and Muon both give updates of one size.
    """
    alone = dataclasses.replace(config, averaging_rules={})
    optimizer = make_optimizer(alone, lambda count: _RATE, relative_time=lambda: 0.0)
    signs = np.array([[1, 1], [1, -1]], np.float32)
    signs = np.broadcast_to(signs[:, None] * signs, (2, 2, 2, 2))

    def update(parameter, gradient):
        structure = jax.tree.structure(decoder.param_shapes(config.model))
        params, grads = (
            jax.tree.unflatten(structure, [x] * structure.num_leaves) for x in (parameter, gradient)
        )
        extra = {"value": 1.0, "grad_norm": 1e-9, "time": 1, "span": 1}
        updates, _ = optimizer.update(grads, optimizer.init(params), params, **extra)
        sizes = jax.tree.map(lambda x: np.sqrt(np.mean(np.square(x))) / _RATE, updates)
        return flatten_by_name(sizes)

    ones, zeros = jnp.ones_like(signs), jnp.zeros_like(signs)
    return update(ones, zeros), update(zeros, jnp.asarray(signs))


def write():
    """Writes all golden files, and removes others."""
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.txt"):
        file.unlink()
    for name in names():
        file_of(name).write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    write()
