"""Search for the program of an update with the lowest roofline that fits the devices.

For every choice of fsdp, remat and layer loop, the fewest microbatches that fit are found by
halving or doubling: fewer are faster, and need more memory. The sizes of fsdp are the configured
one and the two smallest whose state takes at most half the memory; if there is none, the largest
that fits. Results are stored in a directory, so that an interrupted search continues.
"""

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

import anytime_jax
from anytime_jax.config import run_config
from anytime_jax.config.kinds import EVERY_PACKAGE
from anytime_jax.config.run_config import Config
from anytime_jax.distributed import sharding
from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_jax.errors import InputError
from anytime_jax.storage.json_files import json_digest, read_json, write_json
from anytime_jax.training import preflight, step
from anytime_jax.training.state_memory import is_out_of_memory, measure_state
from anytime_lab.compilation.update_report import compile_update

_FIRST = 8  # number of microbatches with which it begins if the run leaves it open
_MOST_LAYERS = 24  # most layers that are unrolled: more take minutes to compile


class Layout(NamedTuple):
    """Settings that change how an update is computed, but not what it computes."""

    fsdp: int
    remat: str
    layer_loop: str
    microbatches: int

    def settings(self) -> dict[str, Any]:
        """Returns the settings by dotted name."""
        return {
            "mesh.fsdp": self.fsdp,
            "model.remat": self.remat,
            "model.layer_loop": self.layer_loop,
            "microbatches": self.microbatches,
        }


class Trial(NamedTuple):
    """A layout and its program.

    Attributes:
      memory: bytes on each device; None if the compiler ran out of memory.
      seconds: roofline of an update.
    """

    layout: Layout
    fits: bool
    memory: int | None = None
    seconds: float | None = None


def search(
    source: Mapping[str, Any],
    devices: Sequence[Any],
    device: DeviceSpec,
    directory: Path,
    most: int,
    report: Callable[[Layout], None] = lambda layout: None,
) -> list[Trial]:
    """Returns the trials of at most `most` compilations, the fastest program that fits first.

    `source` has the settings of the run. `report` is called before every compilation. `directory`
    stores the results.
    """
    if isinstance(source["microbatches"], str):
        source = {**source, "microbatches": _FIRST}
    key = json_digest([dict(source), list(map(str, devices)), jax.__version__, _code_digest()])
    file = directory / f"{key[:16]}.json"
    kept = (read_json(file) or {}).get("trials", {})
    trials: dict[Layout, Trial] = {}

    def run(layout: Layout) -> Trial:
        name = json.dumps(layout)
        if name not in kept:
            report(layout)
            kept[name] = _compile(source, layout, devices, device)[1:]
            directory.mkdir(parents=True, exist_ok=True)
            write_json(file, {"trials": kept}, directory)
        trials[layout] = Trial(layout, *kept[name])
        return trials[layout]

    for fsdp, remat, loop in _families(source, devices, device):
        layout = _with_microbatches(
            source, Layout(fsdp, remat, loop, source["microbatches"]), devices
        )
        while len(trials) < most and _is_valid(source, layout, devices):
            factor = 0.5 if run(layout).fits else 2.0
            following = layout._replace(microbatches=int(layout.microbatches * factor))
            if following in trials or following.microbatches < 1:
                break
            layout = following
    return sorted(trials.values(), key=lambda x: (not x.fits, x.seconds or 0.0))


def _code_digest() -> str:
    """Returns a digest of this package's code: stored results are valid for the same code only."""
    package = Path(anytime_jax.__file__).parent
    return json_digest([path.read_text("utf-8") for path in sorted(package.rglob("*.py"))])


def _families(
    source: Mapping[str, Any], devices: Sequence[Any], device: DeviceSpec
) -> Iterator[tuple[int, str, str]]:
    """Yields the choices to try, those expected to be fastest first."""
    loops = ("unroll", "scan") if source["model"]["layers"] <= _MOST_LAYERS else ("scan",)
    sizes = [n for n in range(1, len(devices) + 1) if len(devices) % n == 0]
    states = {n: _state_size(source, n, devices) for n in sizes}
    fitting = [n for n, size in states.items() if size <= device.memory]
    roomy = [n for n in fitting if 2 * states[n] <= device.memory]
    configured = [n for n in fitting if n == source["mesh"]["fsdp"]]
    chosen = dict.fromkeys(configured + (roomy or fitting[-1:])[:2])
    return itertools.product(chosen, ("none", "products", "full"), loops)


def _state_size(source: Mapping[str, Any], fsdp: int, devices: Sequence[Any]) -> float:
    """Returns the bytes of the state on each device; infinite if the devices cannot be split so."""
    layout = Layout(fsdp, "full", "scan", source["microbatches"])
    layout = _with_microbatches(source, layout, devices)
    try:
        config, mesh = _build(source, layout, devices)
        state = step.make_program(config, mesh).abstract_state
    except InputError:
        return math.inf
    return measure_state(state, config.accumulation, layout.microbatches).least


def _with_microbatches(source: Mapping[str, Any], layout: Layout, devices: Sequence[Any]) -> Layout:
    """Returns the layout, with fewer microbatches if the devices cannot share them."""
    while layout.microbatches > 1 and not _is_valid(source, layout, devices):
        layout = layout._replace(microbatches=layout.microbatches // 2)
    return layout


def _is_valid(source: Mapping[str, Any], layout: Layout, devices: Sequence[Any]) -> bool:
    try:
        _build(source, layout, devices)
    except InputError:
        return False
    return True


def _compile(
    source: Mapping[str, Any], layout: Layout, devices: Sequence[Any], device: DeviceSpec
) -> Trial:
    try:
        report = compile_update(*_build(source, layout, devices), device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Trial(layout, fits=False)
    return Trial(layout, report.fits, report.total_memory, report.roofline.seconds)


def _build(
    source: Mapping[str, Any], layout: Layout, devices: Sequence[Any]
) -> tuple[Config, Mesh]:
    """Returns the run with a layout, and its mesh; raises an InputError if they do not fit."""
    changed = copy.deepcopy(dict(source))
    for name, value in layout.settings().items():
        group, _, last = name.rpartition(".")
        (changed[group] if group else changed)[last] = value
    config = run_config.build(changed, trust=EVERY_PACKAGE)
    mesh = sharding.make_mesh(config.mesh, devices)
    preflight.check_mesh(config, mesh)
    return config, mesh
