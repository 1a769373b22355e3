"""Runtime settings: which reach the compiler, and what takes precedence over them."""

import os
import types

import jax
import numpy as np
import pytest

from anytime_jax.config import run_config
from anytime_jax.config.kinds import NOBODY
from anytime_jax.distributed import sharding, xla_settings
from anytime_jax.training import step
from configs import quickstart


def mesh_of(platform, kind=""):
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    return types.SimpleNamespace(devices=np.array([device]))


@pytest.mark.parametrize(
    ("variable", "flags"),
    [("XLA_FLAGS", "--{}=false"), ("XLA_FLAGS", "--no{}"), ("LIBTPU_INIT_ARGS", "-{} --xla_two=2")],
)
def test_flag_takes_precedence_over_option(variable, flags, monkeypatch):
    name = "xla_gpu_enable_latency_hiding_scheduler"
    monkeypatch.delenv(variable, raising=False)
    assert xla_settings.compiler_options(mesh_of("gpu"))[name] is True
    monkeypatch.setenv(variable, "--xla_one=1 " + flags.format(name))
    assert name not in xla_settings.compiler_options(mesh_of("gpu"))
    values = {setting.name: value for setting, value in xla_settings.list_settings("gpu", "")}
    assert values[name] == "set by a flag"


def test_options_are_those_of_the_platform(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    assert xla_settings.compiler_options(mesh_of("cpu")) == {}
    assert "xla_tpu_overlap_compute_collective_tc" in xla_settings.compiler_options(mesh_of("tpu"))
    assert not any("gpu" in name for name in xla_settings.compiler_options(mesh_of("tpu")))
    assert xla_settings.compiler_options(mesh_of("METAL")) == {}
    fast = xla_settings.fast_compiler_options
    assert fast(mesh_of("cpu")) == {"xla_backend_optimization_level": 1}
    assert fast(mesh_of("gpu")) == xla_settings.compiler_options(mesh_of("gpu"))


def test_fused_communication_is_for_v5e_alone():
    """Its compiler warns of wrong results elsewhere."""
    name = "xla_tpu_enable_async_collective_fusion"
    assert name in xla_settings.compiler_options(mesh_of("tpu", "TPU v5 lite"))
    for kind in ("TPU v5", "TPU v6 lite"):
        assert name not in xla_settings.compiler_options(mesh_of("tpu", kind))


NAMES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # the second is JAX's old one


def test_environment_is_set_for_devices(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)
    xla_settings.set_environment()
    assert os.environ[NAMES[0]] == "0.9"
    assert NAMES[1] not in os.environ


@pytest.mark.parametrize("name", NAMES)
def test_environment_that_is_set_stays(name, monkeypatch):
    """JAX rejects both names at once."""
    for other in NAMES:
        monkeypatch.setenv(other, "")
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, "0.5")
    xla_settings.set_environment()
    assert {x: os.environ[x] for x in NAMES if x in os.environ} == {name: "0.5"}
    values = {setting.name: value for setting, value in xla_settings.list_settings("gpu", "")}
    assert values[NAMES[0]] == "0.5"


def test_settings_reach_the_compiler_of_an_update(monkeypatch):
    setting = xla_settings.Setting("no_such_option", True, "none", "none")
    monkeypatch.setitem(xla_settings.COMPILER_OPTIONS, "cpu", (setting,))
    config = quickstart.get_config()
    config.model.update(layers=1, width=16, heads=2, mlp_width=32, length=8)
    config = run_config.build(config.to_dict(), trust=NOBODY)
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    lowered = step.make_program(config, mesh).lower_update()
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        lowered.compile()
