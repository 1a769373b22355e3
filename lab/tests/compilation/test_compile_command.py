"""Tests of the compile command, on CPU devices in place of an accelerator's."""

import dataclasses
import functools
import json

import jax
import pytest
import small_run
from run_command import run_command

from anytime_jax.commands import config_file
from anytime_jax.config import run_config
from anytime_jax.config.kinds import EVERY_PACKAGE
from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_lab.compilation import compile_command, topologies, update_report


@pytest.fixture(scope="module")
def compiled_once():
    """`compile_update`, which compiles a configuration once for devices of any memory."""
    reports = {}

    def compile_update(config, mesh, device, model=None, microbatches=None):
        key = model, config.mesh
        if key not in reports:
            report = update_report.compile_update(config, mesh, device, model, microbatches)
            reports[key] = report
        return dataclasses.replace(reports[key], device=device)

    return compile_update


@pytest.fixture
def compile_small_run(monkeypatch, compiled_once):
    """Runs the command on a small run and four devices with so much memory."""

    def run(memory, *arguments, **changes):
        settings = small_run.settings("run", "data", **changes)
        monkeypatch.setattr(
            config_file,
            "load",
            lambda arguments: run_config.build(settings.to_dict(), trust=EVERY_PACKAGE),
        )
        monkeypatch.setattr(topologies, "make_devices", lambda topology: jax.devices()[:4])
        device = DeviceSpec(peak_flops=1e12, bandwidth=1e11, memory=memory)
        monkeypatch.setattr(compile_command, "device_spec", lambda device_: device)
        if compile_command.compile_update is update_report.compile_update:
            monkeypatch.setattr(compile_command, "compile_update", compiled_once)
        return run_command(compile_command, ["--topology=h100:4", *arguments])

    return run


def test_report_has_memory_roofline_and_communication(compile_small_run, capsys, tmp_path):
    file = tmp_path / "program.hlo"
    assert compile_small_run(10**9, f"--hlo={file}", mesh__fsdp=2) == 0
    output = capsys.readouterr().out
    for words in ("4 devices", "of 1 GB", "MFU", "all-gather", "XLA_CLIENT_MEM_FRACTION = 0.9"):
        assert words in output
    assert file.read_text().startswith("HloModule")


def test_a_point_chooses_the_stage(compile_small_run, capsys):
    # A ConfigDict sorts points as text.
    stages = {"16x": {"length": 32}, "2x": {"length": 16}}
    settings = {"model__length": 8, "stages": stages, "batch_size": 16}
    for words, length in (([], 8), (["--at=3x"], 16), (["--at=99x"], 32)):
        assert compile_small_run(10**9, *words, **settings) == 0
        assert f"windows of {length} tokens" in capsys.readouterr().out
    assert compile_small_run(10**9, "--at=3x", **settings, microbatches="auto") == 0
    assert "windows of 16 tokens" in capsys.readouterr().out


def test_json_report_of_a_run_that_does_not_fit(compile_small_run, capsys):
    assert compile_small_run(1000, "--json", mesh__fsdp=2) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["topology"], report["devices"], report["fits"]) == ("h100:4", 4, False)
    assert report["memory"]["averages"] == 2 * report["memory"]["parameters"]
    assert 0 < report["highest_mfu"] < 1
    assert report["settings"]["xla_gpu_enable_latency_hiding_scheduler"] == "True"
    assert {"kind", "axes", "bytes", "calls"} <= report["collectives"][0].keys()
    assert sum(x["seconds"] for x in report["kernels"]) == pytest.approx(report["roofline_seconds"])


def test_mesh_of_other_devices_is_refused(compile_small_run, capsys):
    assert compile_small_run(10**9, mesh__fsdp=8) == 2
    assert "config.mesh" in capsys.readouterr().err


def test_directory_for_the_program_is_required_first(compile_small_run, capsys, tmp_path):
    assert compile_small_run(10**9, f"--hlo={tmp_path}/none/file") == 2
    assert f"{tmp_path}/none" in capsys.readouterr().err


def test_compiler_out_of_memory_is_one_line(compile_small_run, capsys, monkeypatch):
    def fail(*unused):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory: 18G of 16G")

    monkeypatch.setattr(compile_command, "compile_update", fail)
    assert compile_small_run(10**9) == 2
    assert "h100:4: RESOURCE_EXHAUSTED" in capsys.readouterr().err


def test_program_without_a_text_is_reported_without_a_roofline(
    compile_small_run, capsys, monkeypatch, tmp_path
):
    def fail(compiled):
        raise jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure\nasync-update")

    # Not the program that other tests have compiled.
    anew = functools.partial(update_report.compile_update)
    monkeypatch.setattr(compile_command, "compile_update", anew)
    monkeypatch.setattr(jax.stages.Compiled, "as_text", fail)
    file = tmp_path / "program.hlo"
    assert compile_small_run(10**9, f"--hlo={file}") == 1
    output, error = capsys.readouterr()
    assert "of 1 GB" in output
    assert "roofline    unknown" in output
    assert "RET_CHECK failure async-update" in error
    assert not file.exists()
    assert compile_small_run(10**9, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fits"]
    assert "RET_CHECK" in report["problem"]
