"""Roofline of stored programs, beside an independent script's and by hand."""

import pytest
from stored_programs import MESH, load_program

from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_jax.lab.compilation.roofline import analyze, mesh_axes
from anytime_jax.lab.compilation.update_report import dearest_kernels, group_collectives

# Slower than any device by a factor of 1000, so that the script's two decimals suffice.
H100 = DeviceSpec(peak_flops=989e9, bandwidth=3.35e9, memory=80 * 10**9)
# What another script prints for the same program: milliseconds and kernels. From its total are
# taken the 3.76 ms of communication, which it counts as copies.
SCRIPT = {"matmul": (28.33, 54), "attention": (2.52, 12)}
SCRIPT_TOTAL = 102.17 - 3.76
# One update of the small model, for one of four devices: 6 for each weight and token, half of the
# attention, and attention's products once more in the backward pass.
TOKENS, LAYERS, D, F, V, L = 16 * 256 / 4, 2, 128, 512, 512, 256
MATMUL = 6 * TOKENS * (LAYERS * (4 * D * D + 2 * D * F) + D * V)
ATTENTION = LAYERS * TOKENS * 2 * D * L  # two products, of which half is needed


def test_roofline_of_a_gpu_program():
    roofline = analyze(load_program("h100:4"), H100, MESH)
    for kind, (milliseconds, kernels) in SCRIPT.items():
        part = roofline.of_kind(kind)
        assert 1e3 * part.seconds == pytest.approx(milliseconds, abs=0.005)
        assert sum(kernel.calls for kernel in part.kernels) == kernels
    assert 1e3 * roofline.seconds == pytest.approx(SCRIPT_TOTAL, rel=0.05)
    assert roofline.of_kind("matmul").flops == MATMUL
    # Forward, recomputed, and backward at 2.5 times.
    assert roofline.of_kind("attention").flops == pytest.approx(4.5 * ATTENTION)


def test_roofline_of_a_tpu_program():
    roofline = analyze(load_program("v5e:2x2"), H100, MESH)
    assert roofline.of_kind("matmul").flops == MATMUL
    assert roofline.of_kind("attention").flops == pytest.approx(4.5 * ATTENTION)
    # Copies to the on-chip memory take no time of their own beside the kernels.
    assert roofline.of_kind("prefetch").bytes > roofline.of_kind("memory").bytes
    kernels = roofline.of_kind("matmul", "attention", "memory")
    assert kernels.seconds < roofline.seconds == roofline.bytes / H100.bandwidth


def test_seconds_are_the_larger_of_flops_and_bytes():
    roofline = analyze(load_program("h100:4"), H100, MESH)
    for kernel in roofline.kernels:
        least = max(kernel.flops / H100.peak_flops, kernel.bytes / H100.bandwidth)
        assert kernel.seconds == least
    dearest = dearest_kernels(roofline)
    assert sum(kernel.seconds for kernel in dearest) == pytest.approx(roofline.seconds)
    assert [x.seconds for x in dearest] == sorted((x.seconds for x in dearest), reverse=True)


@pytest.mark.parametrize("topology", ["h100:4", "v5e:2x2"])
def test_collectives_have_the_axes_of_the_mesh(topology):
    collectives = analyze(load_program(topology), H100, MESH).collectives
    gathers = [x for x in collectives if x.kind == "all-gather" and x.in_loop]
    assert {x.axes for x in gathers} == {"fsdp"}  # a layer's weights, for use
    assert {x.axes for x in collectives} == {"fsdp", "data"}
    assert not any(x.in_loop for x in collectives if x.axes == "data")
    assert not any(x.kind == "all-to-all" for x in collectives)
    groups = group_collectives(collectives)
    assert sum(x.calls for x in groups) == sum(x.calls for x in collectives)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", "fsdp"),
        ("{{0,2,4,6},{1,3,5,7}}", "data"),
        ("{{0,1,2,3,4,5,6,7}}", "data, fsdp"),
        ("[4,2]<=[8]", "fsdp"),
        ("[2,4]<=[4,2]T(1,0)", "data"),
        ("mesh['a'=4,'b'=2] {'b'}", "fsdp"),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", "data"),
        ("mesh['a'=8] {'a'}", "data, fsdp"),
    ],
)
def test_mesh_axes_of_groups(groups, axes):
    assert mesh_axes(f"replica_groups={groups}, channel_id=1", {"data": 4, "fsdp": 2}) == axes
