"""Estimate the device memory of a run for each number of devices.

For each number of devices there is a row with the parameters on every device (data) and one with
them split over all (fsdp). Nothing is run and no device is needed. Weights, moments, averages and
gradients are exact, activations are estimated. Where the microbatches are too small to be split
that far, the row has fewer of them; "-" is where the number of devices does not divide the batch or
the parameters.
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
    """The layouts of a run, a row each."""
    run = schema.build(source)
    title = (
        f"{run.name}: {format_count(count_params(run.model)['all'])} parameters, "
        f"{len(run.averages)} averages, remat {run.model.remat}. On each device ({platform}):"
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
    """The cells of a layout."""
    run = schema.build(source)
    nothing = ["-"] * (len(_PARTS) + 2)
    if run.batch_size % count:
        return nothing
    rows = run.batch_size // count  # of each device in an update
    parts = max(n for n in range(1, run.microbatches + 1) if rows % n == 0)
    shape = {name: count if name == axis else 1 for name in MESH_AXES}
    try:
        takes = memory.measure(schema.build({**source, "microbatches": parts}), shape, platform)
    except ValueError:
        return nothing
    *exact, activations, total = (format_bytes(getattr(takes, name)) for name in _PARTS)
    return [str(parts), str(rows // parts), *exact, f"~{activations}", f"~{total}"]
