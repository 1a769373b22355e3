"""Reading of compiled programs: FLOPs and bytes of instructions, by hand and by XLA's own count."""

import jax
import jax.numpy as jnp
import pytest
from stored_programs import load_program

from anytime_jax.distributed.device_specs import DeviceSpec
from anytime_lab.compilation import hlo, roofline


def parse_body(body: str, types: str = "f32[8,4]") -> tuple[hlo.Module, hlo.Computation]:
    module = hlo.parse(f"HloModule m\n\nENTRY %main (x: {types}) -> {types} {{\n{body}\n}}\n")
    return module, module.computations["main"]


def test_parse_reads_types_operands_and_attributes():
    _, main = parse_body("""
  %x = bf16[8,4]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %y = (f32[8]{0}, /*index=1*/pred[]) custom-call(%x, f32[2] %z), custom_call_target="a(b", \
backend_config={"k":{"n":"3"}}, metadata={op_name="jit(f)/dot"}""")
    x, y = main.instructions.values()
    assert (x.arrays[0].shape, x.arrays[0].bytes, x.arrays[0].size) == ((8, 4), 0, 64)
    assert (y.opcode, y.operands, y.bytes, y.op_name) == (
        "custom-call",
        ("x", "z"),
        33,
        "jit(f)/dot",
    )
    assert (hlo.custom_call_target(y), y.backend_config) == ("a(b", {"k": {"n": "3"}})
    assert main.root == "y"


def test_kernel_of_pallas_on_a_gpu_is_what_it_reads_and_writes():
    """Its settings are the kernel, which is no JSON."""
    module, main = parse_body("""
  %x = f32[8,4]{1,0} parameter(0)
  ROOT %y = bf16[8,4]{1,0} custom-call(%x), custom_call_target="__gpu$xla.gpu.triton", \
backend_config={debug = false, name = "kernel", num_warps = 8 : i32}""")
    kernel = main.instructions["y"]
    assert kernel.backend_config == {}
    device = DeviceSpec(peak_flops=1.0, bandwidth=1.0)
    (counted,) = roofline.analyze(module, device, {"data": 1}).kernels
    assert (counted.kind, counted.bytes) == ("memory", 8 * 4 * (4 + 2))


def test_text_of_no_program_is_rejected():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse("module @jit_f { }")


@pytest.mark.parametrize(
    ("spec", "shapes"),
    [("ij,jk->ik", ((8, 16), (16, 32))), ("bij,bjk->bik", ((3, 8, 16), (3, 16, 4)))],
)
def test_flops_equal_those_of_xla(spec, shapes):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled = jax.jit(lambda x, y: jnp.einsum(spec, x, y)).lower(*arrays).compile()
    module = hlo.parse(compiled.as_text())
    ours = sum(
        hlo.flops(module, computation, instruction)
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
        if instruction.opcode in ("dot", "custom-call")
    )
    assert ours == compiled.cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("window", "size", "outputs", "pairs"),
    [
        ({}, 5, 5, 5),
        ({"size": 2, "pad": 1}, 1, 2, 2),  # as a TPU's compiler writes a batched product
        ({"size": 3, "lhs_dilate": 3, "stride": 2}, 3, 3, 3),
        ({"size": 3, "pad": 1}, 4, 4, 10),  # a window over padding: 2 + 3 + 3 + 2
    ],
)
def test_window_counts_products_without_padding(window, size, outputs, pairs):
    assert hlo._window_pairs(hlo._Window(**window), size, outputs) == pairs


def test_loops_have_their_trip_counts():
    for topology in ("h100:4", "v5e:2x2"):
        module = load_program(topology)
        loops = [
            hlo.trip_count(module, x)
            for computation in module.computations.values()
            for x in computation.instructions.values()
            if x.opcode == "while"
        ]
        assert loops == [2, 2, 2]  # layers, backward and forward, and microbatches


def test_fusion_reads_slices_and_updates_in_place():
    module = hlo.parse("""HloModule m

%body (a: f32[100,4], b: f32[1,4], i: s32[]) -> f32[100,4] {
  %a = f32[100,4]{1,0} parameter(0)
  %b = f32[1,4]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %s = f32[1,4]{1,0} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={1,4}
  %t = f32[1,4]{1,0} add(%s, %b)
  ROOT %u = f32[100,4]{1,0} dynamic-update-slice(%a, %t, %i, %i)
}

ENTRY %main (x: f32[100,4], y: f32[1,4], z: s32[]) -> f32[100,4] {
  %x = f32[100,4]{1,0} parameter(0)
  %y = f32[1,4]{1,0} parameter(1)
  %z = s32[] parameter(2)
  ROOT %f = f32[100,4]{1,0} fusion(%x, %y, %z), kind=kLoop, calls=%body
}
""")
    main = module.computations["main"]
    moved = hlo.bytes_accessed(module, main, main.instructions["f"])
    assert moved == 16 + 16 + 4 + 16  # the slice, y, the index, and what is written


@pytest.mark.parametrize(
    ("table", "moved"),
    [
        ("parameter(0)", 8 + 3 * 32),  # the rows, what is added to them, and their sums
        ("broadcast(%zero), dimensions={}", 8 + 32 + 1600),  # the rows, and the whole new table
    ],
)
def test_rows_are_scattered_in_place_also_inside_another_fusion(table, moved):
    module = hlo.parse(
        """HloModule m

%scatter (a: f32[100,4], i: s32[2], b: f32[2,4]) -> f32[100,4] {
  %a = f32[100,4]{1,0} parameter(0)
  %zero = f32[] constant(0)
  %table = f32[100,4]{1,0} TABLE
  %i = s32[2]{0} parameter(1)
  %b = f32[2,4]{1,0} parameter(2)
  ROOT %u = f32[100,4]{1,0} scatter(%table, %i, %b), to_apply=%add
}

%body (c: f32[100,4], j: s32[2], d: f32[2,4]) -> f32[100,4] {
  %c = f32[100,4]{1,0} parameter(0)
  %j = s32[2]{0} parameter(1)
  %d = f32[2,4]{1,0} parameter(2)
  ROOT %f = f32[100,4]{1,0} fusion(%c, %j, %d), kind=kCustom, calls=%scatter
}

ENTRY %main (x: f32[100,4], y: s32[2], z: f32[2,4]) -> f32[100,4] {
  %x = f32[100,4]{1,0} parameter(0)
  %y = s32[2]{0} parameter(1)
  %z = f32[2,4]{1,0} parameter(2)
  ROOT %f = f32[100,4]{1,0} fusion(%x, %y, %z), kind=kCustom, calls=%body
}
""".replace("TABLE", table)
    )
    main = module.computations["main"]
    assert hlo.bytes_accessed(module, main, main.instructions["f"]) == moved


def test_loop_that_the_compiler_unrolled_has_fewer_iterations():
    module = hlo.parse("""HloModule m

%condition (p: (f32[2], s32[])) -> pred[] {
  %p = (f32[2]{0}, s32[]) parameter(0)
  %k = s32[] get-tuple-element(%p), index=1
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%k, %limit), direction=LT
}

%body (p: (f32[2], s32[])) -> (f32[2], s32[]) {
  %p = (f32[2]{0}, s32[]) parameter(0)
  %x = f32[2]{0} get-tuple-element(%p), index=0
  %k = s32[] get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %next = s32[] add(%k, %two)
  ROOT %r = (f32[2]{0}, s32[]) tuple(%x, %next)
}

ENTRY %main (p: (f32[2], s32[])) -> (f32[2], s32[]) {
  %p = (f32[2]{0}, s32[]) parameter(0)
  ROOT %loop = (f32[2]{0}, s32[]) while(%p), condition=%condition, body=%body
}
""")
    loop = module.computations["main"].instructions["loop"]
    assert hlo.trip_count(module, loop) == 4


def test_fusion_reads_slices_inside_another_fusion_and_converts_whole_arrays():
    text = """
%slice (a: f32[100,4], i: s32[]) -> f32[1,4] {
  %a = f32[100,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %s = f32[1,4]{1,0} dynamic-slice(%a, %i, %zero), dynamic_slice_sizes={1,4}
}

%other (p: f32[2]) -> f32[2] {
  ROOT %p = f32[2]{0} parameter(0)
}, execution_thread="host"

%body (a: f32[100,4], i: s32[], b: f32[8,4]) -> (f32[1,4], bf16[8,4]) {
  %a = f32[100,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %b = f32[8,4]{1,0} parameter(2)
  %f = f32[1,4]{1,0} fusion(%a, %i), kind=kLoop, calls=%slice
  %c = bf16[8,4]{1,0} convert(%b)
  ROOT %t = (f32[1,4]{1,0}, bf16[8,4]{1,0}) tuple(%f, %c)
}

ENTRY %main (x: f32[100,4], n: s32[], y: f32[8,4]) -> (f32[1,4], bf16[8,4]) {
  %x = f32[100,4]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %y = f32[8,4]{1,0} parameter(2)
  ROOT %f = (f32[1,4]{1,0}, bf16[8,4]{1,0}) fusion(%x, %n, %y), kind=kLoop, calls=%body, config="a
b", metadata={op_name="name"}
}
"""
    module = hlo.parse(text)
    main = module.computations["main"]
    assert main.instructions["f"].op_name == "name"  # after a line break inside the settings
    index, sliced, converted = 4, 2 * 4 * 4, 8 * 4 * (4 + 2)
    assert hlo.bytes_accessed(module, main, main.instructions["f"]) == index + sliced + converted
