"""What a run costs, without a clock: work, memory traffic, compilations and waits, as recorded.

A time on a shared machine moves by a quarter; what the compiler has to do does not move at all. The
numbers below are the same with XLA's optimisation and with that of the tests, in jax 0.10
and 0.11. A change that lowers one writes the new number down; one that raises it says what for.
"""

import contextlib
import dataclasses
import functools
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_run
from training_runs import start
from wrapped_step import WrappedStep

from anytime_jax.checkpoints import array_checksums
from anytime_jax.distributed import sharding
from anytime_jax.models import decoder, flops, loss
from anytime_jax.training import metric_writers
from anytime_jax.training import start as start_lib
from anytime_jax.training.step import Rates, make_program

# No two kinds of array of this model have as many elements as its logits, 4 x 32 x 520.
SHAPE = {"width": 64, "mlp_width": 256, "length": 32, "vocab_size": 500, "embedding_rows": 520}
BATCH = 4
TOKENS = BATCH * SHAPE["length"]
LOGITS = TOKENS * SHAPE["embedding_rows"]
MANY = ("f6.25", "f12.5", "f25", "f50", "f100")


class Costs(NamedTuple):
    """What a model of a shape takes; traffic is in float32 arrays of the parameters' size.

    XLA counts the body of a loop once: scanned layers are one layer here.
    """

    token_flops: float  # of a train step and a token, beyond the products of matrices
    average_flops: float  # of each parameter and average: the move, and its stochastic rounding
    arrays: float  # accessed by a train step without averages
    eval_flops: float  # of an evaluation step and a token, products included
    eval_arrays: float  # accessed by an evaluation step
    # Copied from one array of a parameter's shape to another: gradients in an order that products
    # like, in scanned layers the sums that they are added to, and on a CPU the two moments, which a
    # bad update takes back. State that is not donated adds to it.
    copies: float


RECORDED = {
    ("olmo", "scan"): Costs(22_028, 30.5, 57.35, 179_188, 8.21, 2.39),
    ("olmo", "unroll"): Costs(35_321, 30.5, 59.72, 289_792, 14.0, 2.0),
    ("olmo2", "scan"): Costs(19_196, 31.2, 56.25, 211_247, 6.47, 2.66),
    ("olmo2", "unroll"): Costs(29_914, 31.2, 57.65, 354_103, 11.0, 2.34),
}
# FLOPs of each parameter at an update: the norm of the gradient, the clip, Adam, the guard. On a
# CPU, 8 of them and 5 of the arrays are moments that XLA computes for the update and again for the
# state, as the guard chooses between states. Compiled for v5e and H200 an update takes no more.
PARAMETER_FLOPS = 32.0
# An average is read and written, and the new weights are read for it: in arrays of their size.
AVERAGE_ARRAYS = 3.0
LOGIT_ARRAYS = 4  # that a train step makes, where a batch's logits are one block
# Programs of a run from start to stop, with a save and an evaluation: `init`, the train and the
# evaluation step, the checksums of weights and of the optimizer's state.
PROGRAMS = 5
# Of its second start: a conversion of JAX's own. What is restored lies where `init` puts it, or the
# train step would be compiled again.
RESUMED = 1
UPDATES = 8  # of that run: none of them a milestone of the tiny run

# By default each architecture, each loop, and averages; the rest of the table is slow.
DEFAULT = (("olmo", "scan", MANY), ("olmo2", "unroll", ()))
CASES = [
    pytest.param(case, marks=() if case in DEFAULT else pytest.mark.slow)
    for case in ((*key, averages) for key in RECORDED for averages in ((), MANY))
]


@functools.cache
def compile_step(architecture, layer_loop, averages):
    """Returns the configuration, the program, the compiled train step."""
    config = small_run.config(
        "unused",
        batch_size=BATCH,
        averages=averages,
        model__kind=architecture,
        model__layer_loop=layer_loop,
        model__attention="plain",
        **{f"model__{name}": value for name, value in SHAPE.items()},
    )
    program = make_program(config, small_run.mesh())
    lowered = program.train_step.lower(
        program.abstract_state, token_batch(), Rates(np.float32(1), np.float32(0))
    )
    return config, program, lowered.compile()


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-{len(case[2])}")
def case(request):
    """Recorded costs, number of averages, configuration, program, compiled train step."""
    architecture, loop, averages = request.param
    return RECORDED[architecture, loop], len(averages), *compile_step(*request.param)


def on_batch(shape, dtype):
    rows = sharding.batch_sharding(small_run.mesh())
    return jax.ShapeDtypeStruct(shape, dtype, sharding=rows)


def token_batch():
    return on_batch((BATCH, SHAPE["length"] + 1), jnp.int32)


def parameters(config):
    return decoder.count_params(config.model)["all"]


def instructions(text):
    """Name, sizes, operation and operands of every instruction of an HLO module."""
    lines = re.findall(r"^ *(?:ROOT )?(\S+) = \w+\[([\d,]*)\]\S* ([\w-]+)\((.*)$", text, re.M)
    return [
        (name, [int(n) for n in re.findall(r"\d+", shape)], operation, operands)
        for name, shape, operation, operands in lines
    ]


def product_flops(text):
    """FLOPs of the products of matrices in an HLO module: a multiply and an add for each term."""
    sizes = {name: shape for name, shape, _, _ in instructions(text)}
    total = 0
    for _, shape, operation, operands in instructions(text):
        if operation == "dot":
            left = sizes[re.findall(r"%[\w.-]+", operands)[0]]
            (axes,) = re.findall(r"lhs_contracting_dims=\{([\d,]+)\}", operands)
            terms = math.prod(left[int(axis)] for axis in axes.split(","))
            total += 2 * math.prod(shape) * terms
    return total


def formula_flops(config):
    """The formula's FLOPs of a batch, with the layers that XLA counts."""
    layers = 1 if config.model.layer_loop == "scan" else config.model.layers
    return flops.flops_per_token(dataclasses.replace(config.model, layers=layers)) * TOKENS


def arrays(cost, config):
    """Bytes accessed, in float32 arrays of the parameters' size."""
    return cost["bytes accessed"] / 4 / parameters(config)


def test_flops_match_formula_and_record(case):
    """The products are the formula's, to the last one: its attention is not halved, nor is ours."""
    recorded, averages, config, _, step = case
    products = product_flops(step.as_text())
    assert products == formula_flops(config)
    each = PARAMETER_FLOPS + recorded.average_flops * averages
    others = recorded.token_flops * TOKENS + each * parameters(config)
    total = step.cost_analysis()["flops"]
    assert total == pytest.approx(products + others, rel=0.01)
    # A tenth of the whole: a change of it would be lost there.
    assert total - products == pytest.approx(others, rel=0.01)


def test_memory_traffic_matches_record(case):
    recorded, averages, config, _, step = case
    expected = recorded.arrays + AVERAGE_ARRAYS * averages
    assert arrays(step.cost_analysis(), config) == pytest.approx(expected, rel=0.01)


def test_evaluation_takes_a_third_of_the_products(case):
    recorded, _, config, program, _ = case
    weights = on_batch((BATCH,), jnp.float32)
    lowered = program.eval_step.lower(program.abstract_state.params, token_batch(), weights)
    step = lowered.compile()
    assert 3 * product_flops(step.as_text()) == formula_flops(config)
    cost = step.cost_analysis()
    assert cost["flops"] / TOKENS == pytest.approx(recorded.eval_flops, rel=0.01)
    assert arrays(cost, config) == pytest.approx(recorded.eval_arrays, rel=0.01)


def test_state_is_updated_in_place_without_callbacks(case):
    recorded, _, config, program, step = case
    state = jax.tree.leaves(program.abstract_state)
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    assert step.memory_analysis().alias_size_in_bytes == state_bytes
    shapes = [list(x.shape) for x in jax.tree.leaves(program.abstract_state.params)]
    matrices = [shape for shape in shapes if math.prod(shape) > SHAPE["width"] ** 2]
    text = step.as_text()
    copied = [shape for _, shape, operation, _ in instructions(text) if operation == "copy"]
    copies = sum(math.prod(shape) for shape in copied if shape in matrices)
    assert copies / parameters(config) <= recorded.copies
    assert not re.findall(r" (infeed|outfeed|send|recv)\(", text)
    assert not re.findall(r'custom_call_target="[^"]*callback[^"]*"', text)


def test_number_of_logit_arrays(case):
    *_, step = case
    entry = step.as_text().partition("\nENTRY ")[2]
    views = ("parameter", "bitcast", "get-tuple-element", "tuple")
    logits = [
        (operation, shape)
        for _, shape, operation, _ in instructions(entry)
        if math.prod(shape) == LOGITS and operation not in views
    ]
    assert 0 < len(logits) <= LOGIT_ARRAYS, logits


def test_logits_are_never_whole_in_memory(monkeypatch):
    """With two blocks of rows, no array is as large as they are together."""
    monkeypatch.setattr(loss, "_LOGITS", {"cpu": LOGITS // 2})
    _, _, step = compile_step.__wrapped__("olmo", "scan", ())
    sizes = {math.prod(shape) for _, shape, _, _ in instructions(step.as_text())}
    assert LOGITS // 2 in sizes
    assert LOGITS not in sizes


class WatchedScalar:
    """A metric of an update that calls `on_read` when the loop reads it."""

    def __init__(self, value, on_read):
        self._value, self._on_read = value, on_read

    def __array__(self, *unused, **options):
        self._on_read()
        return np.asarray(self._value)


class Watch:
    """The tiny program, with a watch on what surrounds its train step.

    Attributes:
      compiled: programs compiled inside each update.
      delays: how many updates later the loop read the metrics of each update, by its number.
    """

    def __init__(self, count, guard=None):
        """Counts compilations with `count`; `guard` forbids waits from update 1 to 8."""
        self._count, self._guard = count, guard
        self.compiled, self.delays = [], {}

    def make_program(self, config, mesh):
        program = small_run.program(config, mesh)

        def train_step(state, tokens, rate):
            before = self._count()
            state, values = program.train_step(state, tokens, rate)
            self.compiled.append(self._count() - before)
            number = len(self.compiled)
            if self._guard and number == 1:
                self._guard.enter_context(jax.transfer_guard_device_to_host("disallow"))
                self._guard.enter_context(jax.transfer_guard_device_to_device("disallow"))
            if self._guard and number == UPDATES:
                self._guard.close()

            def on_read():
                self.delays[number] = len(self.compiled) - number

            return state, {name: WatchedScalar(value, on_read) for name, value in values.items()}

        return dataclasses.replace(program, train_step=WrappedStep(train_step))


def test_run_compiles_once_and_never_waits(dataset, tmp_path, monkeypatch, compilations):
    """Of an update, the rate alone goes to the device; what comes back is read when it is ready."""
    monkeypatch.setattr(small_run, "_programs", {})  # other tests have compiled theirs
    array_checksums._inspect.clear_cache()
    changes = {"averages": ("f6.25",), "eval__every": "20 steps", "checkpoint__every": "20 steps"}
    with compilations() as count, contextlib.ExitStack() as guard:
        first = Watch(count, guard)
        monkeypatch.setattr(start_lib, "make_program", first.make_program)
        start(tmp_path, dataset, stop=f"{UPDATES} steps", **changes)
        assert count() == PROGRAMS
    assert first.compiled == [1] + [0] * (UPDATES - 1)
    # The first is waited for, since it compiles; those under way at the end, before the save.
    ready = dict.fromkeys(range(2, UPDATES - metric_writers.AHEAD + 1), metric_writers.AHEAD)
    ending = {UPDATES - delay: delay for delay in range(metric_writers.AHEAD)}
    assert first.delays == {1: 0, **ready, **ending}
    with compilations() as count:
        second = Watch(count)
        monkeypatch.setattr(start_lib, "make_program", second.make_program)
        start(tmp_path, dataset, stop="12 steps", **changes)
        assert count() <= RESUMED
    assert second.compiled == [0] * (12 - UPDATES)
