"""Runtime settings: which reach the compiler, and what takes precedence over them."""

import os
import types

import jax
import numpy as np
import pytest

from anytime_jax.config import schema
from anytime_jax.distributed import runtime_settings, sharding
from anytime_jax.training import step
from configs import quickstart


def mesh_of(platform):
    device = types.SimpleNamespace(platform=platform)
    return types.SimpleNamespace(devices=np.array([device]))


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_flag_takes_precedence_over_option(variable, monkeypatch):
    name = "xla_gpu_enable_latency_hiding_scheduler"
    monkeypatch.delenv(variable, raising=False)
    assert runtime_settings.compiler_options(mesh_of("gpu"))[name] is True
    monkeypatch.setenv(variable, f"--xla_one=1 --{name}=false")
    assert name not in runtime_settings.compiler_options(mesh_of("gpu"))
    values = {setting.name: value for setting, value in runtime_settings.describe("gpu")}
    assert values[name] == "set by a flag"


def test_options_are_those_of_the_platform(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    assert runtime_settings.compiler_options(mesh_of("cpu")) == {}
    assert all(
        name.startswith("xla_") for name in runtime_settings.compiler_options(mesh_of("tpu"))
    )
    fast = runtime_settings.fast_compiler_options
    assert fast(mesh_of("cpu")) == {"xla_backend_optimization_level": 1}
    assert fast(mesh_of("gpu")) == runtime_settings.compiler_options(mesh_of("gpu"))


def test_environment_that_is_set_stays(monkeypatch):
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    monkeypatch.setenv(name, "0.5")
    runtime_settings.set_environment()
    assert os.environ[name] == "0.5"
    monkeypatch.delenv(name)
    runtime_settings.set_environment()
    assert os.environ[name] == "0.9"


def test_settings_reach_the_compiler_of_an_update(monkeypatch):
    setting = runtime_settings.Setting("no_such_option", True, "none", "none")
    monkeypatch.setitem(runtime_settings.COMPILER_OPTIONS, "cpu", (setting,))
    config = quickstart.get_config()
    config.model.update(layers=1, width=16, heads=2, mlp_width=32, length=8)
    config = schema.build(config.to_dict())
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    lowered = step.lower_update(step.make_program(config, mesh), config, mesh)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_option"):
        lowered.compile()
