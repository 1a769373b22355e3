"""Running averages against float64 sums over all iterates, written out here."""

import functools
import math
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from anytime_jax import averaging, rounding
from anytime_jax.averaging import FixedDecay, GrowingWindow, Uniform, average_params, averages

PAPER = (6.25, 12.5, 25.0, 50.0, 100.0)


def tau_of(f, updates):
    """tau_t for t = 1..updates, in float64, as the paper writes it."""
    return 2.0 ** (-f / np.arange(1, updates + 1, dtype=np.float64))


def weighted_sum(iterates, old):
    """The average of theta_0, theta_1, ... for weights `old` of the past at t = 1, 2, ...

    theta_s enters with weight 1 - old_s and is then multiplied by every later `old`.
    """
    later = np.append(np.cumprod(old[::-1])[::-1][1:], 1.0)
    weights = np.concatenate([[np.prod(old)], (1 - old) * later])
    return np.tensordot(weights, np.asarray(iterates, np.float64), axes=1)


def feed(transform, iterates, span=1):
    """The state after the transform has seen every iterate, each for `span` units of time."""
    state = transform.init(jnp.asarray(iterates[0]))

    def step(carry, theta):
        state, params = carry
        times = {"time": span * (state.count + 1), "span": span} if span > 1 else {}
        _, state = transform.update(theta - params, state, params, **times)
        return (state, theta), None

    start = (state, jnp.asarray(iterates[0]))
    (state, _), _ = jax.jit(lambda c, xs: jax.lax.scan(step, c, xs))(start, iterates[1:])
    return state


def random_walk(updates, size, step):
    """Iterates 0..updates of a random walk away from 1."""
    steps = np.random.default_rng(0).normal(0, step, (updates + 1, size))
    return (1 + np.cumsum(steps, axis=0)).astype(np.float32)


def relative_error(value, exact):
    return np.linalg.norm(np.asarray(value, np.float64) - exact) / np.linalg.norm(exact)


def old_weights(rule, updates):
    """tau_t for t = 1..updates in float64, from the definition of each rule."""
    if isinstance(rule, GrowingWindow):
        return tau_of(rule.f, updates)
    if isinstance(rule, FixedDecay):
        return np.full(updates, rule.decay)
    return 1 - 1 / np.maximum(np.arange(1, updates + 1) - rule.start, 1)


@pytest.mark.parametrize(
    ("updates", "step", "span", "tolerance"),
    [
        (100_000, 1e-2, 1, 1e-5),  # tau * avg + (1 - tau) * theta would have fewer digits
        (63, 1e-2, 16, 1e-6),
    ],
)
def test_averages_of_a_random_walk(updates, step, span, tolerance):
    iterates = random_walk(updates, 16, step)
    rules = [*map(GrowingWindow, PAPER), FixedDecay(0.999), Uniform(), Uniform(100)]
    state = feed(average_params(rules), iterates, span)
    assert int(state.count) == updates
    for rule in rules:
        old = old_weights(rule, updates * span).reshape(-1, span).prod(axis=1)
        exact = weighted_sum(iterates, old)
        assert relative_error(state.averages[rule.label], exact) < tolerance


@given(
    st.one_of(
        st.floats(0.01, 500.0).map(GrowingWindow),
        st.floats(0.0, 0.9999).map(FixedDecay),
        st.integers(0, 50).map(Uniform),
    ),
    st.lists(st.one_of(st.just(1), st.integers(1, 20)), max_size=200),
)
def test_kernel_is_the_unrolled_recursion(rule, spans):
    """An update that counts as several has the product of their taus."""
    times = np.cumsum(spans, dtype=int)
    old = old_weights(rule, sum(spans))
    expected = np.eye(len(spans) + 1)[0]
    for i, (time, span) in enumerate(zip(times, spans, strict=True), 1):
        product = np.prod(old[time - span : time])
        expected *= product
        expected[i] += 1 - product
    kernel = rule.kernel(times)
    assert kernel.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(kernel, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("span", "rtol"), [(1, 3e-7), (3, 2e-6), (16, 2e-6)])
def test_newest_weight_in_float32(span, rtol):
    t = span * np.array([1, 2, 3, 10, 1000, 12_500, 400_000 // span])
    for rule in [*map(GrowingWindow, PAPER), FixedDecay(0.999), Uniform(), Uniform(1000)]:
        single = jax.jit(rule.newest_weight, static_argnums=1)(t.astype(np.int32), span)
        double = rule.evaluate(t, span)
        assert (single.dtype, double.dtype) == (jnp.float32, np.float64)
        np.testing.assert_allclose(single, double, rtol=rtol)


def test_uniform_counts_exactly_from_a_late_start():
    """A time of float32 would be rounded before the start is subtracted."""
    rule, times = Uniform(2**31 - 10), 2**31 - 10 + np.arange(1, 8)
    weights = jax.jit(rule.newest_weight)(times)
    np.testing.assert_array_equal(weights, 1 / np.arange(1, 8, dtype=np.float32))


@pytest.mark.parametrize("time", [0, 2.5, np.int64(2**40)])
def test_newest_weight_is_defined_from_the_first_update_on(time):
    rule = GrowingWindow(25)
    for call in (rule.newest_weight, rule.evaluate):
        with pytest.raises(ValueError, match=r"^time = "):
            call(time)
    assert np.isnan(jax.jit(rule.newest_weight)(0))


def test_tau_weighs_the_old_average():
    for f in PAPER:
        tau = averaging.tau(np.arange(1, 50_000), f)
        np.testing.assert_allclose(tau, tau_of(f, 49_999), rtol=1e-15, atol=3e-16)


# In an optimizer


def quadratic(params):
    return sum(jnp.sum((leaf.astype(jnp.float32) - 1) ** 2) for leaf in jax.tree.leaves(params))


def make_params():
    rng = np.random.default_rng(1)
    return {
        "matrix": jnp.asarray(rng.normal(size=(8, 4)), jnp.float32),
        "inner": {"vector": jnp.asarray(rng.normal(size=(4,)), jnp.float32)},
    }


def make_step(optimizer, donate=True):
    def step(params, state):
        updates, state = optimizer.update(jax.grad(quadratic)(params), state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1) if donate else ())


def tree_average(history, old):
    return jax.tree.map(lambda *leaves: weighted_sum(leaves, old), *history)


def assert_trees_close(averaged, expected, rtol):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol), averaged, expected
    )


def numbers(tree):
    """A copy on the host, which donation cannot take away."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


def test_averages_in_donated_adamw_steps(compilations):
    rules = [*map(GrowingWindow, PAPER), FixedDecay(0.9), Uniform(2)]
    optimizer = optax.chain(optax.adamw(0.05, weight_decay=0.01), average_params(rules))
    step = make_step(optimizer)
    params = make_params()
    state = optimizer.init(params)
    history = [numbers(params)]
    compiled = []
    for _ in range(5):
        with compilations() as count:
            params, state = step(params, state)
        compiled.append(count())
        history.append(numbers(params))
    assert compiled[1:] == [0] * 4
    averaged = averages(state)
    # Sorted, as dictionaries come out of jit.
    assert list(averaged) == sorted(rule.label for rule in rules)
    for rule in rules:
        expected = tree_average(history, old_weights(rule, 5))
        assert_trees_close(averaged[rule.label], expected, 2e-6)


def test_init_copies_the_parameters_into_separate_buffers():
    params = make_params()
    state = average_params([6.25, 25.0]).init(params)
    trees = [params, *averages(state).values()]
    for tree in trees:
        jax.tree.map(np.testing.assert_array_equal, tree, params)
    pointers = [leaf.unsafe_buffer_pointer() for tree in trees for leaf in jax.tree.leaves(tree)]
    assert len(set(pointers)) == len(pointers) == 6


def test_averages_of_bfloat16_parameters_are_float32():
    """An increment that 16 bits would round away arrives in the average."""
    transform = average_params([FixedDecay(0.999)])
    params = jnp.ones((4,), jnp.bfloat16)
    state = transform.init(params)
    update = jnp.full((4,), 1.0, jnp.bfloat16)  # theta is 2
    _, state = jax.jit(transform.update)(update, state, params)
    averaged = averages(state)["ema0.999"]
    assert averaged.dtype == jnp.float32
    np.testing.assert_allclose(averaged, 1.001, rtol=1e-7)


def test_bfloat16_parameters_are_averaged_as_they_are_rounded():
    """A compiler may leave out the rounding of the sum that the caller will have."""
    optimizer = optax.chain(optax.sgd(0.1), average_params([Uniform(100)]))
    params = jnp.linspace(0.3, 2.2, 50, dtype=jnp.bfloat16)

    @jax.jit
    def step(params, state, count):
        updates, state = optimizer.update(jnp.cos(7 * params + count), state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for count in range(3):
        params, state = step(params, state, count)
        np.testing.assert_array_equal(averages(state)["uniform100"], params.astype(jnp.float32))


def test_averages_have_the_sharding_of_their_parameters(compilations):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    shardings = {
        "matrix": NamedSharding(mesh, PartitionSpec("x", "y")),
        "inner": {"vector": NamedSharding(mesh, PartitionSpec("y"))},
    }
    optimizer = optax.chain(optax.adam(0.1), average_params([6.25, Uniform()]))
    params = jax.device_put(make_params(), shardings)
    single = make_params()
    state = optimizer.init(params)
    for tree in averages(state).values():
        jax.tree.map(assert_sharding, tree, shardings)
    state_single = optimizer.init(single)
    step, step_single = make_step(optimizer), make_step(optimizer)
    for _ in range(3):
        params, state = step(params, state)
        single, state_single = step_single(single, state_single)
    for label, tree in averages(state).items():
        jax.tree.map(assert_sharding, tree, shardings)
        assert_trees_close(tree, numbers(averages(state_single)[label]), 1e-6)
    with compilations() as count:
        step(params, state)
    assert count() == 0


def assert_sharding(leaf, sharding):
    assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim), (leaf.sharding, sharding)


def test_inside_multi_steps_averages_count_real_updates():
    optimizer = optax.MultiSteps(
        optax.chain(optax.sgd(0.1), average_params([6.25])), every_k_schedule=2
    )
    params = make_params()
    state = optimizer.init(params)
    step = make_step(optimizer, donate=False)
    history = [params]
    for i in range(6):
        params, state = step(params, state)
        history += [params] * (i % 2)
    assert int(averaging.find_state(state).count) == 3
    assert_trees_close(averages(state)["f6.25"], tree_average(history, tau_of(6.25, 3)), 2e-6)


def test_masked_leaves_are_not_averaged():
    params = {"table": jnp.arange(3), "vector": jnp.ones(4)}
    mask = {"table": False, "vector": True}
    optimizer = optax.chain(
        optax.masked(optax.sgd(0.5), mask), optax.masked(average_params([1.0]), mask)
    )
    state = optimizer.init(params)
    updates = {"table": jnp.zeros(3, jnp.int32), "vector": jnp.full(4, 2.0)}
    _, state = jax.jit(optimizer.update)(updates, state, params)
    averaged = averages(state)["f1"]
    assert isinstance(averaged["table"], optax.MaskedNode)
    np.testing.assert_allclose(averaged["vector"], 0.5 * 1 + 0.5 * 0, rtol=2e-7)


def test_find_state_and_replace_averages():
    params = make_params()
    optimizer = optax.chain(optax.adam(0.1), average_params([6.25, 25.0]))
    state = optimizer.init(params)
    replaced = averaging.replace_averages(state, {"f50": params})
    assert list(averages(replaced)) == ["f50"]
    jax.tree.map(np.testing.assert_array_equal, replaced[0], state[0])
    assert list(averages(state)) == ["f6.25", "f25"]  # unchanged
    twice = optax.chain(average_params([1.0]), average_params([2.0])).init(params)
    for state, number in ((optax.adam(0.1).init(params), 0), (twice, 2)):
        with pytest.raises(ValueError, match=f"{number} average_params"):
            averages(state)


def test_rules_have_distinct_labels():
    labels = averaging.label_rules([FixedDecay(0.9999999), 12.345678, 12.345679, 1e6])
    assert list(labels) == ["ema0.9999999", "f12.345678", "f12.345679", "f1000000"]
    own = averaging.label_rules({"slow": 6.25, "mean": Uniform()})
    assert own == {"slow": GrowingWindow(6.25), "mean": Uniform()}


def test_time_of_a_constant_batch_gives_the_same_bits():
    """A run that is told its time makes what one that counts by itself does."""
    optimizer = optax.chain(optax.adamw(0.05), average_params([6.25, Uniform(2), FixedDecay(0.9)]))

    @jax.jit
    def step(params, state, time):
        grads = jax.grad(quadratic)(params)
        updates, state = optimizer.update(grads, state, params, time=time, span=1)
        return optax.apply_updates(params, updates), state

    counted = make_step(optimizer, donate=False)
    one = other = make_params(), optimizer.init(make_params())
    for t in range(1, 6):
        one, other = counted(*one), step(*other, jnp.int32(t))
        jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("label", ["f6.25", "ema0.999", "uniform", "uniform1000"])
def test_a_label_names_its_rule(label):
    assert averaging.parse_rule(label).label == label


# Rounding


def move(rule, start, theta, t, size):
    """Copies of an average after one update, whose dither is spread evenly over [0, 1)."""
    dither = (np.arange(size, dtype=np.float32) + np.float32(0.5)) / np.float32(size)
    transform = average_params({"average": rule})
    state = transform.init(jnp.full(size, start, jnp.float32))
    update = _jitted_update(rule, size)
    return np.float64(update(state, jnp.full(size, theta, jnp.float32), t, dither))


@functools.cache
def _jitted_update(rule, size):
    transform = average_params({"average": rule})

    @jax.jit
    def update(state, theta, t, dither):
        with mock.patch.object(rounding, "random_uniform", return_value=dither):
            _, state = transform.update(jnp.zeros(size), state, theta, time=t)
        return averages(state)["average"]

    return update


def floats_near(power, sign, offset):
    """2^power or the float32 number `offset` places away from it, with a sign."""
    bits = np.float32(2.0**power).view(np.int32) + np.int32(offset)
    return np.float32(sign) * bits.view(np.float32)


@given(
    start=st.builds(
        floats_near, st.integers(-30, 30), st.sampled_from([-1, 1]), st.integers(-3, 3)
    ),
    spacings=st.one_of(
        st.floats(1e-3, 8.0), st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.5])
    ),
    direction=st.sampled_from([-1, 1]),
    t=st.one_of(st.integers(100, 10**8), st.sampled_from([10**4, 10**6, 10**8])),
)
def test_an_average_moves_by_the_increment_in_the_mean(start, spacings, direction, t):
    """Also across a power of two, where the spacing of float32 numbers doubles."""
    rule = GrowingWindow(25.0)
    newest = rule.evaluate(t)
    increment = direction * spacings * float(np.spacing(np.abs(start)))
    theta = np.float32(start + increment / newest)
    increment = newest * (float(theta) - float(start))
    moved = move(rule, start, theta, t, 2**16) - float(start)
    # The dither has 2^16 values, and so the mean of a small increment is within 1% of it.
    assert moved.mean() == pytest.approx(increment, rel=0.02)


FLOATS = st.floats(-(2.0**30), 2.0**30, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-60)


@given(start=FLOATS, theta=FLOATS)
@example(1.0, 1.0 - 2.0**-14)
@example(-1.0 + 2.0**-24, -1.0 + 2.0**-24 - 2.0**-13)
@example(0.0, 1.0)
@example(-0.0, -0.0)
@example(-(2.0**-59), 1.0)
def test_an_average_is_one_of_the_two_numbers_around_the_sum(start, theta):
    """For any dither the sum itself, if it is a float32 number."""
    moved = move(FixedDecay(1 - 2.0**-10), start, theta, 1, 64)
    exact = start + 2.0**-10 * float(np.float32(theta) - np.float32(start))
    nearest = float(np.float32(exact))
    side = np.float32(np.inf if nearest < exact else -np.inf)
    around = {nearest, float(np.nextafter(np.float32(nearest), side))}
    assert set(moved) <= ({exact} if nearest == exact else around)


def test_the_smallest_and_the_largest_averages_stay_numbers():
    """Devices that flush subnormal numbers to zero lose no more than these."""
    least, largest = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    for start in (0.0, -1e-40, least):
        for theta in (1e-40, -least):
            moved = move(FixedDecay(0.5), start, theta, 1, 64)
            np.testing.assert_allclose(moved, (start + theta) / 2, rtol=0, atol=2 * least)
    assert (move(FixedDecay(0.5), largest, largest, 1, 64) == largest).all()


def test_small_increments_add_up():
    """20,000 increments of 0.0015 float32 spacings, as late in a run."""
    t, size, updates, rule = 10**8, 4000, 20_000, GrowingWindow(25.0)
    transform = average_params([rule])
    start, theta = np.float32(1.1), np.float32(1.101)
    state = transform.init(jnp.full(size, start))._replace(count=jnp.int32(t))

    def update(_, state):
        return transform.update(jnp.zeros(size), state, jnp.full(size, theta))[1]

    state = jax.jit(lambda state: jax.lax.fori_loop(0, updates, update, state))(state)
    moved = np.float64(averages(state)[rule.label]).mean() - float(start)
    newest = rule.evaluate(t + np.arange(1, updates + 1))
    exact = -np.expm1(np.log1p(-newest).sum()) * (float(theta) - float(start))
    assert moved == pytest.approx(exact, rel=0.02)


# Refusals


INVALID = [
    (lambda: GrowingWindow(0.0), "f = 0"),
    (lambda: GrowingWindow(True), "f = True"),
    (lambda: FixedDecay(1.0), "decay = 1"),
    (lambda: FixedDecay(math.nan), "decay = nan"),
    (lambda: Uniform(-1), "start = -1"),
    (lambda: average_params([25.0, GrowingWindow(25)]), "f25"),
    (lambda: average_params({"last": 25.0}), "last"),
    (lambda: average_params(["f25"]), "rule = 'f25'"),
    (lambda: average_params([]), "rules = "),
    (lambda: average_params(25.0), "rules = 25"),
    (lambda: average_params([25.0]).init({"n": jnp.arange(3)}), r"\['n'\]"),
    (lambda: Uniform().newest_weight(2, span=0), "span = 0"),
    (lambda: Uniform().evaluate(3, span=4), "time = 3"),
    (lambda: GrowingWindow(25.0).kernel(2.5), "time = 2"),
    (lambda: GrowingWindow(25.0).kernel([1, 3, 3]), "t = "),
    (lambda: GrowingWindow(25.0).kernel(10**9), "t = 1000000000"),  # too long for an array
]


@pytest.mark.parametrize(("make", "named"), INVALID, ids=[named for _, named in INVALID])
def test_invalid_arguments_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize("label", ["last", "f-1", "f1e3", "f\u0663", "uniform1.5", "ema1.5", None])
def test_what_names_no_rule_is_refused(label):
    with pytest.raises(ValueError):
        averaging.parse_rule(label)


@pytest.mark.parametrize(
    ("rules", "params", "named"),
    [
        ([25.0], None, "params=params"),
        ([25.0], {"w": jnp.ones(3)}, r"params\['w'\]"),
        ([25.0], {"v": jnp.ones(1)}, "names"),
        ([25.0, 50.0], {"w": jnp.ones(1)}, "f50"),
    ],
)
def test_state_of_other_parameters_or_averages_is_refused(rules, params, named):
    state = average_params([25.0]).init({"w": jnp.ones(1)})
    with pytest.raises(ValueError, match=named):
        average_params(rules).update(params, state, params)


class Odd(averaging.Rule):
    """A rule that gives a number, whatever it is asked for."""

    label = "odd"

    def __init__(self, number):
        self.number = number

    def newest(self, t, xp):
        return self.number


def test_rule_of_ones_own_may_give_a_number_but_none_above_one():
    assert (
        Odd(0.5).evaluate([1, 2]).tolist() == Odd(0.5).newest_weight([1, 2]).tolist() == [0.5] * 2
    )
    np.testing.assert_allclose(Odd(0.5).kernel(2), [0.25, 0.25, 0.5])
    with pytest.raises(ValueError, match="newest of Odd"):
        Odd(1.5).kernel(2)
