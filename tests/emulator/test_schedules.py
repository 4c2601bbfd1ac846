"""Who runs when: several clusters at once, named barriers, phases of the cluster barrier, spinning."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator.engine import LaunchConfig
from equiv.errors import DeadlockError, EmulatorError

SHARED = ".shared .align 16 .b8 buffer[1024];"
HEAD = (
    "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %nctaid.x; mov.b32 %r20, buffer;"
    " ld.param.b64 %rd1, [flags];"
    "ld.param.b64 %rd2, [out]; setp.eq.u32 %p1, %r1, 0; mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r2, %r4, %r1;"
    "mul.wide.u32 %rd3, %r5, 4; add.u64 %rd3, %rd3, %rd2;"
)
SEEDS = pytest.mark.parametrize("seed", [None, 1, 99])


def _run(
    body: str, grid: int = 1, threads: int = 32, *, cluster: int = 1, seed: int | None = None, budget: int | None = None
) -> Array:
    flags, out = np.zeros(64, np.uint32), np.zeros(grid * threads, np.uint32)
    config = LaunchConfig((grid, 1, 1), (threads, 1, 1), (cluster, 1, 1))
    run(module_text(HEAD + body, ("flags", "out"), outside=SHARED), [flags, out], config, seed=seed, budget=budget)
    return out.reshape(grid, threads)


@SEEDS
@pytest.mark.parametrize("cluster", [1, 3])
def test_ctas_that_wait_for_each_other_through_global_memory_run_together(seed: int | None, cluster: int) -> None:
    # A barrier over the grid, as cooperative kernels have it: the first CTAs cannot end before the last have come.
    body = """
        @!%p1 bra JOIN;
        atom.add.release.gpu.global.u32 %r9, [%rd1], 1;
        SPIN: ld.acquire.gpu.global.u32 %r10, [%rd1]; setp.lt.u32 %p2, %r10, %r3; @%p2 bra SPIN;
        JOIN: bar.sync 0; ld.relaxed.gpu.global.u32 %r11, [%rd1]; st.global.b32 [%rd3], %r11;
    """.replace("atom.add.release.gpu.global.u32", "atom.release.gpu.global.add.u32")
    got = _run(body, grid=12, threads=64, cluster=cluster, seed=seed, budget=100_000_000)
    np.testing.assert_array_equal(got, np.full((12, 64), 12))


def test_a_spin_that_nobody_ends_uses_up_its_budget() -> None:
    body = "SPIN: ld.volatile.global.u32 %r10, [%rd1]; setp.eq.u32 %p2, %r10, 0; @%p2 bra SPIN;"
    with pytest.raises(EmulatorError, match="still running after 3000000 warp instructions"):
        _run(body, grid=4, budget=3_000_000)


@SEEDS
def test_producers_arrive_and_consumers_wait_at_named_barriers(seed: int | None) -> None:
    # Warp 0 writes, warps 1 and 2 read; barrier 1: full, barrier 2: empty, each of 96 threads.
    body = """
        shl.b32 %r6, %r1, 2; and.b32 %r6, %r6, 127; add.u32 %r21, %r20, %r6; mov.b32 %r7, 0; mov.b32 %r8, 0;
        setp.ge.u32 %p3, %r1, 32; @%p3 bra READ;
        WRITE: mad.lo.u32 %r9, %r7, 1000, %r1; st.shared.b32 [%r21], %r9; bar.arrive 1, 96; barrier.sync 2, 96;
        add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 5; @%p4 bra WRITE; bra END;
        READ: barrier.cta.sync 1, 96; ld.shared.b32 %r9, [%r21]; add.u32 %r8, %r8, %r9; bar.cta.arrive 2, 96;
        add.u32 %r7, %r7, 1; setp.lt.u32 %p4, %r7, 5; @%p4 bra READ;
        END: st.global.b32 [%rd3], %r8;
    """
    got = _run(body, threads=96, seed=seed).reshape(3, 32)
    lanes = np.arange(32)
    np.testing.assert_array_equal(got, [lanes * 0, 10000 + 5 * lanes, 10000 + 5 * lanes])


@pytest.mark.parametrize("base", ["bar", "bar.cta", "barrier", "barrier.cta"])
def test_a_barrier_counts_and_combines_predicates_of_all_its_threads(base: str) -> None:
    aligned = ".aligned" if base.startswith("barrier") else ""
    body = f"""
        rem.u32 %r6, %r1, 5; setp.eq.u32 %p2, %r6, 0; setp.lt.u32 %p3, %r1, 200;
        {base}.red.popc{aligned}.u32 %r7, 0, %p2;
        {base}.red.popc{aligned}.u32 %r8, 0, !%p2;
        {base}.red.and{aligned}.pred %p4, 3, 96, %p3;
        {base}.red.or{aligned}.pred %p5, 3, 96, %p2;
        {base}.red.and{aligned}.pred %p6, 3, 96, %p2;
        {base}.red.or{aligned}.pred %p7, 3, 96, !%p3;
        selp.b32 %r9, 1, 0, %p4; selp.b32 %r10, 2, 0, %p5; selp.b32 %r11, 4, 0, %p6; selp.b32 %r12, 8, 0, %p7;
        or.b32 %r9, %r9, %r10; or.b32 %r9, %r9, %r11; or.b32 %r9, %r9, %r12; mad.lo.u32 %r9, %r7, 256, %r9;
        mad.lo.u32 %r9, %r8, 65536, %r9; st.global.b32 [%rd3], %r9;
    """
    for seed in (None, 5):
        np.testing.assert_array_equal(_run(body, threads=96, seed=seed), np.full((1, 96), (76 << 16) + (20 << 8) + 3))


@SEEDS
def test_a_warp_may_arrive_run_on_and_wait_for_the_cluster_after_the_others_have_passed(seed: int | None) -> None:
    body = """
        mov.b32 %r8, 0; mov.u32 %r6, %cluster_ctarank; add.u32 %r7, %r6, 1; rem.u32 %r7, %r7, %r3;
        mapa.shared::cluster.u32 %r21, %r20, %r7; mov.b32 %r9, 0;
        LOOP: mad.lo.u32 %r10, %r9, 10, %r6; @%p1 st.shared::cluster.b32 [%r21], %r10;
        barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
        ld.shared.b32 %r11, [%r20]; mad.lo.u32 %r8, %r8, 100, %r11;
        barrier.cluster.arrive.release.aligned; add.u32 %r9, %r9, 1; barrier.cluster.wait.aligned;
        setp.lt.u32 %p3, %r9, 3; @%p3 bra LOOP; st.global.b32 [%rd3], %r8;
    """
    got = _run(body, grid=4, threads=64, cluster=4, seed=seed)
    before = (np.arange(4) - 1) % 4
    want = (before * 100 + 10 + before) * 100 + 20 + before
    np.testing.assert_array_equal(got, np.repeat(want[:, None], 64, 1))


def test_distributed_shared_memory_is_read_written_and_counted() -> None:
    body = """
        mov.u32 %r6, %cluster_ctarank; shl.b32 %r7, %r1, 2; add.u32 %r21, %r20, %r7; mad.lo.u32 %r8, %r6, 100, %r1;
        st.shared::cta.b32 [%r21], %r8; @%p1 st.shared.b32 [%r20+512], 0; barrier.cluster.arrive; barrier.cluster.wait;
        xor.b32 %r9, %r6, 1; mapa.shared::cluster.u32 %r10, %r21, %r9; ld.shared::cluster.b32 %r11, [%r10];
        mapa.shared::cluster.u32 %r12, %r20, 0; red.release.cluster.shared::cluster.add.u32 [%r12+512], %r11;
        cvt.u64.u32 %rd5, %r10; cvta.shared::cluster.u64 %rd5, %rd5; ld.b32 %r13, [%rd5]; mapa.u64 %rd6, %rd5, 1;
        getctarank.u64 %r14, %rd6;
        barrier.cluster.arrive; barrier.cluster.wait; ld.shared::cluster.b32 %r15, [%r12+512];
        sub.u32 %r13, %r13, %r11; add.u32 %r13, %r13, %r14; mad.lo.u32 %r11, %r13, 1000000, %r11;
        add.u32 %r11, %r11, %r15; st.global.b32 [%rd3], %r11;
        barrier.cluster.arrive; barrier.cluster.wait;
    """
    got = _run(body, grid=2, cluster=2)
    lanes = np.arange(32)
    total = 2 * lanes.sum() + 3200
    np.testing.assert_array_equal(got, 1000000 + total + np.stack([100 + lanes, lanes]))


def test_a_deadlock_of_a_cluster_names_the_phase_and_the_barrier() -> None:
    body = (
        "mov.u32 %r6, %cluster_ctarank; setp.eq.u32 %p2, %r6, 1; setp.lt.u32 %p3, %r1, 32; and.pred %p2, %p2, %p3;"
        "@%p2 bar.sync 7, 64; barrier.cluster.arrive; barrier.cluster.wait;"
    )
    with pytest.raises(DeadlockError) as caught:
        _run(body, grid=2, threads=64, cluster=2)
    text = str(caught.value)
    assert text.count("lanes 0xffffffff wait for phase 1 of the cluster barrier: PTX line 10") == 3
    assert "CTA (1, 0, 0) warp 0 lanes 0xffffffff wait at barrier 7 for 64 threads, 32 have arrived" in text
