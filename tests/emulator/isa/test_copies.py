from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator.engine import LaunchConfig, LaunchStats
from equiv.errors import EmulatorError, IllegalAccessError

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = ".shared .align 1024 .b8 buffer[4096]; .shared .align 8 .b64 bar[4];"
HEAD = (
    "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, %cluster_ctarank; mov.b32 %r20, bar;"
    "mov.b32 %r21, buffer; ld.param.b64 %rd1, [in]; ld.param.b64 %rd2, [out];"
    # As the emulator has never-written memory; so that a GPU can run the same.
    "shl.b32 %r41, %r1, 2; Q: add.u32 %r42, %r21, %r41; st.shared.b32 [%r42], -1; mov.u32 %r43, %ntid.x;"
    " shl.b32 %r43, %r43, 2;"
    "add.u32 %r41, %r41, %r43; setp.lt.u32 %p19, %r41, 4096; @%p19 bra Q; fence.proxy.async; bar.sync 0;\n"
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
    stats = run(text, [source, out], config, "sm_90a", completion=completion, seed=seed, checks=False)
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
        "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 4096,"
        " [%r20]; bar.sync 0;"
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


@BOTH
@pytest.mark.parametrize(("vector", "kind"), [("", "b32"), ("", "b64"), (".v2", "u32"), (".v2", "f64"), (".v4", "f32")])
def test_a_store_async_brings_its_bytes_to_another_cta(vector: str, kind: str, completion: str) -> None:
    count, size = int(vector[2:] or 1), int(kind[1:]) // 8
    prefix = {"b32": "%r4", "u32": "%r4", "b64": "%rd1", "f64": "%rd1", "f32": "%f"}[kind]
    names = [f"{prefix}{i}" for i in range(count)]
    make = "".join(
        f"mad.lo.u32 %r40, %r1, 16, {i + 1}; mad.lo.u32 %r40, %r2, 1024, %r40;"
        + (f"cvt.u64.u32 {name}, %r40;" if size == 8 else f"mov.b32 {name}, %r40;")
        for i, name in enumerate(names[::-1])
    ).replace("mov.b32 %r40, %r40;", "")
    value = "{" + ", ".join(names) + "}" if vector else names[0]
    body = (
        f"{INIT} @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], {32 * count * size}; {ALL} {make}"
        "xor.b32 %r6, %r2, 1; mapa.shared::cluster.u32 %r7, %r21, %r6; mapa.shared::cluster.u32 %r8, %r20, %r6;"
        f"mad.lo.u32 %r7, %r1, {count * size}, %r7;"
        f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{vector}.{kind} [%r7], {value}, [%r8];"
        f"{WAIT} {DUMP} {ALL}"
    )
    got, _ = launch(body, numbers(), cluster=2, completion=completion)
    words = (
        got.reshape(2, 4096)[:, : 32 * count * size].view(np.uint64 if size == 8 else np.uint32).reshape(2, 32, count)
    )
    lane, item = np.arange(32)[:, None], np.arange(count)[None, ::-1]
    for rank in range(2):
        np.testing.assert_array_equal(words[rank], 1024 * (rank ^ 1) + 16 * lane + item + 1)


def test_a_store_async_lands_late_only_when_its_mbarrier_is_waited_for() -> None:
    body = (
        f"{INIT} @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 128; bar.sync 0; shl.b32 %r6, %r1, 2;"
        "add.u32 %r7, %r21, %r6; st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r7], %r1, [%r20];"
        "ld.shared.b32 %r9, [%r7];"
        f"{WAIT} ld.shared.b32 %r10, [%r7]; shl.b32 %r6, %r1, 3; cvt.u64.u32 %rd4, %r6; add.u64 %rd4, %rd4, %rd2;"
        "st.global.v2.b32 [%rd4], {%r9, %r10};"
    )
    for completion, first in (("eager", np.arange(32)), ("late", np.full(32, 0xFFFFFFFF))):
        got, _ = launch(body, numbers(), completion=completion)
        pairs = got[:256].view(np.uint32).reshape(32, 2)
        np.testing.assert_array_equal(pairs[:, 0], first)
        np.testing.assert_array_equal(pairs[:, 1], np.arange(32))


GROUPS = (
    "shl.b32 %r6, %r1, 4; add.u32 %r7, %r21, %r6; cvt.u64.u32 %rd4, %r6; add.u64 %rd5, %rd1, %rd4;"
    " add.u64 %rd6, %rd2, %rd4;"
    "cp.async.cg.shared.global [%r7], [%rd5], 16; cp.async.commit_group;"
    "cp.async.cg.shared.global [%r7+512], [%rd5+512], 16; cp.async.commit_group;"
    "cp.async.ca.shared.global [%r7+1024], [%rd5+1024], 16, 5; cp.async.commit_group;"
)


@pytest.mark.parametrize(
    ("wait", "landed"), [("wait_group 2", 1), ("wait_group 1", 2), ("wait_group 0", 3), ("wait_all", 3)]
)
def test_a_wait_for_groups_lands_all_but_the_latest(wait: str, landed: int) -> None:
    source = numbers()
    got, _ = launch(f"{GROUPS} cp.async.{wait}; {DUMP}", source, completion="late")
    want = np.full(4096, POISON)
    want[: 512 * min(landed, 2)] = source[: 512 * min(landed, 2)]
    if landed == 3:
        want[1024:1536] = np.where(np.arange(512) % 16 < 5, source[1024:1536], 0)
    np.testing.assert_array_equal(got, want)


def test_a_copy_that_was_never_committed_is_awaited_by_wait_all_only() -> None:
    source = numbers()
    copy = (
        "shl.b32 %r6, %r1, 2; add.u32 %r7, %r21, %r6; cvt.u64.u32 %rd4, %r6; add.u64 %rd5, %rd1, %rd4;"
        "cp.async.ca.shared.global [%r7], [%rd5], 4;"
    )
    got, _ = launch(f"{copy} cp.async.wait_group 0; {DUMP}", source, completion="late")
    assert (got == POISON).all()
    got, _ = launch(f"{copy} cp.async.wait_all; {DUMP}", source, completion="late")
    np.testing.assert_array_equal(got[:128], source[:128])


@BOTH
@pytest.mark.parametrize(("count", "suffix"), [(32, ".noinc"), (1, "")])
def test_an_mbarrier_hears_of_the_copies_of_all_threads(count: int, suffix: str, completion: str) -> None:
    # Without noinc each arrival first adds itself: the count is that of the one ordinary arrival.
    last = "" if suffix else "bar.sync 0; @%p1 mbarrier.arrive.shared.b64 %rd9, [%r20];"
    body = (
        f"@%p1 mbarrier.init.shared.b64 [%r20], {count}; bar.sync 0; {GROUPS}"
        f"cp.async.mbarrier.arrive{suffix}.shared::cta.b64 [%r20]; {last} {WAIT} {DUMP}"
    )
    source = numbers()
    got, _ = launch(body, source, completion=completion)
    np.testing.assert_array_equal(got[:1024], source[:1024])
    np.testing.assert_array_equal(got[1024:1536], np.where(np.arange(512) % 16 < 5, source[1024:1536], 0))


def test_a_copy_of_nothing_reads_nothing() -> None:
    body = (
        "mov.b64 %rd5, 16; cp.async.cg.shared.global [%r21], [%rd5], 16, 0; setp.eq.u32 %p5, 0, 0;"
        "cp.async.cg.shared.global [%r21+16], [%rd5], 16, %p5; cp.async.wait_all;" + DUMP
    )
    for completion in ("eager", "late"):
        got, _ = launch(body, numbers(), completion=completion)
        assert not got[:32].any()


STORE = (
    "mov.b32 %r6, 7; shl.b32 %r7, %r1, 2; add.u32 %r7, %r21, %r7; st.shared.b32 [%r7], %r1;"
    "fence.proxy.async.shared::cta; bar.sync 0; @!%p1 bra END;"
    "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r21], 128; cp.async.bulk.commit_group; {} END:"
)


def test_a_buffer_reused_before_its_store_has_read_it_shows_when_late() -> None:
    reuse = "st.shared.b32 [%r21], 99; cp.async.bulk.wait_group 0;"
    right = "cp.async.bulk.wait_group.read 0; " + reuse
    want = np.arange(32)
    wrong = np.where(want == 0, 99, want)
    for text, completion, first in ((reuse, "eager", want), (reuse, "late", wrong), (right, "late", want)):
        got, _ = launch(STORE.format(text), numbers(), completion=completion)
        np.testing.assert_array_equal(got[:128].view(np.uint32), first)


def test_a_store_that_nobody_waits_for_is_done_at_the_end() -> None:
    got, _ = launch(
        STORE.format("ld.global.b32 %r9, [%rd2+4]; st.global.b32 [%rd2+256], %r9;"), numbers(), completion="late"
    )
    np.testing.assert_array_equal(got[:128].view(np.uint32), np.arange(32))
    assert got[256:260].view(np.uint32)[0] == 0xFFFFFFFF  # read before the store had landed


REDUCTIONS = [
    ("add", "u32", np.uint32, np.add), ("add", "s32", np.int32, np.add), ("add", "u64", np.uint64, np.add),
    ("min", "s32", np.int32, np.minimum), ("max", "u32", np.uint32, np.maximum), ("min", "s64", np.int64, np.minimum),
    ("max", "u64", np.uint64, np.maximum), ("and", "b32", np.uint32, np.bitwise_and),
    ("or", "b64", np.uint64, np.bitwise_or), ("xor", "b32", np.uint32, np.bitwise_xor),
    ("inc", "u32", np.uint32, lambda x, y: np.where(x >= y, 0, x + 1)),
    ("dec", "u32", np.uint32, lambda x, y: np.where((x == 0) | (x > y), y, x - 1)),
    ("add", "f32", np.float32, np.add), ("add", "f64", np.float64, np.add), ("add.noftz", "f16", np.float16, np.add),
    ("min", "f16", np.float16, np.minimum), ("max", "f16", np.float16, np.maximum),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("operation", "kind", "lane", "function"), REDUCTIONS, ids=lambda one: str(one)[:12])
def test_a_bulk_reduction_combines_each_element(
    operation: str, kind: str, lane: type, function: Callable[[Array, Array], Array], completion: str
) -> None:
    source = numbers()
    if kind[0] == "f":
        source.view(lane)[:] = np.random.default_rng(5).standard_normal(4096 // lane().itemsize)
    body = (
        "shl.b32 %r7, %r1, 2; add.u32 %r8, %r21, %r7; cvt.u64.u32 %rd4, %r7; add.u64 %rd5, %rd1, %rd4;"
        " add.u64 %rd6, %rd2, %rd4;"
        "ld.global.b32 %r9, [%rd5]; st.shared.b32 [%r8], %r9; ld.global.b32 %r9, [%rd5+128]; st.global.b32 [%rd6], %r9;"
        "fence.proxy.async; bar.sync 0; @!%p1 bra END;"
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}.{kind} [%rd2], [%r21], 128;"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"
    )
    got, stats = launch(body, source, completion=completion)
    ours: Array = source[:128].view(lane)
    memory: Array = source[128:256].view(lane)
    want: Array = np.asarray(function(memory, ours)).astype(lane)
    np.testing.assert_array_equal(got[:128], want.view(np.uint8))
    assert stats.order_dependent == (len(ours) if kind[0] == "f" and operation.startswith("add") else 0)


@BOTH
def test_reductions_into_another_cta_signal_it(completion: str) -> None:
    body = (
        f"{INIT} shl.b32 %r7, %r1, 2; add.u32 %r8, %r21, %r7; add.u32 %r9, %r1, 5; st.shared.b32 [%r8], %r9;"
        "st.shared.b32 [%r8+128], 1000; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 256;"
        f"fence.proxy.async; {ALL} xor.b32 %r6, %r2, 1; mapa.shared::cluster.u32 %r10, %r21, %r6;"
        "mapa.shared::cluster.u32 %r11, %r20, %r6; add.u32 %r12, %r10, %r7;"
        "@%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
        " [%r10+128], [%r21], 128, [%r11];"
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.s32 [%r12+128], 1020, [%r11];"
        f"{WAIT} {DUMP} {ALL}"
    )
    got, _ = launch(body, numbers(), cluster=2, completion=completion)
    words = got.view(np.uint32).reshape(2, 1024)[:, 32:64]
    # The order of the two is open; both engines' orders give one of these.
    for row in words:
        assert ((row == np.maximum(1005 + np.arange(32), 1020)) | (row == 1025 + np.arange(32))).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 24, [%r20];",
            "a bulk copy of 24 bytes: must be a multiple of 16",
        ),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r21+8], 16;", "is not a multiple of 16"),
        (
            (
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r21],"
                " [%rd1], 16, [%r20], %rs1;"
            ),
            "multicast to CTAs 0x2, but the cluster has fewer",
        ),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 16, [%r20+8];",
            "no mbarrier has been initialised at shared address 0x",
        ),
        (
            "mov.b32 %r9, 0x1000400; st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9], %r1, [%r20];",
            "(CTA rank 1, offset 0 (`buffer` + 0))",
        ),
    ],
)
@BOTH
def test_misuse_of_a_copy_is_named(body: str, message: str, completion: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        launch(
            f"{INIT} mov.b16 %rs1, 2; @!%p1 bra END; {body} END: {WAIT.replace('%p8', '%p7')}",
            numbers(),
            completion=completion,
        )
    assert message in str(caught.value)


def test_a_bulk_copy_out_of_bounds_names_the_buffer_and_the_lane() -> None:
    body = (
        f"{INIT} setp.eq.u32 %p2, %r1, 5; bar.sync 0;"
        "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1+4080], 32, [%r20];"
    )
    with pytest.raises(
        IllegalAccessError, match=r"lane 5: read of 32 bytes at 0x\w+, at byte 4080 of `buffer 0`.*16 of 32"
    ):
        launch(body, numbers())


def test_bytes_that_come_late_and_were_not_expected_are_told_by_the_deadlock() -> None:
    body = (
        f"{INIT} bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 512;"
        "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 256, [%r20];" + WAIT
    )
    for completion in ("eager", "late"):
        with pytest.raises(
            EmulatorError, match=r"offset 4096 \(`bar` \+ 0\): 256 bytes are expected and have not come"
        ):
            launch(body, numbers(), completion=completion)
