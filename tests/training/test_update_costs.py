"""What a run costs, without a clock: work, memory traffic, compilations and waits, as recorded.

A time on a shared machine moves by a quarter; what the compiler has to do does not move at all. The
numbers below are the same with XLA's optimisation and with that of the tests, in jax 0.10
and 0.11. A change that lowers one writes the new number down; one that raises it says what for.
"""

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
from anytime_jax.training import metric_rows
from anytime_jax.training import plan as plan_lib
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
    # Copied from one array of a parameter's shape to another: gradients in an order that products
    # like, in scanned layers the sums that they are added to, and on a CPU the two moments, which a
    # bad update takes back. State that is not donated adds to it.
    copies: float


# Each architecture and each loop over layers, with averages and without.
RECORDED = {
    ("olmo", "scan", MANY): Costs(22_028, 30.5, 57.35, 2.39),
    ("olmo2", "unroll", ()): Costs(29_914, 31.2, 57.65, 2.34),
}
# FLOPs of each parameter at an update: the norm of the gradient, the clip, Adam, the guard. On a
# CPU, 8 of them and 5 of the arrays are moments that XLA computes for the update and again for the
# state, as the guard chooses between states. Compiled for v5e and H200 an update takes no more.
PARAMETER_FLOPS = 32.0
# An average is read and written, and the new weights are read for it: in arrays of their size.
AVERAGE_ARRAYS = 3.0
# Programs of a run from start to stop, with a save and an evaluation: `init`, the train and the
# evaluation step, and a checksum for each of ten shapes of arrays.
PROGRAMS = 3 + 10
# Of its second start: a conversion of JAX's own. What is restored lies where `init` puts it, or the
# train step would be compiled again.
RESUMED = 1
UPDATES = 8  # of that run: none of them a milestone of the tiny run


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


@pytest.fixture(params=RECORDED, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request):
    """Recorded costs, number of averages, configuration, program, compiled train step."""
    return RECORDED[request.param], len(request.param[2]), *compile_step(*request.param)


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
    *_, config, program, _ = case
    weights = on_batch((BATCH,), jnp.float32)
    lowered = program.eval_step.lower(program.abstract_state.params, token_batch(), weights)
    step = lowered.compile()
    assert 3 * product_flops(step.as_text()) == formula_flops(config)


def test_updates_copy_little_and_call_nothing(case):
    recorded, _, config, program, step = case
    shapes = [list(x.shape) for x in jax.tree.leaves(program.abstract_state.params)]
    matrices = [shape for shape in shapes if math.prod(shape) > SHAPE["width"] ** 2]
    text = step.as_text()
    copied = [shape for _, shape, operation, _ in instructions(text) if operation == "copy"]
    copies = sum(math.prod(shape) for shape in copied if shape in matrices)
    assert copies / parameters(config) <= recorded.copies
    assert not re.findall(r" (infeed|outfeed|send|recv)\(", text)
    assert not re.findall(r'custom_call_target="[^"]*callback[^"]*"', text)


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


def test_run_compiles_once_and_never_waits(dataset, tmp_path, monkeypatch, compilations):
    """Metrics of an update are read when later ones are under way on the device."""
    monkeypatch.setattr(small_run, "_programs", {})  # other tests have compiled theirs
    array_checksums._inspect.clear_cache()
    changes = {"averages": ("f6.25",), "eval__every": "20 steps", "checkpoint__every": "20 steps"}
    compiled = []  # programs inside each update
    delays = {}  # of the reading of metrics, by number of the update
    with compilations() as count:

        def make_program(config, mesh, rules, **options):
            program = small_run.program(config, mesh, rules, **options)

            def train_step(state, tokens, rate):
                before = count()
                state, values = program.train_step(state, tokens, rate)
                compiled.append(count() - before)
                number = len(compiled)

                def on_read():
                    delays[number] = len(compiled) - number

                return state, {name: WatchedScalar(x, on_read) for name, x in values.items()}

            return dataclasses.replace(program, train_step=WrappedStep(train_step))

        monkeypatch.setattr(plan_lib, "make_program", make_program)
        start(tmp_path, dataset, stop=f"{UPDATES} steps", **changes)
        assert count() == PROGRAMS
    assert compiled == [1] + [0] * (UPDATES - 1)
    # The first is waited for, since it compiles; the last ones are, before the save.
    ready = range(2, UPDATES - metric_rows.AHEAD + 1)
    assert [delays[number] for number in ready] == [metric_rows.AHEAD] * len(ready)
    with compilations() as count:
        monkeypatch.setattr(plan_lib, "make_program", small_run.program)
        start(tmp_path, dataset, stop="12 steps", **changes)
        assert count() <= RESUMED
