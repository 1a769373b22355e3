"""Where arrays live: the device mesh and one placement rule for everything shaped like parameters.

Parameters, Adam's moments and every average are placed alike: the residual width is split over the
mesh axis `fsdp`; heads, MLP and vocabulary over `tensor`; small vectors are replicated. A batch is
split over `data` and `fsdp` together. A layout changes where numbers are, never what they are,
beyond the rounding of sums taken in another order.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from anytime_jax.config.schema import MeshConfig

MESH_AXES = ("data", "fsdp", "tensor")
BATCH = PartitionSpec(("data", "fsdp"))
HOST_MEMORY = "pinned_host"  # memory of the host that devices read and write by themselves
AXIS_RULES = {"width": "fsdp", "heads": "tensor", "mlp": "tensor", "vocabulary": "tensor"}


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the device mesh.

    Args:
      config: devices along each axis.
      devices: the devices to use; all of them if None.

    Raises:
      ValueError: if the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    fixed = config.fsdp * config.tensor
    data = len(devices) // fixed if config.data == -1 else config.data
    if data * fixed != len(devices):
        raise ValueError(
            f"a mesh of data x fsdp x tensor = {config.data} x {config.fsdp} x {config.tensor} "
            f"does not fit {len(devices)} devices: their product must be that number (data = -1 "
            "takes what remains)"
        )
    shape = (data, config.fsdp, config.tensor)
    types = (AxisType.Auto,) * len(MESH_AXES)
    return jax.make_mesh(shape, MESH_AXES, axis_types=types, devices=devices)


def tree_shardings(
    tree: Any, axes: Mapping[str, tuple[str | None, ...]], mesh: Mesh | AbstractMesh
) -> Any:
    """Returns where every leaf of a tree lives.

    A leaf is recognised by the last name on its path, so that moments and averages, which carry
    the parameters' names, are placed like them; leaves with other names are replicated.

    Args:
      tree: arrays, or their shapes.
      axes: what each axis is, by parameter name (`model.PARAMETER_AXES`); extra leading axes, such
        as stacked layers, are not split.
      mesh: the device mesh, or its shape alone.

    Returns:
      a `NamedSharding` for each leaf.

    Raises:
      ValueError: if a mesh axis does not divide an array's axis.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = axes.get(_last_name(path), ())
        if leaf.ndim < len(names):  # a moment that keeps a sum over some axes
            names = ()
        spec = [AXIS_RULES.get(name or "") for name in names]
        spec = [None] * (leaf.ndim - len(spec)) + spec
        for at, (size, axis) in enumerate(zip(leaf.shape, spec, strict=True), -len(spec)):
            if axis is not None and size % mesh.shape[axis]:
                raise ValueError(
                    f"mesh.{axis} = {mesh.shape[axis]} does not divide an axis of "
                    f"{_last_name(path)}, whose shape is {leaf.shape}: its {names[at]} is {size}, "
                    f"so choose another mesh.{axis} or another size there"
                )
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(place, tree)


def has_host_memory(mesh: Mesh) -> bool:
    """Whether arrays on the mesh can be kept in the memory of its hosts."""
    return any(
        memory.kind == HOST_MEMORY for memory in mesh.local_devices[0].addressable_memories()
    )


def with_host_memory(placement: Any) -> Any:
    """Returns the same split of every leaf, but kept in the memory of the hosts."""
    return jax.tree.map(lambda place: place.with_memory_kind(HOST_MEMORY), placement)


def is_in_host_memory(leaf: Any) -> bool:
    """Whether an array, or the shape of one, is placed by `in_host_memory`."""
    return getattr(getattr(leaf, "sharding", None), "memory_kind", None) == HOST_MEMORY


def to_device_memory(tree: Any) -> Any:
    """Returns a tree whose leaves are in device memory: those that were not are copied there."""

    def one(leaf: Any) -> Any:
        if not is_in_host_memory(leaf):
            return leaf
        return jax.device_put(leaf, leaf.sharding.with_memory_kind("device"))

    return jax.tree.map(one, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the placement of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of a batch: rows split over `data` and `fsdp`."""
    return NamedSharding(mesh, BATCH)


def batch_shards(mesh: Mesh) -> int:
    """Returns into how many parts a batch is split; it must divide every batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH[0])  # pyright: ignore[reportGeneralTypeIssues]


@dataclasses.dataclass(frozen=True)
class ShardingConstraint:
    """Says inside a program where an array lies.

    Attributes:
      mesh: the device mesh; None for wherever the compiler puts things.
    """

    mesh: Mesh | None = None

    def __call__(self, x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
        """Returns the array, placed.

        Args:
          x: an array.
          axes: what each axis is: "batch", a key of `AXIS_RULES`, or None for one not split.
        """
        if self.mesh is None:
            return x
        spec = [BATCH[0] if name == "batch" else AXIS_RULES.get(name or "") for name in axes]
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(*spec)))

    @property
    def batch_shards(self) -> int:
        """Parts into which a batch is split."""
        return 1 if self.mesh is None else batch_shards(self.mesh)


UNCONSTRAINED = ShardingConstraint()


def local_rows(mesh: Mesh, batch_size: int) -> slice:
    """Returns the rows of a global batch that this process feeds to its devices.

    Raises:
      ValueError: if they do not lie together: the mesh has a process's devices apart.
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    ranges = {index[0].indices(batch_size)[:2] for index in indices if index is not None}
    start, stop = min(first for first, _ in ranges), max(last for _, last in ranges)
    if sum(last - first for first, last in ranges) != stop - start:
        raise ValueError(f"the rows of this process do not lie together: {sorted(ranges)}")
    return slice(start, stop)


def device_memory(mesh: Mesh) -> int | None:
    """Returns the bytes of memory of each device of a mesh; None if it is not known.

    CPU devices share the machine's memory.
    """
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return machine // len(mesh.local_devices)
    return (device.memory_stats() or {}).get("bytes_limit")


def put_batch(mesh: Mesh, rows: np.ndarray, batch_size: int) -> jax.Array:
    """Returns the global batch, given this process's rows of it."""
    shape = (batch_size, *rows.shape[1:])
    return jax.make_array_from_process_local_data(batch_sharding(mesh), rows, shape)


def _last_name(path: tuple[Any, ...]) -> str:
    names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
    return names[-1] if names else ""
