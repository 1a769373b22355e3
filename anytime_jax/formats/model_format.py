"""Model formats of other libraries, as tables of tensors and settings.

Our arrays are stacked over layers, stored (in, out), and may be fused. The other libraries have one
tensor per layer, stored (out, in) as in PyTorch.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from anytime_jax.checkpoints.tree_names import flatten_by_name, is_stacked
from anytime_jax.checks import require_count, require_positive
from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params, param_shapes

Settings = dict[str, Any]
Index = tuple[slice, ...]
_REAL = ("rope_theta", "norm_epsilon")  # our settings that need not be whole numbers


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """Mapping between a tensor of another library and our array.

    Attributes:
      name: their name, with {} for the layer index.
      array: our name, such as `blocks/qkv`.
      part: index into the fused axis of our array; None to concatenate all parts.
      transposed: whether their tensor is (out, in).
    """

    name: str
    array: str
    part: int | None = None
    transposed: bool = True


@dataclasses.dataclass(frozen=True)
class ModelFormat:
    """Model format of another library.

    Attributes:
      name: its name, which is that of the kind of models that it has.
      library: name of the library that loads the format.
      model_types: values in their `config.json`.
      tensors: function from a configuration to one mapping for each of their tensors.
      read: function from their settings to the fields of a kind of model, and the `kind`; raises a
        ValueError that names a setting which our decoder does not have.
      write: function from a configuration to their settings; raises an InputError that names a
        setting which they do not have.
      files: function from (their settings, ids of special tokens by name, dtype) to configuration
        texts by file.
      prefix: possible prefix of tensor names in their files.
    """

    name: str
    library: str
    model_types: tuple[str, ...]
    tensors: Callable[[ModelConfig], Sequence[TensorMapping]]
    read: Callable[[Settings], Settings]
    write: Callable[[ModelConfig], Settings]
    files: Callable[[Settings, Settings, str], dict[str, str]]
    prefix: str = ""


def require_setting(settings: Settings, name: str, *allowed: Any) -> None:
    """Raises an InputError unless a setting is missing or has one of the allowed values."""
    if settings.get(name, allowed[0]) not in allowed:
        reason = f"it must be {' or '.join(map(repr, allowed))}"
        raise InputError(reason, name, settings[name])


def read_shared(settings: Settings, names: Mapping[str, str]) -> Settings:
    """Returns our settings from theirs, whose names are given by ours."""
    ours = Settings()
    for name, theirs in names.items():
        if (value := settings.get(theirs)) is None:
            raise InputError("it is missing", theirs)
        if name in _REAL:
            require_positive(theirs, value)
            ours[name] = float(value)
        else:
            require_count(theirs, value, least=1)
            ours[name] = value
    return ours


def require_default(config: ModelConfig, format_name: str, *names: str) -> None:
    """Raises an InputError that names a setting which a format does not have."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in names:
        if (value := getattr(config, name)) != defaults[name]:
            reason = f"the format {format_name} cannot express it"
            raise InputError(reason, f"config.model.{name}", value)


def split_layers(params: Params) -> dict[str, Iterable[np.ndarray]]:
    """Returns the layers of a tree of arrays by name; an array outside of the blocks is one."""
    arrays = flatten_by_name(params).items()
    return {name: np.asarray(x) if is_stacked(name) else [np.asarray(x)] for name, x in arrays}


def layers_to_tensors(
    table: Sequence[TensorMapping], layers: Mapping[str, Iterable[np.ndarray]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields their tensors by name, as `expected_shapes` orders them.

    `layers` has the layers of each array, as `split_layers` returns them; each is iterated once.
    """
    for name, mappings in _by_array(table).items():
        for number, layer in enumerate(layers[name]):
            for mapping in mappings:
                view = layer
                if mapping.part is not None:
                    view = view[..., mapping.part, :]
                elif view.ndim == 3:  # in, parts, out
                    view = view.reshape(len(view), -1)
                view = view.T if mapping.transposed else view
                yield mapping.name.format(number), view


def read_slice(
    table: Sequence[TensorMapping],
    get: Callable[[str], Any],
    name: str,
    shape: tuple[int, ...],
    index: Index,
) -> np.ndarray:
    """Returns a part of our array of a name, float32, and reads no more than it.

    `get` returns a tensor of theirs, of which slices are read by indexing; `index` has a slice for
    each axis of the array, whose whole shape is `shape`.
    """
    ranges = [range(*part.indices(size)) for part, size in zip(index, shape, strict=True)]
    out = np.empty([len(x) for x in ranges], np.float32)
    for mapping, layer in _tensors([x for x in table if x.array == name], {name: shape}):
        target, rest = out, ranges
        if layer is not None:
            if layer not in ranges[0]:
                continue
            target, rest = out[ranges[0].index(layer)], ranges[1:]
        if mapping.part is not None:
            if mapping.part not in rest[-2]:
                continue
            target = target[..., rest[-2].index(mapping.part), :]
            rest = [*rest[:-2], rest[-1]]
        tensor = get(mapping.name.format(layer))
        slices = [slice(x.start, x.stop) for x in rest]
        if len(rest) == 3:  # in, parts, out: theirs is (parts * out, in)
            whole = shape[-1]
            for i, fused in enumerate(rest[1]):
                rows = slice(fused * whole + rest[2].start, fused * whole + rest[2].stop)
                target[:, i] = _to_float32(tensor[rows, slices[0]]).T
        elif mapping.transposed and len(rest) == 2:
            target[...] = _to_float32(tensor[slices[1], slices[0]]).T
        else:
            target[...] = _to_float32(tensor[tuple(slices)])
    return out


def check_tensors(
    table: Sequence[TensorMapping],
    shapes: Mapping[str, tuple[int, ...]],
    config: ModelConfig,
) -> None:
    """Raises an InputError if a tensor is missing, not known or of another shape."""
    expected = expected_shapes(table, param_shapes(config))
    for problem, names in (
        ("is missing", sorted(expected.keys() - shapes.keys())),
        ("is not one of this kind of model", sorted(shapes.keys() - expected.keys())),
    ):
        if names:
            more = f", as {'is' if len(names) == 2 else 'are'} {len(names) - 1} more"
            raise InputError(f"tensor {names[0]} {problem}{more if len(names) > 1 else ''}")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise InputError(
                f"tensor {name} has the shape {shapes[name]}; its configuration requires {shape}"
            )


def expected_shapes(table: Sequence[TensorMapping], params: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of their tensors by name, for a tree of arrays or of their shapes."""
    shapes = {name: leaf.shape for name, leaf in flatten_by_name(params).items()}
    expected = {}
    for mapping, layer in _tensors(table, shapes):
        shape = shapes[mapping.array][0 if layer is None else 1 :]
        if mapping.part is not None:
            shape = (*shape[:-2], shape[-1])
        elif len(shape) == 3:
            shape = (shape[0], shape[1] * shape[2])
        expected[mapping.name.format(layer)] = shape[::-1] if mapping.transposed else shape
    return expected


def _tensors(
    table: Sequence[TensorMapping], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[TensorMapping, int | None]]:
    """Yields every tensor of theirs: its mapping, and the layer if it has one."""
    for name, mappings in _by_array(table).items():
        for layer in range(shapes[name][0]) if is_stacked(name) else (None,):
            for mapping in mappings:
                yield mapping, layer


def _by_array(table: Sequence[TensorMapping]) -> dict[str, list[TensorMapping]]:
    names = dict.fromkeys(mapping.array for mapping in table)
    return {name: [x for x in table if x.array == name] for name in names}


def _to_float32(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float32, copy=False)


def read_params(table: Sequence[TensorMapping], get: Callable[[str], Any], abstract: Any) -> Params:
    """Returns our arrays, sharded like `abstract`; each process reads its own part of the tensors.

    `abstract` is a tree of `jax.ShapeDtypeStruct`; without shardings, every array is on one device.
    """
    names = iter(flatten_by_name(abstract))

    def make(like: jax.ShapeDtypeStruct) -> jax.Array:
        name = next(names)
        sharding = like.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.make_array_from_callback(
            like.shape,
            sharding,
            lambda index: read_slice(table, get, name, like.shape, index or ()),
        )

    return jax.tree.map(make, abstract)
