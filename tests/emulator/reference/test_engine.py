"""The portable engine against the C engine: bytes, counts of instructions, and words of errors."""

from __future__ import annotations

import numpy as np
import pytest
from both_engines import agree
from ptx_run import SPECIALS, module_text

from equiv.emulator import engine
from equiv.emulator.ptx_parser import parse
from equiv.emulator.reference import engine as reference
from equiv.errors import DeviceError, UnknownInstructionError

OUT = (
    "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [out]; mov.u32 %r30, %ctaid.x; mov.u32 %r31, %ntid.x;"
    " mad.lo.u32 %r32, %r30, %r31, %r1; mad.wide.u32 %rd2, %r32, 4, %rd1;"
)
STORE = "st.global.b32 [%rd2], %r9; ret;"
SHARED = ".shared .align 16 .b8 buffer[1024];"


def _agree(
    body: str, threads: int = 64, grid: int = 2, *, cluster: int = 1, outside: str = "", budget: int | None = None
) -> tuple[str, np.ndarray]:
    data = np.random.default_rng(5).integers(0, 1 << 32, threads * grid, dtype=np.uint32)
    data[: len(SPECIALS)] = SPECIALS[: len(data)]
    config = engine.LaunchConfig((grid, 1, 1), (threads, 1, 1), (cluster, 1, 1))
    text = module_text(OUT + "\n" + body, ("out",), outside=outside)
    error, (left,) = agree(text, [data.view(np.uint8)], config, budget=budget)
    return error, left.view(np.uint32)


def test_lanes_that_part_in_loops_and_branches() -> None:
    error, got = _agree(
        """
    mov.b32 %r9, 0; add.u32 %r2, %r32, 1;
LOOP: setp.eq.u32 %p1, %r2, 1;
    @%p1 bra DONE;
    and.b32 %r3, %r2, 1; setp.ne.b32 %p2, %r3, 0;
    @%p2 bra ODD;
    shr.u32 %r2, %r2, 1;
    bra NEXT;
ODD: mad.lo.u32 %r2, %r2, 3, 1;
NEXT: add.u32 %r9, %r9, 1;
    bra LOOP;
DONE:
"""
        + STORE
    )
    assert not error
    assert got[26] == 111  # Collatz steps of 27


def test_a_reduction_through_shared_memory_and_two_barriers() -> None:
    error, got = _agree(
        """
    mov.u32 %r2, buffer; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3;
    st.shared.b32 [%r2], %r1; bar.sync 0;
    xor.b32 %r4, %r3, 128; mov.u32 %r5, buffer; add.u32 %r5, %r5, %r4; ld.shared.b32 %r6, [%r5];
    bar.sync 1, 64; add.u32 %r9, %r6, %r1;
"""
        + STORE,
        outside=SHARED,
    )
    assert not error
    assert got[:64].tolist() == [(i ^ 32) + i for i in range(64)]


def test_shuffles_votes_and_matches_under_a_partial_mask() -> None:
    error, _ = _agree(
        """
    ld.global.b32 %r3, [%rd2]; mov.b32 %r9, 0;
    setp.lt.u32 %p1, %r1, 40;
    @!%p1 bra SKIP;
    activemask.b32 %r4;
    shfl.sync.up.b32 %r5|%p2, %r3, 3, 0, %r4; shfl.sync.down.b32 %r6|%p3, %r3, 5, 0x181f, %r4;
    shfl.sync.idx.b32 %r7, %r3, 9, 0x1f, %r4; vote.sync.ballot.b32 %r8, %p2, %r4;
    match.any.sync.b32 %r10, %r3, %r4; redux.sync.add.s32 %r11, %r3, %r4; redux.sync.max.f32 %r12, %r3, %r4;
    elect.sync %r13|%p4, %r4;
    xor.b32 %r9, %r5, %r6; xor.b32 %r9, %r9, %r7; xor.b32 %r9, %r9, %r8; xor.b32 %r9, %r9, %r10; xor.b32 %r9, %r9, %r11;
    xor.b32 %r9, %r9, %r12; add.u32 %r9, %r9, %r13; @%p3 add.u32 %r9, %r9, 1; @%p4 add.u32 %r9, %r9, 7;
SKIP:
"""
        + STORE
    )
    assert not error


def test_stores_to_one_address_atomics_and_generic_addresses() -> None:
    error, _ = _agree(
        """
    ld.global.b32 %r3, [%rd2]; bar.sync 0;
    st.global.b32 [%rd1+8], %r3; atom.global.add.u32 %r4, [%rd1+16], %r3; red.global.max.s32 [%rd1+20], %r3;
    red.global.add.f32 [%rd1+24], %r3; atom.global.cas.b32 %r5, [%rd1+28], %r4, %r3;
    mov.u32 %r6, buffer; cvt.u64.u32 %rd4, %r6; cvta.shared.u64 %rd4, %rd4; st.b32 [%rd4], %r5; bar.sync 0;
    ld.b32 %r9, [%rd4]; setp.gt.u32 %p1, %r1, 8; @!%p1 ret;
"""
        + STORE,
        outside=SHARED,
        grid=1,
        threads=32,
    )
    assert not error


def test_a_cluster_reads_its_other_cta() -> None:
    error, got = _agree(
        """
    mov.u32 %r2, buffer; mov.u32 %r3, %cluster_ctarank; add.u32 %r4, %r3, 100; st.shared.b32 [%r2], %r4;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 %r5, %r3, 1; mapa.shared::cluster.u32 %r6, %r2, %r5; ld.shared::cluster.b32 %r9, [%r6];
    barrier.cluster.arrive; barrier.cluster.wait;
"""
        + STORE,
        outside=SHARED,
        cluster=2,
        threads=32,
    )
    assert not error
    assert got[[0, 32]].tolist() == [101, 100]


def test_cp_async_zero_fills_behind_what_it_reads() -> None:
    error, got = _agree(
        """
    mov.u32 %r2, buffer; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3; and.b32 %r4, %r1, 3;
    cp.async.ca.shared.global [%r2], [%rd2], 4, %r4; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    ld.shared.b32 %r9, [%r2];
"""
        + STORE,
        outside=SHARED,
        grid=1,
    )
    assert not error
    assert got[20] == 0
    assert got[41] < 256


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("ld.global.b32 %r9, [%rd2+512];", "just past the end"),  # no other memory is nearer
        ("add.u64 %rd2, %rd2, 2; ld.global.b32 %r9, [%rd2];", "is not a multiple of 4"),
        ("mov.u32 %r2, 0x400; ld.shared.b32 %r9, [%r2+2000];", "4 bytes at shared address"),
        ("setp.gt.u32 %p1, %r1, 40; @%p1 bra FAR; bar.sync 0; FAR: bar.warp.sync 0xffffffff; bar.sync 1;", "deadlock"),
        ("bar.sync 0, 48;", "not a multiple of 32"),
        ("trap;", "the kernel trapped"),
        (
            """setp.ne.u32 %p1, %r1, 0; mov.u32 %r2, buffer; @%p1 bra GO;
            mbarrier.init.shared.b64 [%r2], 2; mbarrier.arrive.shared.b64 %rd4, [%r2], 0; GO:""",
            "0 arrivals at the mbarrier",
        ),
    ],
)
def test_faults_are_told_in_the_words_of_the_c_engine(body: str, words: str) -> None:
    error, _ = _agree(body + STORE, outside=SHARED)
    assert words in error


def test_a_budget_ends_an_endless_loop() -> None:
    error, _ = _agree("L: bra L;", grid=1, threads=32, budget=100000)
    assert "still running after 100000 warp instructions" in error


def test_a_kernel_that_is_not_there_and_an_unknown_instruction_are_named() -> None:
    with pytest.raises(DeviceError, match="no kernel `other` in the module; it has k"):
        reference.load(parse(module_text("ret;", ())), "other", "sm_90a")
    with pytest.raises(UnknownInstructionError, match=r"frobnicate.b32 \(PTX line \d+\): unknown instruction"):
        reference.load(parse(module_text("frobnicate.b32 %r1, %r2; ret;", ())), "k", "sm_90a")


def test_clocks_count_the_instructions_of_a_warp_and_always_grow() -> None:
    error, got = _agree(
        """
    mov.u64 %rd5, %clock64; mov.u64 %rd6, %globaltimer; mov.u32 %r5, %clock; mov.u32 %r6, %globaltimer_hi;
    cvt.u32.u64 %r7, %rd5; cvt.u32.u64 %r8, %rd6; sub.u32 %r5, %r5, %r8; sub.u32 %r8, %r8, %r7;
    shl.b32 %r5, %r5, 8; shl.b32 %r8, %r8, 4; or.b32 %r9, %r5, %r8; or.b32 %r9, %r9, %r6;
"""
        + STORE
    )
    assert not error
    assert set(got.tolist()) == {0x110}  # one instruction between each two, and less than 2^32 of them


def test_a_loop_that_waits_for_the_clock_ends() -> None:
    error, got = _agree(
        """
    mov.u64 %rd5, %clock64;
W: mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5; setp.lt.u64 %p1, %rd6, 1000; @%p1 bra W;
    cvt.u32.u64 %r9, %rd6;
"""
        + STORE
    )
    assert not error
    assert set(got.tolist()) == {1001}
