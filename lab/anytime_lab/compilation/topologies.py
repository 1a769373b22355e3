"""Topologies: accelerators by name, as devices to compile for on any machine.

`v5e:4x4` is a TPU slice by its chips, `h100:8` eight GPUs of one host, `h100:8x8` eight such hosts
and `2*v5e:16x16` two slices. The compilers come with JAX's packages for the platform, and need no
device.
"""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from anytime_jax.errors import InputError
from anytime_lab.compilation.gpu_targets import GPU_TARGETS, target_config

# TPU kinds by name: axes of the torus.
_TPU_AXES = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
_PACKAGES = {"tpu": ("libtpu",), "gpu": ("jax_cuda12_plugin", "jax_cuda13_plugin")}
_EXTRAS = {"tpu": "tpu", "gpu": "cuda12"}
_ALLOWED = (
    f"give a TPU ({', '.join(_TPU_AXES)}) with its chips, such as v5e:4x4 or v5p:2x2x2, or a GPU "
    f"({', '.join(GPU_TARGETS)}) with the number in a host, such as h200:1, or of hosts and in "
    "each, such as h100:8x8; for several slices, 2*v5e:16x16"
)
# Settings of libtpu: load in several processes at once, query no server, print no device
# information.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Accelerators and how they are connected.

    Attributes:
      platform: "tpu" or "gpu".
      shape: chips along each axis of a TPU slice; hosts and devices of each, for GPUs.
      slices: TPU slices, or groups of GPU hosts.
    """

    name: str
    platform: str
    kind: str
    shape: tuple[int, ...]
    slices: int

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.slices * math.prod(self.shape)


def parse(name: str) -> Topology:
    """Parses the name of a topology; raises an InputError if it is unknown."""
    match = re.fullmatch(r"(?:(\d{1,3})\*)?([a-z]\w*):(\d{1,4}(?:x\d{1,4}){0,2})", name)
    if match is None:
        raise InputError(f"--topology={name!r} is not a topology: {_ALLOWED}")
    slices, kind = int(match[1] or 1), match[2]
    shape = tuple(int(x) for x in match[3].split("x"))
    axes = {**_TPU_AXES, **dict.fromkeys(GPU_TARGETS, 0)}.get(kind)
    if axes is None or not slices or not all(shape) or (axes and len(shape) != axes):
        raise InputError(f"--topology={name!r} is unknown: {_ALLOWED}")
    if axes:
        return Topology(name, "tpu", kind, shape, slices)
    if len(shape) > 2:
        raise InputError(f"--topology={name!r} is unknown: {_ALLOWED}")
    return Topology(name, "gpu", kind, (1, *shape)[-2:], slices)


def make_devices(topology: Topology) -> list[Any]:
    """Returns the devices of a topology, on which programs can be compiled but not run.

    Must be called before JAX has looked for devices. Raises an InputError if the compiler is not
    installed or does not know the topology.
    """
    if not any(map(importlib.util.find_spec, _PACKAGES[topology.platform])):
        raise InputError(
            f"--topology={topology.name} needs the compiler for {topology.platform.upper()}s: "
            f"pip install 'jax[{_EXTRAS[topology.platform]}]=={jax.__version__}', in a virtual "
            "environment of its own"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    jax.config.update("jax_platforms", "cpu")  # JAX must not look for devices
    try:
        if topology.platform == "tpu":
            return _tpu_devices(topology)
        return _gpu_devices(topology)
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(f"--topology={topology.name}: {problem}; {_ALLOWED}") from error


def _tpu_devices(topology: Topology) -> list[Any]:
    shape = topology.shape
    description = topologies.get_topology_desc(
        platform="tpu",
        topology_name=f"{topology.kind}:{'x'.join(map(str, shape))}",
        chip_config_name="megacore" if topology.kind in ("v4", "v5p") else "default",
        chips_per_host_bounds=(1, 1, 1) if math.prod(shape) == 1 else (2, 2, 1),
        num_slices=topology.slices,
        wrap=_wraps(topology),
    )
    return list(description.devices)


def _wraps(topology: Topology) -> tuple[bool, bool, bool]:
    """Returns whether each axis of a slice is closed to a ring."""
    x, y, *_ = topology.shape
    if len(topology.shape) == 2:
        return (x == 16, y == 16, False)
    closed = all(size % 4 == 0 for size in topology.shape)
    return (closed, closed, closed)


def _gpu_devices(topology: Topology) -> list[Any]:
    hosts, devices = topology.shape
    description = topologies.get_topology_desc(
        "",
        "cuda",
        target_config=target_config(GPU_TARGETS[topology.kind]),
        topology=f"{topology.slices}x{hosts}x{devices}",
    )
    return list(description.devices)
