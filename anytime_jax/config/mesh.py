"""Settings of the mesh of devices, whose axes are `data`, `fsdp` and `tensor`."""

import dataclasses

from anytime_jax.checks import require_count


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh.

    Attributes:
      data: devices over which the batch and the state are split, but not the parameters that a
        device computes with; -1 for all that remain.
      fsdp: devices over which the batch, the state and the parameters that a device computes with
        are split.
      tensor: devices over which each matrix product is split.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if self.data != -1:
            require_count("data", self.data, least=1)
        require_count("fsdp", self.fsdp, least=1)
        require_count("tensor", self.tensor, least=1)
