"""Settings of XLA and of the runtime for each platform, each with its source.

Updates and evaluations are compiled with `compiler_options`, and every start sets `ENVIRONMENT`. A
variable that is already set is kept, and a flag in XLA_FLAGS or LIBTPU_INIT_ARGS takes precedence
over the option of the same name. CUDA graphs are left at XLA's default, which is on.

A function that is jitted with options cannot be called inside another `jax.jit`. An option that the
compiler does not know is an error; the TPU options fit the libtpu that JAX installs.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.sharding import Mesh

_FLAG_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_OLD_NAME = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class Setting(NamedTuple):
    """Compiler option or environment variable, what it does, and who recommends it.

    `device` is a part of the `jax.Device.device_kind` of the devices that it is for.
    """

    name: str
    value: Any
    effect: str
    source: str
    device: str = ""


_TIPS = "https://docs.nvidia.com/jax-toolbox/performance-profiling/gpu-performance"
_MAXTEXT = "AI-Hypercomputer/maxtext, benchmarks/xla_flags_library.py"
_V5E = "v5 lite"  # libtpu 0.0.52 warns of wrong results on other TPUs, and refuses

COMPILER_OPTIONS = {
    "cpu": (),
    "gpu": (
        Setting(
            "xla_gpu_enable_latency_hiding_scheduler",
            True,
            "communication overlaps kernels that do not need it",
            _TIPS,
        ),
    ),
    "tpu": (
        Setting(
            "xla_tpu_enable_async_collective_fusion",
            True,
            "communication runs inside kernels that do not need it",
            _MAXTEXT,
            _V5E,
        ),
        Setting(
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
            True,
            "all-gathers run inside kernels that do not need their result",
            _MAXTEXT,
            _V5E,
        ),
        Setting(
            "xla_tpu_enable_async_collective_fusion_multiple_steps",
            True,
            "communication may overlap several kernels",
            _MAXTEXT,
            _V5E,
        ),
        Setting(
            "xla_tpu_overlap_compute_collective_tc",
            True,
            "a core computes while it communicates",
            _MAXTEXT,
        ),
        Setting("xla_enable_async_all_gather", True, "all-gathers are asynchronous", _MAXTEXT),
    ),
}

ENVIRONMENT = {
    "cpu": (),
    "gpu": (
        Setting(
            "XLA_CLIENT_MEM_FRACTION",
            "0.9",
            "share of a GPU's memory for arrays; 0.75 by default, the rest is for NCCL and cuDNN",
            _TIPS,
        ),
    ),
    "tpu": (),
}


def set_environment() -> None:
    """Sets the variables of all platforms that are not set; each is read by its platform only."""
    if _OLD_NAME in os.environ:  # JAX accepts either name, but not both
        return
    for setting in itertools.chain(*ENVIRONMENT.values()):
        os.environ.setdefault(setting.name, setting.value)


def compiler_options(mesh: Mesh) -> dict[str, Any]:
    """Returns the options with which programs are compiled for the devices of a mesh."""
    device = mesh.devices.flat[0]
    settings = _compiler_settings(device.platform, device.device_kind)
    return {x.name: x.value for x in settings if not is_flag(x.name)}


def fast_compiler_options(mesh: Mesh) -> dict[str, Any]:
    """Returns the options for programs that run once; on a CPU they compile in half the time.

    Optimization level 1 is the lowest that gives bitwise the results of the default, 3; level 0
    differs in last bits.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return compiler_options(mesh)
    option = "xla_backend_optimization_level"
    return {} if is_flag(option) else {option: 1}


def list_settings(platform: str, device_kind: str) -> Iterator[tuple[Setting, str]]:
    """Yields the settings for devices of a kind, each with the value in force."""
    for setting in _compiler_settings(platform, device_kind):
        yield setting, "set by a flag" if is_flag(setting.name) else str(setting.value)
    for setting in ENVIRONMENT[platform]:
        yield setting, os.environ.get(setting.name) or os.environ.get(_OLD_NAME) or setting.value


def _compiler_settings(platform: str, device_kind: str) -> list[Setting]:
    settings = COMPILER_OPTIONS.get(platform, ())
    return [x for x in settings if x.device in device_kind.lower()]


def is_flag(name: str) -> bool:
    """Returns whether the environment has the flag, as `--NAME=VALUE`, `--NAME` or `--noNAME`."""
    words = " ".join(os.environ.get(variable, "") for variable in _FLAG_VARIABLES).split()
    flags = {word.lstrip("-").partition("=")[0] for word in words}
    return not flags.isdisjoint((name, f"no{name}"))
