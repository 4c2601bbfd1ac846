from __future__ import annotations

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator.engine import LaunchConfig
from equiv.errors import DeadlockError, EmulatorError, UnknownInstructionError

SHARED = ".shared .align 16 .b8 buffer[1024]; .shared .align 8 .b64 bar[4];"
HEAD = "mov.u32 %r1, %tid.x; mov.b32 %r20, bar; mov.b32 %r21, buffer; ld.param.b64 %rd1, [out];\n"


def _run(
    body: str,
    threads: int = 32,
    *,
    words: int = 8,
    cluster: int = 1,
    completion: str = "eager",
    seed: int | None = None,
) -> Array:
    """Run a kernel that writes 64-bit words to `%rd1`."""
    out = np.zeros(words, np.uint64)
    config = LaunchConfig((cluster, 1, 1), (threads, 1, 1), (cluster, 1, 1))
    text = module_text(HEAD + body + "\nret;", ("out",), outside=SHARED)
    run(text, [out], config, completion=completion, seed=seed)
    return out


ONE = "setp.ne.u32 %p9, %r1, 0; @%p9 bra END;\n{}\nEND:"


def test_a_phase_ends_with_its_last_arrival_and_the_next_takes_as_many() -> None:
    body = """
        mbarrier.init.shared::cta.b64 [%r20], 3;
        mbarrier.arrive.shared.b64 %rd2, [%r20];
        mbarrier.test_wait.shared.b64 %p1, [%r20], %rd2;
        mbarrier.arrive.shared::cta.b64 %rd3, [%r20], 2;
        mbarrier.test_wait.shared.b64 %p2, [%r20], %rd2;
        mbarrier.arrive.release.cta.shared.b64 %rd4, [%r20], 3;
        mbarrier.test_wait.parity.acquire.cta.shared.b64 %p3, [%r20], 1;
        mbarrier.try_wait.parity.shared.b64 %p4, [%r20], 0;
        mbarrier.pending_count.b64 %r2, %rd2; mbarrier.pending_count.b64 %r3, %rd3;
        mbarrier.pending_count.b64 %r4, %rd4;
        selp.b32 %r5, 1, 0, %p1; selp.b32 %r6, 1, 0, %p2; selp.b32 %r7, 1, 0, %p3; selp.b32 %r8, 1, 0, %p4;
        st.global.v2.b32 [%rd1], {%r2, %r3}; st.global.v2.b32 [%rd1+8], {%r4, %r5};
        st.global.v2.b32 [%rd1+16], {%r6, %r7}; st.global.b32 [%rd1+24], %r8;
    """
    got = _run(ONE.format(body)).view(np.uint32)
    np.testing.assert_array_equal(got[:6], [3, 2, 3, 0, 1, 1])
    assert got[6] == 0  # two phases are over: parity 0 is that of the third, which is not


def test_dropped_arrivals_are_missing_from_the_next_phase_only() -> None:
    body = """
        mbarrier.init.shared.b64 [%r20], 3;
        mbarrier.arrive_drop.shared.b64 %rd2, [%r20], 2;
        mbarrier.arrive.shared.b64 %rd3, [%r20];
        mbarrier.arrive.shared.b64 %rd4, [%r20];
        mbarrier.try_wait.parity.shared.b64 %p1, [%r20], 1;
        mbarrier.pending_count.b64 %r3, %rd3; mbarrier.pending_count.b64 %r4, %rd4; selp.b32 %r5, 1, 0, %p1;
        st.global.v2.b32 [%rd1], {%r3, %r4}; st.global.b32 [%rd1+8], %r5;
    """
    np.testing.assert_array_equal(_run(ONE.format(body)).view(np.uint32)[:3], [1, 1, 1])


def test_bytes_may_come_before_they_are_expected() -> None:
    body = """
        mbarrier.init.shared.b64 [%r20], 1;
        mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r20], 48;
        mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 16;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 64;
        mbarrier.test_wait.parity.shared.b64 %p1, [%r20], 0;
        mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 32;
        mbarrier.test_wait.parity.shared.b64 %p2, [%r20], 0;
        selp.b32 %r5, 1, 0, %p1; selp.b32 %r6, 1, 0, %p2; st.global.v2.b32 [%rd1], {%r5, %r6};
    """
    np.testing.assert_array_equal(_run(ONE.format(body)).view(np.uint32)[:2], [0, 1])


WAIT = "{0}: mbarrier.try_wait.parity.shared.b64 %p8, [%r20], {1}, 1000; @!%p8 bra {0};"


@pytest.mark.parametrize("seed", [None, 3, 77])
def test_threads_wait_for_arrivals_of_other_warps_phase_after_phase(seed: int | None) -> None:
    body = f"""
        setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r20], 96; @%p1 st.shared.b32 [%r21], %r1;
        bar.sync 0;
        atom.shared.add.u32 %r2, [%r21], 1;
        mbarrier.arrive.shared.b64 %rd9, [%r20];
        {WAIT.format("W0", 0)}
        ld.shared.b32 %r3, [%r21]; bar.sync 0;
        atom.shared.add.u32 %r2, [%r21], 1;
        mbarrier.arrive.shared.b64 %rd9, [%r20];
        {WAIT.format("W1", 1)}
        ld.shared.b32 %r4, [%r21];
        mad.wide.u32 %rd2, %r1, 8, %rd1; st.global.v2.b32 [%rd2], {{%r3, %r4}};
    """
    got = _run(body, 96, words=96, seed=seed).view(np.uint32).reshape(96, 2)
    np.testing.assert_array_equal(got, np.tile(np.array([96, 192], np.uint32), (96, 1)))


def test_lanes_of_a_warp_may_wait_for_different_mbarriers() -> None:
    body = """
        shl.b32 %r2, %r1, 3; and.b32 %r2, %r2, 24; add.u32 %r20, %r20, %r2; setp.lt.u32 %p1, %r1, 4;
        @%p1 mbarrier.init.shared.b64 [%r20], 1; bar.sync 0;
        setp.ge.u32 %p2, %r1, 32; @%p2 bra SIGNAL;
        W: mbarrier.try_wait.parity.shared.b64 %p8, [%r20], 0; @!%p8 bra W;
        bra STORE;
        SIGNAL: setp.ge.u32 %p3, %r1, 36; @%p3 bra STORE; mbarrier.arrive.shared.b64 %rd9, [%r20];
        STORE: mad.wide.u32 %rd2, %r1, 8, %rd1; st.global.b32 [%rd2], %r1;
    """
    np.testing.assert_array_equal(_run(body, 64, words=64), np.arange(64))


def test_a_cta_arrives_at_the_mbarrier_of_another_through_mapa() -> None:
    body = """
        mov.u32 %r2, %cluster_ctarank; setp.eq.u32 %p1, %r1, 0;
        @%p1 mbarrier.init.shared.b64 [%r20], 4; fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        mapa.shared::cluster.u32 %r3, %r20, 0;
        @%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
        setp.ne.u32 %p2, %r2, 0; @%p2 bra DONE;
        W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p8, [%r20], 0; @!%p8 bra W;
        getctarank.shared::cluster.u32 %r5, %r3; st.global.v2.b32 [%rd1], {%r3, %r5};
        DONE: barrier.cluster.arrive; barrier.cluster.wait;
        mapa.shared::cluster.u32 %r4, %r21, 3; mad.wide.u32 %rd2, %r2, 8, %rd1; @%p2 st.global.b32 [%rd2], %r4;
    """
    got = _run(body, 32, cluster=4)
    assert got[0] == 0x800  # offset 1024 of CTA 0 behind 1 KiB that is reserved, rank 0
    np.testing.assert_array_equal(got[1:4], [0x3000400] * 3)


def test_a_try_wait_that_nothing_can_satisfy_gives_false_so_that_a_warp_may_go_on() -> None:
    body = """
        mbarrier.init.shared.b64 [%r20], 1;
        mbarrier.try_wait.parity.shared.b64 %p1, [%r20], 0;
        mbarrier.arrive.shared.b64 %rd9, [%r20];
        mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0;
        selp.b32 %r5, 1, 0, %p1; selp.b32 %r6, 1, 0, %p2; st.global.v2.b32 [%rd1], {%r5, %r6};
    """
    np.testing.assert_array_equal(_run(ONE.format(body)).view(np.uint32)[:2], [0, 1])


def test_a_lost_arrival_and_lost_bytes_are_told_by_the_deadlock() -> None:
    body = f"""
        setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [%r20+8], 33; bar.sync 0; add.u32 %r20, %r20, 8;
        setp.lt.u32 %p2, %r1, 16; @%p2 mbarrier.arrive.shared.b64 %rd9, [%r20];
        @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 4096;
        {WAIT.format("W", 0)}
    """
    with pytest.raises(DeadlockError) as caught:
        _run(body)
    assert str(caught.value).splitlines()[1:] == [
        (
            "  CTA (0, 0, 0) warp 0 lanes 0xffffffff wait for parity 0 of the mbarrier at CTA rank 0, offset 1032"
            " (`bar` + 8): 16 of 33 arrivals are missing, 4096 bytes are expected and have not come, bytes were last"
            " announced by PTX line 13 `mbarrier.arrive.expect_tx.shared.b64`: PTX line 14"
            " `mbarrier.try_wait.parity.shared.b64`"
        )
    ]


def test_bytes_that_nobody_expected_are_told_when_all_have_arrived() -> None:
    body = f"""
        mbarrier.init.shared.b64 [%r20], 1;
        mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 32;
        mbarrier.arrive.shared.b64 %rd9, [%r20];
        {WAIT.format("W", 0)}
    """
    with pytest.raises(
        EmulatorError,
        match=r"line 14 `mbarrier.arrive.* 32 bytes have come to the mbarrier at offset 1024 \(`bar` \+ 0\) that ",
    ):
        _run(ONE.format(body))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "mbarrier.arrive.shared.b64 %rd9, [%r20];",
            "no mbarrier has been initialised at shared address 0x800 (offset 1024 (`bar` + 0))",
        ),
        ("st.shared.b64 [%r20], 0; mbarrier.inval.shared.b64 [%r20];", "no mbarrier has been initialised at shared"),
        (
            "mbarrier.init.shared.b64 [%r20], 0;",
            "0 arrivals at the mbarrier at offset 1024 (`bar` + 0): 1 to 1048575 are possible",
        ),
        (
            "mbarrier.init.shared.b64 [%r20], 2; mbarrier.arrive.shared.b64 %rd9, [%r20], 0;",
            "0 arrivals at the mbarrier at offset 1024 (`bar` + 0): 1 to 1048575 are possible",
        ),
        (
            "mbarrier.init.shared.b64 [%r20], 2; mbarrier.arrive_drop.shared.b64 %rd9, [%r20], 0;",
            "0 arrivals at the mbarrier at offset 1024 (`bar` + 0): 1 to 1048575 are possible",
        ),
        ("mbarrier.init.shared.b64 [%r20], 1048576;", "1048576 arrivals at the mbarrier at offset 1024"),
        (
            "mbarrier.init.shared.b64 [%r20], 2; mbarrier.arrive.shared.b64 %rd9, [%r20], 3;",
            "3 arrivals at the mbarrier at offset 1024 (`bar` + 0), which waits for 2 only",
        ),
        (
            (
                "mbarrier.init.shared.b64 [%r20], 2; mbarrier.expect_tx.relaxed.cta.shared.b64 [%r20], 1048575;"
                "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r20], 1;"
            ),
            "the mbarrier at offset 1024 (`bar` + 0) counts 1048576 bytes: its limits are -1048575 and 1048575",
        ),
        (
            (
                "mbarrier.init.shared.b64 [%r20], 2; mbarrier.inval.shared.b64 [%r20];"
                "mbarrier.try_wait.parity.shared.b64 %p1, [%r20], 0;"
            ),
            "no mbarrier has been initialised at shared address 0x800",
        ),
        ("mbarrier.init.shared.b64 [%r20+4], 1;", "shared address 0x804 is not a multiple of 8"),
        ("mbarrier.init.b64 [%rd1], 1;", "an mbarrier at 0x"),
    ],
)
def test_misuse_of_an_mbarrier_is_named(body: str, message: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        _run(ONE.format(body))
    assert message in str(caught.value)


def test_an_mbarrier_is_reached_by_a_generic_address() -> None:
    body = """
        cvt.u64.u32 %rd2, %r20; cvta.shared.u64 %rd2, %rd2; mbarrier.init.b64 [%rd2], 1;
        mbarrier.arrive.b64 %rd3, [%rd2];
        mbarrier.test_wait.parity.b64 %p1, [%rd2], 0; selp.b32 %r5, 1, 0, %p1; st.global.b32 [%rd1], %r5;
    """
    assert _run(ONE.format(body))[0] == 1


def test_an_arrival_that_must_not_complete_the_phase_is_refused_by_name() -> None:
    with pytest.raises(UnknownInstructionError, match="noComplete"):
        _run("mbarrier.arrive.noComplete.shared.b64 %rd2, [%r20], 1;")
