"""The code of docs/library.md runs, and its averages are float64 sums over its loops' weights."""

import pathlib
import re

import jax
import numpy as np
import optax
import pytest

from anytime_jax import averaging

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## ([^\n]+)$|((?:[^\n]+\n)*)\n```python\n(.*?)```", PAGE, re.M | re.S)
LOOPS = ("A plain Optax loop", "Flax NNX", "Equinox")
JUMP = "Continue training from the live weights, not from an average"


def read_blocks():
    """(heading, whether it continues the plain loop, code), in the order of the page."""
    heading, blocks = "", []
    for title, before, code in BLOCKS:
        heading = title or heading
        if code:
            continues = "continuing the plain loop" in " ".join(before.split()).lower()
            blocks.append((heading, continues, code))
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
    scopes, records, plain = {}, {}, {}
    for heading, continues, code in read_blocks():
        scope = dict(plain) if continues else {}
        recorder = Recorder()
        with pytest.MonkeyPatch.context() as patch:
            if not continues:  # a recorder belongs to one loop
                patch.setattr(averaging, "average_params", recorder)
            exec(compile(code, f"docs/library.md, {heading}", "exec"), scope)
        jax.effects_barrier()
        scopes.setdefault(heading, []).append(scope)
        records[heading] = records.get(heading) or recorder.iterates
        plain = dict(scope) if not plain and heading == LOOPS[0] else plain
    return scopes, records


def test_page_has_all_blocks():
    blocks = read_blocks()
    assert len(blocks) == PAGE.count("```python") == 9
    assert {"", *LOOPS, JUMP} < {heading for heading, _, _ in blocks}
    assert sum(continues for _, continues, _ in blocks) == 4


@pytest.mark.parametrize("heading", LOOPS)
def test_averages_are_sums_over_the_weights_of_the_loop(run_all, heading):
    scopes, records = run_all
    iterates, scope = [records[heading][t] for t in range(201)], scopes[heading][0]
    if heading == "Flax NNX":
        live, trees = scope["nnx"].state(scope["model"], scope["nnx"].Param), scope["averages"]
    else:
        trees = dict(scope["trees"])
        live = trees.pop("last")
    assert_close(live, iterates[-1])
    assert {"f6.25", "f25"} <= set(trees)
    for label, tree in trees.items():
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(tree))
        assert_close(tree, sum_by_hand(iterates, label))


def test_losses_on_the_page(run_all):
    scopes, _ = run_all
    scope = scopes["A plain Optax loop"][0]
    printed = dict(re.findall(r"`([\w.]+)` (1\.\d{3})", PAGE.split("The losses:")[1].split(";")[0]))
    for label, loss in scope["losses"].items():
        assert float(printed[label]) == pytest.approx(float(loss), abs=2e-3)


def test_gain_of_an_average_is_lost_after_twenty_updates(run_all):
    curves = run_all[0][JUMP][0]["curves"]
    first, last = ({name: float(x) for name, x in curves[k].items()} for k in (0, 20))
    assert (first["jumped"], first["live"]) == pytest.approx((1.003, 1.081), abs=2e-3)
    assert (last["jumped"], last["live"]) == pytest.approx((1.070, 1.075), abs=4e-3)
    assert last["f6.25"] == pytest.approx(1.003, abs=2e-3)
