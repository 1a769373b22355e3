"""Says what a run takes of each device: `python -m anytime_jax layouts --config=FILE`.

For each number of devices there is a row with the parameters on every device (data) and one with
them split over all (fsdp). Nothing is run and no device is needed; weights, moments, averages and
gradients are exact, activations are estimated (anytime_jax/memory.py). Where the microbatches are
too small to be split so far, the row has fewer of them; "-" is where the number of devices does not
divide the batch or the parameters. Settings: --config.NAME=VALUE. Exit status: 0 fine, 2 bad input.

    --devices=1,8,64   how many
    --platform=gpu     what they are: gpu, tpu or cpu
    --debug            show the traceback of an error
"""

import sys
from collections.abc import Sequence

from absl import app, flags, logging
from rich import box
from rich.table import Table

from anytime_jax.commands.command_line import answer, open_console
from anytime_jax.commands.config_file import CONFIG, DEBUG, parse
from anytime_jax.config import schema
from anytime_jax.distributed.sharding import MESH_AXES
from anytime_jax.errors import InputError
from anytime_jax.formatting import format_bytes, format_count
from anytime_jax.models.decoder import count_params
from anytime_jax.training import memory

_DEVICES = flags.DEFINE_list("devices", ["1", "8", "64"], "How many devices.")
_PLATFORM = flags.DEFINE_enum("platform", "gpu", ["gpu", "tpu", "cpu"], "What they are.")
_PARTS = ("parameters", "moments", "averages", "gradients", "activations", "total")
_MOST = 1_000_000  # devices


def main(argv: Sequence[str]) -> int:
    """Runs the command line and returns its exit status."""

    def work() -> int:
        if len(argv) > 1:
            raise InputError(f"unexpected argument {argv[1]!r}: settings are --config.NAME=VALUE")
        if CONFIG.value is None:
            raise InputError("which run? Give --config=configs/150m_constant.py, or another file")
        counts = [_count(given) for given in _DEVICES.value]
        open_console(width=140).print(_table(CONFIG.value.to_dict(), counts, _PLATFORM.value))
        return 0

    return answer(work, DEBUG.value)


def _count(given: str) -> int:
    if not (given.isdecimal() and 1 <= int(given[:9]) <= _MOST):
        raise InputError(f"--devices={given}: give whole numbers from 1, such as 1,8,64")
    return int(given[:9])


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


def _parse(argv: list[str]) -> list[str]:
    return parse(argv, str(__doc__))


def cli() -> None:
    """Entry point."""
    logging.set_verbosity(logging.FATAL)  # what JAX says of devices that are not there
    app.run(lambda argv: sys.exit(main(argv)), flags_parser=_parse)


if __name__ == "__main__":
    cli()
