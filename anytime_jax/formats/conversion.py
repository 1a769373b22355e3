"""What a format is: how another library names, cuts and turns our arrays, and describes the model.

Ours are stacked over layers, read left to right (in, out) and may be fused; theirs are one a layer,
in PyTorch's orientation (out, in). A table of `Piece`s says which is which, both ways; a table of
`Fixed` settings says what of their library our decoder is.
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
_REAL = ("rope_theta", "norm_epsilon")  # of our settings; the others count something


@dataclasses.dataclass(frozen=True)
class Piece:
    """A tensor of another library.

    Attributes:
      name: theirs, with {} for the number of the layer.
      leaf: our array that holds it, such as `blocks/qkv`.
      part: of those fused in that array, from 0; None for all of them, one below another.
      turned: whether theirs is (out, in) where ours is (in, out).
    """

    name: str
    leaf: str
    part: int | None = None
    turned: bool = True

    def take(self, array: np.ndarray) -> np.ndarray:
        """Returns the tensor that is in our array (of one layer)."""
        if array.ndim == 3:  # in, part, out
            array = array.reshape(len(array), -1) if self.part is None else array[:, self.part]
        return array.T if self.turned else array

    def put(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Writes the tensor into our array (of one layer), which is contiguous."""
        tensor = tensor.T if self.turned else tensor
        if array.ndim == 3 and self.part is not None:
            array[:, self.part] = tensor
        else:
            array[...] = tensor.reshape(array.shape)


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of another library.

    Attributes:
      name: what `--format` calls it; also the architecture that it is for.
      model_type: what `config.json` calls it.
      library: that loads it.
      pieces: the tensors.
      fixed: settings of theirs that our decoder has built in, with their values.
      names: their settings by ours, for those that both have.
      files: returns the text of each file of their configuration, by its name, given their
        settings, the id that ends a document and the type of the weights.
      prefix: of their names of tensors, as some of their files have it and others not.
      whole: of ours, those that theirs takes as whole numbers only.
      tidy: returns their settings, as read, with one way of saying each thing.
    """

    name: str
    model_type: str
    library: str
    pieces: tuple[Piece, ...]
    fixed: Mapping[str, Any]
    names: Mapping[str, str]
    files: Callable[[Settings, int, str], dict[str, str]]
    prefix: str = ""
    whole: tuple[str, ...] = ()
    tidy: Callable[[Settings], Settings] = dict

    def check(self, config: ModelConfig) -> None:
        """Checks that the format can express a model.

        Raises:
          InputError: if it cannot; the message names the setting.
        """
        if config.architecture != self.name:
            raise InputError(
                f"config.model.architecture = {config.architecture!r} cannot be expressed in the "
                f"format {self.name}: give --format={config.architecture}"
            )
        for name in self.whole:
            if (value := getattr(config, name)) != int(value):
                raise InputError(
                    f"config.model.{name} = {value} cannot be expressed in the format {self.name}: "
                    f"{self.library} takes whole numbers only"
                )

    def settings(self, config: ModelConfig) -> Settings:
        """Returns what their library has to know of a model."""
        shared = {theirs: getattr(config, ours) for ours, theirs in self.names.items()}
        shared |= {self.names[name]: int(getattr(config, name)) for name in self.whole}
        return {**self.fixed, **shared}

    def shape(self, settings: Settings) -> Settings:
        """Returns our settings of a model that their library describes.

        Args:
          settings: theirs.

        Raises:
          ValueError: for what our decoder cannot express; the message names the setting.
        """
        given, shape = self.tidy(settings), Settings()
        for name, value in self.fixed.items():
            if given.get(name, value) != value:
                raise InputError(
                    f"{name} = {format_value(given[name])} cannot be expressed here: it must be {value!r}"
                )
        for ours, theirs in self.names.items():
            value = given.get(theirs)
            if value is None:
                raise InputError(f"it has no {theirs}")
            if ours in _REAL:
                require_positive(theirs, value)
            else:
                require_count(theirs, value, least=1)
            shape[ours] = float(value) if ours in _REAL else value
        return shape


def to_tensors(pieces: Sequence[Piece], params: Params) -> dict[str, np.ndarray]:
    """Returns a weight tree under the names of another library.

    Args:
      pieces: their names.
      params: NumPy arrays in the tree that `model.init_params` makes.
    """
    flat = flatten_by_name(params)
    layers = len(flat["blocks/qkv"])
    return {
        name: np.ascontiguousarray(piece.take(at(flat[piece.leaf])))
        for name, piece, at in _expand(pieces, layers)
    }


def check_tensors(
    pieces: Sequence[Piece], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> None:
    """Checks that the tensors of another library are those of a model.

    Args:
      pieces: their names.
      shapes: of the tensors that there are, by name.
      config: the shape of the model.

    Raises:
      InputError: if a tensor is missing, left over or of another shape.
    """
    flat = _empty(config)
    expected = {
        name: piece.take(at(flat[piece.leaf])).shape
        for name, piece, at in _expand(pieces, config.layers)
    }
    for which, odd in (
        ("lacks", sorted(expected.keys() - shapes.keys())),
        ("should not have", sorted(shapes.keys() - expected.keys())),
    ):
        if odd:
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            raise InputError(f"it {which} the tensor {odd[0]}{more}")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise InputError(
                f"its tensor {name} has the shape {shapes[name]}, where its configuration says "
                f"{shape}"
            )


def from_tensors(
    pieces: Sequence[Piece], get: Callable[[str], np.ndarray], config: ModelConfig
) -> Params:
    """Returns the weight tree that another library has under its names, float32.

    Args:
      pieces: their names.
      get: returns a tensor by its name; `check_tensors` found them fine.
      config: the shape of the model.
    """
    flat = _empty(config)
    for name, piece, at in _expand(pieces, config.layers):
        piece.put(at(flat[piece.leaf]), get(name))
    return unflatten_by_name(flat)


def _empty(config: ModelConfig) -> dict[str, np.ndarray]:
    """Our arrays by name, to be filled; no memory is taken before."""
    shapes = flatten_by_name(param_shapes(config))
    return {name: np.empty(leaf.shape, np.float32) for name, leaf in shapes.items()}


def _expand(
    pieces: Sequence[Piece], layers: int
) -> Iterator[tuple[str, Piece, Callable[[np.ndarray], np.ndarray]]]:
    """Every tensor's name, its piece, and what takes its layer of our array."""
    for piece in pieces:
        if not piece.leaf.startswith("blocks/"):
            yield piece.name, piece, lambda array: array
            continue
        for layer in range(layers):
            yield piece.name.format(layer), piece, lambda array, layer=layer: array[layer]
