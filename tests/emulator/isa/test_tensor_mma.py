"""`tcgen05.mma`: every kind and layout against the model, where D lies, and what its descriptors may not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from matrix_cases import Tile, tiles
from ptx_run import Array, aligned
from smem_layout import SWIZZLES, TENSOR_CODE, descriptor, place
from tensor_lab import BASE, COMMIT, lab, unique

from equiv.emulator.isa.models import OPERAND_CODES, SCALE_CODES, tensor_name
from equiv.errors import EmulatorError
from equiv.rounding.matrix import fused_dot, variant

if TYPE_CHECKING:
    from equiv.rounding.matrix_table import MatrixVariant

B_AT = 1 << 15
ROW_OF_LANE = {128: np.arange(128), 64: np.array([32 * (r // 16) + r % 16 for r in range(64)])}


def _idesc(model: MatrixVariant, kind: str, m: int, n: int, *, extra: int = 0) -> int:
    """The instruction descriptor without optional bits, ORed with `extra`."""
    codes = {name: code for code, name in OPERAND_CODES[kind].items()}
    word = codes[model.a.name] << 7 | codes[model.b.name] << 10 | n >> 3 << 17 | extra
    if model.scales is None:
        return word | (model.result.format.name == "f32") << 4 | m >> 4 << 24
    scale = {name: code for code, name in SCALE_CODES.items()}[model.scales.format.name]
    return word | scale << 23 | m >> 7 << 27


def _stored(codes: Array, kind: str, name: str) -> Array:
    """An operand [rows, k] as it lies in shared memory: 32 bytes a row."""
    bits = {"e2m3": 6, "e3m2": 6, "e2m1": 4}.get(name, 8)
    if bits == 8 or kind in {"f16", "tf32"}:
        return codes
    flat = np.unpackbits(codes[..., None].astype(np.uint8), axis=-1, bitorder="little")[..., :bits]
    groups = flat.reshape(codes.shape[0], codes.shape[1] // 16, 16 * bits)
    packed = np.packbits(groups, axis=-1, bitorder="little")
    room = 8 if kind.startswith("mxf4") else 16
    return np.pad(packed, ((0, 0), (0, 0), (0, room - packed.shape[2]))).reshape(codes.shape[0], 32)


def _strides(rows: int, swizzle: str, major: str) -> tuple[int, int]:
    wide = SWIZZLES[swizzle]
    if major == "K":
        return (128 * (rows // 8) + 128, 128) if swizzle == "none" else (16, 8 * wide)
    return (4096, 128) if swizzle == "none" else (4096, 8 * wide)


def _shared(tile: Tile, model: MatrixVariant, kind: str, layout: tuple[str, str]) -> tuple[Array, int, int]:
    """Image of shared memory with both operands, and their descriptors."""
    image, words = aligned(1 << 16), []
    for codes, at, name in ((tile.a, 0, model.a.name), (np.ascontiguousarray(tile.b.T), B_AT, model.b.name)):
        swizzle, major = layout
        lead, stride = _strides(codes.shape[0], swizzle, major)
        place(_stored(codes, kind, name), at, (swizzle, major), (lead, stride), image)
        words.append(descriptor(BASE + at, lead, stride, TENSOR_CODE[swizzle], tensor=True))
    return image, words[0], words[1]


def _put(state: Array, m: int, column: int, c: Array) -> None:
    """C into tensor memory: one element a column, the low half of it for 16-bit ones."""
    rows = ROW_OF_LANE[m][:, None], column + np.arange(c.shape[1])[None]
    state[rows] = (state[rows] & ~np.uint32(0xFFFF if c.itemsize == 2 else 0xFFFFFFFF)) | c


def _put_scales(state: Array, column: int, scales: Array, first: int) -> None:
    """Scales [rows, count] into all four quarters: row r in lane r % 32, column r // 32, from byte `first`."""
    view = state.view(np.uint8).reshape(128, -1, 4)
    for row, values in enumerate(scales):
        for quarter in range(4):
            view[32 * quarter + row % 32, column + row // 32, first : first + len(values)] = values


def _issue(kind: str, a: str, b: int, idesc: int, tail: str, *, accumulate: str = "%pt", mods: str = "") -> str:
    start = f"mov.b64 %rd8, {a}; " if not a.startswith("[") else ""
    first = "%rd8" if start else a
    return (
        f"{start}mov.b64 %rd9, {b}; mov.b32 %y, {idesc}; add.u32 %x, %tm, 8;"
        f"@%pe tcgen05.mma.cta_group::1.kind::{kind}{mods} [%x], {first}, %rd9, %y, {tail}{accumulate};{COMMIT}"
    )


KINDS = [
    ("f16", "f32", "f16", "f16"), ("f16", "f16", "f16", "f16"), ("f16", "f32", "bf16", "bf16"),
    ("tf32", "f32", "tf32", "tf32"),
    ("f8f6f4", "f32", "e4m3", "e5m2"), ("f8f6f4", "f16", "e5m2", "e4m3"), ("f8f6f4", "f32", "e2m3", "e2m1"),
    ("f8f6f4", "f32", "e2m1", "e3m2"), ("f8f6f4", "f32", "e3m2", "e4m3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "d", "a", "b"), KINDS)
@pytest.mark.parametrize(("m", "n"), [(128, 32), (64, 24)])
@pytest.mark.parametrize("swizzle", ["none", "32", "128"])
def test_kinds_without_scales(*, kind: str, d: str, a: str, b: str, m: int, n: int, swizzle: str) -> None:
    model = variant(tensor_name(kind, d, a, b), "sm_100a")
    tile = tiles(model, (m, n), 1, 2)[0]
    image, first, second = _shared(tile, model, kind, (swizzle, "K"))
    state = unique(64)
    _put(state, m, 8, tile.c)
    after, _ = lab(_issue(kind, str(first), second, _idesc(model, kind, m, n), ""), state, image)
    want = state.copy()
    _put(want, m, 8, fused_dot(model, tile.a, tile.b, tile.c))
    np.testing.assert_array_equal(after, want)


@pytest.mark.parametrize("swizzle", list(SWIZZLES))
@pytest.mark.parametrize(("kind", "a", "b"), [("f16", "bf16", "bf16"), ("f8f6f4", "e4m3", "e5m2")])
def test_operands_with_rows_in_a_line(kind: str, a: str, b: str, swizzle: str) -> None:
    model = variant(tensor_name(kind, "f32", a, b), "sm_100a")
    tile = tiles(model, (128, 64), 1, 8)[0]
    image, first, second = _shared(tile, model, kind, (swizzle, "MN"))
    state = unique(128)
    both = _idesc(model, kind, 128, 64, extra=3 << 15)
    after, _ = lab(_issue(kind, str(first), second, both, "", accumulate="%pf"), state, image)
    np.testing.assert_array_equal(after[:, 8:72], fused_dot(model, tile.a, tile.b))


@pytest.mark.parametrize(
    ("kind", "a", "m"), [("f16", "bf16", 128), ("f16", "f16", 64), ("tf32", "tf32", 128), ("f8f6f4", "e4m3", 128)]
)
def test_a_from_tensor_memory(kind: str, a: str, m: int) -> None:
    model = variant(tensor_name(kind, "f32", a, a), "sm_100a")
    tile = tiles(model, (m, 16), 1, 3)[0]
    image, _, second = _shared(tile, model, kind, ("128", "K"))
    state = unique(64)
    _put(state, m, 8, tile.c)
    state[ROW_OF_LANE[m], 40:48] = tile.a.view(np.uint32)
    after, _ = lab(_issue(kind, "[%tm+40]", second, _idesc(model, kind, m, 16), ""), state, image)
    _put(state, m, 8, fused_dot(model, tile.a, tile.b, tile.c))
    np.testing.assert_array_equal(after, state)


SCALED = [
    ("mxf8f6f4", "e4m3", "e5m2", "ue8m0", 32, ""), ("mxf8f6f4", "e2m1", "e3m2", "ue8m0", 32, ".scale_vec::1X"),
    ("mxf4", "e2m1", "e2m1", "ue8m0", 32, ".block32"), ("mxf4nvf4", "e2m1", "e2m1", "ue8m0", 32, ".scale_vec::2X"),
    ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 16, ".block16"), ("mxf4nvf4", "e2m1", "e2m1", "ue8m0", 16, ".scale_vec::4X"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "a", "b", "scale", "block", "spelt"), SCALED)
@pytest.mark.parametrize("ids", [(0, 0), (2, 0), (0, 2)])
def test_kinds_with_scales(
    *, kind: str, a: str, b: str, scale: str, block: int, spelt: str, ids: tuple[int, int]
) -> None:
    model = variant(tensor_name(kind, "f32", a, b, scale=scale, block=block), "sm_100a")
    if block == 16 and any(ids):
        ids = (0, 0)  # all four bytes are read
    tile = tiles(model, (128, 48), 2, 7)[1]
    assert tile.scale_a is not None
    assert tile.scale_b is not None
    image, first, second = _shared(tile, model, kind, ("128", "K"))
    state = unique(128)
    _put(state, 128, 8, tile.c)
    _put_scales(state, 64, tile.scale_a, ids[0])
    _put_scales(state, 72, np.ascontiguousarray(tile.scale_b.T), ids[1])
    idesc = _idesc(model, kind, 128, 48, extra=ids[0] << 29 | ids[1] << 4)
    body = _issue(kind, str(first), second, idesc, "[%tm+64], [%tm+72], ", mods=f".block_scale{spelt}")
    after, _ = lab(body, state, image)
    _put(state, 128, 8, fused_dot(model, tile.a, tile.b, tile.c, scale_a=tile.scale_a, scale_b=tile.scale_b))
    np.testing.assert_array_equal(after, state)


def _plain(extra: int = 0, n: int = 16, m: int = 128) -> tuple[MatrixVariant, Tile, Array, int, int, int]:
    model = variant(tensor_name("f16", "f32", "bf16", "bf16"), "sm_100a")
    tile = tiles(model, (128, 16), 1, 9)[0]
    return model, tile, *_shared(tile, model, "f16", ("128", "K")), _idesc(model, "f16", m, n, extra=extra)


@pytest.mark.parametrize(("bits", "negate"), [(1 << 13, True), (1 << 14, True), (3 << 13, False)])
def test_negation_of_a_and_b(bits: int, *, negate: bool) -> None:
    model, tile, image, a, b, idesc = _plain(bits)
    after, _ = lab(_issue("f16", str(a), b, idesc, "", accumulate="%pf"), unique(32), image)
    np.testing.assert_array_equal(after[:, 8:24], fused_dot(model, tile.a, tile.b, negate=negate))


def test_disabled_lanes_keep_their_values() -> None:
    model, tile, image, a, b, idesc = _plain()
    state = unique(32)
    mask = [0x1, 0x80000000, 0xFFFFFFFF, 0xF0]
    moves = "".join(f"mov.b32 %w{i}, {word};" for i, word in enumerate(mask))
    after, _ = lab(moves + _issue("f16", str(a), b, idesc, "{%w0, %w1, %w2, %w3}, ", accumulate="%pf"), state, image)
    kept = np.array([mask[lane // 32] >> lane % 32 & 1 for lane in range(128)], bool)
    want = np.where(kept[:, None], state[:, 8:24], fused_dot(model, tile.a, tile.b))
    np.testing.assert_array_equal(after[:, 8:24], want)


def test_a_chain_accumulates_in_the_order_of_issue() -> None:
    model = variant(tensor_name("f16", "f32", "bf16", "bf16"), "sm_100a")
    tile = tiles(model, (128, 16), 1, 10, steps=4)[0]
    image, a, b = _shared(tile, model, "f16", ("128", "K"))
    idesc = _idesc(model, "f16", 128, 16)
    body = f"mov.b32 %y, {idesc}; add.u32 %x, %tm, 8;" + "".join(
        f"mov.b64 %rd8, {a + 2 * step}; mov.b64 %rd9, {b + 2 * step};"
        f"@%pe tcgen05.mma.cta_group::1.kind::f16 [%x], %rd8, %rd9, %y, {'%pt' if step else '%pf'};"
        for step in range(4)
    )
    after, _ = lab(body + COMMIT, unique(32), image)
    np.testing.assert_array_equal(after[:, 8:24], fused_dot(model, tile.a, tile.b))


@pytest.mark.parametrize(
    ("extra", "n", "m", "message"),
    [
        (1 << 2, 16, 128, "reserved or not supported .*: 0x00000004"),
        (1 << 30, 16, 128, "reserved or not supported .*: 0x40000000"),
        (2 << 4, 16, 128, "names operand types that are not modelled"),
        (1 << 10, 16, 128, None),
        (7 << 7, 16, 128, "names operand types that are not modelled"),
        (0, 8, 128, "M = 128, N = 8 is not a shape"),
        (0, 16, 32, "M = 32, N = 16 is not a shape"),
    ],
)
def test_an_instruction_descriptor_is_read_strictly(extra: int, n: int, m: int, message: str | None) -> None:
    _, _, image, a, b, idesc = _plain(extra, n, m)
    body = _issue("f16", str(a), b, idesc, "")
    if message is None:
        lab(body, unique(32), image)
        return
    with pytest.raises(EmulatorError, match=message):
        lab(body, unique(32), image)


@pytest.mark.parametrize(
    ("flip", "message"),
    [
        (1 << 46, "bits set that are reserved"),
        (1 << 52, "bits set that are reserved"),
        (2 << 49, "base offset 2; only 0"),
        (3 << 61, "swizzle mode 1 is not supported"),
        (1 << 61, "swizzle mode 3 is not supported"),
        (0x2000, "shared address 0x20400|outside|the CTA has"),
    ],
)
def test_a_matrix_descriptor_is_read_strictly(flip: int, message: str) -> None:
    _, _, image, a, b, idesc = _plain()
    with pytest.raises(EmulatorError, match=message):
        lab(_issue("f16", str(a ^ flip), b, idesc, ""), unique(32), image)


def test_scale_copies_that_differ_are_a_fault() -> None:
    model = variant(tensor_name("mxf8f6f4", "f32", "e4m3", "e4m3", scale="ue8m0", block=32), "sm_100a")
    tile = tiles(model, (128, 16), 1, 7)[0]
    image, a, b = _shared(tile, model, "mxf8f6f4", ("128", "K"))
    state = np.zeros((128, 64), np.uint32)
    state[70, 33] = 1
    body = _issue(
        "mxf8f6f4", str(a), b, _idesc(model, "mxf8f6f4", 128, 16), "[%tm+32], [%tm+40], ", mods=".block_scale"
    )
    with pytest.raises(EmulatorError, match=r"copies of a scale factor of row 38 .* differ \(lane 70\)"):
        lab(body, state, image)


def test_accumulators_outside_the_allocation_are_a_fault() -> None:
    _, _, image, a, b, idesc = _plain()
    with pytest.raises(EmulatorError, match="16 columns from tensor memory address 0x00000018 are not all allocated"):
        lab(_issue("f16", str(a), b, idesc, "").replace("add.u32 %x, %tm, 8", "add.u32 %x, %tm, 24"), unique(32), image)
