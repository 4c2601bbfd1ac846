"""What is known of bits, and the proofs built on it."""

from __future__ import annotations

import pytest
from ptx_run import module_text

from equiv.emulator.ptx import Register
from equiv.emulator.store import Image
from equiv.mutate.mutants import Target


def target_of(body: str) -> Target:
    return Target(Image(body.encode(), module_text(body + " ret;", ("p",)), "sm_100a", {}), "k")


@pytest.mark.parametrize(
    ("body", "zeros"),
    [
        ("cvt.f32.bf16 %r9, %rs1;", 0xFFFF),
        ("cvt.f32.bf16 %r1, %rs1; and.b32 %r9, %r1, 0x7fffffff;", 0x8000FFFF),
        ("and.b32 %r1, %r2, 0x7f800000; sub.s32 %r9, 0x7f000000, %r1;", 0x7FFFFF),
        ("and.b32 %r1, %r2, 0xf0; shl.b32 %r9, %r1, 4;", 0xFFFFF0FF),
        ("and.b32 %r1, %r2, 0xf0; shr.u32 %r9, %r1, 4;", 0xFFFFFFF0),
        ("and.b32 %r1, %r2, 6; and.b32 %r3, %r4, 12; or.b32 %r9, %r1, %r3;", 0xFFFFFFF1),
        ("and.b32 %r1, %r2, 6; shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;", 0xFFFFFFF9),
        ("cvt.u32.u16 %r9, %rs1;", 0xFFFF0000),
        ("and.b32 %r9, %r2, 1; and.b32 %r9, %r3, 2;", 0xFFFFFFFC),
        ("and.b32 %r9, %r2, 1; ld.global.b32 %r9, [%rd1];", 0),
        ("and.b32 %r9, %r2, 0xf0; AGAIN: add.s32 %r9, %r9, 32; @%p1 bra AGAIN;", 0xF),
        ("@%p1 and.b32 %r9, %r2, 1;", 0),
        ("shr.s32 %r9, %r1, 4;", 0),
        ("add.s32 %r9, %r1, 5;", 0),
    ],
)
def test_zero_bits(body: str, zeros: int) -> None:
    assert target_of(body).ranges.zeros(Register("%r9")) & 0xFFFF_FFFF == zeros


def reasons(body: str, operator: str) -> dict[str, str]:
    return {one.change.partition(" -> ")[2]: one.equivalent for one in target_of(body).mutants((operator,))}


def test_a_mask_that_differs_in_zero_bits_only_is_the_same() -> None:
    store = "st.global.b32 [%rd1], %r2;"
    found = reasons(f"cvt.f32.bf16 %r1, %rs1; and.b32 %r2, %r1, 0x7fffffff; {store}", "immediate")
    assert found["and.b32 %r2, %r1, 2147483646;"] == "the bits that the constant differs in are zero"
    assert found["and.b32 %r2, %r1, 2147483648;"] == ""
    assert reasons(f"and.b32 %r2, %r1, 0x7fffffff; {store}", "immediate")["and.b32 %r2, %r1, 2147483646;"] == ""


SCALED = "and.b32 %r1, %r2, 0x7f800000; mul.f32 %r3, %r4, %r1; mov.f32 %r5, %r3;"
CODES = "cvt.rn.satfinite.e4m3x2.f32 %rs1, %r5, %r5; st.global.b16 [%rd1], %rs1;"


def test_a_product_with_a_power_of_two_that_becomes_a_code_has_one_rounding() -> None:
    found = reasons(SCALED + CODES, "rounding")
    assert found["mul.rz.f32 %r3, %r4, %r1;"] == "a product with a power of two, of which 8 bits are kept"


@pytest.mark.parametrize(
    "body",
    [SCALED + CODES + "st.global.b32 [%rd1], %r3;", SCALED.replace("0x7f800000", "0x7f800001") + CODES],
    ids=["stored too", "no power of two"],
)
def test_it_is_not_so_if_more_of_it_is_kept_or_the_factor_has_a_mantissa(body: str) -> None:
    assert reasons(body, "rounding")["mul.rz.f32 %r3, %r4, %r1;"] == ""


def test_constants_that_compare_as_before_are_the_same() -> None:
    test = "setp.ne.b32 %p1, 1, 0; @%p1 st.global.b32 [%rd1], %r2;"
    found = reasons(test, "immediate")
    assert found["setp.ne.b32 %p1, 2, 0;"] == "constants that compare as before"
    assert found["setp.ne.b32 %p1, 0, 0;"] == ""
    one_or_zero = f"selp.b32 %r1, 1, 0, %p2; {test.replace('1, 0;', '%r1, 0;')}"
    found = reasons(one_or_zero, "immediate")
    assert found["selp.b32 %r1, 2, 0, %p2;"] == "whether it is zero is all that is read of it"
    assert found["selp.b32 %r1, 1, 1, %p2;"] == ""
    assert reasons(one_or_zero + "st.global.b32 [%rd1], %r1;", "immediate")["selp.b32 %r1, 2, 0, %p2;"] == ""


def test_whether_a_constant_is_zero_is_asked_of_the_bits_that_are_written() -> None:
    body = "selp.b16 %rs1, {0}, 0, %p2; setp.ne.b16 %p1, %rs1, 0; @%p1 st.global.b32 [%rd1], %r2;"
    assert reasons(body.format(65535), "immediate")["selp.b16 %rs1, 65536, 0, %p2;"] == ""
    found = reasons(body.format(65534), "immediate")["selp.b16 %rs1, 65535, 0, %p2;"]
    assert found == "whether it is zero is all that is read of it"


@pytest.mark.parametrize(
    "test",
    [
        "setp.eq.f32 %p1, 0f80000000, 0f00000000",
        "and.b32 %r1, %r3, 0x7fffffff; setp.eq.f32 %p1, %r1, 0f80000000",
    ],
    ids=["constants", "a bit that is never there"],
)
def test_floats_that_compare_equal_may_have_other_bits(test: str) -> None:
    found = reasons(f"{test}; @%p1 st.global.b32 [%rd1], %r2;", "constant")
    assert found
    assert set(found.values()) == {""}


def test_another_byte_of_zeros_is_the_same() -> None:
    load = "ld.global.b32 %r2, [%rd1];"
    found = reasons(f"{load} prmt.b32 %r1, %r2, 0, 0x1044; st.global.b32 [%rd1], %r1;", "immediate")
    assert found["prmt.b32 %r1, %r2, 0, 4165;"] == "the bytes that it takes instead are zero, too"
    assert found["prmt.b32 %r1, %r2, 0, 4163;"] == ""  # byte 3 of %r2
    both = f"{load} and.b32 %r3, %r2, 0xffff; prmt.b32 %r1, %r2, %r3, 0x1076; st.global.b32 [%rd1], %r1;"
    found = reasons(both, "immediate")
    assert found["prmt.b32 %r1, %r2, %r3, 4215;"] == "the bytes that it takes instead are zero, too"
    assert found["prmt.b32 %r1, %r2, %r3, 4213;"] == ""


def test_an_array_aligned_to_more_has_zeros_in_its_address() -> None:
    head = ".shared .align 64 .b8 array[128]; mov.u32 %r1, array; add.s32 %r2, %r1, 32; and.b32 %r3, %r2, 0xffe0;"
    found = reasons(head + "st.global.b32 [%rd1], %r3;", "immediate")
    assert found["and.b32 %r3, %r2, 65505;"] == "the bits that the constant differs in are zero"
    assert found["and.b32 %r3, %r2, 65503;"] == ""


def test_a_bound_that_no_value_lies_between_decides_alike() -> None:
    store = "@%p1 st.global.b32 [%rd1], %r2;"
    found = reasons(f"cvt.f32.bf16 %r1, %rs1; setp.gt.u32 %p1, %r1, 0x400000; {store}", "immediate")
    assert found["setp.gt.u32 %p1, %r1, 4194305;"] == "no value that the register can have decides otherwise"
    assert found["setp.gt.u32 %p1, %r1, 4194303;"] == ""
    assert reasons(f"setp.gt.u32 %p1, %r1, 0x400000; {store}", "immediate")["setp.gt.u32 %p1, %r1, 4194305;"] == ""


@pytest.mark.parametrize(
    ("test", "constant", "moved"),
    [
        ("gt.s32", 2147483647, 2147483648),
        ("gt.s32", 2147483648, 2147483647),
        ("ge.s32", -2147483648, -2147483649),
        ("lt.s32", -2147483648, -2147483649),
        ("le.s16", 32767, 32768),
        ("ge.u32", 4294967295, 4294967296),
        ("lt.u16", 65535, 65536),
    ],
)
def test_the_greatest_and_the_least_number_are_not_one_apart(test: str, constant: int, moved: int) -> None:
    register = "%r1" if test.endswith("32") else "%rs1"
    mask = f"and.b{test[-2:]} {register}, {register.replace('1', '2')}, 15;"
    found = reasons(f"{mask} setp.{test} %p1, {register}, {constant}; @%p1 st.global.b32 [%rd1], %r2;", "immediate")
    assert found[f"setp.{test} %p1, {register}, {moved};"] == ""


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ("and.b32 %r9, %r5, 7;", "it differs in high bits that nothing made of it depends on"),
        ("shl.b32 %r6, %r7, 2; or.b32 %r6, %r6, %r5; and.b32 %r9, %r6, 7;",
         "it differs in high bits that nothing made of it depends on"),
        ("and.b32 %r9, %r5, 8;", ""),
        ("shr.u32 %r6, %r5, 1; and.b32 %r9, %r6, 3;", ""),
        ("setp.eq.s32 %p1, %r5, 4; selp.b32 %r9, 1, 2, %p1;", ""),
    ],
    ids=["low", "on the way", "next", "shifted down", "compared"],
)  # fmt: skip
def test_adding_half_a_period_is_like_subtracting_it(use: str, why: str) -> None:
    body = f"mov.b32 %r5, %r7; AGAIN: add.s32 %r5, %r5, 4; {use} st.global.b32 [%rd1], %r9; @%p2 bra AGAIN;"
    assert reasons(body, "exchange")["sub.s32 %r5, %r5, 4;"] == why
    assert reasons(body.replace("%r5, 4;", "%r5, 2;"), "exchange")["sub.s32 %r5, %r5, 2;"] == ""
