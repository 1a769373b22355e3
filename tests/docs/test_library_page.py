"""The code of docs/library.md runs, and its averages are float64 sums over its loops' weights."""

import pathlib
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from anytime_jax import averaging

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## ([^\n]+)$|((?:[^\n]+\n)*)\n```python\n(.*?)```", PAGE, re.M | re.S)
PLAIN, NNX, EQUINOX = LOOPS = ("A plain Optax loop", "Flax NNX", "Equinox")


def read_blocks():
    """(heading, the heading of the loop that it continues or "", code), in the page's order."""
    heading, blocks = "", []
    for title, before, code in BLOCKS:
        heading = title or heading
        if code:
            words = " ".join(before.split()).lower()
            continued = {"plain": PLAIN, "nnx": NNX}
            found = re.search("continuing the (plain|nnx) loop", words)
            blocks.append((heading, continued[found[1]] if found else "", code))
    return blocks


class Recorder:
    """An `average_params` that records the weights of the loop it is used in."""

    def __init__(self):
        self.iterates, self.make = {}, averaging.average_params

    def record(self, count, params):
        self.iterates[int(count)] = jax.tree.map(np.asarray, params)

    def __call__(self, *args):
        transform = self.make(*args)

        def init(params):
            jax.debug.callback(self.record, 0, jax.tree.leaves(params))
            return transform.init(params)

        def update(updates, state, params, **extra):
            theta = jax.tree.leaves(optax.apply_updates(params, updates))
            jax.debug.callback(self.record, state.count + 1, theta)
            return transform.update(updates, state, params, **extra)

        return optax.GradientTransformationExtraArgs(init, update)


def sum_by_hand(iterates, label):
    """sum_s (1 - tau_s) tau_{s+1} ... tau_t theta_s in float64, leaf by leaf."""
    t = np.arange(1, len(iterates))
    if label.startswith("f"):
        taus = 2.0 ** (-float(label[1:]) / t)
    else:
        counted = np.maximum(t - int(label.removeprefix("uniform") or 0), 1)
        taus = 1 - 1 / counted
    taus = [0.0, *taus]
    weights = [(1 - taus[s]) * np.prod(taus[s + 1 :]) for s in range(len(taus))]
    assert sum(weights) == pytest.approx(1)
    return [np.tensordot(weights, np.stack(leaf), axes=1) for leaf in zip(*iterates, strict=True)]


def assert_close(averaged, expected):
    pairs = zip(*map(jax.tree.leaves, (averaged, expected)), strict=True)
    for one, other in ((np.float64(a), np.float64(b)) for a, b in pairs):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * max(1, np.abs(other).max()))


@pytest.fixture(scope="module")
def run_all():
    """The variables of every block by heading, and the recorded weights of every loop."""
    scopes, records = {}, {}
    for heading, continued, code in read_blocks():
        scope = dict(scopes[continued][-1]) if continued else {}
        is_loop = heading in LOOPS and heading not in scopes
        recorder = Recorder()
        with pytest.MonkeyPatch.context() as patch:
            if is_loop:  # a recorder belongs to one loop
                patch.setattr(averaging, "average_params", recorder)
            exec(compile(code, f"docs/library.md, {heading}", "exec"), scope)
        jax.effects_barrier()
        scopes.setdefault(heading, []).append(scope)
        if is_loop:
            records[heading] = recorder.iterates
    return scopes, records


def test_page_has_all_blocks():
    blocks = read_blocks()
    assert len(blocks) == PAGE.count("```python") == 6
    assert {*LOOPS} < {heading for heading, _, _ in blocks}
    assert [continued for _, continued, _ in blocks] == ["", PLAIN, PLAIN, NNX, PLAIN, PLAIN]


@pytest.mark.parametrize("heading", LOOPS)
def test_averages_are_sums_over_the_weights_of_the_loop(run_all, heading):
    scopes, records = run_all
    iterates, scope = [records[heading][t] for t in range(201)], scopes[heading][0]
    trees = dict(scope["trees"] if heading == PLAIN else scope["averages"])
    live = trees.pop("last", scope["params"])
    if heading == NNX:
        live = nnx.state(scope["model"], nnx.Param)
    if heading != PLAIN:
        averaged = scope["averaged"]
        arrays = (
            nnx.state(averaged, nnx.Param) if heading == NNX else eqx.filter(averaged, eqx.is_array)
        )
        assert_close(arrays, sum_by_hand(iterates, "f25"))
    assert_close(live, iterates[-1])
    assert {"f6.25", "f25"} <= set(trees)
    for label, tree in trees.items():
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(tree))
        assert_close(tree, sum_by_hand(iterates, label))


def test_losses_on_the_page(run_all):
    scopes, _ = run_all
    scope = scopes[PLAIN][0]
    printed = dict(re.findall(r"`([\w.]+)` (1\.\d{3})", PAGE.split("The losses:")[1].split(";")[0]))
    for label, loss in scope["losses"].items():
        assert float(printed[label]) == pytest.approx(float(loss), abs=2e-3)


def test_gain_of_an_average_is_lost_after_twenty_updates(run_all):
    scope = run_all[0][PLAIN][0]
    step, evaluate, make_batch = scope["step"], scope["evaluate"], scope["make_batch"]
    average = scope["trees"]["f6.25"]
    jumped, opt_state = jax.tree.map(jnp.copy, (average, scope["opt_state"]))
    for number in range(200, 220):
        jumped, opt_state = step(jumped, opt_state, *make_batch(number))
    losses = evaluate({"before": average, "after": jumped}, *make_batch(1_000, size=10_000))
    before, after = re.search(
        r"from `f6.25` \(([\d.]+)\), its live weights are at ([\d.]+)", PAGE
    ).groups()
    assert float(losses["before"]) == pytest.approx(float(before), abs=2e-3)
    assert float(losses["after"]) == pytest.approx(float(after), abs=4e-3)


def test_restored_state_of_the_plain_loop_has_the_same_bits(run_all):
    scope = run_all[0][PLAIN][1]
    assert_same_bits(scope["restored"], scope["state"])


def test_restored_nnx_loop_continues_with_the_same_bits(run_all):
    saved, restored = run_all[0][NNX]
    ends = []
    for scope in (saved, restored):
        graphdef, state = nnx.split((scope["model"], scope["optimizer"]))
        model, optimizer = nnx.merge(graphdef, jax.tree.map(jnp.copy, state))  # step donates
        ends.append([nnx.state((model, optimizer))])
        for number in range(200, 205):
            scope["step"](model, optimizer, *scope["make_batch"](number))
        ends[-1].append(nnx.state((model, optimizer)))
    assert saved["model"] is not restored["model"]
    assert_same_bits(*ends)
    averages = averaging.averages(restored["optimizer"].opt_state)
    assert set(averages) == {"f6.25", "f25"}
    assert_close(nnx.as_pure(averages), saved["averages"])


def assert_same_bits(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
