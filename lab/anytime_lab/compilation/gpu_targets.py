"""Descriptions of GPUs with which XLA's compiler compiles for an absent GPU.

Source: the figures of `xla/backends/gpu/target_config/specs` in the repository openxla/xla.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock


@dataclasses.dataclass(frozen=True)
class GpuTarget:
    """Figures of a GPU that the compiler needs.

    Attributes:
      name: its device kind.
      capability: compute capability.
      cores: multiprocessors.
      ghz: clock of the multiprocessors.
      bandwidth: of the main memory, bytes/s.
      memory: bytes of the main memory.
      l2_cache: bytes.
      shared_memory: bytes of a multiprocessor.
      accelerated: whether it has instructions that only its generation has.
      scalar_units: float32 units of a multiprocessor.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    ghz: float
    bandwidth: int
    memory: int
    l2_cache: int
    shared_memory: int = 233_472
    accelerated: bool = True
    scalar_units: int = 128


GPU_TARGETS = {
    "a100": GpuTarget(
        "NVIDIA A100-SXM4-80GB",
        (8, 0),
        cores=108,
        ghz=1.41,
        bandwidth=2_039_040_000_000,
        memory=85_100_068_864,
        l2_cache=41_943_040,
        shared_memory=167_936,
        accelerated=False,
        scalar_units=64,
    ),
    "h100": GpuTarget(
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        cores=132,
        ghz=1.98,
        bandwidth=3_352_320_000_000,
        memory=84_942_979_072,
        l2_cache=52_428_800,
    ),
    "h200": GpuTarget(
        "NVIDIA H200",
        (9, 0),
        cores=132,
        ghz=1.98,
        bandwidth=4_800_000_000_000,
        memory=151_397_597_184,
        l2_cache=52_428_800,
    ),
    "b200": GpuTarget(
        "NVIDIA B200",
        (10, 0),
        cores=148,
        ghz=1.965,
        bandwidth=7_672_320_000_000,
        memory=191_514_411_008,
        l2_cache=132_644_864,
    ),
}


def target_config(gpu: GpuTarget) -> str:
    """Returns the text of XLA's GpuTargetConfigProto."""
    major, minor = gpu.capability
    extension = "ACCELERATED_FEATURES" if gpu.accelerated else "NONE"
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_memory}
  shared_memory_per_block_optin: {gpu.shared_memory - 1024}
  threads_per_core_limit: 2048
  core_count: {gpu.cores}
  fpus_per_core: {gpu.scalar_units}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.l2_cache}
  clock_rate_ghz: {gpu.ghz}
  device_memory_size: {gpu.memory}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  device_vendor: "NVIDIA Corporation"
  name: "{gpu.name}"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
  device_interconnect_info {{ active_links: 18 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{gpu.name}"
"""


@contextlib.contextmanager
def assume_capability(device: Any) -> Iterator[None]:
    """Lets JAX's cuDNN attention be traced for a GPU that is not there.

    It asks the local GPU for its compute capability before it takes packed documents.
    """
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    capability = [int(x) for x in str(device.compute_capability).split(".")]

    def has_capability(least: str) -> bool:
        return capability >= [int(x) for x in least.split(".")]

    with mock.patch.object(cudnn, "check_compute_capability", has_capability):
        yield
