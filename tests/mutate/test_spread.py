"""A change is followed thread by thread to where it could be seen, through what is not known, too."""

from __future__ import annotations

import pytest
from ptx_run import module_text

from equiv.emulator.store import Image
from equiv.mutate.mutants import Target

SAME = "no thread that gets there has another value"
START = "mov.u32 %r1, %tid.x; ld.global.b32 %r2, [%rd2]; ld.global.b32 %r3, [%rd2+4]; ld.global.b32 %r8, [%rd2+8];"
STORE = "st.global.b32 [%rd1], %r9;"


def reasons(body: str, operator: str) -> dict[str, str]:
    text = module_text(f"{START} {body} ret;", ("p",)).replace(")\n{", ")\n.reqntid 64\n{")
    target = Target(Image(body.encode(), text, "sm_100a", {}), "k")
    return {one.change: one.equivalent for one in target.mutants((operator,))}


@pytest.mark.parametrize(("least", "why"), [(32, SAME), (31, "")])
def test_a_branch_keeps_the_threads_away_that_would_notice(least: int, why: str) -> None:
    body = f"setp.lt.u32 %p2, %r1, 32; selp.b32 %r4, 7, 8, %p2; add.s32 %r9, %r2, %r4; setp.lt.u32 %p1, %r1, {least};"
    found = reasons(f"{body} @%p1 bra END; {STORE} END:", "immediate")
    assert found["selp.b32 %r4, 7, 8, %p2; -> selp.b32 %r4, 8, 8, %p2;"] == why
    assert found["selp.b32 %r4, 7, 8, %p2; -> selp.b32 %r4, 7, 9, %p2;"] == ""


@pytest.mark.parametrize(("bound", "why"), [(64, SAME), (63, "")])
def test_a_selection_by_a_known_predicate_takes_over_its_own_side(bound: int, why: str) -> None:
    body = f"add.s32 %r4, %r2, %r3; setp.lt.u32 %p1, %r1, {bound}; selp.b32 %r9, %r8, %r4, %p1; {STORE}"
    assert reasons(body, "exchange")["add.s32 %r4, %r2, %r3; -> sub.s32 %r4, %r2, %r3;"] == why
    assert reasons(body, "deletion")["add.s32 %r4, %r2, %r3; -> (deleted)"] == why


@pytest.mark.parametrize(
    ("test", "joined", "why"), [("lt", "and", SAME), ("gt", "and", ""), ("lt", "or", ""), ("gt", "or", SAME)]
)
def test_what_is_false_or_true_anyway_hides_the_other_side(test: str, joined: str, why: str) -> None:
    body = (
        f"setp.eq.s32 %p1, %r2, %r3; setp.{test}.s32 %p2, %r1, -1; {joined}.pred %p3, %p1, %p2;"
        f"selp.b32 %r9, 1, 2, %p3; {STORE}"
    )
    assert reasons(body, "comparison")["setp.eq.s32 %p1, %r2, %r3; -> setp.ne.s32 %p1, %r2, %r3;"] == why


@pytest.mark.parametrize(
    "use",
    [
        "st.global.b32 [%rd1], %r4;",
        "cvt.u64.u32 %rd3, %r4; ld.global.b32 %r9, [%rd3];",
        "shfl.sync.bfly.b32 %r9, %r4, 1, 31, -1;",
        "setp.eq.s32 %p1, %r4, 0; @%p1 bra END; bar.sync 0; END:",
        "setp.eq.s32 %p1, %r4, 0; @%p1 st.global.b32 [%rd1], %r3;",
        "mov.b32 %r5, 0; AGAIN: add.s32 %r5, %r5, %r4; setp.lt.s32 %p1, %r5, 9; @%p1 bra AGAIN;",
        "mov.b32 %r5, 0; @%p2 mov.b32 %r5, %r4; st.global.b32 [%rd1], %r5;",
    ],
    ids=["store", "address", "shuffle", "branch", "guard", "loop", "guarded move"],
)
def test_what_leaves_a_thread_can_be_seen(use: str) -> None:
    found = reasons(f"add.s32 %r4, %r2, %r3; {use}", "exchange")
    assert found["add.s32 %r4, %r2, %r3; -> sub.s32 %r4, %r2, %r3;"] == ""


def test_a_selection_by_a_predicate_that_changes_itself_can_be_seen() -> None:
    body = f"setp.lt.u32 %p1, %r1, 5; selp.b32 %r9, %r2, %r3, %p1; {STORE}"
    assert reasons(body, "comparison")["setp.lt.u32 %p1, %r1, 5; -> setp.le.u32 %p1, %r1, 5;"] == ""


def test_other_members_of_a_shuffle_wait_for_each_other() -> None:
    """What the shuffle gives is never selected, but who takes part is no matter of values."""
    body = f"shfl.sync.bfly.b32 %r4, %r2, 1, 31, -1; setp.lt.u32 %p1, %r1, 64; selp.b32 %r9, %r8, %r4, %p1; {STORE}"
    found = reasons(body, "immediate")
    shuffle = "shfl.sync.bfly.b32 %r4, %r2, 1, 31, -1;"
    assert found[f"{shuffle} -> shfl.sync.bfly.b32 %r4, %r2, 2, 31, -1;"] == SAME
    assert found[f"{shuffle} -> shfl.sync.bfly.b32 %r4, %r2, 1, 31, -2;"] == ""


def test_a_carry_is_no_arithmetic_of_one_register() -> None:
    body = "add.cc.u32 %r4, %r2, %r3; addc.u32 %r9, %r2, %r2; st.global.b32 [%rd1], %r9;"
    assert reasons(body, "deletion")["add.cc.u32 %r4, %r2, %r3; -> (deleted)"] == ""
