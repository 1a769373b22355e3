"""What a run costs, without a clock: work, memory traffic, compilations and waits, as recorded.

A time on a shared machine moves by a quarter; what the compiler has to do does not move at all. The
numbers below are the same with XLA's optimisation and with that of tests/conftest.py, in jax 0.10
and 0.11. A change that lowers one writes the new number down; one that raises it says what for.
"""

import contextlib
import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from training_runs import start

from anytime_jax.distributed import sharding
from anytime_jax.models import decoder, flops, loss
from anytime_jax.training import metrics, preflight
from anytime_jax.training.step import make_program

# No two kinds of array of this model have as many elements as its logits, 4 x 32 x 520.
SHAPE = {"width": 64, "mlp_width": 256, "length": 32, "vocab_size": 500, "embedding_rows": 520}
BATCH = 4
MANY = (6.25, 12.5, 25.0, 50.0, 100.0)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a model of a shape was found to take.

    XLA counts the body of a loop once: scanned layers are one layer here.

    Attributes:
      token_flops: of a train step and a token, beyond the products of matrices: norms, rotations,
        softmax, activations, the loss, and their gradients. Changes with the model's arithmetic,
        and with what a fusion computes twice.
      average_flops: of each parameter and average: the move, and the hash that its rounding is
        dithered with. More for arrays of more axes.
      arrays: bytes accessed by a train step without averages, in arrays of the parameters' size.
        Changes with what is stored or fused.
      eval_flops: of an evaluation step and a token, products included.
      eval_arrays: bytes accessed by an evaluation step, in the same unit.
      copies: bytes copied from one array of a parameter's shape to another, in the same unit:
        gradients in an order that products like. State that is not donated adds to it, as do
        moments that are taken back after a bad update, two (`guard.skip_bad_updates`).
    """

    token_flops: float
    average_flops: float
    arrays: float
    eval_flops: float
    eval_arrays: float
    copies: float


RECORDED = {
    ("olmo", "scan"): Recorded(21_187, 24.5, 53.2, 179_188, 8.21, 0.0),
    ("olmo", "unroll"): Recorded(37_161, 24.5, 59.0, 289_792, 14.0, 0.0),
    ("olmo2", "scan"): Recorded(17_493, 25.2, 50.1, 211_247, 6.47, 0.17),
    ("olmo2", "unroll"): Recorded(26_436, 25.2, 53.2, 354_103, 11.0, 0.34),
}
# FLOPs of each parameter at an update: the norm of the gradient, the clip, Adam, the guard.
PARAMETER_FLOPS = 24.0
# An average is read and written, and the new weights are read for it: in arrays of their size.
AVERAGE_ARRAYS = 3.0
# Arrays of the size of a batch's logits that a train step makes, where they are one block.
LOGITS = 4
# Programs of a run from start to stop, with a save and an evaluation: `init`, the train and the
# evaluation step, the checksums.
PROGRAMS = 4
# Of its second start: a conversion of JAX's own. What is restored lies where `init` puts it, or the
# train step would be compiled again.
RESUMED = 1
UPDATES = 8  # of that run: none of them a milestone of the tiny run

# By default each architecture, each loop, and averages; the rest of the table is slow.
DEFAULT = (("olmo", "scan", MANY), ("olmo2", "unroll", ()))
CASES = [
    pytest.param(architecture, loop, averages, marks=slow)
    for architecture, loop in RECORDED
    for averages in ((), MANY)
    for slow in [() if (architecture, loop, averages) in DEFAULT else pytest.mark.slow]
]
cases = pytest.mark.parametrize(("architecture", "loop", "averages"), CASES)
bare_cases = pytest.mark.parametrize(
    ("architecture", "loop", "averages"), [case for case in CASES if not case.values[2]]
)


@functools.cache
def compiled(architecture: str, layer_loop: str, averages: tuple[float, ...]) -> Any:
    """The configuration, the program's state, the compiled train step."""
    changes = {f"model__{name}": value for name, value in SHAPE.items()}
    given = small_run.config(
        "unused",
        batch_size=BATCH,
        averages=averages,
        model__architecture=architecture,
        model__layer_loop=layer_loop,
        model__attention="plain",
        **changes,
    )
    program = make_program(given, small_run.mesh())
    state = program.abstract_state
    step = program.train_step.lower(state, tokens(), True).compile()
    return given, program, step


def tokens():
    rows = sharding.batch_sharding(small_run.mesh())
    return jax.ShapeDtypeStruct((BATCH, SHAPE["length"] + 1), jnp.int32, sharding=rows)


def parameters(given):
    return decoder.count_params(given.model)["all"]


def instructions(text):
    """Name, shape, operation and operands of every instruction of an HLO module."""
    found = re.findall(r"^ *(?:ROOT )?(\S+) = (\w+\[[\d,]*\])\S* ([\w-]+)\((.*)$", text, re.M)
    return [(name, shape, kind, rest) for name, shape, kind, rest in found]


def sizes(shape):
    return [int(n) for n in re.findall(r"\d+", shape.partition("[")[2])]


def product_flops(text):
    """FLOPs of the products of matrices in an HLO module: a multiply and an add for each term."""
    listed = instructions(text)
    shapes = {name: sizes(shape) for name, shape, _, _ in listed}
    total = 0
    for _, shape, kind, rest in listed:
        if kind == "dot":
            left = shapes[re.findall(r"%[\w.-]+", rest)[0]]
            (axes,) = re.findall(r"lhs_contracting_dims=\{([\d,]+)\}", rest)
            terms = math.prod(left[int(axis)] for axis in axes.split(","))
            total += 2 * math.prod(sizes(shape)) * terms
    return total


def counted_once(given):
    """The formula's FLOPs of a batch, with the layers that XLA counts."""
    layers = 1 if given.model.layer_loop == "scan" else given.model.layers
    seen = dataclasses.replace(given.model, layers=layers)
    return flops.flops_per_token(seen) * BATCH * SHAPE["length"]


def arrays(number, given):
    """Bytes, in float32 arrays of the parameters' size."""
    return number / 4 / parameters(given)


@cases
def test_flops_match_formula_and_record(architecture, loop, averages):
    """The products are the formula's, to the last one: its attention is not halved, nor is ours."""
    given, _, step = compiled(architecture, loop, averages)
    products = product_flops(step.as_text())
    assert products == counted_once(given)
    recorded = RECORDED[architecture, loop]
    others = recorded.token_flops * BATCH * SHAPE["length"]
    each = PARAMETER_FLOPS + recorded.average_flops * len(averages)
    wanted = products + others + each * parameters(given)
    assert step.cost_analysis()["flops"] == pytest.approx(wanted, rel=0.01)
    # A tenth of the whole: a change of it would be lost there.
    beside = step.cost_analysis()["flops"] - products
    assert beside == pytest.approx(wanted - products, rel=0.01)


@cases
def test_memory_traffic_matches_record(architecture, loop, averages):
    given, _, step = compiled(architecture, loop, averages)
    recorded = RECORDED[architecture, loop].arrays
    wanted = recorded + AVERAGE_ARRAYS * len(averages)
    assert arrays(step.cost_analysis()["bytes accessed"], given) == pytest.approx(wanted, rel=0.01)


@pytest.mark.slow
def test_average_is_read_and_written_once():
    given, _, bare = compiled("olmo", "scan", ())
    _, _, full = compiled("olmo", "scan", MANY)
    more = full.cost_analysis()["bytes accessed"] - bare.cost_analysis()["bytes accessed"]
    assert 2 < arrays(more, given) / len(MANY) < AVERAGE_ARRAYS * 1.01


@bare_cases
def test_evaluation_takes_a_third_of_the_products(architecture, loop, averages):
    given, program, _ = compiled(architecture, loop, averages)
    weights = jax.ShapeDtypeStruct(
        (BATCH,), jnp.float32, sharding=sharding.batch_sharding(small_run.mesh())
    )
    lowered = program.eval_step.lower(program.abstract_state.params, tokens(), weights)
    step, recorded = lowered.compile(), RECORDED[architecture, loop]
    assert 3 * product_flops(step.as_text()) == counted_once(given)
    cost = step.cost_analysis()
    each = cost["flops"] / BATCH / SHAPE["length"]
    assert each == pytest.approx(recorded.eval_flops, rel=0.01)
    assert arrays(cost["bytes accessed"], given) == pytest.approx(recorded.eval_arrays, rel=0.01)


@cases
def test_state_is_updated_in_place(architecture, loop, averages):
    given, program, step = compiled(architecture, loop, averages)
    state = jax.tree.leaves(program.abstract_state)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    assert step.memory_analysis().alias_size_in_bytes == held
    matrices = [x.shape for x in jax.tree.leaves(program.abstract_state.params)]
    matrices = {shape for shape in matrices if math.prod(shape) > SHAPE["width"] ** 2}
    listed = instructions(step.as_text())
    copied = [sizes(shape) for _, shape, kind, _ in listed if kind == "copy"]
    copies = sum(math.prod(shape) for shape in copied if tuple(shape) in matrices)
    assert copies / parameters(given) <= RECORDED[architecture, loop].copies


@cases
def test_number_of_logit_arrays(architecture, loop, averages):
    _, _, step = compiled(architecture, loop, averages)
    entry = step.as_text().partition("\nENTRY ")[2]
    elements = BATCH * SHAPE["length"] * SHAPE["embedding_rows"]
    views = ("parameter", "bitcast", "get-tuple-element", "tuple")
    made = [
        (kind, shape)
        for _, shape, kind, _ in instructions(entry)
        if math.prod(sizes(shape)) == elements and kind not in views
    ]
    assert 0 < len(made) <= LOGITS, made


def test_logits_are_never_whole_in_memory(monkeypatch):
    """With two blocks of rows, no array is as large as they are together."""
    elements = BATCH * SHAPE["length"] * SHAPE["embedding_rows"]
    monkeypatch.setattr(loss, "_LOGITS", {"cpu": elements // 2})
    _, _, step = compiled.__wrapped__("olmo", "scan", ())
    made = {math.prod(sizes(shape)) for _, shape, _, _ in instructions(step.as_text())}
    assert elements // 2 in made
    assert elements not in made


@cases
def test_step_has_no_callbacks(architecture, loop, averages):
    _, _, step = compiled(architecture, loop, averages)
    text = step.as_text()
    assert not re.findall(r" (infeed|outfeed|send|recv)\(", text)
    assert not re.findall(r'custom_call_target="[^"]*callback[^"]*"', text)


class Landing:
    """A metric of an update that tells when the loop reads it."""

    def __init__(self, value, landed):
        self._value, self._landed = value, landed

    def __array__(self, *unused, **options):
        self._landed()
        return np.asarray(self._value)


class Watched:
    """The tiny program, with a watch on what surrounds its train step.

    Attributes:
      compiled: programs compiled inside each update.
      late: how many updates later the loop read the metrics of each update, by its number.
    """

    def __init__(self, count, guard=None):
        """Counts compilations with `count`; from update 1 to 8, a guard enters and leaves."""
        self._count, self._guard = count, guard
        self.compiled, self.late = [], {}

    def make(self, config, mesh):
        program = small_run.program(config, mesh)

        def train_step(state, tokens, update_averages=True):
            before = self._count()
            state, values = program.train_step(state, tokens, update_averages)
            self.compiled.append(self._count() - before)
            number = len(self.compiled)
            if self._guard is not None and number == 1:
                self._guard.enter_context(jax.transfer_guard("disallow"))
            if self._guard is not None and number == UPDATES:
                self._guard.close()

            def landed():
                self.late[number] = len(self.compiled) - number

            return state, {name: Landing(value, landed) for name, value in values.items()}

        return dataclasses.replace(program, train_step=train_step)


def test_run_compiles_once_and_never_waits(dataset, tmp_path, monkeypatch, compilations):
    """What goes to the device is put there; what comes back is asked for when it is ready."""
    monkeypatch.setattr(small_run, "_programs", {})  # other tests have compiled theirs
    changes = {"averages": (6.25,), "eval__every": "20 steps", "checkpoint__every": "20 steps"}
    with compilations() as count, contextlib.ExitStack() as guard:
        first = Watched(count, guard)
        monkeypatch.setattr(preflight, "make_program", first.make)
        start(tmp_path, dataset, stop=f"{UPDATES} steps", **changes)
        assert 3 <= count() <= PROGRAMS  # another test may have made the checksums
    assert first.compiled == [1] + [0] * (UPDATES - 1)
    # The first is waited for, since it compiles; those under way at the end, before the save.
    ready = dict.fromkeys(range(2, UPDATES - metrics.AHEAD + 1), metrics.AHEAD)
    ending = {UPDATES - late: late for late in range(metrics.AHEAD)}
    assert first.late == {1: 0, **ready, **ending}
    with compilations() as count:
        second = Watched(count)
        monkeypatch.setattr(preflight, "make_program", second.make)
        start(tmp_path, dataset, stop="12 steps", **changes)
        assert count() <= RESUMED
    assert second.compiled == [0] * (12 - UPDATES)
