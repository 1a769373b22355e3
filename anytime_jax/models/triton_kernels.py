"""What a block computes between its matrix products, as Triton kernels for GPUs.

Each function has the arguments, results and rounding of its twin in `between_products`; what the
twin leaves to the next product to round is rounded here. Forward and backward read their operands
once and write their results once, where XLA takes several passes. Nothing but operands is kept for
the backward pass. Triton computes with powers of 2: sizes that do not fit are left to the twin.

All are one mechanism, `_Pass`: a function of some rows, which each program of a grid computes for
its rows, and in the backward pass JAX's own gradient of this function. The gradient of a scale is a
sum over rows: each program sums its own rows, and XLA sums the programs, so that results are
repeatable. The kernels are Pallas's, lowered to Triton; other platforms than GPUs interpret them.

Shape suffixes: those of `between_products`; J the channels of half a head, which the rotation pairs
with the other half; R rows, which are the tokens of a batch.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from anytime_jax.distributed.sharding import ShardingConstraint
from anytime_jax.models import between_products
from anytime_jax.models.between_products import NormForm
from anytime_jax.models.mixed_einsum import Precision

_ROWS = 32  # of a program, which sums their parts of a scale's gradient
_ELEMENTS = 2048  # of a result that a program computes at once, in the registers of four warps
_COLUMNS = 1024  # of a program, at most, if columns are independent
_ALL = slice(None)

Arrays = Sequence[jax.Array]
# For each of some arrays, the indices after the rows of the blocks that a function computes with.
Blocks = Sequence[Sequence[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True, eq=False)
class _Pass:
    """A function of rows that is computed in one pass over memory, and its gradient in another.

    Arrays have all rows first, and then the axes of a row.

    Attributes:
      function: from float32 blocks of operands, tables and shared arrays to those of results.
      operands: arrays with a gradient.
      results: arrays of the axes of the first operand, less its axis C if `has_parts`.
      dtypes: of the results.
      axes: names of an operand's axes, for `ShardingConstraint`; rows are the first two.
      tables: arrays without a gradient. One with fewer rows begins again after its last one.
      shared: arrays that all rows share; their gradients are sums over rows.
      shared_axes: names of the axes of shared arrays.
      has_parts: whether operands have an axis C of parts.
      kept: how many of the first results are operands, which are not written.
      columns: of a program, along the last axis; 0 for all.
    """

    function: Callable[..., Arrays]
    operands: Blocks
    results: Blocks
    dtypes: Sequence[Any]
    axes: tuple[str | None, ...]
    tables: Blocks = ()
    shared: Blocks = ()
    shared_axes: tuple[str | None, ...] = ()
    has_parts: bool = False
    kept: int = 0
    columns: int = 0

    @property
    def result_axes(self) -> tuple[str | None, ...]:
        """Names of a result's axes."""
        return (*self.axes[:2], *self.axes[2 + self.has_parts :])

    @property
    def input_axes(self) -> list[tuple[str | None, ...]]:
        """Names of the axes of operands, tables and shared arrays."""
        of_shared = [self.shared_axes] * len(self.shared)
        return [*[self.axes] * len(self.operands), *[()] * len(self.tables), *of_shared]

    def forward(self, inputs: Arrays, precision: Precision) -> list[jax.Array]:
        """Returns the results, from operands, tables and shared arrays."""
        count = len(self.results) - self.kept

        def kernel(*refs: Any) -> None:
            def of_rows(rows: Any, sums: Arrays) -> Arrays:
                found = self.function(*self._load_inputs(refs, rows))
                written = self.results[self.kept :]
                _store(written, refs[-count:], found[-sum(map(len, written)) :], rows)
                return sums

            self._for_rows(inputs, of_rows, [])

        shape = self._result_shape(inputs)
        written = [jax.ShapeDtypeStruct(shape, dtype) for dtype in self.dtypes[self.kept :]]
        found = self._call("forward", kernel, inputs, [], written, [], precision)
        return [*inputs[: self.kept], *found]

    def backward(self, inputs: Arrays, gradients: Arrays, precision: Precision) -> list[jax.Array]:
        """Returns the gradients by operands, then by shared arrays those of each program."""
        of_operands = sum(map(len, self.operands))

        def kernel(*refs: Any) -> None:
            refs_in, refs = refs[: len(inputs)], refs[len(inputs) :]
            of_results, refs = refs[: len(gradients)], refs[len(gradients) :]
            shared = _load(self.shared, refs_in[len(inputs) - len(self.shared) :])

            def of_rows(rows: Any, sums: Arrays) -> Arrays:
                _, pull_back = jax.vjp(self.function, *self._load_inputs(refs_in, rows))
                found = pull_back(_load(self.results, of_results, rows))
                _store(self.operands, refs[: len(self.operands)], found[:of_operands], rows)
                return [x + y for x, y in zip(sums, found[len(found) - len(sums) :], strict=True)]

            sums = self._for_rows(inputs, of_rows, [jnp.zeros_like(x) for x in shared])
            _store(self.shared, refs[len(self.operands) :], sums, 0)

        operands, shared = inputs[: len(self.operands)], inputs[len(inputs) - len(self.shared) :]
        results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
        programs = len(operands[0]) // _ROWS
        sums = [jax.ShapeDtypeStruct((programs, *x.shape), jnp.float32) for x in shared]
        return self._call("backward", kernel, inputs, gradients, results, sums, precision)

    def _load_inputs(self, refs: Sequence[Any], rows: Any) -> list[jax.Array]:
        by_rows = [*self.operands, *self.tables]
        shared = refs[len(by_rows) : len(by_rows) + len(self.shared)]
        return [*_load(by_rows, refs[: len(by_rows)], rows), *_load(self.shared, shared)]

    def _result_shape(self, inputs: Arrays) -> tuple[int, ...]:
        rows, *rest = inputs[0].shape
        return rows, *rest[self.has_parts :]

    def _for_rows(self, inputs: Arrays, of_rows: Callable[..., Any], sums: Arrays) -> Any:
        """Calls a function with some rows at a time, and with the sums that it returned before."""
        *between, last = self._result_shape(inputs)[1:]
        tile = _ELEMENTS // (math.prod(between) * (self.columns or last))
        tile = max(1, min(_ROWS, tile))

        def step(i: Any, sums: Arrays) -> Arrays:
            return of_rows(pl.ds(i * tile, tile), sums)

        return jax.lax.fori_loop(0, _ROWS // tile, step, sums)

    def _call(
        self,
        name: str,
        kernel: Callable[..., None],
        inputs: Arrays,
        gradients: Arrays,
        results: Sequence[jax.ShapeDtypeStruct],
        sums: Sequence[jax.ShapeDtypeStruct],
        precision: Precision,
    ) -> list[jax.Array]:
        """Runs a program for each block of rows and columns."""

        def of_program(array: Any) -> pl.BlockSpec:
            rows, *between, last = array.shape
            zeros = (0,) * len(between)
            return pl.BlockSpec(
                (_ROWS, *between, self.columns or last),
                lambda row, column: (jax.lax.rem(row, rows // _ROWS), *zeros, column),
            )

        def whole(array: Any) -> pl.BlockSpec:
            zeros = (0,) * len(array.shape)
            return pl.BlockSpec(array.shape, lambda row, column: zeros)

        def sum_of_program(array: Any) -> pl.BlockSpec:
            zeros = (0,) * (len(array.shape) - 1)
            return pl.BlockSpec((1, *array.shape[1:]), lambda row, column: (row, *zeros))

        count = len(inputs) - len(self.shared)
        rows, *_, last = self._result_shape(inputs)
        call = pl.pallas_call(
            kernel,
            out_shape=[*results, *sums],
            grid=(rows // _ROWS, last // (self.columns or last)),
            in_specs=[
                *map(of_program, inputs[:count]),
                *map(whole, inputs[count:]),
                *map(of_program, gradients),
            ],
            out_specs=[*map(of_program, results), *map(sum_of_program, sums)],
            interpret=precision.platform != "gpu",
            compiler_params=triton.CompilerParams(num_warps=4),
            name=f"{self.function.__name__}_{name}",
        )
        return call(*inputs, *gradients)


def _load(blocks: Blocks, refs: Sequence[Any], *rows: Any) -> list[jax.Array]:
    """Returns all blocks of arrays as float32."""
    pairs = zip(blocks, refs, strict=True)
    return [ref[(*rows, *x)].astype(jnp.float32) for places, ref in pairs for x in places]


def _store(blocks: Blocks, refs: Sequence[Any], values: Arrays, *rows: Any) -> None:
    pairs = [(ref, x) for places, ref in zip(blocks, refs, strict=True) for x in places]
    for (ref, place), value in zip(pairs, values, strict=True):
        ref[(*rows, *place)] = value.astype(ref.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _compute(
    of: _Pass, precision: Precision, constrain: ShardingConstraint, *inputs: jax.Array
) -> list[jax.Array]:
    """Returns the results of a pass on all devices; rows are the first two axes of operands."""
    return _compute_forward(of, precision, constrain, *inputs)[0]


def _compute_forward(
    of: _Pass, precision: Precision, constrain: ShardingConstraint, *inputs: jax.Array
) -> tuple[list[jax.Array], tuple[jax.Array, ...]]:
    def on_device(*inputs: jax.Array) -> list[jax.Array]:
        found = of.forward(_join_rows(inputs, len(of.operands)), precision)
        return [x.reshape(*inputs[0].shape[:2], *x.shape[1:]) for x in found]

    results = [of.result_axes] * len(of.results)
    return constrain.per_device(on_device, results, of.input_axes)(*inputs), inputs


def _compute_backward(
    of: _Pass,
    precision: Precision,
    constrain: ShardingConstraint,
    inputs: tuple[jax.Array, ...],
    gradients: list[jax.Array],
) -> tuple[jax.Array | None, ...]:
    operands = len(of.operands)

    def on_device(*arrays: jax.Array) -> list[jax.Array]:
        by_rows = _join_rows(arrays[: len(inputs)], operands)
        of_results = _join_rows(arrays[len(inputs) :], len(gradients))
        found = of.backward(by_rows, of_results, precision)
        shapes = [x.shape for x in arrays[:operands]]
        return [*map(jnp.reshape, found, shapes), *found[operands:]]

    of_all = [*of.input_axes, *[of.result_axes] * len(gradients)]
    of_programs = [("batch", *of.shared_axes)] * len(of.shared)
    run = constrain.per_device(on_device, [*[of.axes] * operands, *of_programs], of_all)
    found = run(*inputs, *gradients)
    of_tables = [None] * len(of.tables)
    return (*found[:operands], *of_tables, *(x.sum(0) for x in found[operands:]))


_compute.defvjp(_compute_forward, _compute_backward)


def _join_rows(arrays: Sequence[jax.Array], count: int) -> list[jax.Array]:
    joined = (x.reshape(-1, *x.shape[2:]) for x in arrays[:count])
    return [*joined, *arrays[count:]]


def _fits(length: int, *sizes: int) -> bool:
    """Whether Triton takes blocks of whole rows, of axes of some sizes, of texts of a length."""
    return length % _ROWS == 0 and all(size == pl.next_power_of_2(size) for size in sizes)


def split_heads(
    y_BxLxCxHxK: Any,
    parts: str,
    scales: Mapping[str, jax.Array],
    table_2xLxJ: Any,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
) -> Arrays:
    """Returns what `between_products.split_heads` returns, rounded.

    Where devices share the heads of a norm over all heads, that function computes it.
    """
    _, L, C, H, K = y_BxLxCxHxK.shape
    J, shards = K // 2, constrain.shards("heads")
    over_all = any(scale.ndim == 2 for scale in scales.values())
    if not _fits(L, H // shards, J) or (over_all and shards > 1):
        twin = between_products.split_heads
        return twin(y_BxLxCxHxK, parts, scales, table_2xLxJ, form, precision, constrain)

    def heads(*blocks: jax.Array) -> Arrays:
        """From halves of all parts, cosines and sines, and halves of scales."""
        pairs = [list(blocks[i : i + 2]) for i in range(0, len(blocks), 2)]
        cos, sin = (x[:, None] for x in pairs[C])
        of_part = dict(zip(scales, pairs[C + 1 :], strict=True))
        found: list[jax.Array] = []
        for part, pair in zip(parts, pairs, strict=False):
            if part in scales:
                units = _units(pair, form, (1, 2) if over_all else (2,), H * K if over_all else K)
                pair = [precision.round(x * y) for x, y in zip(units, of_part[part], strict=True)]
            if part != "v":
                first, second = (x.astype(jnp.float32) for x in pair)
                pair = [first * cos - second * sin, second * cos + first * sin]
            found += pair
        return [precision.round(x).astype(jnp.float32) for x in found]

    halves = [(_ALL, half) for half in (0, 1)]
    of = _Pass(
        heads,
        operands=[[(part, *x) for part in range(C) for x in halves]],
        results=[halves] * C,
        dtypes=[precision.stored_dtype] * C,
        tables=[[(half,) for half in (0, 1)]],
        shared=[halves] * len(scales),
        axes=("batch", None, None, "heads", None, None),
        shared_axes=("heads", None, None),
        has_parts=True,
    )
    inputs = [y_BxLxCxHxK.reshape(-1, L, C, H, 2, J), jnp.asarray(table_2xLxJ).swapaxes(0, 1)]
    inputs += [jnp.broadcast_to(x, (H, K)).reshape(H, 2, J) for x in scales.values()]
    found = cast(list[jax.Array], _compute(of, precision, constrain, *inputs))
    return [x.reshape(-1, L, H, K) for x in found]


def add_and_normalize(
    x_BxLxD: jax.Array,
    added_BxLxD: jax.Array | None,
    scale_D: jax.Array,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
) -> tuple[jax.Array, jax.Array]:
    """Returns what `between_products.add_and_normalize` returns, the norm rounded."""
    _, L, D = x_BxLxD.shape
    if not _fits(L, D):
        twin = between_products.add_and_normalize
        return twin(x_BxLxD, added_BxLxD, scale_D, form, precision, constrain)

    dtype = x_BxLxD.dtype

    def norm(*blocks: jax.Array) -> Arrays:
        *terms, scale = blocks
        x = functools.reduce(jnp.add, terms).astype(dtype).astype(jnp.float32)
        (unit,) = _units([x], form, (1,), D)
        return [x, precision.round(unit * scale).astype(jnp.float32)]

    terms = [x_BxLxD] if added_BxLxD is None else [x_BxLxD, added_BxLxD]
    of = _Pass(
        norm,
        operands=[[()]] * len(terms),
        results=[[()]] * 2,
        dtypes=[dtype, precision.stored_dtype],
        shared=[[(_ALL,)]],
        axes=("batch", None, None),
        shared_axes=(None,),
        kept=int(added_BxLxD is None),
    )
    found = cast(list[jax.Array], _compute(of, precision, constrain, *terms, scale_D))
    x_BxLxD, normed_BxLxD = found
    return x_BxLxD, normed_BxLxD


def activate(h_BxLxCxF: Any, precision: Precision, constrain: ShardingConstraint) -> jax.Array:
    """Returns what `between_products.activate` returns, rounded."""
    _, L, _, F = h_BxLxCxF.shape
    F //= constrain.shards("mlp")
    columns = min(F & -F, _COLUMNS)  # F & -F is the largest power of 2 that divides F
    if not _fits(L) or columns < _ROWS:
        return between_products.activate(h_BxLxCxF, precision, constrain)

    def activation(first: jax.Array, *rest: jax.Array) -> Arrays:
        return [rest[0] * jax.nn.silu(first) if rest else _gelu(first)]

    of = _Pass(
        activation,
        operands=[[(part, _ALL) for part in range(h_BxLxCxF.shape[2])]],
        results=[[()]],
        dtypes=[precision.stored_dtype],
        axes=("batch", None, None, "mlp"),
        has_parts=True,
        columns=columns,
    )
    return cast(list[jax.Array], _compute(of, precision, constrain, h_BxLxCxF))[0]


def _units(arrays: Arrays, form: NormForm, axes: tuple[int, ...], count: int) -> list[jax.Array]:
    """Returns arrays normalized together over some axes, of `count` elements in all arrays."""

    def mean(arrays: Arrays) -> jax.Array:
        sums = (x.sum(axes, keepdims=True) for x in arrays)
        return functools.reduce(jnp.add, sums) * (1 / count)

    if form.centered:
        middle = mean(arrays)
        arrays = [x - middle for x in arrays]
    inverse = jax.lax.rsqrt(mean([x * x for x in arrays]) + form.epsilon)
    return [x * inverse for x in arrays]


@jax.custom_jvp
def _gelu(x: jax.Array) -> jax.Array:
    return x * _normal(x)[0]


@_gelu.defjvp
def _gelu_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    below, density = _normal(primals[0])
    return primals[0] * below, tangents[0] * (below + primals[0] * density)


def _normal(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the standard normal distribution below x, to 1e-7, and its density.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26. Pallas has no error
    function on GPUs; the density's exponential serves this formula too.
    """
    exponential = jnp.exp(-0.5 * x * x)
    t = 1 / (1 + (0.3275911 * math.sqrt(0.5)) * jnp.abs(x))
    series = jnp.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + coefficient) * t
    above = 0.5 * series * exponential
    return jnp.where(x < 0, above, 1 - above), exponential * (1 / math.sqrt(2 * math.pi))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "heads": split_heads,
    "norms": add_and_normalize,
    "activation": activate,
}
