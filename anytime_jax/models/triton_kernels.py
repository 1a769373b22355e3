"""What a block computes between its matrix products, as Triton kernels for GPUs.

Each function has the arguments, results and rounding of its twin in `between_products`; what the
twin leaves to the next product to round is rounded here. Forward and backward read their operands
once and write their results once, where XLA takes several passes. Nothing but operands is kept for
the backward pass, which computes the rest again. The gradient of a scale is a sum over rows: each
program of the grid sums its own rows, and XLA sums the programs, so that results are repeatable.

The kernels are Pallas's, lowered to Triton. Other platforms than GPUs interpret them.

Shape suffixes: those of `between_products`; J the channels of half a head, which the rotation pairs
with the other half; R rows; N programs along the rows.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from anytime_jax.distributed.sharding import ShardingConstraint
from anytime_jax.models import between_products
from anytime_jax.models.between_products import NormForm
from anytime_jax.models.mixed_einsum import Precision

_ELEMENTS = 2048  # of a block, which the four warps of a program have in registers
_ROWS = 32  # rows whose part of a scale's gradient one program sums

Arrays = Sequence[jax.Array]


def _call(
    kernel: Callable[..., None],
    results: Sequence[tuple[tuple[int, ...], Any]],
    grid: tuple[int, ...],
    precision: Precision,
    *operands: jax.Array,
) -> list[jax.Array]:
    """Runs a program for each point of a grid; `results` are shapes and types."""
    call = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(*x) for x in results],
        grid=grid,
        interpret=precision.platform != "gpu",
        compiler_params=triton.CompilerParams(num_warps=4),
        name=kernel.__name__,
    )
    return call(*operands)


def _block(rows: int, *sizes: int) -> tuple[int, ...]:
    """Returns the shape of a block of whole rows; Triton takes powers of 2."""
    of_row = [pl.next_power_of_2(size) for size in sizes]
    most = max(1, _ELEMENTS // math.prod(of_row))
    return min(most, pl.next_power_of_2(rows)), *of_row


def _inside(block: Sequence[int], sizes: Sequence[int], *starts: Any) -> jax.Array | None:
    """Returns which elements of a block are inside of an array; None if all.

    The block begins at `starts` on the first axes, and at 0 on the others.
    """
    inside = None
    for axis, (size, whole) in enumerate(zip(block, sizes, strict=True)):
        if whole % (size if axis else max(size, _ROWS)):
            number = jax.lax.broadcasted_iota(jnp.int32, tuple(block), axis)
            fits = number + (starts[axis] if axis < len(starts) else 0) < whole
            inside = fits if inside is None else inside & fits
    return inside


def _traced(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns an index whose integers have a shape, as the interpreter of jax 0.10 needs."""
    return tuple(np.int32(x) if isinstance(x, int) else x for x in index)


def _load(ref: Any, *index: Any, mask: jax.Array | None) -> jax.Array:
    """Returns a block as float32, 0 outside of the array."""
    block = triton.load(ref.at[_traced(index)], mask=mask, other=None if mask is None else 0)
    return block.astype(jnp.float32)


def _round(arrays: Arrays, precision: Precision) -> Arrays:
    """Returns rounded arrays as float32."""
    return [precision.round(x).astype(jnp.float32) for x in arrays]


def _store(ref: Any, *index: Any, value: jax.Array, mask: jax.Array | None) -> None:
    triton.store(ref.at[_traced(index)], value.astype(ref.dtype), mask=mask)


class _Norm:
    """Norm of arrays together, over some axes that have `count` elements in all arrays."""

    def __init__(self, form: NormForm, axes: tuple[int, ...], count: int) -> None:
        self._form, self._axes, self._count = form, axes, count

    def _mean(self, arrays: Arrays) -> jax.Array:
        sums = (x.sum(self._axes, keepdims=True) for x in arrays)
        return functools.reduce(jnp.add, sums) * (1 / self._count)

    def unit(self, arrays: Arrays, mask: jax.Array | None) -> tuple[Arrays, jax.Array]:
        """Returns the normalized arrays, without a scale, and 1 / their deviation before."""
        if self._form.centered:
            mean = self._mean(arrays)
            arrays = [x - mean if mask is None else jnp.where(mask, x - mean, 0) for x in arrays]
        inverse = jax.lax.rsqrt(self._mean([x * x for x in arrays]) + self._form.epsilon)
        return [x * inverse for x in arrays], inverse

    def gradient(self, units: Arrays, inverse: jax.Array, gradients: Arrays) -> Arrays:
        """Returns the gradients by the arguments of `unit`, from those by its results."""
        along = self._mean([g * unit for g, unit in zip(gradients, units, strict=True)])
        parts = [g - unit * along for g, unit in zip(gradients, units, strict=True)]
        if self._form.centered:
            mean = self._mean(gradients)
            parts = [x - mean for x in parts]
        return [x * inverse for x in parts]


# Norm and rotation of queries and keys.

_OF_PRODUCT, _OF_HEADS = ("batch", None, None, "heads", None), ("batch", None, "heads", None)


def split_heads(
    y_BxLxCxHxK: jax.Array,
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
    if constrain.shards("heads") > 1 and any(scale.ndim == 2 for scale in scales.values()):
        twin = between_products.split_heads
        return twin(y_BxLxCxHxK, parts, scales, table_2xLxJ, form, precision, constrain)
    table_2xLxJ = jnp.asarray(table_2xLxJ)
    return _split_heads(y_BxLxCxHxK, dict(scales), table_2xLxJ, parts, form, precision, constrain)


class _Heads:
    """Blocks of tokens of one row of the batch, read and written as two arrays of half heads."""

    def __init__(self, shape: Sequence[int], form: NormForm, scales: Mapping[str, Any]) -> None:
        self.batch, self.length, self.parts, self.heads, channels = shape
        self.half = channels // 2
        self.tokens, *rest = _block(self.length, self.heads, channels)
        self.block = self.tokens, rest[0], pl.next_power_of_2(self.half)
        over_all = any(scale.ndim == 2 for scale in scales.values())
        count = self.heads * channels if over_all else channels
        self.norm = _Norm(form, (1, 2) if over_all else (2,), count)
        self.of_product = (self.batch, self.length, self.parts, self.heads, 2, self.half)
        self.of_heads = (self.batch, self.length, self.heads, 2, self.half)

    def mask(self, at: Any) -> jax.Array | None:
        return _inside(self.block, (self.length, self.heads, self.half), at[1])

    def _index(self, at: Any, half: int, *part: int) -> tuple[Any, ...]:
        _, heads, channels = (pl.ds(0, size) for size in self.block)
        return at[0], pl.ds(at[1], self.tokens), *part, heads, half, channels

    def load(self, ref: Any, at: Any, *part: int) -> Arrays:
        mask = self.mask(at)
        return [_load(ref, *self._index(at, half, *part), mask=mask) for half in (0, 1)]

    def store(self, ref: Any, at: Any, *part: int, values: Arrays) -> None:
        for half, value in enumerate(values):
            index = self._index(at, half, *part)
            _store(ref, *index, value=value, mask=self.mask(at))

    def table(self, ref: Any, at: Any) -> Arrays:
        """Returns cosine and sine of the tokens, of shape Tx1xJ."""
        block = self.tokens, self.block[2]
        mask = _inside(block, (self.length, self.half), at[1])
        slices = pl.ds(at[1], block[0]), pl.ds(0, block[1])
        return [_load(ref, i, *slices, mask=mask)[:, None] for i in (0, 1)]

    def scale(self, ref: Any) -> Arrays:
        """Returns a scale, of shape 1xHxJ."""
        mask = _inside(self.block[1:], (self.heads, self.half))
        slices = [pl.ds(0, size) for size in self.block[1:]]
        return [_load(ref, slices[0], half, slices[1], mask=mask)[None] for half in (0, 1)]

    def halve_scales(self, scales: Mapping[str, jax.Array]) -> list[jax.Array]:
        """Returns scales for all heads, of shape Hx2xJ."""
        shape = self.heads, 2 * self.half
        return [jnp.broadcast_to(x, shape).reshape(-1, 2, self.half) for x in scales.values()]


def _rotate(halves: Arrays, cos: jax.Array, sin: jax.Array) -> Arrays:
    first, second = halves
    return [first * cos - second * sin, second * cos + first * sin]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def _split_heads(
    y_BxLxCxHxK: jax.Array,
    scales: dict[str, jax.Array],
    table_2xLxJ: jax.Array,
    parts: str,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
) -> list[jax.Array]:
    def on_device(y_BxLxCxHxK: jax.Array, scales: Any, table_2xLxJ: jax.Array) -> Any:
        of = _Heads(y_BxLxCxHxK.shape, form, scales)

        def split_heads_forward(y_ref: Any, table_ref: Any, *refs: Any) -> None:
            at = pl.program_id(0), pl.program_id(1) * of.tokens
            scale_refs = dict(zip(scales, refs, strict=False))
            rotation = of.table(table_ref, at)
            for i, part in enumerate(parts):
                halves = of.load(y_ref, at, i)
                if part in scales:
                    units, _ = of.norm.unit(halves, of.mask(at))
                    scale = of.scale(scale_refs[part])
                    products = [x * y for x, y in zip(units, scale, strict=True)]
                    halves = _round(products, precision)
                if part != "v":
                    halves = _round(_rotate(halves, *rotation), precision)
                of.store(refs[len(scales) + i], at, values=halves)

        found = _call(
            split_heads_forward,
            [(of.of_heads, precision.stored_dtype)] * len(parts),
            (of.batch, pl.cdiv(of.length, of.tokens)),
            precision,
            y_BxLxCxHxK.reshape(of.of_product),
            table_2xLxJ,
            *of.halve_scales(scales),
        )
        return [x.reshape(of.batch, of.length, of.heads, -1) for x in found]

    run = constrain.per_device(on_device, [_OF_HEADS] * len(parts), (_OF_PRODUCT, (), ()))
    return run(y_BxLxCxHxK, scales, table_2xLxJ)


def _split_heads_forward(*arguments: Any) -> tuple[list[jax.Array], Any]:
    return _split_heads(*arguments), arguments[:3]


def _split_heads_backward(
    parts: str,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
    saved: tuple[jax.Array, dict[str, jax.Array], jax.Array],
    gradients: Arrays,
) -> tuple[jax.Array, dict[str, jax.Array], None]:
    def on_device(
        y_BxLxCxHxK: jax.Array, scales: Any, table_2xLxJ: jax.Array, *gradients: jax.Array
    ) -> Any:
        of = _Heads(y_BxLxCxHxK.shape, form, scales)
        rows = max(_ROWS, of.tokens)
        programs = pl.cdiv(of.length, rows)

        def split_heads_backward(y_ref: Any, table_ref: Any, *refs: Any) -> None:
            row, program = pl.program_id(0), pl.program_id(1)
            gradient_refs, refs = refs[: len(parts)], refs[len(parts) :]
            scale_refs, dy_ref = dict(zip(scales, refs, strict=False)), refs[len(scales)]
            loaded = {name: of.scale(ref) for name, ref in scale_refs.items()}

            def of_step(step: Any, sums: dict[str, Any]) -> dict[str, Any]:
                at, sums = (row, program * rows + step * of.tokens), dict(sums)
                cos, sin = of.table(table_ref, at)
                for i, part in enumerate(parts):
                    found = of.load(gradient_refs[i], at)
                    if part != "v":
                        found = _round(_rotate(found, cos, -sin), precision)
                    if part in scales:
                        units, inverse = of.norm.unit(of.load(y_ref, at, i), of.mask(at))
                        products = [x * y for x, y in zip(found, units, strict=True)]
                        sums[part] = [
                            x + y.sum(0) for x, y in zip(sums[part], products, strict=True)
                        ]
                        found = [x * y for x, y in zip(found, loaded[part], strict=True)]
                        found = _round(of.norm.gradient(units, inverse, found), precision)
                    of.store(dy_ref, at, i, values=found)
                return sums

            zeros = {name: [jnp.zeros(of.block[1:], jnp.float32)] * 2 for name in scales}
            sums = jax.lax.fori_loop(0, rows // of.tokens, of_step, zeros)
            mask = _inside(of.block[1:], (of.heads, of.half))
            for name, ref in zip(scales, refs[len(scales) + 1 :], strict=True):
                for half, value in enumerate(sums[name]):
                    heads, channels = (pl.ds(0, size) for size in of.block[1:])
                    index = row, program, heads, half, channels
                    _store(ref, *index, value=value, mask=mask)

        of_sums = (of.batch, programs, of.heads, 2, of.half)
        dy, *sums = _call(
            split_heads_backward,
            [(of.of_product, y_BxLxCxHxK.dtype)] + [(of_sums, jnp.float32)] * len(scales),
            (of.batch, programs),
            precision,
            y_BxLxCxHxK.reshape(of.of_product),
            table_2xLxJ,
            *(x.reshape(of.of_heads) for x in gradients),
            *of.halve_scales(scales),
        )
        sums = (x.reshape(of.batch, programs, of.heads, -1) for x in sums)
        return [dy.reshape(y_BxLxCxHxK.shape), *sums]

    of_results = [_OF_PRODUCT] + [_OF_HEADS] * len(saved[1])
    of_arguments = (_OF_PRODUCT, (), (), *[_OF_HEADS] * len(parts))
    dy_BxLxCxHxK, *sums = constrain.per_device(on_device, of_results, of_arguments)(
        *saved, *gradients
    )
    scales = zip(saved[1].items(), sums, strict=True)
    dscales = {name: x.sum(tuple(range(4 - scale.ndim))) for (name, scale), x in scales}
    return dy_BxLxCxHxK, dscales, None


_split_heads.defvjp(_split_heads_forward, _split_heads_backward)


# Addition to the residual stream, and the norm that follows.

_OF_STREAM = ("batch", None, None)


def add_and_normalize(
    x_BxLxD: jax.Array,
    added_BxLxD: jax.Array | None,
    scale_D: jax.Array,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
) -> tuple[jax.Array, jax.Array]:
    """Returns what `between_products.add_and_normalize` returns, the norm rounded."""
    return _add_and_normalize(x_BxLxD, added_BxLxD, scale_D, form, precision, constrain)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _add_and_normalize(
    x_BxLxD: jax.Array,
    added_BxLxD: jax.Array | None,
    scale_D: jax.Array,
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
) -> tuple[jax.Array, jax.Array]:
    def on_device(scale_D: jax.Array, *terms: jax.Array) -> Any:
        batch, length, width = terms[0].shape
        sizes = batch * length, width
        block, norm = _block(*sizes), _Norm(form, (1,), width)

        def add_and_normalize_forward(scale_ref: Any, *refs: Any) -> None:
            start = pl.program_id(0) * block[0]
            index, mask = (pl.ds(start, block[0]), pl.ds(0, block[1])), _inside(block, sizes, start)
            x = functools.reduce(
                jnp.add, (_load(ref, *index, mask=mask) for ref in refs[: len(terms)])
            )
            (unit,), _ = norm.unit([x], mask)
            scale = _load(scale_ref, index[1], mask=_inside(block[1:], sizes[1:]))
            _store(refs[-1], *index, value=precision.round(unit * scale), mask=mask)
            if len(terms) > 1:
                _store(refs[-2], *index, value=x, mask=mask)

        found = _call(
            add_and_normalize_forward,
            [(sizes, terms[0].dtype)] * (len(terms) - 1) + [(sizes, precision.stored_dtype)],
            (pl.cdiv(sizes[0], block[0]),),
            precision,
            scale_D,
            *(x.reshape(sizes) for x in terms),
        )
        return [x.reshape(batch, length, width) for x in found]

    terms = [x_BxLxD] if added_BxLxD is None else [x_BxLxD, added_BxLxD]
    of_all = [_OF_STREAM] * len(terms)
    *sums, normed_BxLxD = constrain.per_device(on_device, of_all, ((), *of_all))(scale_D, *terms)
    return (sums or [x_BxLxD])[0], normed_BxLxD


def _add_and_normalize_forward(
    x_BxLxD: jax.Array, added_BxLxD: jax.Array | None, scale_D: jax.Array, *rest: Any
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    found: Any = _add_and_normalize(x_BxLxD, added_BxLxD, scale_D, *rest)
    like_added = None if added_BxLxD is None else jnp.zeros((), added_BxLxD.dtype)
    return found, (found[0], scale_D, like_added)


def _add_and_normalize_backward(
    form: NormForm,
    precision: Precision,
    constrain: ShardingConstraint,
    saved: tuple[jax.Array, jax.Array, jax.Array | None],
    gradients: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array | None, jax.Array]:
    x_BxLxD, scale_D, like_added = saved

    def on_device(scale_D: jax.Array, *arrays: jax.Array) -> Any:
        batch, length, width = arrays[0].shape
        sizes = batch * length, width
        block, norm = _block(*sizes), _Norm(form, (1,), width)
        rows = max(_ROWS, block[0])
        programs = pl.cdiv(sizes[0], rows)

        def add_and_normalize_backward(
            scale_ref: Any, x_ref: Any, dx_ref: Any, dnormed_ref: Any, sums_ref: Any, *refs: Any
        ) -> None:
            program, columns = pl.program_id(0), pl.ds(0, block[1])
            inside = _inside(block[1:], sizes[1:])
            scale = _load(scale_ref, columns, mask=inside)

            def of_step(step: Any, sums: jax.Array) -> jax.Array:
                start = program * rows + step * block[0]
                mask = _inside(block, sizes, start)
                x, dx, dnormed = (
                    _load(ref, pl.ds(start, block[0]), columns, mask=mask)
                    for ref in (x_ref, dx_ref, dnormed_ref)
                )
                units, inverse = norm.unit([x], mask)
                (found,) = norm.gradient(units, inverse, [dnormed * scale])
                for ref in refs:
                    _store(ref, pl.ds(start, block[0]), columns, value=dx + found, mask=mask)
                return sums + (dnormed * units[0]).sum(0)

            zeros = jnp.zeros(block[1:], jnp.float32)
            sums = jax.lax.fori_loop(0, rows // block[0], of_step, zeros)
            _store(sums_ref, program, columns, value=sums, mask=inside)

        types = [arrays[0].dtype] + ([] if like_added is None else [like_added.dtype])
        sums, *found = _call(
            add_and_normalize_backward,
            [((programs, width), jnp.float32), *((sizes, dtype) for dtype in types)],
            (programs,),
            precision,
            scale_D,
            *(x.reshape(sizes) for x in arrays),
        )
        return [sums, *(x.reshape(batch, length, width) for x in found)]

    terms = [_OF_STREAM] * (1 if like_added is None else 2)
    of_results = [("batch", None), *terms]
    run = constrain.per_device(on_device, of_results, ((), *[_OF_STREAM] * 3))
    sums, dx_BxLxD, *dadded = run(scale_D, x_BxLxD, *gradients)
    return dx_BxLxD, dadded[0] if dadded else None, sums.sum(0)


_add_and_normalize.defvjp(_add_and_normalize_forward, _add_and_normalize_backward)


# GELU and SwiGLU.

_OF_HIDDEN, _OF_ACTIVE = ("batch", None, None, "mlp"), ("batch", None, "mlp")
_COLUMNS = 1024  # of a block, at most


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def activate(
    h_BxLxCxF: jax.Array, precision: Precision, constrain: ShardingConstraint
) -> jax.Array:
    """Returns what `between_products.activate` returns, rounded."""

    def activate_forward(h: Arrays) -> Arrays:
        first, *rest = h
        return [rest[0] * _silu(first)[0]] if rest else [first * _normal(first)[0]]

    def on_device(h_BxLxCxF: jax.Array) -> jax.Array:
        return _by_rows(activate_forward, [h_BxLxCxF], 1, precision).squeeze(-2)

    return constrain.per_device(on_device, _OF_ACTIVE, [_OF_HIDDEN])(h_BxLxCxF)


def _activate_forward(
    h_BxLxCxF: jax.Array, precision: Precision, constrain: ShardingConstraint
) -> tuple[jax.Array, jax.Array]:
    return activate(h_BxLxCxF, precision, constrain), h_BxLxCxF


def _activate_backward(
    precision: Precision,
    constrain: ShardingConstraint,
    h_BxLxCxF: jax.Array,
    gradient_BxLxF: jax.Array,
) -> tuple[jax.Array]:
    def activate_backward(arrays: Arrays) -> Arrays:
        first, *rest, gradient = arrays
        if not rest:
            below, density = _normal(first)
            return [gradient * (below + first * density)]
        silu, slope = _silu(first)
        return [gradient * rest[0] * slope, gradient * silu]

    def on_device(h_BxLxCxF: jax.Array, gradient_BxLxF: jax.Array) -> jax.Array:
        arrays = [h_BxLxCxF, gradient_BxLxF[:, :, None]]
        found = _by_rows(activate_backward, arrays, h_BxLxCxF.shape[2], precision)
        return found.astype(h_BxLxCxF.dtype)

    run = constrain.per_device(on_device, _OF_HIDDEN, [_OF_HIDDEN, _OF_ACTIVE])
    return (run(h_BxLxCxF, gradient_BxLxF),)


activate.defvjp(_activate_forward, _activate_backward)


def _by_rows(
    function: Callable[[Arrays], Arrays],
    arrays: Sequence[jax.Array],
    count: int,
    precision: Precision,
) -> jax.Array:
    """Returns a function of all parts, axis C, of BxLxCxF arrays, as its `count` parts, rounded."""
    *rows, _, width = arrays[0].shape
    arrays = [x.reshape(-1, *x.shape[-2:]) for x in arrays]
    sizes = len(arrays[0]), width
    columns = min(_COLUMNS, pl.next_power_of_2(width))
    block = _block(sizes[0], columns)

    def kernel(*refs: Any) -> None:
        starts = [pl.program_id(i) * size for i, size in enumerate(block)]
        rows, columns = (pl.ds(x, size) for x, size in zip(starts, block, strict=True))
        mask = _inside(block, sizes, *starts)
        loaded = [
            _load(ref, rows, part, columns, mask=mask)
            for ref in refs[:-1]
            for part in range(ref.shape[1])
        ]
        for part, value in enumerate(_round(function(loaded), precision)):
            _store(refs[-1], rows, part, columns, value=value, mask=mask)

    kernel.__name__ = function.__name__
    grid = tuple(map(pl.cdiv, sizes, block))
    shape = (sizes[0], count, width)
    (found,) = _call(kernel, [(shape, precision.stored_dtype)], grid, precision, *arrays)
    return found.reshape(*rows, count, width)


def _silu(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns x times its logistic function, and the derivative."""
    logistic = 1 / (1 + jnp.exp(-x))
    return x * logistic, logistic * (1 + x * (1 - logistic))


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
