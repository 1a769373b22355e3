"""Search for a layout, with a model of the compiler in its place."""

import types

import jax
import pytest
import small_run

from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_lab.compilation import program_search
from anytime_lab.compilation.program_search import Layout

DEVICE = DeviceSpec(peak_flops=1e12, bandwidth=1e11, memory=10**9)


@pytest.fixture
def compiled(monkeypatch):
    """The layouts compiled: fewer microbatches take less time, and above 2 rows do not fit."""
    layouts = []

    def compile_update(config, mesh, device):
        layout = (config.mesh.fsdp, config.model.remat, config.microbatches)
        layouts.append(layout)
        rows = config.batch_size // config.microbatches // mesh.size
        if rows > 4:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        slower = {"none": 1.0, "products": 1.2, "full": 1.5}[config.model.remat]
        roofline = types.SimpleNamespace(seconds=slower * (1 + 0.1 * config.microbatches))
        return types.SimpleNamespace(fits=rows <= 2, total_memory=rows, roofline=roofline)

    monkeypatch.setattr(program_search, "compile_update", compile_update)
    return layouts


def run_search(folder, most=100, **changes):
    source = small_run.config("run", "data", batch_size=32, **changes).to_dict()
    return program_search.search(source, jax.devices()[:2], DEVICE, folder, most)


def test_fastest_layout_that_fits_is_first(compiled, tmp_path):
    best, *others = run_search(tmp_path)
    assert best.layout._replace(fsdp=1) == Layout(1, "none", "unroll", 8)  # 2 rows a device
    assert best.fits
    assert all(not x.fits or x.seconds >= best.seconds for x in others)
    assert {x.layout.remat for x in others} == {"none", "products", "full"}
    assert any(not x.fits for x in others)


def test_search_goes_on_where_it_was_cut_short(compiled, tmp_path):
    assert len(run_search(tmp_path, most=3)) == len(compiled) == 3
    trials = run_search(tmp_path)
    assert len(compiled) == len(trials)  # the first three were kept
    run_search(tmp_path)
    assert len(compiled) == len(trials)


def test_layouts_whose_state_does_not_fit_are_not_compiled(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(
        program_search,
        "measure_state",
        lambda *unused: types.SimpleNamespace(least=10**10),
    )
    assert run_search(tmp_path) == []
    assert compiled == []


def test_search_starts_at_microbatches_that_the_devices_can_share(compiled, tmp_path):
    best, *_ = run_search(tmp_path, microbatches=32)  # of one row, for two devices
    assert best.fits
    assert max(microbatches for _, _, microbatches in compiled) == 16
