"""Names of topologies, and devices of which only the compiler is there."""

import importlib.util

import pytest

from anytime_jax.errors import InputError
from anytime_lab.compilation import topologies
from anytime_lab.compilation.topologies import parse


@pytest.mark.parametrize(
    ("name", "platform", "shape", "slices", "size"),
    [
        ("v5p:2x2x2", "tpu", (2, 2, 2), 1, 8),
        ("2*v5e:16x16", "tpu", (16, 16), 2, 512),
        ("h100:8", "gpu", (1, 8), 1, 8),
        ("h100:8x8", "gpu", (8, 8), 1, 64),
    ],
)
def test_name_is_parsed(name, platform, shape, slices, size):
    topology = parse(name)
    assert (topology.platform, topology.shape, topology.slices) == (platform, shape, slices)
    assert topology.size == size


@pytest.mark.parametrize("name", ["v5e", "v7:2x2", "v5e:4", "v5e:0x4", "0*v5e:4x4", "h100:2x2x2"])
def test_unknown_topology_is_rejected(name):
    with pytest.raises(InputError, match="--topology="):
        parse(name)


@pytest.mark.parametrize(
    ("name", "package"), [("v5e:4x4", r"jax\[tpu\]"), ("h200:1", r"jax\[cuda12\]")]
)
def test_missing_compiler_is_named_with_its_package(name, package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=f"pip install '{package}=="):
        topologies.make_devices(parse(name))
