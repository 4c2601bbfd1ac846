from __future__ import annotations

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator.engine import LaunchConfig, LaunchStats
from equiv.errors import EmulatorError, IllegalAccessError

SHARED = ".shared .align 1024 .b8 buffer[4096]; .shared .align 8 .b64 bar[4];"
HEAD = (
    "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, %cluster_ctarank; mov.b32 %r20, bar;"
    "mov.b32 %r21, buffer; ld.param.b64 %rd1, [in]; ld.param.b64 %rd2, [out];\n"
)
INIT = "@%p1 mbarrier.init.shared.b64 [%r20], 1; @%p1 fence.mbarrier_init.release.cluster;"
ALL = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r20], 0; @!%p8 bra W;"
# Threads write the first 4096 bytes of shared memory of their CTA to the output, 4 bytes each, CTA after CTA.
DUMP = (
    "mad.lo.u32 %r30, %r2, 4096, 0; mov.u32 %r31, %ntid.x; shl.b32 %r31, %r31, 2; shl.b32 %r32, %r1, 2; L:"
    "add.u32 %r33, %r21, %r32; ld.shared.b32 %r34, [%r33]; add.u32 %r35, %r30, %r32; cvt.u64.u32 %rd30, %r35;"
    "add.u64 %rd31, %rd2, %rd30; st.global.b32 [%rd31], %r34; add.u32 %r32, %r32, %r31; setp.lt.u32 %p9, %r32, 4096;"
    "@%p9 bra L;"
)
BOTH = pytest.mark.parametrize("completion", ["eager", "late"])


def launch(
    body: str, source: Array, *, cluster: int = 1, threads: int = 32, completion: str = "eager", seed: int | None = None
) -> tuple[Array, LaunchStats]:
    """Run a kernel with parameters `in` (a copy of `source`) and `out` (4096 bytes a CTA)."""
    out = np.zeros(4096 * cluster + 256, np.uint8)
    out = out[-out.ctypes.data % 256 :][: 4096 * cluster]
    text = module_text(HEAD + body + "\nret;", ("in", "out"), arch="sm_90a", outside=SHARED)
    config = LaunchConfig((cluster, 1, 1), (threads, 1, 1), (cluster, 1, 1))
    stats = run(text, [source, out], config, "sm_90a", completion=completion, seed=seed)
    return out, stats


def numbers(nbytes: int = 4096) -> Array:
    """Bytes at an aligned address, no two 16-byte pieces alike."""
    block = np.zeros(nbytes + 256, np.uint8)
    array = block[-block.ctypes.data % 256 :][:nbytes]
    array[:] = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    return array


POISON = np.uint8(0xFF)


@BOTH
@pytest.mark.parametrize("state", ["shared::cluster", "shared::cta"])
def test_a_bulk_load_comes_whole_and_ends_the_phase(completion: str, state: str) -> None:
    body = (
        f"{INIT} bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 2064;"
        f"@%p1 cp.async.bulk.{state}.global.mbarrier::complete_tx::bytes [%r21+16], [%rd1+32], 2064, [%r20];"
        f"{WAIT}{DUMP}"
    )
    source = numbers()
    got, _ = launch(body, source, completion=completion)
    np.testing.assert_array_equal(got[16:2080], source[32:2096])
    assert (got[:16] == POISON).all()
    assert (got[2080:] == POISON).all()


def test_a_missing_wait_passes_when_copies_are_eager_and_shows_when_they_are_late() -> None:
    load = (
        f"{INIT} bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 4096;"
        "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 4096, [%r20]; bar.sync 0;"
    )
    source = numbers()
    eager, _ = launch(load + DUMP, source)
    late, _ = launch(load + DUMP, source, completion="late")
    right, _ = launch(load + WAIT + DUMP, source, completion="late")
    np.testing.assert_array_equal(eager, source)
    np.testing.assert_array_equal(right, source)
    assert (late == POISON).all()


@BOTH
def test_multicast_writes_the_same_offset_of_every_named_cta_and_signals_each(completion: str) -> None:
    body = (
        f"{INIT} @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 4096; {ALL}"
        "setp.eq.u32 %p2, %r2, 2; and.pred %p2, %p2, %p1; mov.b16 %rs1, 11;"
        "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%r21], [%rd1], 4096, [%r20], %rs1;"
        f"setp.eq.u32 %p3, %r2, 2; @%p3 bra OUT; {WAIT} OUT: {ALL} {DUMP}"
    )
    source = numbers()
    got, _ = launch(body, source, cluster=4, completion=completion)
    for rank, part in enumerate(got.reshape(4, 4096)):
        np.testing.assert_array_equal(part, np.full(4096, POISON) if rank == 2 else source)


@BOTH
def test_a_copy_between_ctas_signals_the_receiver(completion: str) -> None:
    body = (
        f"{INIT} @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 1024; {ALL}"
        # Each thread fills a piece with 256 * rank + thread, then CTA r sends it to CTA r ^ 1.
        "shl.b32 %r3, %r1, 5; add.u32 %r4, %r21, %r3; mad.lo.u32 %r5, %r2, 256, %r1; mov.b64 %rd10, {%r5, %r5};"
        "st.shared.v2.b64 [%r4], {%rd10, %rd10}; st.shared.v2.b64 [%r4+16], {%rd10, %rd10};"
        "fence.proxy.async.shared::cta; bar.sync 0;"
        "xor.b32 %r6, %r2, 1; mapa.shared::cluster.u32 %r7, %r21, %r6; mapa.shared::cluster.u32 %r8, %r20, %r6;"
        "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r7+2048], [%r21], 1024, [%r8];"
        f"{WAIT} {DUMP} {ALL}"
    )
    got, _ = launch(body, numbers(), cluster=2, completion=completion)
    words = got.view(np.uint32).reshape(2, 1024)
    for rank in range(2):
        np.testing.assert_array_equal(words[rank, 512:768], np.repeat(np.arange(32) + 256 * (rank ^ 1), 8))
