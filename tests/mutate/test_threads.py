"""Mutants of arithmetic on thread numbers: equivalent where no thread that gets there has another value."""

from __future__ import annotations

import pytest
from ptx_run import module_text

from equiv.emulator.store import Image
from equiv.mutate.mutants import Mutant, Target

SAME = "no thread that gets there has another value"


def mutants(body: str, operator: str, threads: int = 64) -> list[Mutant]:
    text = module_text(body + " ret;", ("p",)).replace(")\n{", f")\n.reqntid {threads}\n{{")
    assert f".reqntid {threads}" in text
    return list(Target(Image(body.encode(), text, "sm_100a", {}), "k").mutants((operator,)))


def reasons(body: str, operator: str, threads: int = 64) -> dict[str, str]:
    return {one.change.partition(" -> ")[2]: one.equivalent for one in mutants(body, operator, threads)}


STORE = "cvt.u64.u32 %rd1, %r9; st.global.b32 [%rd1], %r1;"


def test_the_sign_of_a_thread_number_is_no_matter() -> None:
    found = reasons(f"mov.u32 %r1, %tid.x; shr.s32 %r2, %r1, 31; add.s32 %r9, %r1, %r2; {STORE}", "immediate")
    assert found["shr.s32 %r2, %r1, 30;"] == SAME
    assert found["shr.s32 %r2, %r1, 32;"] == SAME
    found = reasons(f"mov.u32 %r1, %tid.x; shr.s32 %r2, %r1, 5; add.s32 %r9, %r1, %r2; {STORE}", "immediate")
    assert found["shr.s32 %r2, %r1, 6;"] == ""


def test_a_change_that_later_bits_drop_vanishes_on_the_way() -> None:
    body = f"mov.u32 %r1, %tid.x; mul.lo.s32 %r2, %r1, 32; shr.u32 %r9, %r2, 5; {STORE}"
    found = reasons(body, "immediate")
    assert found["mul.lo.s32 %r2, %r1, 33;"] == ""  # 62 * 33 / 32 = 63
    assert reasons(body, "immediate", 32)["mul.lo.s32 %r2, %r1, 33;"] == SAME
    assert reasons(body, "immediate", 32)["mul.lo.s32 %r2, %r1, 31;"] == ""


def test_only_threads_that_get_there_count() -> None:
    rest = f"add.s32 %r2, %r1, -32; setp.lt.s32 %p2, %r2, 0; selp.b32 %r9, 1, 2, %p2; {STORE}"
    always = reasons(f"mov.u32 %r1, %tid.x; {rest}", "comparison")
    upper = reasons(f"mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 33; @%p1 bra END; {rest} END:", "comparison")
    assert always["setp.le.s32 %p2, %r2, 0;"] == ""
    assert upper["setp.le.s32 %p2, %r2, 0;"] == SAME
    assert upper["setp.le.u32 %p1, %r1, 33;"] == ""


def test_a_branch_that_no_thread_takes_may_go() -> None:
    for most, why in ((63, "no thread takes the branch"), (62, "")):
        body = f"mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, {most}; @%p1 bra END; st.global.b32 [%rd1], %r1; END:"
        (found,) = [one for one in mutants(body, "deletion") if one.before.opcode == "bra"]
        assert found.equivalent == why


def test_where_no_thread_gets_nothing_matters() -> None:
    body = "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, {0}; @%p1 bra END; st.global.b32 [%rd1], %r1; END:"
    for least, why in ((64, "no thread gets there"), (63, "")):
        assert reasons(body.format(least), "immediate")["st.global.b32 [%rd1+4], %r1;"] == why


def test_unknown_values_registers_with_two_makers_and_guards_prove_nothing() -> None:
    for start in ("ld.global.b32 %r1, [%rd2];", "mov.u32 %r1, %tid.x; @%p3 mov.u32 %r1, 7;", "mov.u32 %r1, %ctaid.x;"):
        found = reasons(f"{start} shr.s32 %r2, %r1, 31; add.s32 %r9, %r1, %r2; {STORE}", "immediate")
        assert found["shr.s32 %r2, %r1, 30;"] == ""
    guarded = f"mov.u32 %r1, %tid.x; @%p1 shr.s32 %r2, %r1, 31; add.s32 %r9, %r1, %r2; {STORE}"
    assert reasons(guarded, "immediate")["@%p1 shr.s32 %r2, %r1, 30;"] == ""


@pytest.mark.parametrize(
    ("shuffle", "now", "same"),
    [
        ("idx.b32 %r9, %r2, 0, 31, -1", "idx.b32 %r9, %r2, 0, 32, -1", True),  # the clamp's low five bits are 0
        ("idx.b32 %r9, %r2, 0, 31, -1", "idx.b32 %r9, %r2, 1, 31, -1", False),
        ("bfly.b32 %r9, %r2, 16, 31, -1", "bfly.b32 %r9, %r2, 16, 30, -1", False),
        ("idx.b32 %r9, %r2, 6, 6175, -1", "idx.b32 %r9, %r2, 6, 6174, -1", True),
    ],
)
def test_a_shuffle_of_unknown_values_is_known_by_its_lanes(shuffle: str, now: str, same: bool) -> None:
    found = reasons(f"ld.global.b32 %r2, [%rd2]; shfl.sync.{shuffle}; {STORE}", "immediate")
    assert found[f"shfl.sync.{now};"] == ("every lane gets the value of the same one" if same else "")


@pytest.mark.parametrize(("target", "why"), [("%r9", "every lane has the same value"), ("%r9|%p1", "")])
def test_a_shuffle_that_also_says_whether_there_is_such_a_lane_is_not_proved(target: str, why: str) -> None:
    body = (
        f".shared .align 16 .b8 shared[64]; mov.b32 %r2, shared; shfl.sync.down.b32 {target}, %r2, 1, 31, -1; {STORE}"
    )
    assert reasons(body, "immediate")[f"shfl.sync.down.b32 {target}, %r2, 2, 31, -1;"] == why


def test_any_lane_will_do_where_a_warp_has_one_value() -> None:
    body = f"mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 5; shfl.sync.idx.b32 %r9, %r2, 0, 31, -1; {STORE}"
    assert reasons(body, "immediate")["shfl.sync.idx.b32 %r9, %r2, -1, 31, -1;"] == SAME


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("mov.b64 %rd2, p; cvt.u32.u64 %r1, %rd2;", ""),  # a conversion is not looked through
        ("mov.b32 %r3, 4096; add.s32 %r1, %r3, 16;", "every lane has the same value"),
        ("mov.b32 %r3, shared; add.s32 %r1, %r3, 16;", "every lane has the same value"),
        ("mov.u32 %r3, %tid.x; mov.b32 %r4, shared; add.s32 %r1, %r3, %r4;", ""),
    ],
    ids=["unknown", "constant", "address", "of the thread"],
)
def test_any_lane_will_do_for_what_a_whole_cta_shares(start: str, why: str) -> None:
    body = f".shared .align 16 .b8 shared[64]; {start} shfl.sync.idx.b32 %r9, %r1, 0, 31, -1; {STORE}"
    assert reasons(body, "immediate")["shfl.sync.idx.b32 %r9, %r1, 1, 31, -1;"] == why


@pytest.mark.parametrize(
    ("shift", "why"), [("shl.b64", ""), ("shr.u64", ""), ("shr.s64", SAME)], ids=["left", "right", "signed"]
)
def test_a_shift_of_64_bits_by_64_is_none_by_63_but_for_the_sign(shift: str, why: str) -> None:
    body = f"mov.u32 %r1, %tid.x; cvt.u64.u32 %rd2, %r1; not.b64 %rd3, %rd2; {shift} %rd1, %rd3, 63;"
    assert reasons(f"{body} st.global.b32 [%rd1], %r1;", "immediate")[f"{shift} %rd1, %rd3, 64;"] == why


@pytest.mark.parametrize(("kind", "why"), [("bf16", ""), ("s16", SAME)])
def test_bf16_values_are_not_compared_as_whole_numbers(kind: str, why: str) -> None:
    body = f"mov.b16 %rs1, 0; mov.b16 %rs2, 0x8000; setp.gt.{kind} %p1, %rs1, %rs2; selp.b32 %r9, 1, 2, %p1; {STORE}"
    assert reasons(body, "comparison")[f"setp.ge.{kind} %p1, %rs1, %rs2;"] == why
