"""Estimate the device memory of a run for each number of devices.

For each number of devices there is a row with the parameters on every device (data) and one with
them sharded over all (fsdp). Nothing is run and no device is needed. Weights, moments, averages and
gradients are exact, activations are estimated. A row has fewer microbatches where those of the run
are too small to shard, and "-" where the devices do not divide the batch or the parameters.
"""

import argparse
from collections.abc import Sequence

from rich import box
from rich.table import Table

from anytime_jax.commands import config_file
from anytime_jax.commands.console import open_console
from anytime_jax.config import schema
from anytime_jax.distributed.sharding import MESH_AXES
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models.decoder import count_params
from anytime_jax.training import memory

EXAMPLES = ("--config=configs/7b_inv_sqrt.py --devices=8,64,512 --platform=tpu",)

_PARTS = ("parameters", "moments", "averages", "gradients", "activations", "total")
_MAX_DEVICES = 1_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    config_file.add_option(parser)
    add = parser.add_argument
    add("--devices", default="1,8,64", metavar="N,N,...", help="numbers of devices")
    add("--platform", choices=("gpu", "tpu", "cpu"), default="gpu", help="kind of devices")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    counts = [_count(number) for number in arguments.devices.split(",")]
    source = config_file.load(arguments)
    open_console(width=140).print(_table(source, counts, arguments.platform))
    return 0


def _count(number: str) -> int:
    if not (number.isdecimal() and 1 <= int(number[:9]) <= _MAX_DEVICES):
        raise InputError(f"--devices={number}: give whole numbers from 1, such as 1,8,64")
    return int(number[:9])


def _table(source: dict[str, object], counts: Sequence[int], platform: str) -> Table:
    config = schema.build(source)
    title = (
        f"{config.name}: {format_count(count_params(config.model)['all'])} parameters, "
        f"{len(config.averages)} averages, remat {config.model.remat}. On each device ({platform}):"
    )
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for name in ("devices", "layout", "microbatches", "rows", *_PARTS):
        justify = "left" if name == "layout" else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for count in counts:
        for axis in ("data", "fsdp") if count > 1 else ("data",):
            table.add_row(str(count), axis, *_row(source, count, axis, platform))
    return table


def _row(source: dict[str, object], count: int, axis: str, platform: str) -> list[str]:
    config = schema.build(source)
    empty = ["-"] * (len(_PARTS) + 2)
    if config.batch_size % count:
        return empty
    rows = config.batch_size // count  # sequences per device in an update
    microbatches = max(n for n in range(1, config.microbatches + 1) if rows % n == 0)
    shape = {name: count if name == axis else 1 for name in MESH_AXES}
    try:  # a mesh may not divide the parameters, nor fewer microbatches a grown batch
        config = schema.build({**source, "microbatches": microbatches})
        use = memory.measure(config, shape, platform)
    except ValueError:
        return empty
    *exact, activations, total = (format_bytes(getattr(use, name)) for name in _PARTS)
    return [
        *(str(microbatches), str(rows // microbatches)),
        *exact,
        *(f"~{activations}", f"~{total}"),
    ]
