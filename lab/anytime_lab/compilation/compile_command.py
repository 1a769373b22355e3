"""Compile the update of a run for accelerators that are not there.

The device's own compiler says whether the update compiles and fits, and how it communicates. The
roofline is the least time of an update: each kernel takes at least its FLOPs over the device's peak
and its bytes over the memory's bandwidth. Only the compiler is needed, no device: JAX's package for
TPUs or GPUs, in its own virtual environment.

A compilation takes from seconds to minutes. `--search` tries microbatches, remat, layer loop and
fsdp, and prints the program with the lowest roofline that fits, as overrides; it keeps its results.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from anytime_jax.commands import argument_parser, config_file
from anytime_jax.commands.argument_parser import positive_int
from anytime_jax.commands.rich_console import open_console
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import jax_settings, sharding, xla_settings
from anytime_jax.distributed.device_specs import DeviceSpec, device_spec
from anytime_jax.errors import InputError, RunError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models.decoder import ModelConfig
from anytime_jax.tables import Table, numbers
from anytime_jax.training import microbatch_search, preflight
from anytime_jax.training.objective import document_rules
from anytime_jax.training.state_memory import ADVICE, is_out_of_memory
from anytime_lab.compilation import program_search, topologies
from anytime_lab.compilation.update_report import (
    ANY_DELIMITERS,
    UpdateReport,
    absent_devices,
    compile_update,
    dearest_kernels,
    group_collectives,
)

EXAMPLES = (
    "--config=150m_inv_sqrt --topology=v5e:4x4",
    "--config=7b_inv_sqrt --topology=h100:8x8 --config.mesh.fsdp=8 --json",
    "--config=my_growing.py --topology=h100:8 --at=2x",
)

_KERNELS = 10  # rows of the table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    config_file.add_option(parser)
    config_file.add_trust(parser)
    add = parser.add_argument
    add("--topology", required=True, help="devices, such as v5e:4x4, h200:1, h100:8x8, 2*v5e:16x16")
    add("--at", metavar="POINT", help="take the length and rotation of this point of the run")
    add("--json", action="store_true", help="print the report as JSON")
    add("--search", action="store_true", help="find the fastest layout that fits")
    add("--tries", type=positive_int, default=12, metavar="N", help="layouts that it compiles")
    add("--hlo", metavar="FILE", type=Path, help="write the compiled program, as text")


def run(arguments: argparse.Namespace) -> int:
    """Compiles the update and prints the report."""
    config = config_file.load(arguments)
    if arguments.search:
        argument_parser.refuse(arguments, ("--at", "--hlo"), "with --search")
    else:
        argument_parser.refuse(arguments, ["--tries"], "without --search")
    if arguments.hlo and not arguments.hlo.parent.is_dir():
        raise InputError(f"--hlo={arguments.hlo}: there is no directory {arguments.hlo.parent}")
    topology = topologies.parse(arguments.topology)
    devices = topologies.make_devices(topology)
    device = device_spec(devices[0])
    if device is None:
        raise InputError(f"--topology={topology.name}: {devices[0].device_kind} is unknown")
    console = open_console(width=120)
    if arguments.search:
        return _search(arguments, config.to_dict(), topology, devices, device, console)
    mesh = sharding.make_mesh(config.mesh, devices)
    preflight.check_mesh(config, mesh)
    number = _find_microbatches(config, mesh, device)
    at = config.clock.step_at(arguments.at, "--at") if arguments.at else 0
    model = config.stage_at(at).model
    message = f"compiling the update of {config.name} for {topology.name} ..."
    with Console(stderr=True).status(message):
        report = _compile(config, model, number, mesh, device, topology)
    if arguments.hlo and report.text:
        arguments.hlo.write_text(report.text, "utf-8")
    kind = devices[0].device_kind
    if arguments.json:
        settings = {
            x.name: value for x, value in xla_settings.list_settings(topology.platform, kind)
        }
        names = {"topology": topology.name, "config": config.name, "settings": settings}
        print(json.dumps({**names, **report.to_dict()}))
    else:
        for part in _describe(config, model, topology, kind, report):
            console.print(part)
    if arguments.hlo and report.problem:
        raise RunError(f"--hlo={arguments.hlo}: {report.problem}")
    return 0 if report.fits else 2


def _find_microbatches(config: Config, mesh: jax.sharding.Mesh, device: DeviceSpec) -> int:
    """Returns the number of microbatches that is given, or that a new run would find."""
    if not isinstance(config.microbatches, str):
        return config.microbatches
    numbers = microbatch_search.possible_numbers(config, mesh)
    rules, say = document_rules(config.data, ANY_DELIMITERS), Console(stderr=True).print
    with absent_devices(mesh) as compile:
        return microbatch_search.find(config, mesh, rules, numbers, device.memory, say, compile)


def _compile(
    config: Config,
    model: ModelConfig,
    microbatches: int,
    mesh: jax.sharding.Mesh,
    device: DeviceSpec,
    topology: topologies.Topology,
) -> UpdateReport:
    try:
        return compile_update(config, mesh, device, model, microbatches)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        problem = " ".join(str(error).split())
        raise InputError(
            f"{config.name} does not fit {topology.name}: {problem[:300]}; {ADVICE}"
        ) from error


def _search(
    arguments: argparse.Namespace,
    source: dict[str, Any],
    topology: topologies.Topology,
    devices: Sequence[Any],
    device: DeviceSpec,
    console: Console,
) -> int:
    def report(layout: program_search.Layout) -> None:
        print(f"compiling {_overrides(layout)} ...", file=sys.stderr, flush=True)

    directory = jax_settings.cache_directory() / "layouts"
    trials = program_search.search(source, devices, device, directory, arguments.tries, report)
    if not trials or not trials[0].fits:
        raise InputError(
            f"none of {len(trials)} layouts fits {topology.name}: take more devices, fewer "
            "averages, or more --tries"
        )
    if arguments.json:
        rows = [
            {
                **x.layout.settings(),
                "fits": x.fits,
                "memory": x.memory,
                "roofline_seconds": x.seconds,
            }
            for x in trials
        ]
        print(json.dumps({"topology": topology.name, "trials": rows}))
        return 0
    settings = ("fits", "microbatches", "remat", "layer loop", "fsdp")
    columns = [*numbers("ms", "GB", format=".1f"), *settings]
    table = Table(f"layouts of {source['name']} on {topology.name}", columns)
    for trial in trials:
        fsdp, remat, loop, microbatches = trial.layout
        table.add_row(
            None if trial.seconds is None else 1e3 * trial.seconds,
            None if trial.memory is None else trial.memory / 1e9,
            "yes" if trial.fits else "no",
            *(microbatches, remat, loop, fsdp),
        )
    console.print(table)
    console.print(f"the fastest that fits: {_overrides(trials[0].layout)}")
    return 0


def _overrides(layout: program_search.Layout) -> str:
    return shlex.join(f"--config.{name}={value}" for name, value in layout.settings().items())


def _describe(
    config: Config,
    model: ModelConfig,
    topology: topologies.Topology,
    kind: str,
    report: UpdateReport,
) -> Iterator[str | Table]:
    device = report.device
    tokens = config.clock.tokens_per_step
    yield (
        f"{config.name} on {topology.name}: {report.devices} devices, windows of "
        f"{model.length:,} tokens, compiled in {report.compile_seconds:.0f} s"
    )
    parts = " + ".join(f"{format_bytes(size)} {name}" for name, size in report.memory.items())
    verdict = "fits" if report.fits else "DOES NOT FIT"
    yield (
        f"memory      {parts} = {format_bytes(report.total_memory)} of "
        f"{format_bytes(device.memory)} on each device: {verdict}"
    )
    if report.problem:
        yield f"FLOPs       {format_count(report.model_flops)} of the model on each device"
        yield f"roofline    unknown, as are kernels and communication: {report.problem}"
        return
    program = report.roofline
    extra = program.flops / report.model_flops - 1
    yield (
        f"FLOPs       {format_count(report.model_flops)} of the model on each device, "
        f"{format_count(program.flops)} of the program ({extra:+.0%})"
    )
    yield f"bytes       {format_bytes(program.bytes)} read and written"
    kinds = ("matmul", "attention", "memory", "prefetch")
    parts = ((kind, 1e3 * program.of_kind(kind).kernel_seconds) for kind in kinds)
    times = ", ".join(f"{kind} {time:.1f}" for kind, time in parts if time)
    times += " overlapping the others" if program.of_kind("prefetch").kernels else ""
    if program.collectives:
        times += f", communication that no kernel hides {1e3 * program.exposed_seconds:.1f}"
    yield (
        f"roofline    {1e3 * program.seconds:.1f} ms an update ({times}): at most "
        f"{format_count(tokens / program.seconds)} tokens/s, MFU {report.highest_mfu:.1%}"
    )
    for setting, value in xla_settings.list_settings(topology.platform, kind):
        yield f"setting     {setting.name} = {value}: {setting.effect}"
    yield _kernel_table(report)
    if program.collectives:
        yield _collective_table(report)


def _kernel_table(report: UpdateReport) -> Table:
    columns = [*numbers("ms", format=".2f"), *numbers("calls", format=",")]
    columns += [*numbers("GB", format=".1f"), *numbers("TFLOP", format=".2f")]
    table = Table("dearest kernels", [*columns, "kind", "operation"])
    for kernel in dearest_kernels(report.roofline)[:_KERNELS]:
        figures = 1e3 * kernel.seconds, kernel.calls, kernel.bytes / 1e9, kernel.flops / 1e12
        table.add_row(*figures, kernel.kind, kernel.op_name[-64:] or kernel.name)
    return table


def _collective_table(report: UpdateReport) -> Table:
    columns = [*numbers("ms", "not hidden", format=".2f"), *numbers("GB", format=".3f")]
    columns += numbers("calls", format=",")
    table = Table("communication", [*columns, "kind", "mesh axes", "where", "overlaps"])
    for one in group_collectives(report.roofline.collectives):
        table.add_row(
            1e3 * one.seconds,
            1e3 * one.exposed,
            one.bytes / 1e9,
            one.calls,
            one.kind,
            one.axes,
            "in a loop" if one.in_loop else "once an update",
            "yes" if one.overlaps else "no",
        )
    return table
