"""Device mesh and shardings: one rule by axis name for parameters and arrays of their shape.

Parameters, Adam's moments and the averages are sharded alike. The residual width is split over the
mesh axis `fsdp`; heads, MLP and vocabulary are split over `tensor`. Then the first axis of the
array that can be split further into as many parts as `data` has is also split over `data`. A model
is computed with parameters that are gathered over `data`. A batch is split over `data` and `fsdp`
together. The layout changes results only by rounding, as sums are taken in another order.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from anytime_jax.config.mesh import MeshConfig
from anytime_jax.distributed import jax_settings
from anytime_jax.errors import InputError

MESH_AXES = ("data", "fsdp", "tensor")
_BATCH_AXES = ("data", "fsdp")
AXIS_RULES = {"width": "fsdp", "heads": "tensor", "mlp": "tensor", "vocabulary": "tensor"}


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh over `devices`, by default all.

    Raises an InputError if the mesh does not fit the devices, or if JAX's settings are not those of
    runs.
    """
    devices = jax_settings.find_devices() if devices is None else devices
    fixed = config.fsdp * config.tensor
    data = len(devices) // fixed if config.data == -1 else config.data
    if data * fixed != len(devices):
        raise InputError(
            f"a mesh of data x fsdp x tensor = {config.data} x {config.fsdp} x {config.tensor} "
            f"does not fit {len(devices)} devices: the product must be {len(devices)}; data = -1 "
            "takes what the other axes leave",
            "config.mesh",
        )
    slices = len({getattr(device, "slice_index", None) for device in devices})
    if data % slices:
        raise InputError(
            f"it is not a multiple of the {slices} slices of devices: only that axis is split over "
            "slices; choose a smaller fsdp or tensor",
            "config.mesh.data",
            data,
        )
    shape, across_slices = (data // slices, config.fsdp, config.tensor), (slices, 1, 1)
    try:  # both functions order a TPU's devices by its torus, whose axes a mesh axis may split
        if slices > 1:
            grid = mesh_utils.create_hybrid_device_mesh(
                shape, across_slices, devices, allow_split_physical_axes=True
            )
        else:
            grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    except (ValueError, NotImplementedError) as error:
        raise InputError(str(error), "config.mesh") from error
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def make_mesh_or_replicate(config: MeshConfig, say: Callable[[str], object]) -> Mesh:
    """Returns the mesh of a run; if it does not fit, a mesh that copies weights to every device.

    `say` is told of the second case.
    """
    try:
        return make_mesh(config)
    except InputError:
        say(
            f"the run's mesh of data x fsdp x tensor = {config.data} x {config.fsdp} x "
            f"{config.tensor} does not fit {jax.device_count()} devices: each gets all weights"
        )
        return make_mesh(MeshConfig())


def parameter_shardings(
    params: Any,
    axes: Mapping[str, tuple[str | None, ...]],
    mesh: Mesh | AbstractMesh,
    *,
    gathered: bool = False,
) -> Any:
    """Returns a `NamedSharding` for every parameter, of a tree of arrays or shapes.

    With `gathered`, no parameter is split over `data`, as for computing a model.

    A parameter is recognized by its name, the last dict key on its path. `axes` has, by that name,
    the names of the last axes of the parameter (`decoder.PARAMETER_AXES`). Axes without a name can
    be split over `data` alone.

    Raises an InputError if a mesh axis does not divide an array's axis.
    """

    def sharding_of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = "".join(_dict_keys(path)[-1:])
        names = axes.get(name, ())
        spec = [AXIS_RULES.get(axis or "") for axis in names]
        spec = [None] * (leaf.ndim - len(spec)) + spec
        for at, (size, axis) in enumerate(zip(leaf.shape, spec, strict=True), -len(spec)):
            if axis is not None and size % mesh.shape[axis]:
                raise InputError(
                    f"config.mesh.{axis} = {mesh.shape[axis]} does not divide the {names[at]} of "
                    f"{name}, {size} (its shape is {leaf.shape}): choose another "
                    f"mesh.{axis} or another size"
                )
        if not gathered and mesh.shape["data"] > 1:
            spec = _split_over_data(leaf.shape, spec, mesh)
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(sharding_of, params)


def _split_over_data(
    shape: Sequence[int], spec: Sequence[str | None], mesh: Mesh | AbstractMesh
) -> list[Any]:
    """Splits the first axis that can be split further into the parts of `data`.

    For each axis, `spec` has the mesh axis over which the array axis is split already, or None. If
    no axis can be split, the result is `spec`.
    """
    for i, (size, axis) in enumerate(zip(shape, spec, strict=True)):
        parts = 1 if axis is None else mesh.shape[axis]
        if size % (parts * mesh.shape["data"]) == 0:
            return [*spec[:i], "data" if parts == 1 else (axis, "data"), *spec[i + 1 :]]
    return list(spec)


def state_shardings(
    state: Any,
    params: Any,
    axes: Mapping[str, tuple[str | None, ...]],
    mesh: Mesh | AbstractMesh,
) -> Any:
    """Returns a `NamedSharding` for every leaf of a state, of any optimizer or of a whole run.

    The first of these rules that applies to a leaf shards it:

    1. The path of the leaf ends with the dict keys of a parameter, and the shapes are equal, up to
       axes of size 1 (such as means over these axes): like this parameter, but for those axes.
    2. A parameter has the shape of the leaf: like the first such parameter.
    3. All other leaves, such as counts and factored moments, are replicated.
    """
    places = jax.tree.leaves(parameter_shardings(params, axes, mesh))
    by_keys, by_shape = {}, {}
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), place in zip(leaves, places, strict=True):
        by_keys[_dict_keys(path)] = leaf.shape, place
        by_shape.setdefault(leaf.shape, place)

    def sharding_of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        keys = _dict_keys(path)
        ends = (keys[i:] for i in range(len(keys)))
        shape, place = next((by_keys[end] for end in ends if end in by_keys), (None, None))
        if place is not None and shape is not None and leaf.ndim == len(shape):
            sizes = list(zip(leaf.shape, shape, place.spec, strict=True))
            if all(size in (1, whole) for size, whole, _ in sizes):
                spec = (None if size == 1 else axis for size, _, axis in sizes)
                return NamedSharding(mesh, PartitionSpec(*spec))
        return by_shape.get(leaf.shape, NamedSharding(mesh, PartitionSpec()))

    return jax.tree_util.tree_map_with_path(sharding_of, state)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that is copied to every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: rows split over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(_BATCH_AXES))


def batch_shards(mesh: Mesh) -> int:
    """Returns the number of parts into which a batch is split; it must divide every batch size."""
    return math.prod(mesh.shape[axis] for axis in _BATCH_AXES)


def round_up_rows(mesh: Mesh, rows: int) -> int:
    """Returns the least number of rows, `rows` or more, that the parts of a batch share equally."""
    shards = batch_shards(mesh)
    return -(-rows // shards) * shards


@dataclasses.dataclass(frozen=True)
class ShardingConstraint:
    """Constrains the sharding of arrays inside a program; does nothing without a mesh.

    Attributes:
      batch_axes: mesh axes over which the batch is split. Inside a `jax.vmap` with a mesh axis as
        `spmd_axis_name`, this axis is not among them.
      is_local: whether arrays are those of one device, as inside a `jax.shard_map` over all axes.
        There is then nothing to constrain.
    """

    mesh: Mesh | None = None
    batch_axes: tuple[str, ...] = _BATCH_AXES
    is_local: bool = False

    def __call__(self, x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
        """Returns the array; each of its axes is "batch", a key of `AXIS_RULES`, or None."""
        if self.mesh is None or self.is_local:
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self._spec(axes)))

    def split_stack(self, stack: jax.Array) -> jax.Array:
        """Returns an array of many matrices with its first axis split over all devices."""
        if self.mesh is None:
            return stack
        split = NamedSharding(self.mesh, PartitionSpec(MESH_AXES))
        return jax.lax.with_sharding_constraint(stack, split)

    def per_device(
        self,
        function: Callable[..., Any],
        axes: Sequence[Any],
        of_arguments: Sequence[Sequence[str | None]] | None = None,
    ) -> Callable[..., Any]:
        """Returns the function, applied on each device to the device's parts of the arguments.

        This is for kernels, which the compiler cannot split. `axes` are the axes of the result, as
        in a call of the constraint; of several results, a list. `of_arguments` are the axes of each
        argument, by default `axes`.
        """
        if self.mesh is None or self.is_local:
            return function
        spec = list(map(self._spec, axes)) if isinstance(axes, list) else self._spec(axes)
        inputs = spec if of_arguments is None else tuple(map(self._spec, of_arguments))
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=spec, check_vma=False
        )

    def _spec(self, axes: Sequence[str | None]) -> PartitionSpec:
        rules = {"batch": self.batch_axes, **AXIS_RULES}
        return PartitionSpec(*(rules.get(name or "") for name in axes))

    @property
    def device(self) -> Any:
        """One of the devices, which are all of a kind; without a mesh, JAX's default device."""
        return (jax.local_devices() if self.mesh is None else self.mesh.devices.flat)[0]

    @property
    def platform(self) -> str:
        """Platform of the devices."""
        return self.device.platform

    def shards(self, axis: str) -> int:
        """Returns the number of parts into which "batch" or an axis of `AXIS_RULES` is split."""
        if self.mesh is None or self.is_local:
            return 1
        axes = self.batch_axes if axis == "batch" else (AXIS_RULES[axis],)
        return math.prod(self.mesh.shape[x] for x in axes)


UNCONSTRAINED = ShardingConstraint()


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the rows of a global batch that this process feeds to its devices, in order.

    The rows may have gaps: neighbors in a TPU's torus are not neighbors in the batch.
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = [np.arange(batch_size)[index[0]] for index in indices if index is not None]
    return np.unique(np.concatenate(rows))


def device_memory(mesh: Mesh) -> int | None:
    """Returns the bytes of each device's memory, None if unknown.

    CPU devices share the memory of the machine equally.
    """
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return machine // len(mesh.local_devices)
    return (device.memory_stats() or {}).get("bytes_limit")


def put_batch(mesh: Mesh, rows: np.ndarray, batch_size: int) -> jax.Array:
    """Returns the global batch on the devices, from this process's rows of it."""
    shape = (batch_size, *rows.shape[1:])
    return jax.make_array_from_process_local_data(batch_sharding(mesh), rows, shape)


def _dict_keys(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))
