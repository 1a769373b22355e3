"""Report on the compiled update of a run: its memory, its roofline and its communication."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from anytime_jax.config.run_config import Config
from anytime_jax.data.dataset_info import Delimiters
from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_jax.distributed.xla_settings import is_flag
from anytime_jax.errors import RunError
from anytime_jax.models.decoder import ModelConfig
from anytime_jax.models.flops import flops_per_token
from anytime_jax.training import step
from anytime_jax.training.microbatch_search import Compile
from anytime_jax.training.objective import document_rules
from anytime_jax.training.state_memory import measure_state
from anytime_lab.compilation import hlo, roofline
from anytime_lab.compilation.gpu_targets import assume_capability

ANY_DELIMITERS = Delimiters(None, 0)  # which token ends a document does not matter to the compiler


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """Cost of an update on each device.

    Attributes:
      devices: number of devices.
      memory: bytes of each part: parameters, moments, averages and temporaries.
      device: figures of a device.
      model_flops: FLOPs of the model in an update (`flops_per_token`).
      compile_seconds: time of tracing and compiling.
      axes: devices along each axis of the mesh.
      text: the compiled program, HLO.
      problem: why there is no text, or an empty text.
    """

    devices: int
    memory: Mapping[str, int]
    device: DeviceSpec
    model_flops: float
    compile_seconds: float
    axes: Mapping[str, int]
    text: str
    problem: str

    @property
    def total_memory(self) -> int:
        """Bytes of all parts."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the memory of a device suffices."""
        return self.total_memory <= self.device.memory

    @property
    def highest_mfu(self) -> float:
        """Model FLOPs utilization if every kernel took its least time."""
        return self.model_flops / self.device.peak_flops / self.roofline.seconds

    @property
    def matmul_share(self) -> float:
        """Share of the least time that is spent in matrix products and attention."""
        return self.roofline.of_kind("matmul", "attention").kernel_seconds / self.roofline.seconds

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON, with the most expensive kernels and all communication.

        Without a text, `problem` takes the place of what is counted from it.
        """
        figures = {
            "devices": self.devices,
            "fits": self.fits,
            "memory": dict(self.memory),
            "device": dataclasses.asdict(self.device),
            "model_flops": self.model_flops,
            "compile_seconds": self.compile_seconds,
        }
        if self.problem:
            return {**figures, "problem": self.problem}
        kernels = [dataclasses.asdict(x) for x in dearest_kernels(self.roofline)]
        return {
            **figures,
            "program_flops": self.roofline.flops,
            "bytes": self.roofline.bytes,
            "roofline_seconds": self.roofline.seconds,
            "kernel_seconds": self.roofline.kernel_seconds,
            "exposed_seconds": self.roofline.exposed_seconds,
            "matmul_share": self.matmul_share,
            "highest_mfu": self.highest_mfu,
            "collectives": [dataclasses.asdict(x) for x in self.roofline.collectives],
            "kernels": kernels,
            "kernel_calls": sum(x.calls for x in self.roofline.kernels),
        }

    @functools.cached_property
    def roofline(self) -> roofline.Roofline:
        """Kernels and communication. Raises a RunError if there is no text."""
        if self.problem:
            raise RunError(self.problem)
        return roofline.analyze(hlo.parse(self.text), self.device, self.axes)


def dearest_kernels(program: roofline.Roofline) -> list[roofline.Kernel]:
    """Returns the kernels with the figures of all their calls, the most expensive first.

    Kernels compiled from the same operation, such as in unrolled layers, count as one.
    """
    groups: dict[tuple[str, str], list[roofline.Kernel]] = {}
    for kernel in program.kernels:
        groups.setdefault((kernel.op_name or kernel.name, kernel.kind), []).append(kernel)
    totals = [
        dataclasses.replace(
            kernels[0],
            calls=sum(x.calls for x in kernels),
            flops=sum(x.calls * x.flops for x in kernels),
            bytes=sum(x.calls * x.bytes for x in kernels),
            seconds=sum(x.calls * x.seconds for x in kernels),
        )
        for kernels in groups.values()
    ]
    return sorted(totals, key=lambda kernel: -kernel.seconds)


@contextlib.contextmanager
def absent_devices(mesh: Mesh) -> Iterator[Compile]:
    """Yields a function that compiles a program for devices that need not exist.

    The program is lowered inside too.
    """
    device, options = mesh.devices.flat[0], {}
    level = "xla_gpu_autotune_level"
    if device.platform == "gpu" and not is_flag(level):
        options[level] = 0  # kernels cannot be timed on an absent device
    with assume_capability(device) if device.platform == "gpu" else contextlib.nullcontext():
        yield lambda lowered: lowered.compile(options)


def compile_update(
    config: Config,
    mesh: Mesh,
    device: DeviceSpec,
    model: ModelConfig | None = None,
    microbatches: int | None = None,
) -> UpdateReport:
    """Compiles the update of a run for the devices of a mesh, which need not exist.

    `model` is the decoder of a stage, by default of the first one; `microbatches` their number,
    which the configuration may leave open.

    Raises an InputError if the mesh does not divide the parameters, and a JaxRuntimeError if the
    compiler runs out of the device's memory.
    """
    began = time.perf_counter()
    rules = document_rules(config.data, ANY_DELIMITERS)
    program = step.make_program(config, mesh, rules, model=model, microbatches=microbatches)
    with absent_devices(mesh) as compile:
        compiled = compile(program.lower_update())
    seconds = time.perf_counter() - began
    text = problem = ""
    try:
        text = compiled.as_text() or ""
    except jax.errors.JaxRuntimeError as error:  # of libtpu, for some programs
        problem = f"the compiler cannot write the program as text: {' '.join(str(error).split())}"
    tokens = config.clock.tokens_per_step
    return UpdateReport(
        devices=mesh.size,
        memory=_memory(program, compiled),
        device=device,
        model_flops=flops_per_token(program.model) * tokens / mesh.size,
        compile_seconds=seconds,
        axes=dict(mesh.shape),
        text=text,
        problem=problem,
    )


def _memory(program: step.Program, compiled: jax.stages.Compiled) -> dict[str, int]:
    analysis: Any = compiled.memory_analysis()
    state = measure_state(program.abstract_state)
    return {**state.sizes, "temporaries": analysis.temp_size_in_bytes}


def group_collectives(
    collectives: Sequence[roofline.Collective],
) -> list[roofline.Collective]:
    """Returns collectives that differ only in size as one each, with the figures of all calls."""
    groups: dict[tuple[Any, ...], roofline.Collective] = {}
    for one in collectives:
        key = one.kind, one.axes, one.in_loop, one.overlaps
        before = groups.get(key, dataclasses.replace(one, calls=0, bytes=0, seconds=0, exposed=0))
        groups[key] = dataclasses.replace(
            one,
            calls=before.calls + one.calls,
            bytes=before.bytes + one.calls * one.bytes,
            seconds=before.seconds + one.calls * one.seconds,
            exposed=before.exposed + one.calls * one.exposed,
        )
    return sorted(groups.values(), key=lambda x: -x.bytes)
