"""Roofline of stored programs, beside an independent script's and by hand."""

import numpy as np
import pytest
from stored_programs import MESH, load_program

from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_lab.compilation import hlo, roofline
from anytime_lab.compilation.roofline import analyze, communication_seconds
from anytime_lab.compilation.update_report import group_collectives

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
        assert 1e3 * part.kernel_seconds == pytest.approx(milliseconds, abs=0.005)
        assert sum(kernel.calls for kernel in part.kernels) == kernels
    assert 1e3 * roofline.kernel_seconds == pytest.approx(SCRIPT_TOTAL, rel=0.05)
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
    assert kernels.kernel_seconds < roofline.kernel_seconds == roofline.bytes / H100.bandwidth


@pytest.mark.parametrize("topology", ["h100:4", "v5e:2x2"])
def test_collectives_have_the_axes_of_the_mesh(topology):
    collectives = analyze(load_program(topology), H100, MESH).collectives
    gathers = [x for x in collectives if x.kind == "all-gather" and x.in_loop]
    assert {x.axes for x in gathers} == {"fsdp"}  # a layer's weights, for use
    assert {x.axes for x in collectives} == {"fsdp", "data"}
    assert not any(x.in_loop for x in collectives if x.axes == "data")
    assert not any(x.kind == "all-to-all" for x in collectives)
    groups = group_collectives(collectives)
    for name in ("bytes", "seconds", "exposed"):
        of_calls = sum(x.calls * getattr(x, name) for x in collectives)
        assert sum(getattr(x, name) for x in groups) == pytest.approx(of_calls)
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
    group = roofline._first_group(f"replica_groups={groups}, channel_id=1", 8)
    assert roofline._spanned_axes(group, {"data": 4, "fsdp": 2}) == axes


# Of four devices: 8/11 FLOP/s, and 1 byte/s of memory and of links. The product takes 44 s, its 20
# numbers of bfloat16 40 s; addition moves 3 x 32 bytes. The gather receives 3/4 of 64 bytes.
COUNTED = """HloModule counted

add { x = f32[] parameter(0), y = f32[] parameter(1) }

body {
  %state = (s32[], f32[8]) parameter(0)
  %number = s32[] get-tuple-element(%state), index=0
  %sum = f32[8] get-tuple-element(%state), index=1
  %all = f32[8] all-reduce(%sum), replica_groups={{0,1},{2,3}}, to_apply=add
  %twice = f32[8] add(%all, %all)
  ROOT %next = (s32[], f32[8]) tuple(%number, %twice)
}

condition {
  %state = (s32[], f32[8]) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY main {
  %x = bf16[2,4] parameter(0)
  %w = bf16[4,2] parameter(1)
  %part = f32[4] parameter(2)
  %long = f32[8] parameter(3)
  %start = (f32[4], f32[16]) all-gather-start(%part), replica_groups={{0,1,2,3}}, dimensions={0}
  %product = bf16[2,2] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %done = f32[16] all-gather-done(%start)
  %scatter = f32[4] reduce-scatter(%done), replica_groups={{0,1,2,3}}, to_apply=add
  %pallas = f32[4] custom-call(%scatter, %part), custom_call_target="tpu_custom_call"
  %zero = s32[] constant(0)
  %init = (s32[], f32[8]) tuple(%zero, %long)
  ROOT %loop = (s32[], f32[8]) while(%init), condition=condition, body=body, TRIPS
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')


def test_program_counted_by_hand():
    device = DeviceSpec(peak_flops=8 / 11, bandwidth=1.0, links=1.0)
    roofline = analyze(hlo.parse(COUNTED), device, {"data": 2, "fsdp": 2})
    product = 2 * 2 * 4 * 2 * 11 / 8
    pallas, addition = 3 * 16, 4 * (8 + 8 + 8)  # all operands and results
    assert roofline.kernel_seconds == product + pallas + 3 * addition
    found = {x.kind: (x.axes, x.calls, x.bytes, x.seconds, x.exposed) for x in roofline.collectives}
    gather = 64 * 3 / 4
    assert found == {
        "all-gather": ("data, fsdp", 1, 64, gather, gather - product),
        "reduce-scatter": ("data, fsdp", 1, 16, 64 * 3 / 4, 64 * 3 / 4),
        "all-reduce": ("fsdp", 3, 32, 2 * 32 / 2, 2 * 32 / 2),
    }
    assert roofline.exposed_seconds == gather - product + 48 + 3 * 32
    assert roofline.seconds == roofline.kernel_seconds + roofline.exposed_seconds


def test_sum_and_slice_that_a_tpu_fuses_are_one_reduce_scatter():
    module = hlo.parse("""HloModule m

%all-reduce-scatter (a: f32[16]) -> f32[4] {
  %a = f32[16]{0} parameter(0)
  %sum = f32[16]{0} all-reduce(%a), replica_groups={{0,1,2,3}}, to_apply=%add
  %id = u32[] partition-id()
  ROOT %s = f32[4]{0} dynamic-slice(%sum, %id), dynamic_slice_sizes={4}
}

ENTRY %main (x: f32[16]) -> f32[4] {
  %x = f32[16]{0} parameter(0)
  ROOT %f = f32[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter
}
""")
    roofline = analyze(module, DeviceSpec(1.0, bandwidth=1.0, links=1.0), {"data": 4})
    (one,) = roofline.collectives
    assert (one.kind, one.axes, one.bytes, one.seconds) == ("reduce-scatter", "data", 16, 48)
    assert not roofline.kernels


@pytest.mark.parametrize(
    ("kind", "group", "seconds"),
    [
        # Two hosts of four devices: links of 4 bytes/s, a network of 1 byte/s into each device.
        ("all-gather", [0, 1, 2, 3], 6 / 4),
        ("all-reduce", [0, 1, 2, 3], 2 * 6 / 4),
        ("reduce-scatter", [0, 1, 2, 3], 4 * 6 / 4),
        ("all-gather", [0, 4], 4),  # half of it comes from the other host
        ("all-gather", list(range(8)), 7 / 4),  # 4 bytes enter a host, 1 into each device
        ("all-reduce", list(range(8)), 3.5),
        ("all-to-all", list(range(8)), 4),  # each device has its own 4 bytes from the other host
        ("collective-permute", [0, 1], 8 / 4),
        ("collective-permute", [3, 4], 8),
    ],
)
def test_seconds_of_communication_counted_by_hand(kind, group, seconds):
    device = DeviceSpec(1.0, links=4.0, network=1.0, host_devices=4)
    assert communication_seconds(kind, 8, np.array(group), device) == seconds
