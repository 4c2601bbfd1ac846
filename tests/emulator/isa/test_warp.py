from __future__ import annotations

import numpy as np
import pytest
from ptx_run import each, module_text, one, run

from equiv.emulator.engine import LaunchConfig
from equiv.errors import DeadlockError, EmulatorError

LANES = np.arange(32)
VALUES = np.random.default_rng(3).integers(0, 1 << 32, 32, np.uint32)


def _source(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The lane read and whether it is in range, from the pseudo code of the PTX manual."""
    clamp, segment = c & 31, c >> 8 & 31
    low = lane & segment
    high = low | clamp & ~segment & 31
    lowest = low | clamp & ~segment & 31 if mode == "up" else low
    j, valid = {
        "up": (lane - b, lane - b >= lowest),
        "down": (lane + b, lane + b <= high),
        "bfly": (lane ^ b, lane ^ b <= high),
        "idx": (low | b & ~segment & 31, (low | b & ~segment & 31) <= high),
    }[mode]
    return (j if valid else lane), valid


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize(("b", "segment"), [(1, 0), (16, 0), (3, 24), (5, 16), (31, 0), (0, 28)])
def test_shuffle_reads_the_lane_of_the_manual(mode: str, b: int, segment: int) -> None:
    c = segment << 8 | (0 if mode == "up" else 31)
    got = each(f"shfl.sync.{mode}.b32 %r20|%p1, %r1, {b}, {c}, -1;", {"%r1": VALUES}, {"%r20": 32, "%p1": 1})
    want = [_source(mode, lane, b, c) for lane in range(32)]
    np.testing.assert_array_equal(got["%r20"], VALUES[[lane for lane, _ in want]])
    np.testing.assert_array_equal(got["%p1"], np.array([valid for _, valid in want], np.uint8))


def test_shuffle_takes_another_source_lane_in_each_lane() -> None:
    index = np.random.default_rng(4).integers(0, 32, 32).astype(np.uint32)
    got = each("shfl.sync.idx.b32 %r20, %r1, %r2, 31, -1;", {"%r1": VALUES, "%r2": index}, {"%r20": 32})
    np.testing.assert_array_equal(got["%r20"], VALUES[index])


def test_shuffle_into_its_own_source_reads_the_old_values() -> None:
    got = each("shfl.sync.bfly.b32 %r1, %r1, 1, 31, -1; mov.b32 %r20, %r1;", {"%r1": VALUES}, {"%r20": 32})
    np.testing.assert_array_equal(got["%r20"], VALUES[LANES ^ 1])


def test_votes_count_the_lanes_that_take_part() -> None:
    true = (LANES % 3 == 0).astype(np.uint8)
    got = each(
        "vote.sync.ballot.b32 %r20, %p1, -1; vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1;"
        "vote.sync.all.pred %p4, !%p5, -1;",
        {"%p1": true, "%p5": np.zeros(32, np.uint8)},
        {"%r20": 32, "%p2": 1, "%p3": 1, "%p4": 1},
    )
    assert set(got["%r20"]) == {sum(1 << lane for lane in range(0, 32, 3))}
    assert set(got["%p2"]) == {1}
    assert set(got["%p3"]) == {0}
    assert set(got["%p4"]) == {1}


def test_integer_reductions() -> None:
    signed = VALUES.view(np.int32)
    for operation, want in {
        "add.u32": VALUES.sum(dtype=np.uint32),
        "max.u32": VALUES.max(),
        "min.s32": signed.min().view(np.uint32),
        "max.s32": signed.max().view(np.uint32),
        "and.b32": np.bitwise_and.reduce(VALUES),
        "or.b32": np.bitwise_or.reduce(VALUES),
        "xor.b32": np.bitwise_xor.reduce(VALUES),
    }.items():
        assert set(one(f"redux.sync.{operation}", "%r20", VALUES, "-1")) == {want}, operation


def test_a_reduction_is_over_the_lanes_that_execute_it() -> None:
    got = each(
        "mov.b32 %r20, 0; @%p1 redux.sync.add.u32 %r20, %r1, 0x0000ffff;",
        {"%r1": VALUES, "%p1": (LANES < 16).astype(np.uint8)},
        {"%r20": 32},
    )["%r20"]
    np.testing.assert_array_equal(got, np.where(LANES < 16, VALUES[:16].sum(dtype=np.uint32), 0))


def test_float_reduction_skips_nan_unless_told_and_orders_zeros() -> None:
    values = np.full(32, 0xFFC00000, np.uint32)
    assert set(one("redux.sync.max.f32", "%r20", values, "-1")) == {0x7FFFFFFF}
    values[3], values[7], values[9] = 0x80000000, 0, 0xBF800000
    assert set(one("redux.sync.max.f32", "%r20", values, "-1")) == {0}
    assert set(one("redux.sync.min.f32", "%r20", values, "-1")) == {0xBF800000}
    assert set(one("redux.sync.max.abs.f32", "%r20", values, "-1")) == {0x3F800000}
    assert set(one("redux.sync.max.NaN.f32", "%r20", values, "-1")) == {0x7FFFFFFF}


def test_the_lowest_lane_is_elected() -> None:
    got = each("elect.sync %r20|%p1, -1;", {"%r1": VALUES}, {"%r20": 32, "%p1": 1})
    assert set(got["%r20"]) == {0}
    np.testing.assert_array_equal(got["%p1"], (LANES == 0).astype(np.uint8))


def test_matching_lanes_find_each_other() -> None:
    keys = (LANES % 4).astype(np.uint32)
    got = each(
        "match.any.sync.b32 %r20, %r1, -1; match.all.sync.b32 %r21|%p1, %r1, -1;",
        {"%r1": keys},
        {"%r20": 32, "%r21": 32, "%p1": 1},
    )
    np.testing.assert_array_equal(got["%r20"], [sum(1 << lane for lane in range(k, 32, 4)) for k in keys])
    assert set(got["%r21"]) == {0}
    assert set(got["%p1"]) == {0}


DIVERGED = """
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16; mov.b32 %r2, 100;
    @%p1 bra LOW;
    add.u32 %r2, %r2, %r1;
    bra JOIN;
LOW: mul.lo.u32 %r2, %r1, 3;
JOIN: shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1;
    ld.param.b64 %rd1, [out]; mad.wide.u32 %rd1, %r1, 4, %rd1; st.global.b32 [%rd1], %r3; ret;
"""


def test_a_shuffle_waits_for_the_lanes_it_names() -> None:
    out = np.zeros(32, np.uint32)
    run(module_text(DIVERGED, ("out",)), [out], LaunchConfig((1, 1, 1), (32, 1, 1)))
    before = np.where(LANES < 16, LANES * 3, 100 + LANES)
    np.testing.assert_array_equal(out, before[LANES ^ 16])


def test_a_shuffle_that_never_gets_its_lanes_is_a_deadlock_that_names_them() -> None:
    body = """
        mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16;
        @%p1 bra LOW;
        bar.warp.sync -1;
        ret;
    LOW: shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;
        ret;
    """
    with pytest.raises(DeadlockError) as caught:
        run(module_text(body, ("out",)), [np.zeros(1, np.uint32)], LaunchConfig((1, 1, 1), (32, 1, 1)))
    text = str(caught.value)
    assert (
        "lanes 0x0000ffff wait for lanes 0xffff0000 to execute it with them: PTX line 14 `shfl.sync.bfly.b32`" in text
    )
    assert "lanes 0xffff0000 wait for lanes 0x0000ffff to reach bar.warp.sync: PTX line 12 `bar.warp.sync`" in text


@pytest.mark.parametrize(
    ("instruction", "mask"),
    [
        ("shfl.sync.bfly.b32 %r3, %r1, 1, 31, %r2", 0xFFFF_FFFE),
        ("redux.sync.max.u32 %r3, %r1, %r2", 0),
        ("bar.warp.sync %r2", 0x0000_FFFE),
    ],
)
def test_a_lane_that_its_own_membermask_does_not_name_is_a_fault(instruction: str, mask: int) -> None:
    text = module_text(f"mov.u32 %r1, %tid.x; mov.b32 %r2, {mask:#x}; {instruction}; ret;", ("out",))
    with pytest.raises(EmulatorError, match=f"not in the membermask {mask:#010x} that it executes"):
        run(text, [np.zeros(1, np.uint32)], LaunchConfig((1, 1, 1), (32, 1, 1)))


def test_halves_of_a_warp_may_name_themselves_in_one_instruction() -> None:
    got = each(
        "selp.b32 %r3, 0x0000ffff, 0xffff0000, %p1; shfl.sync.bfly.b32 %r20, %r1, 1, 31, %r3;",
        {"%r1": VALUES, "%p1": (LANES < 16).astype(np.uint8)},
        {"%r20": 32},
    )["%r20"]
    np.testing.assert_array_equal(got, VALUES[LANES ^ 1])
