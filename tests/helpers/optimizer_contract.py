"""What every optimizer keeps to: checks of one, the trainer's, the laboratory's or a stranger's."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from noisy_quadratic import START, rate, run, start

from anytime_jax import averaging, optimizers
from anytime_jax.optimizers import RunInfo

WARMUP = 4
RUN = RunInfo(rate, WARMUP, matrix_axes={"matrix": (-2, -1)}, matrices={"matrix", "head"})


def check_donation(optimizer):
    """Parameters and state can be donated, and the donated arrays are deleted."""
    transform = optax.with_extra_args_support(optimizer.transform(RUN))

    def step(params, state):
        moves, state = transform.update(params, state, params)
        return optax.apply_updates(params, moves), state

    compiled, plain = jax.jit(step, donate_argnums=(0, 1)), jax.jit(step)
    params, state = start(), transform.init(start())
    expected = plain(*plain(params, state))
    params = start()
    state = transform.init(params)
    for _ in range(2):
        old = jax.tree.leaves((params, state))
        params, state = compiled(params, state)
        assert all(leaf.is_deleted() for leaf in old if leaf.size > 1)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        (params, state),
        expected,
    )


def check_start_and_learning(optimizer):
    """Iterates start at the parameters, and the optimizer learns."""
    transform, params = optimizer.transform(RUN), start()
    for tree in optimizers.iterates(transform.init(params)).values():
        jax.tree.map(np.testing.assert_array_equal, tree, params)
    *_, (params, _) = run(transform)
    sizes = [np.sqrt(sum(np.sum(np.square(x)) for x in tree.values())) for tree in (params, START)]
    assert sizes[0] < sizes[1]


def assert_same(one, other, names=("matrix", "bias")):
    """Two runs of `noisy_quadratic.run` have the same parameters after every update."""
    for (params, _), (expected, _) in zip(one, other, strict=True):
        for name in names:
            np.testing.assert_array_equal(params[name], expected[name])


def check_masked_decay(kind):
    """With a mask, matrices decay as with all, and the rest as without decay."""
    masked = kind(weight_decay=0.1, decay_mask="matrices")
    every = dataclasses.replace(masked, decay_mask="all")
    without = dataclasses.replace(masked, weight_decay=0.0)
    runs = {name: list(run(x.transform(RUN), 20)) for name, x in
            (("masked", masked), ("every", every), ("without", without))}  # fmt: skip
    assert_same(runs["masked"], runs["every"], ["matrix"])
    assert_same(runs["masked"], runs["without"], ["bias"])
    for name in ("matrix", "bias"):  # the decay is seen in both
        last = [params[name] for params, _ in (runs["every"][-1], runs["without"][-1])]
        assert np.abs(last[0] - last[1]).max() > 1e-3


def check_growing_decay(kind, is_exact):
    """Without gradients, whatever the rate, the decay alone moves matrices, after the warmup."""
    method = kind(weight_decay="g2")
    for factor in (1e-3, 1.0):
        run_info = dataclasses.replace(RUN, learning_rate=lambda count, x=factor: x * rate(count))
        transform = method.transform(run_info)
        params = {**start(), "matrix": jnp.ones((3, 2))}
        state, zeros = transform.init(params), jax.tree.map(jnp.zeros_like, params)
        bias = params["bias"]
        for t in range(1, WARMUP + 2):
            updates, state = transform.update(zeros, state, params)
            params = optax.apply_updates(params, updates)
            if t == WARMUP:
                np.testing.assert_allclose(params["matrix"], np.ones((3, 2)), rtol=1e-6)
        np.testing.assert_allclose(params["bias"], bias, rtol=1e-6)
        moved = 1 - params["matrix"]
        assert 0 < moved.min() <= moved.max() < 0.11  # an average by less, an extrapolation by more
        if is_exact:
            np.testing.assert_allclose(moved, 0.1, rtol=1e-5)


def check_told_time(kind, is_exact):
    """A run tells its time in every update, as the trainer does; the count does not matter."""
    times = [0.0]
    info = dataclasses.replace(RUN, relative_time=lambda: jnp.float32(times[-1]))
    transform = kind(weight_decay="g2").transform(info)
    params = {"matrix": jnp.ones((3, 2))}
    state, zeros = transform.init(params), jax.tree.map(jnp.zeros_like, params)
    updates, state = transform.update(zeros, state, params)
    np.testing.assert_allclose(updates["matrix"], 0, atol=1e-6)
    times.append(0.01)
    updates, _ = transform.update(zeros, state, params)
    moved = -np.asarray(updates["matrix"])
    assert 0 < moved.min() <= moved.max() < 0.022 * math.log(2)
    if is_exact:
        np.testing.assert_allclose(moved, 0.02 * math.log(2), rtol=1e-5)


def check_readouts(transform, expected):
    """A state has these read-outs, alone, in a chain with averages, and if it is abstract."""
    inner = optax.chain(optax.clip(1.0), optax.chain(transform, optax.identity()))
    for wrapped in (transform, optax.chain(inner, averaging.average_params([25.0]))):
        params = start()
        state = jax.jit(lambda p, x=wrapped: x.update(p, x.init(p), p)[1])(params)
        coefficients = optimizers.readouts(state)
        assert coefficients.keys() == expected.keys()
        for label, readout in expected.items():
            assert coefficients[label] == pytest.approx(readout, rel=1e-6)
            assert sum(coefficients[label].values()) == pytest.approx(1)
        names = {name for readout in expected.values() for name in readout}
        iterates = optimizers.iterates(state)
        assert iterates.keys() == names - {averaging.LIVE}
        for tree in iterates.values():
            assert jax.tree.map(jnp.shape, tree) == jax.tree.map(jnp.shape, params)
    abstract = jax.eval_shape(optimizers.readouts, state)
    assert jax.tree.structure(abstract) == jax.tree.structure(coefficients)
    assert {leaf.shape for leaf in jax.tree.leaves(abstract)} <= {()}
    abstract = jax.eval_shape(lambda: state)
    assert jax.tree.structure(optimizers.iterates(abstract)) == jax.tree.structure(iterates)
