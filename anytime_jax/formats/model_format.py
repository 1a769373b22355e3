"""Model formats of other libraries, as tables of tensors and settings.

Our arrays are stacked over layers, stored (in, out), and may be fused. The other libraries have one
tensor per layer, stored (out, in) as in PyTorch.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anytime_jax.checkpoints.tree_names import flatten_by_name, unflatten_by_name
from anytime_jax.checks import format_value, require_count, require_positive
from anytime_jax.config.model import ModelConfig
from anytime_jax.errors import InputError
from anytime_jax.models.decoder import Params, param_shapes

Settings = dict[str, Any]
_REAL = ("rope_theta", "norm_epsilon")  # our settings that need not be whole numbers


def require_own_keys(settings: Settings, heads: str, kv_heads: str) -> None:
    """Raises an InputError if heads share keys and values, by the settings of these names."""
    if settings.get(kv_heads) not in (None, settings.get(heads)):
        raise InputError(
            f"{kv_heads} = {format_value(settings[kv_heads])} is not supported: every head must "
            f"have its own keys and values, {heads} = {format_value(settings.get(heads))}"
        )


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
      name: value of `--format` and of `ModelConfig.export_format`.
      model_type: value in their `config.json`.
      library: name of the library that loads the format.
      tensors: one mapping for each of their tensors.
      fixed: their settings that our decoder fixes, with the required values.
      names: their names of the shared settings, by our names.
      config_files: function from (their settings, EOS id, dtype) to configuration texts by file.
      prefix: possible prefix of tensor names in their files.
      integers: our settings that must be whole numbers in their format.
      normalize: function that resolves defaults and alternative spellings of their settings.
    """

    name: str
    model_type: str
    library: str
    tensors: tuple[TensorMapping, ...]
    fixed: Mapping[str, Any]
    names: Mapping[str, str]
    config_files: Callable[[Settings, int, str], dict[str, str]]
    prefix: str = ""
    integers: tuple[str, ...] = ()
    normalize: Callable[[Settings], Settings] = dict

    def check(self, config: ModelConfig) -> None:
        """Raises an InputError that names a setting that the format cannot express."""
        own = config.export_format
        if own != self.name:
            advice = f"give --format={own}" if own else "no format has it"
            raise InputError(
                f"config.model.kind: a {type(config).__name__} cannot be expressed in the format "
                f"{self.name}: {advice}"
            )
        for name in self.integers:
            if (value := getattr(config, name)) != int(value):
                raise InputError(
                    f"config.model.{name} = {value} cannot be expressed in the format {self.name}: "
                    f"{self.library} accepts whole numbers only"
                )

    def export_settings(self, config: ModelConfig) -> Settings:
        """Converts a model configuration to their settings."""
        shared = {theirs: getattr(config, ours) for ours, theirs in self.names.items()}
        shared |= {self.names[name]: int(getattr(config, name)) for name in self.integers}
        return {**self.fixed, **shared}

    def import_settings(self, settings: Settings) -> Settings:
        """Converts their settings to fields of `ModelConfig`; a ValueError names a bad one."""
        settings, ours = self.normalize(settings), Settings()
        for name, value in self.fixed.items():
            if (theirs := settings.get(name, value)) != value:
                raise InputError(
                    f"{name} = {format_value(theirs)} is not supported: it must be {value!r}"
                )
        for name, theirs in self.names.items():
            if (value := settings.get(theirs)) is None:
                raise InputError(f"{theirs} is missing")
            if name in _REAL:
                require_positive(theirs, value)
                ours[name] = float(value)
            else:
                require_count(theirs, value, least=1)
                ours[name] = value
        return ours


def params_to_tensors(table: Sequence[TensorMapping], params: Params) -> dict[str, np.ndarray]:
    """Converts a tree of NumPy arrays to their tensors by name."""
    views = _tensor_views(table, flatten_by_name(params))
    return {name: np.ascontiguousarray(view) for name, view in views}


def tensors_to_params(
    table: Sequence[TensorMapping], get: Callable[[str], np.ndarray], config: ModelConfig
) -> Params:
    """Converts their tensors, which `get` returns by name, to our float32 tree."""
    arrays = _empty_arrays(config)
    for name, view in _tensor_views(table, arrays):
        view[...] = get(name)
    return unflatten_by_name(arrays)


def check_tensors(
    table: Sequence[TensorMapping], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> None:
    """Raises an InputError if a tensor is missing, unexpected or of another shape."""
    expected = {name: view.shape for name, view in _tensor_views(table, _empty_arrays(config))}
    for problem, names in (
        ("missing", sorted(expected.keys() - shapes.keys())),
        ("unexpected", sorted(shapes.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InputError(f"{problem} tensor {names[0]}{more}")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise InputError(
                f"tensor {name} has the shape {shapes[name]}; its configuration requires {shape}"
            )


def _empty_arrays(config: ModelConfig) -> dict[str, np.ndarray]:
    shapes = flatten_by_name(param_shapes(config))
    return {name: np.empty(leaf.shape, np.float32) for name, leaf in shapes.items()}


def _tensor_views(
    table: Sequence[TensorMapping], arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor of theirs by name, as a view of our contiguous arrays."""
    for mapping in table:
        array = arrays[mapping.array]
        for layer, view in enumerate(array if mapping.array.startswith("blocks/") else [array]):
            if view.ndim == 3:  # in, part, out
                whole = mapping.part is None
                view = view.reshape(len(view), -1) if whole else view[:, mapping.part]
            yield mapping.name.format(layer), view.T if mapping.transposed else view
