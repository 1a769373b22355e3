"""A quadratic loss with noisy gradients: for Optax in float32, and for float64 loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

UPDATES = 60
_random = np.random.default_rng(0)
_SHAPES = {"matrix": (3, 2), "bias": (4,)}
START = {name: _random.normal(size=shape) for name, shape in _SHAPES.items()}
_CURVATURE = {name: _random.uniform(0.5, 3.0, shape) for name, shape in _SHAPES.items()}
_NOISE = {name: _random.normal(size=(UPDATES, *shape)) for name, shape in _SHAPES.items()}


def gradient(params, t):
    """The gradient of update t = 1, 2, ..., in the precision of the parameters."""
    return {
        name: (_CURVATURE[name] * theta + _NOISE[name][t - 1]).astype(theta.dtype)
        for name, theta in params.items()
    }


def rate(count):
    """A learning rate that rises and falls, after `count` updates."""
    return 0.1 * (count + 1) / 10 * (count < 9) + 0.1 / (1 + 0.05 * count) * (count >= 9)


def start():
    """The first parameters, in float32."""
    return {name: jnp.asarray(value, jnp.float32) for name, value in START.items()}


def run(optimizer, updates=UPDATES):
    """Yields the parameters and the state after each update."""
    params = start()
    state = optimizer.init(params)
    compiled = jax.jit(optimizer.update)
    for t in range(1, updates + 1):
        moves, state = compiled(gradient(params, t), state, params)
        params = optax.apply_updates(params, moves)
        yield params, state


def combine(readout, params, iterates):
    """The sum of trees that a readout's coefficients stand for."""
    trees = {"last": params, **iterates}
    terms = [jax.tree.map(lambda x, a=a: a * x, trees[name]) for name, a in readout.items()]
    return jax.tree.map(lambda *parts: sum(parts), *terms)


def assert_close(tree, expected, tolerance=3e-6):
    assert tree.keys() == expected.keys()
    for name, leaf in tree.items():
        np.testing.assert_allclose(leaf, expected[name], tolerance, tolerance, err_msg=name)


class Adam:
    """Adam's direction in float64, for one parameter."""

    def __init__(self, b1, b2, epsilon=1e-8):
        self.settings, self.m, self.v, self.t = (b1, b2, epsilon), 0.0, 0.0, 0

    def moments(self, gradient):
        """The corrected mean, and the root of the corrected square plus epsilon."""
        b1, b2, epsilon = self.settings
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * gradient
        self.v = b2 * self.v + (1 - b2) * gradient**2
        return self.m / (1 - b1**self.t), np.sqrt(self.v / (1 - b2**self.t)) + epsilon
