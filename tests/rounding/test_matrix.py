"""Matrix instructions against what an H200 computed, against rational arithmetic, and the C twin against Python."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matrix_cases import KINDS, Tile, tiles
from matrix_vectors import DATA, Measured, load, mutants

from equiv.errors import UnknownInstructionError, UsageError
from equiv.rounding import formats, matrix, matrix_native
from equiv.rounding.formats import F32
from equiv.rounding.matrix_table import MEASURED, PAIR_ASSUMED, PUBLISHED, SAME_AS_MEASURED, modelled, variant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from equiv.rounding.matrix_table import MatrixVariant

BF16_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
F16_MMA = "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16"
FP8_WGMMA = "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
FP8_MMA = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
MXF4 = "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.f32.e2m1.e2m1.ue8m0"
NVF4 = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16.f32.e2m1.e2m1.ue4m3"

FORM = "this form of a matrix instruction is not modelled"

TWINS = pytest.mark.parametrize("fused_dot", [matrix.fused_dot, matrix_native.fused_dot], ids=["python", "c"])
SETS = [each for name in ("h200_bf16_spreads", "h200_matrix") for each in load(DATA / f"{name}.npz")]
PLAIN = [each for each in SETS if each.mode == "plain"]

UNSEEN = {
    ("mma.sync.aligned.m16n8k16.row.col.f16.e4m3.e5m2.f16", "one bit more"),
    ("mma.sync.aligned.m16n8k16.row.col.f16.e5m2.e5m2.f16", "one bit less"),
}
"""Two sums of eight F16 products rounded to F16 tell the width only in ties, which these sets do not have."""


def f32(*values: float) -> Any:
    return np.array([values], dtype=np.float32).view(np.uint32)


def bf16(*values: float) -> Any:
    return (np.array([values], dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def f16(*values: float) -> Any:
    return np.array([values], dtype=np.float16).view(np.uint16)


def one(name: str, a: Any, b: Any, c: Any = None, arch: str = "sm_90a") -> int:
    """D of one row times one column, shorter operands filled up with zeros; the same from both twins."""
    model = variant(name, arch)
    row, column = (np.zeros(model.k, dtype=x.dtype) for x in (a, b))
    row[: a.size], column[: b.size] = a[0], b[0]
    results = [f(model, row[None], column[:, None], c)[0, 0] for f in (matrix.fused_dot, matrix_native.fused_dot)]
    assert results[0] == results[1]
    return int(results[0])


@TWINS
@pytest.mark.parametrize("each", SETS, ids=str)
def test_an_h200_computed_the_same_bits(each: Measured, fused_dot: Callable[..., Any]) -> None:
    different = np.argwhere(each.computed(fused_dot) != each.d)
    assert different.size == 0, f"{len(different)} of {each.d.size} differ, first at {different[0].tolist()}"


@pytest.mark.parametrize("each", PLAIN, ids=str)
@pytest.mark.parametrize("fault", ["one bit less", "one bit more"])
def test_the_measured_outputs_tell_the_width_of_the_sum(each: Measured, fault: str) -> None:
    seen = bool((each.computed(matrix_native.fused_dot, mutants(each.model)[fault]) != each.d).any())
    assert seen != ((each.model.instruction, fault) in UNSEEN)


@pytest.mark.parametrize("each", PLAIN, ids=str)
def test_the_measured_outputs_tell_how_k_is_cut_into_sums(each: Measured) -> None:
    for fault in ("two sums", "halves instead of pairs", "native 8-bit operands"):
        wrong = mutants(each.model).get(fault)
        assert wrong is None or (each.computed(matrix_native.fused_dot, wrong) != each.d).any(), fault


@pytest.mark.parametrize("fault", ["zeros at a larger exponent", "zeros at a smaller exponent"])
@pytest.mark.parametrize("types", ["f32.bf16", "f32.tf32", "f16.f16"])
def test_the_measured_outputs_tell_the_exponent_of_zeros(types: str, fault: str) -> None:
    wrong = 0
    for each in PLAIN:
        if f".{types}." in each.model.instruction:
            wrong += int((each.computed(matrix_native.fused_dot, mutants(each.model)[fault]) != each.d).sum())
    assert wrong > 0


def test_the_data_covers_every_hopper_instruction_of_the_table() -> None:
    def key(model: MatrixVariant) -> tuple[str, ...]:
        return (model.row.family, str(model.k), model.result.format.name, model.a.name, model.b.name)

    measured = {key(each.model) for each in SETS}
    assert measured == {key(model) for model in modelled() if model.architecture == "sm_90"}
    assert len(measured) == 36


def exact(model: MatrixVariant, a: Any, b: Any, c: Any) -> int:
    """One fused sum in rational numbers, straight from the description: truncated terms, one rounding towards zero."""

    def parts(code: int, fmt: formats.Format) -> tuple[Fraction, int]:
        value = float(formats.decode(code, fmt))
        exponent = fmt.emin if value == 0 else max(int(np.frexp(abs(value))[1]) - 1, fmt.emin)
        return Fraction(value), exponent

    terms = []
    for x, y in zip(a, b, strict=True):
        (vx, ex), (vy, ey) = parts(int(x), model.a), parts(int(y), model.b)
        terms.append((vx * vy, ex + ey))
    terms.append(parts(int(c), F32))
    largest = max([model.result.zero_exponent, *(e for v, e in terms if v != 0)])
    unit = Fraction(2) ** (largest - model.row.align)
    total = sum(int(v / unit) for v, _ in terms) * unit  # int() cuts towards zero
    if total == 0:
        return 0
    step = Fraction(2) ** -149
    while abs(total) >= step * 2**24:
        step *= 2
    kept = int(total / step) * step
    with np.errstate(over="ignore"):
        return int(np.float32(float(kept)).view(np.uint32)) if kept else 0


@pytest.mark.parametrize("name", [BF16_MMA, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"])
def test_a_sum_is_what_rational_arithmetic_gives(name: str) -> None:
    model = variant(name, "sm_90a")
    checked = 0
    for tile in tiles(model, (3, 2), 2 * len(KINDS), 4):
        if tile.kind in {"special", "overflow", "any"}:
            continue
        d = matrix.fused_dot(model, tile.a, tile.b, tile.c)
        for i, j in np.ndindex(d.shape):
            assert d[i, j] == exact(model, tile.a[i], tile.b[:, j], tile.c[i, j]), (tile.kind, i, j)
            checked += 1
    assert checked == 2 * 6 * (len(KINDS) - 3)


def both(model: MatrixVariant, tile: Tile, *, negate: bool = False) -> tuple[Any, Any]:
    """D by Python and by C."""
    expected, got = (
        f(model, tile.a, tile.b, tile.c, negate=negate, scale_a=tile.scale_a, scale_b=tile.scale_b)
        for f in (matrix.fused_dot, matrix_native.fused_dot)
    )
    return expected, got


@pytest.mark.parametrize("model", modelled(), ids=lambda model: f"{model.instruction} {model.architecture}")
def test_the_c_twin_equals_the_definition(model: MatrixVariant) -> None:
    for m, n, steps, negate in ((16, 8, 1, False), (3, 19, 2, True)):
        for tile in tiles(model, (m, n), len(KINDS), 6, steps):
            expected, got = both(model, tile, negate=negate)
            assert np.array_equal(expected, got), tile.kind


@pytest.mark.parametrize("flags", [(), ("-msse4.1",), ("-mavx2", "-mfma")], ids=["plain", "sse4.1", "avx2"])
def test_the_c_twin_is_the_same_without_this_processors_features(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, built = tmp_path / "twin.c", tmp_path / "twin.so"
    source.write_text(matrix_native.TEXT)
    strict = ["-std=c11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    folder = matrix_native.HEADERS[0].parent
    subprocess.run(["gcc", *strict, *flags, f"-I{folder}", "-shared", "-fPIC", "-o", built, source, "-lm"], check=True)
    function = matrix_native.bound(built)
    monkeypatch.setattr(matrix_native, "native", lambda: function)
    for name, arch in ((BF16_MMA, "sm_90a"), (F16_MMA, "sm_90a"), (FP8_WGMMA, "sm_90a"), (NVF4, "sm_100a")):
        model = variant(name, arch)
        for tile in tiles(model, (9, 21), len(KINDS), 7):
            expected, got = both(model, tile)
            assert np.array_equal(expected, got), (name, tile.kind)


def test_generated_c_code_names_a_variant_by_its_parameters(tmp_path: Path) -> None:
    source, built = tmp_path / "t.c", tmp_path / "t"
    members = ("k", "step", "align", "zero_exponent", "unpacked", "order[2]", "order[16]")
    source.write_text(
        '#include <stdio.h>\n#include "matrix.h"\n'
        f"static const eq_mma v = {matrix_native.initialiser(variant(FP8_MMA, 'sm_90a'))};\n"
        f'int main(void) {{ printf("{" ".join("%d" for _ in members)}", {", ".join(f"v.{m}" for m in members)}); }}\n'
    )
    subprocess.run(["gcc", "-w", f"-I{matrix_native.HEADERS[0].parent}", "-o", built, source, "-lm"], check=True)
    assert subprocess.run([built], check=True, capture_output=True, text=True).stdout == "32 16 25 -133 1 4 2"


@TWINS
def test_strides_do_not_matter(fused_dot: Callable[..., Any]) -> None:
    model = variant(BF16_MMA, "sm_90a")
    tile = tiles(model, (20, 24), 3, 8)[2]
    expected = fused_dot(model, tile.a, tile.b, tile.c)
    a, b, c = (np.asfortranarray(x) for x in (tile.a, tile.b, tile.c))
    assert np.array_equal(fused_dot(model, a, b, c), expected)
    reversed_ = fused_dot(model, tile.a[::-1], tile.b[:, ::-1], tile.c[::-1, ::-1])
    assert np.array_equal(reversed_[::-1, ::-1], expected)


def test_c_is_one_of_the_terms_and_not_added_afterwards() -> None:
    # 2^24 + 1 cut at 2^24 - 25 keeps both; rounding towards zero then drops the 1.
    assert one(BF16_MMA, bf16(1.0, 1.0), bf16(1.0, 1.0), f32(2.0**24)) == f32(2.0**24 + 2)[0, 0]
    assert one(BF16_MMA, bf16(-1.0), bf16(1.0), f32(2.0**24)) == f32(2.0**24 - 1)[0, 0]
    # Below 25 bits a term is gone, whatever its sign.
    assert one(BF16_MMA, bf16(-1.0), bf16(1.0), f32(2.0**26)) == f32(2.0**26)[0, 0]


def test_8_bit_mma_sync_adds_c_last_and_to_nearest() -> None:
    small = np.array([[0x38]], dtype=np.uint8)  # 1.0
    assert one(FP8_MMA, small, small, f32(2.0**24 + 2)) == f32(2.0**24 + 4)[0, 0]
    assert one(FP8_MMA, small | 0x80, small, f32(2.0**25)) == f32(2.0**25)[0, 0]  # half of a step: to even


def test_wgmma_of_8_bit_operands_keeps_13_bits() -> None:
    small = np.array([[0x38]], dtype=np.uint8)
    assert one(FP8_WGMMA, small, small, f32(2.0**13)) == f32(2.0**13 + 1)[0, 0]
    assert one(FP8_WGMMA, small, small, f32(2.0**14)) == f32(2.0**14)[0, 0]
    # C itself loses its low bits even when there is nothing to add.
    assert one(FP8_WGMMA, 0 * small, small, f32(1.0 + 2.0**-14)) == f32(1.0)[0, 0]


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (bf16(np.nan), bf16(0.0), f32(1.0), 0x7FFFFFFF),
        (bf16(np.inf), bf16(-0.0), f32(1.0), 0x7FFFFFFF),
        (bf16(np.inf, 1.0), bf16(1.0, -np.inf), f32(1.0), 0x7FFFFFFF),
        (bf16(np.inf), bf16(1.0), f32(-np.inf), 0x7FFFFFFF),
        (bf16(np.inf), bf16(-1.0), f32(1.0), 0xFF800000),
        (bf16(1.0), bf16(-1.0), f32(np.inf), 0x7F800000),
        (bf16(1.0), bf16(1.0), np.array([[0xFF800001]], np.uint32), 0x7FFFFFFF),
        (bf16(2.0**127), bf16(2.0), f32(0.0), 0x7F800000),
        (bf16(2.0**127, -(2.0**127)), bf16(2.0, 2.0), f32(3.0), 0x00000000),
        (bf16(-0.0), bf16(1.0), f32(-0.0), 0x00000000),
        (bf16(-(2.0**-75)), bf16(2.0**-76), f32(0.0), 0x00000000),
        (bf16(2.0**-75), bf16(2.0**-74), f32(0.0), 0x00000001),
    ],
)
def test_special_operands(a: Any, b: Any, c: Any, expected: int) -> None:
    assert one(BF16_MMA, a, b, c) == expected


def test_a_product_is_not_normalised_before_it_is_aligned() -> None:
    # 1.5 * 1.5 has exponent 0 and so leaves 2^-25 alone.
    assert one(BF16_MMA, bf16(1.5, -1.5, 2.0**-12), bf16(1.5, 1.5, 2.0**-13)) == f32(2.0**-25)[0, 0]


def test_f16_results_are_rounded_to_nearest_even_once() -> None:
    tie = f16(1.0, 2.0**-11)
    assert one(F16_MMA, tie, f16(1.0, 1.0)) == f16(1.0)[0, 0]
    assert one(F16_MMA, f16(1.0, 2.0**-11, 2.0**-12), f16(1.0, 1.0, 2.0**-13)) == f16(1.0 + 2.0**-10)[0, 0]
    # The last bit is below the 25 that are kept: the tie stays one.
    assert one(F16_MMA, f16(1.0, 2.0**-11, 2.0**-13), f16(1.0, 1.0, 2.0**-13)) == f16(1.0)[0, 0]
    assert one(F16_MMA, f16(65504.0, 16.0), f16(1.0, 1.0)) == f16(np.inf)[0, 0]


def test_tf32_does_not_read_the_low_bits() -> None:
    name = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    assert one(name, f32(1.0) | 0x1FFF, f32(1.0)) == f32(1.0)[0, 0]
    assert one(name, np.array([[0x7F800001]], np.uint32), f32(1.0)) == 0x7F800000  # a NaN by its low bits only


def test_a_group_of_four_bit_products_keeps_its_exponent_when_it_cancels() -> None:
    model = variant(MXF4, "sm_100a")
    a, b = np.zeros((1, 64), np.uint8), np.full((64, 1), 2, np.uint8)  # B is 1.0
    a[0, :2] = 2, 2 | 8
    a[0, 32] = 2
    ones = np.full((2, 1), 127, np.uint8)
    for scale, expected in ((127 + 34, 1.0), (127 + 36, 0.0)):
        sa = np.array([[scale, 127]], np.uint8)
        for fused_dot in (matrix.fused_dot, matrix_native.fused_dot):
            assert fused_dot(model, a, b, None, scale_a=sa, scale_b=ones)[0, 0] == f32(expected)[0, 0]
    a[0, :2] = 0  # all products zero: the group has no exponent
    assert matrix.fused_dot(model, a, b, None, scale_a=sa, scale_b=ones)[0, 0] == f32(1.0)[0, 0]


def test_the_sign_of_a_ue4m3_scale_is_ignored_and_its_nan_is_not() -> None:
    model = variant(NVF4, "sm_100a")
    a, b = np.full((1, 64), 2, np.uint8), np.full((64, 1), 2, np.uint8)
    one_ = np.full((4, 1), 0x38, np.uint8)
    for code, expected in ((0x38, f32(64.0)[0, 0]), (0xB8, f32(64.0)[0, 0]), (0x7F, 0x7FFFFFFF)):
        sa = np.full((1, 4), code, np.uint8)
        for fused_dot in (matrix.fused_dot, matrix_native.fused_dot):
            assert fused_dot(model, a, b, None, scale_a=sa, scale_b=one_)[0, 0] == expected


@pytest.mark.parametrize(
    ("name", "arch", "reason"),
    [
        (BF16_MMA, "sm_103a", "no matrix instructions are modelled for sm_103a; modelled: sm_90, sm_100"),
        (BF16_MMA.replace("m16n8k16", "m16n8k32"), "sm_90a", "no model for k = 32; modelled: 8, 16"),
        (FP8_WGMMA, "sm_100a", "sm_100a does not have it, only sm_90"),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32", "sm_90a", FORM),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "sm_90a", "no model for operands of type s32, s8, s8"),
        (BF16_MMA.replace("bf16", "f16", 1), "sm_90a", "no model for D, A, B of types f32, f16, bf16"),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f32", "sm_90a", "no model for C of type f32 with D of type f16"),
        ("tcgen05.mma.cta_group::1.kind::i8.s32.s8.s8", "sm_100a", "no model for operands of type s32, s8, s8"),
        (NVF4.replace("block16", "block32"), "sm_100a",
         "no model for these block scales: block32 ue4m3; modelled: block32 ue8m0, block16 ue8m0, block16 ue4m3"),
        (MXF4.removesuffix(".ue8m0"), "sm_100a", "no model for these block scales: none; modelled: block32 ue8m0"),
        ("tcgen05.mma.ws.cta_group::1.kind::f16.f32.bf16.bf16", "sm_100a", FORM),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(name: str, arch: str, reason: str) -> None:
    with pytest.raises(UnknownInstructionError) as caught:
        variant(name, arch)
    assert str(caught.value) == f"{name}: {reason}"


def test_a_variant_says_where_its_parameters_come_from() -> None:
    assert variant(BF16_MMA, "sm_90a").evidence == MEASURED
    assert variant(BF16_MMA, "sm_100a").evidence == SAME_AS_MEASURED
    assert variant(MXF4, "sm_100a").evidence == PUBLISHED
    assert variant(MXF4.replace("cta_group::1", "cta_group::2"), "sm_100a").evidence == PAIR_ASSUMED


@pytest.mark.parametrize("vectors", ["scale_vec::2X", "block32"])
def test_scale_vectors_and_blocks_are_two_names_of_the_same(vectors: str) -> None:
    name = f"tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.{vectors}.f32.e2m1.e2m1.ue8m0"
    found = variant(name, "sm_100a").scales
    assert found is not None
    assert (found.block, found.format.name) == (32, "ue8m0")


@TWINS
def test_operands_that_do_not_fit_are_named(fused_dot: Callable[..., Any]) -> None:
    model = variant(BF16_MMA, "sm_90a")
    a, b = np.zeros((2, 16), np.uint16), np.zeros((16, 3), np.uint16)
    for arguments, message in (
        ((a, b[:8]), "A [2, 16] times B [8, 3], expected [M, K] times [K, N] with K a multiple of 16"),
        ((a[:, :8], b[:8]), "A [2, 8] times B [8, 3], expected [M, K] times [K, N] with K a multiple of 16"),
        ((a.astype(np.uint8), b), "A is uint8 [2, 16], expected uint16 [2, 16]"),
        ((a, b, np.zeros((3, 2), np.uint32)), "C is uint32 [3, 2], expected uint32 [2, 3]"),
    ):
        with pytest.raises(UsageError) as caught:
            fused_dot(model, *arguments)
        assert str(caught.value) == f"{BF16_MMA}: {message}"
    with pytest.raises(UsageError, match="has no block scales"):
        fused_dot(model, a, b, scale_a=np.zeros((2, 1), np.uint8))
    scaled = variant(MXF4, "sm_100a")
    with pytest.raises(UsageError, match=r"scale_b is missing, expected uint8 \[2, 1\]"):
        fused_dot(scaled, np.zeros((1, 64), np.uint8), np.zeros((64, 1), np.uint8), scale_a=np.zeros((1, 2), np.uint8))
