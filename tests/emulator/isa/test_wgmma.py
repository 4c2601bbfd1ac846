"""`wgmma`: operands in every canonical layout of shared memory, fragments, accumulation and negation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from fragments import a_fragment, d_fragment, d_matrix
from matrix_cases import tiles
from ptx_run import Array, aligned, module_text, run
from smem_layout import SWIZZLES, WGMMA_CODE, descriptor, place

from equiv.emulator.engine import LaunchConfig
from equiv.errors import EmulatorError, IllegalAccessError
from equiv.rounding.matrix import fused_dot, variant

if TYPE_CHECKING:
    from equiv.rounding.matrix_table import MatrixVariant

SHARED = 1 << 15
BASE = 0x400  # of the CTA's shared memory, as the hardware has it
B_AT = 1 << 14


def _fill(image: Array) -> str:
    """PTX: 128 threads copy the parameter `image` to `buffer`."""
    return f"""
        mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [image]; mov.u32 %r2, %r1; mov.u32 %r3, buffer;
    FILL: shl.b32 %r4, %r2, 4; add.u32 %r5, %r4, %r3; cvt.u64.u32 %rd4, %r4; add.s64 %rd4, %rd4, %rd1;
        ld.global.v4.b32 {{%r6,%r7,%r8,%r9}}, [%rd4]; st.shared.v4.b32 [%r5], {{%r6,%r7,%r8,%r9}};
        add.u32 %r2, %r2, 128; setp.lt.u32 %p1, %r2, {image.nbytes // 16}; @%p1 bra FILL;
        fence.proxy.async.shared::cta; bar.sync 0;"""


def _names(stem: str, count: int) -> str:
    return "{" + ", ".join(f"%{stem}{i}" for i in range(count)) + "}"


def _run(
    model: MatrixVariant,
    n: int,
    image: Array,
    c: Array,
    operands: str,
    *,
    fragment: Array | None = None,
    times: int = 1,
    wait: int = 0,
    completion: str = "eager",
) -> Array:
    """D [64, n] of a wgmma, `times` over in a group, from C in D; `operands` follow D, with `A` for A's registers."""
    registers = [d_fragment(c[16 * warp : 16 * warp + 16]) for warp in range(4)]
    count = len(registers[0])
    held = np.concatenate(registers, axis=1)  # [count, 128]
    given = np.zeros((4, 128), np.uint32) if fragment is None else fragment
    buffers = [image, np.ascontiguousarray(held), np.ascontiguousarray(given)]
    loads = "".join(f"ld.global.b32 %d{i}, [%rd2+{512 * i}];" for i in range(count))
    loads += "".join(f"ld.global.b32 %a{i}, [%rd3+{512 * i}];" for i in range(4))
    stores = "".join(f"st.global.b32 [%rd2+{512 * i}], %d{i};" for i in range(count))
    opcode = model.instruction.replace("m64n8k", f"m64n{n}k")
    product = f"{opcode} {_names('d', count)}, {operands.replace('A', _names('a', 4))};"
    body = f"""
        .reg .b32 %d<128>; .reg .b32 %a<4>; {_fill(image)}
        ld.param.b64 %rd2, [held]; ld.param.b64 %rd3, [given]; mul.wide.u32 %rd5, %r1, 4;
        add.s64 %rd2, %rd2, %rd5; add.s64 %rd3, %rd3, %rd5; {loads}
        setp.eq.u32 %p2, 0, 0; setp.eq.u32 %p3, 0, 1;
        wgmma.fence.sync.aligned;
        {product * times}
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned {wait}; {stores} ret;"""
    text = module_text(body, ("image", "held", "given"), "sm_90a", f".shared .align 1024 .b8 buffer[{SHARED}];")
    run(text, buffers, LaunchConfig((1, 1, 1), (128, 1, 1)), "sm_90a", completion=completion)
    return np.concatenate([d_matrix(buffers[1][:, 32 * w : 32 * w + 32], n, c.dtype) for w in range(4)])


def _model(types: str, k: int) -> MatrixVariant:
    return variant(f"wgmma.mma_async.sync.aligned.m64n8k{k}.{types}", "sm_90a")


def _strides(rows: int, size: int, swizzle: str, major: str) -> tuple[int, int]:
    """Leading and stride offsets of a tile that is larger than what one instruction reads, all of them unequal."""
    wide = SWIZZLES[swizzle]
    if major == "K":
        return (8 * 16 * (rows // 8) + 128, 128) if swizzle == "none" else (16, 8 * wide)
    if swizzle == "none":
        return 16 * 8 * (rows * size // 16) + 256, 128
    return 2 * 8 * wide * (128 // wide), 8 * wide


LAYOUTS = [(swizzle, major) for swizzle in SWIZZLES for major in ("K", "MN")]


@pytest.mark.parametrize(("swizzle", "major"), LAYOUTS)
@pytest.mark.parametrize("operand", ["A", "B"])
def test_16_bit_operands_in_every_layout(operand: str, swizzle: str, major: str) -> None:
    model, n = _model("f32.bf16.bf16", 16), 64
    tile = tiles(model, (64, n), 1, 3)[0]
    image = aligned(SHARED)
    a_layout = (swizzle, major) if operand == "A" else ("128", "K")
    b_layout = (swizzle, major) if operand == "B" else ("128", "K")
    words, turned = [], []
    for matrix, at, (mode, order) in ((tile.a, 0, a_layout), (np.ascontiguousarray(tile.b.T), B_AT, b_layout)):
        lead, stride = _strides(64, 2, mode, order)
        place(matrix, at, (mode, order), (lead, stride), image)
        words.append(descriptor(BASE + at, lead, stride, WGMMA_CODE[mode]))
        turned.append(int(order == "MN"))
    got = _run(model, n, image, tile.c, f"{words[0]}, {words[1]}, %p2, 1, 1, {turned[0]}, {turned[1]}")
    np.testing.assert_array_equal(got, fused_dot(model, tile.a, tile.b, tile.c))


@pytest.mark.parametrize(
    ("types", "k"),
    [("f32.f16.f16", 16), ("f16.f16.f16", 16), ("f32.tf32.tf32", 8), ("f32.e4m3.e5m2", 32), ("f16.e5m2.e4m3", 32)],
)
@pytest.mark.parametrize("n", [8, 40, 256])
@pytest.mark.parametrize("from_registers", [False, True])
def test_every_type_with_a_in_shared_memory_or_registers(types: str, k: int, n: int, *, from_registers: bool) -> None:
    model = _model(types, k)
    tile = tiles(model, (64, n), 2, 4)[1]
    image = aligned(SHARED)
    place(tile.a, 0, ("32", "K"), (16, 256), image)
    place(np.ascontiguousarray(tile.b.T), B_AT, ("none", "K"), (128, 256), image)
    b = descriptor(BASE + B_AT, 128, 256, 0)
    fragment = np.concatenate([a_fragment(tile.a[16 * w : 16 * w + 16]) for w in range(4)], axis=1)
    a = "A" if from_registers else str(descriptor(BASE, 16, 256, WGMMA_CODE["32"]))
    turned = ", 0" * (1 if from_registers else 2) if k == 16 else ""
    got = _run(model, n, image, tile.c, f"{a}, {b}, %p2, 1, 1{turned}", fragment=fragment)
    np.testing.assert_array_equal(got, fused_dot(model, tile.a, tile.b, tile.c))


def _small() -> tuple[MatrixVariant, Array, Array, Array, Array, str]:
    model = _model("f32.bf16.bf16", 16)
    tile = tiles(model, (64, 8), 1, 5)[0]
    image = aligned(SHARED)
    place(tile.a, 0, ("128", "K"), (16, 1024), image)
    place(np.ascontiguousarray(tile.b.T), B_AT, ("128", "K"), (16, 1024), image)
    both = f"{descriptor(BASE, 16, 1024, 1)}, {descriptor(BASE + B_AT, 16, 1024, 1)}"
    return model, tile.a, tile.b, tile.c, image, both


@pytest.mark.parametrize(("first", "second"), [(-1, 1), (1, -1), (-1, -1)])
def test_imm_scales_negate_a_and_b(first: int, second: int) -> None:
    model, a, b, c, image, both = _small()
    got = _run(model, 8, image, c, f"{both}, %p2, {first}, {second}, 0, 0")
    np.testing.assert_array_equal(got, fused_dot(model, a, b, c, negate=first != second))


def test_scale_d_false_ignores_what_the_accumulator_holds() -> None:
    model, a, b, c, image, both = _small()
    c = np.full_like(c, 0x7FC00000)
    np.testing.assert_array_equal(_run(model, 8, image, c, f"{both}, %p3, 1, 1, 0, 0"), fused_dot(model, a, b))


def test_k_advances_by_moving_the_start_inside_the_swizzled_row() -> None:
    model = _model("f32.bf16.bf16", 16)
    tile = tiles(model, (64, 8), 1, 6, steps=4)[0]
    image = aligned(SHARED)
    place(tile.a, 0, ("128", "K"), (16, 1024), image)
    place(np.ascontiguousarray(tile.b.T), B_AT, ("128", "K"), (16, 1024), image)
    for step in range(4):
        a, b = (descriptor(BASE + at + 32 * step, 16, 1024, 1) for at in (0, B_AT))
        got = _run(model, 8, image, tile.c, f"{a}, {b}, %p2, 1, 1, 0, 0")
        part = slice(16 * step, 16 * step + 16)
        np.testing.assert_array_equal(got, fused_dot(model, tile.a[:, part], tile.b[part], tile.c))


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ("{a} , {b}, %p2, 2, 1, 0, 0", "imm-scale-a and imm-scale-b must be 1 or -1"),
        (f"{{a}}, {descriptor(0x20000, 16, 1024, 1)}, %p2, 1, 1, 0, 0", "shared address 0x20000"),
        (f"{{a}}, {descriptor(0x400, 16, 1024, 1) | 3 << 49}, %p2, 1, 1, 0, 0", "base offset 3; only 0 is supported"),
        (f"{{a}}, {descriptor(0x400, 16, 1024, 1) | 1 << 46}, %p2, 1, 1, 0, 0", "bits set that are reserved"),
    ],
)
def test_what_an_instruction_cannot_mean_is_named(operands: str, message: str) -> None:
    model, _, _, c, image, both = _small()
    a, b = both.split(", ")
    with pytest.raises((EmulatorError, IllegalAccessError), match=message):
        _run(model, 8, image, c, operands.format(a=a, b=b))


def test_a_warpgroup_must_be_whole() -> None:
    text = module_text(
        ".reg .b32 %d<4>; mov.u64 %rd1, 0; mov.u64 %rd2, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
        " {%d0,%d1,%d2,%d3}, %rd1, %rd2, 1, 1, 1, 0, 0; ret;",
        (),
        "sm_90a",
    )
    with pytest.raises(EmulatorError, match="warp 0 is not in a whole warpgroup: the CTA has 2 warps"):
        run(text, [], LaunchConfig((1, 1, 1), (64, 1, 1)), "sm_90a")


def test_late_results_land_at_the_wait_and_the_registers_are_poisoned_before() -> None:
    model, a, b, c, image, both = _small()
    plain = fused_dot(model, a, b, c)
    for completion, wanted in (("eager", plain), ("late", plain)):
        np.testing.assert_array_equal(
            _run(model, 8, image, c, f"{both}, %p2, 1, 1, 0, 0", completion=completion), wanted
        )
    for completion, poisoned in (("eager", False), ("late", True)):
        got = _run(model, 8, image, c, f"{both}, %p2, 1, 1, 0, 0", completion=completion, wait=1)
        assert (got == 0xFFFFFFFF).all() if poisoned else (got == plain).all(), completion


def test_late_chains_accumulate_what_has_not_landed() -> None:
    model, a, b, c, image, both = _small()
    twice = f"{both}, %p2, 1, 1, 0, 0"
    got = _run(model, 8, image, c, twice, completion="late", times=2)
    np.testing.assert_array_equal(got, fused_dot(model, a, b, fused_dot(model, a, b, c)))
