"""Faults planted in small kernels, and what the checker says of each: instruction, CTA, warp, lane, address."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator.engine import LaunchConfig, LaunchStats
from equiv.errors import DeadlockError, EmulatorError, IllegalAccessError

SHARED = ".shared .align 128 .b8 scratch[512]; .shared .align 128 .b8 buffer[2048]; .shared .align 8 .b64 bar[4];"
HEAD = (
    "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.b32 %r20, bar; mov.b32 %r21, buffer; ld.param.b64 %rd1, [a];"
    "mov.u32 %r2, %cluster_ctarank;\n"
)
BASE = 0x400  # of shared addresses
INIT = "@%p1 mbarrier.init.shared.b64 [%r20], 1; bar.sync 0;\n"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r20], 0; @!%p8 bra W;\n"
LOAD = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], {}, [%r20];\n"
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], {};\n"
BOTH = pytest.mark.parametrize("completion", ["eager", "late"])


def launch(
    body: str,
    *,
    threads: int = 64,
    cluster: int = 1,
    completion: str = "eager",
    checks: bool = True,
    nbytes: int = 4096,
) -> tuple[Array, LaunchStats]:
    """Run a body (its first line is line 8 of the PTX) with `%rd1` at `nbytes` aligned bytes of 1."""
    block = np.ones(nbytes + 256, np.uint8)
    data = block[-block.ctypes.data % 256 :][:nbytes]
    config = LaunchConfig((cluster, 1, 1), (threads, 1, 1), (cluster, 1, 1))
    text = module_text(HEAD + body + "\nret;", ("a",), arch="sm_90a", outside=SHARED)
    return data, run(text, [data], config, "sm_90a", completion=completion, checks=checks)


def fails(body: str, kind: type[EmulatorError] = EmulatorError, **how: object) -> str:
    with pytest.raises(kind) as caught:
        launch(body, **how)  # type: ignore[arg-type]
    return str(caught.value)


def line(text: str, body: str) -> int:
    """The line of the PTX on which the first occurrence of `text` in the body stands."""
    full = module_text(HEAD + body + "\nret;", ("a",), arch="sm_90a", outside=SHARED)
    return full[: full.index(text)].count("\n") + 1


def test_a_write_behind_a_buffer_names_the_buffer_and_how_far() -> None:
    body = "mad.wide.u32 %rd2, %r1, 4, %rd1;\nst.global.b32 [%rd2], %r1;\n"
    message = fails(body, IllegalAccessError, nbytes=228)
    assert (
        f"PTX line {line('st.global', body)} `st.global.b32`, CTA (0, 0, 0) warp 1 lane 25: write of 4 bytes" in message
    )
    assert "just past the end of `buffer 0` (228 bytes at " in message


def test_a_source_line_is_named_where_the_ptx_has_one() -> None:
    outside = '.file 1 "kernel.py"\n' + SHARED
    body = HEAD + ".loc 1 42 7\nst.global.b32 [%rd1+2], %r1; ret;"
    block = np.zeros(64, np.uint32)
    with pytest.raises(IllegalAccessError, match=r"`st.global.b32` \(kernel.py:42\), CTA .* is not a multiple of 4"):
        run(module_text(body, ("a",), outside=outside), [block], LaunchConfig((1, 1, 1), (32, 1, 1)))


@pytest.mark.parametrize(
    ("store", "load"),
    [("st.shared.b32 [%r3], %r1;", "ld.shared.b32 %r4, [%r5];"),
     ("st.shared.b32 [%r3], -1;", "ld.shared.u8 %r4, [%r5];"),
     ("st.shared.v2.b32 [%r3], {%r1, -1};", "atom.shared.add.u32 %r4, [%r5], 1;")],
)  # fmt: skip
def test_a_read_of_shared_memory_that_was_never_written(store: str, load: str) -> None:
    body = (
        "shl.b32 %r2, %r1, 3; add.u32 %r3, %r21, %r2; mov.u32 %r5, %r3;"
        " setp.eq.u32 %p2, %r1, 37; @%p2 add.u32 %r5, %r5, 480;"
        f"\n{store}\nbar.sync 0;\n{load}\n"
    )
    message = fails(body, IllegalAccessError)
    opcode, size = load.split(" ", maxsplit=1)[0], 1 if "u8" in load else 4
    at = 512 + 37 * 8 + 480
    assert message == (
        f"k: PTX line {line(load, body)} `{opcode}`, CTA (0, 0, 0) warp 1 lane 5: read of {size} bytes at shared"
        f" address {BASE + at:#x} (CTA rank 0, offset {at} (`buffer` + 776)), never written"
    )
    launch(body, checks=False)


def test_written_bytes_of_all_ones_are_no_fault() -> None:
    body = (
        "shl.b32 %r2, %r1, 4; add.u32 %r3, %r21, %r2; mov.b64 %rd5, -1; mov.b16 %rs1, -1;"
        "st.shared.v2.b64 [%r3], {%rd5, %rd5}; ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3];"
        "st.shared.u8 [%r3+1024], %rs1; ld.shared.u8 %r4, [%r3+1024]; cvt.u64.u32 %rd6, %r3;"
        "cvta.shared.u64 %rd6, %rd6;"
        "st.b16 [%rd6+1026], %rs1; ld.s16 %r4, [%rd6+1026]; atom.shared.exch.b32 %r5, [%r3], -1;"
        "ld.shared.b32 %r5, [%r3];"
        "st.shared.b32 [%r3+1028], %r1; atom.shared.exch.b32 %r5, [%r3+1028], -1; ld.shared.b32 %r5, [%r3+1028];"
    )
    launch(body)


@BOTH
def test_bytes_of_all_ones_that_copies_brought_are_no_fault(completion: str) -> None:
    fill = "shl.b32 %r2, %r1, 4; cvt.u64.u32 %rd2, %r2; add.u64 %rd3, %rd1, %rd2; mov.b64 %rd5, -1;"
    fill += "add.u32 %r3, %r21, %r2;"
    body = (
        INIT + fill + "st.global.v2.b64 [%rd3], {%rd5, %rd5}; bar.sync 0;" + EXPECT.format(1024) + LOAD.format(1024)
        + WAIT + "ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3]; cp.async.cg.shared.global [%r3+1024], [%rd3], 16;"
        "cp.async.wait_all; ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3+1024];"
    )  # fmt: skip
    launch(body, completion=completion)


def test_a_read_of_what_a_copy_has_not_brought_yet_shows_when_copies_are_late() -> None:
    body = INIT + EXPECT.format(256) + LOAD.format(256) + "bar.sync 0;\nld.shared.b32 %r4, [%r21+8];\n" + WAIT
    launch(body)
    message = fails(body, IllegalAccessError, completion="late")
    assert f"PTX line {line('ld.shared', body)} `ld.shared.b32`" in message
    assert "offset 520 (`buffer` + 8)), never written" in message


STORE = (
    "fence.proxy.async.shared::cta; bar.sync 0; @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r21], 256;\n"
)
FILL = "shl.b32 %r3, %r1, 2; add.u32 %r3, %r21, %r3; st.shared.b32 [%r3], %r1;"
COMMIT = "cp.async.bulk.commit_group;"


@pytest.mark.parametrize(
    ("body", "word", "waits"),
    [
        (INIT + EXPECT.format(256) + LOAD.format(256) + "{}", "cp.async.bulk", WAIT),
        (FILL + STORE + COMMIT + "{}", "cp.async.bulk.global", "cp.async.bulk.wait_group.read 0;"),
        (FILL + STORE + COMMIT + "{}", "cp.async.bulk.global", "cp.async.bulk.wait_group 0;"),
    ],
    ids=["load", "store, read", "store"],
)
def test_shared_memory_must_not_go_while_a_copy_needs_it(body: str, word: str, waits: str) -> None:
    for completion in ("eager", "late"):
        launch(body.format(waits), completion=completion)
    forgotten = body.format("")
    launch(forgotten)
    message = fails(forgotten, completion="late")
    assert f"PTX line {line(word, forgotten)} " in message
    assert (
        "256 bytes were still under way to or from shared memory when the CTA ended: nobody waited for them" in message
    )


@BOTH
def test_too_few_expected_bytes_are_told_where_the_surplus_came(completion: str) -> None:
    body = INIT + EXPECT.format(128) + LOAD.format(256) + WAIT
    message = fails(body, completion=completion)
    assert message == (
        f"k: PTX line {line('cp.async.bulk', body)} `{LOAD.split()[1]}`,"
        " CTA (0, 0, 0) warp 0 lane 0: 128 bytes have come to the mbarrier at offset 2560 (`bar` + 0) that nothing"
        " expected, and all its arrivals are there"
    )


@BOTH
def test_too_many_expected_bytes_are_told_by_who_waits_and_who_announced_them(completion: str) -> None:
    body = INIT + EXPECT.format(512) + LOAD.format(256) + WAIT
    message = fails(body, DeadlockError, completion=completion)
    assert (
        "CTA (0, 0, 0) warp 1 lanes 0xffffffff wait for parity 0 of the mbarrier at CTA rank 0, offset 2560"
        " (`bar` + 0): 256 bytes are expected and have not come, bytes were last announced by PTX line"
        f" {line('mbarrier.arrive', body)} `mbarrier.arrive.expect_tx.shared.b64`, bytes last came from"
        f" PTX line {line('cp.async', body)}"
    ) in message
    assert f": PTX line {line('mbarrier.try_wait', body)} `mbarrier.try_wait" in message


def test_wrong_bytes_that_nobody_waits_for_are_told_at_the_end() -> None:
    many = INIT + EXPECT.format(512) + LOAD.format(256)
    few = INIT + EXPECT.format(256) + LOAD.format(256) + LOAD.format(128)
    assert f"PTX line {line('mbarrier.arrive', many)} " in fails(many)
    assert "at the end of the CTA the mbarrier at offset 2560 (`bar` + 0) expects 256 bytes more" in fails(many)
    assert f"PTX line {line(LOAD.format(128), few)} " in fails(few)
    assert "has got 128 bytes that nothing expected" in fails(few)
    launch(many, checks=False)


def test_a_missing_arrival_is_told_by_the_deadlock() -> None:
    body = "@%p1 mbarrier.init.shared.b64 [%r20], 65; bar.sync 0;\nmbarrier.arrive.shared.b64 %rd9, [%r20];\n" + WAIT
    message = fails(body, DeadlockError)
    assert message.startswith(
        "k: deadlock, every warp waits\n  CTA (0, 0, 0) warp 0 lanes 0xffffffff wait for parity 0"
    )
    assert "offset 2560 (`bar` + 0): 1 of 65 arrivals are missing: PTX line" in message


def test_an_mbarrier_initialised_twice_names_both_places() -> None:
    body = INIT + "setp.eq.u32 %p2, %r1, 33;\n@%p2 mbarrier.init.shared.b64 [%r20], 2;\n"
    second = line("@%p2 mbarrier", body)
    first = line("@%p1 mbarrier", body)
    assert fails(body) == (
        f"k: PTX line {second} `mbarrier.init.shared.b64`, CTA (0, 0, 0) warp 1 lane 1: the mbarrier at offset 2560"
        f" (`bar` + 0) is initialised once more; it was by PTX line {first} `mbarrier.init.shared.b64`"
    )
    launch(INIT + "@%p1 mbarrier.inval.shared.b64 [%r20]; @%p1 mbarrier.init.shared.b64 [%r20], 2;")


def test_data_that_looks_like_an_mbarrier_is_none() -> None:
    body = "mov.b64 %rd5, 0x4010000000100001; st.shared.b64 [%r20], %rd5;\nmbarrier.arrive.shared.b64 %rd9, [%r20];\n"
    assert "no mbarrier has been initialised at shared address 0xe00 (offset 2560 (`bar` + 0))" in fails(body)


def test_a_barrier_that_a_warp_has_left_is_a_deadlock_with_its_count() -> None:
    body = "setp.ge.u32 %p2, %r1, 32; @%p2 exit;\nbar.sync 3, 64;\n"
    message = fails(body, DeadlockError, threads=96)
    assert (
        f"warp 0 lanes 0xffffffff wait at barrier 3 for 64 threads, 32 have arrived: PTX line {line('bar.sync', body)} "
        in message
    )


def test_two_counts_at_one_barrier() -> None:
    body = "setp.ge.u32 %p2, %r1, 32;\n@%p2 bar.sync 3, 96;\n@!%p2 bar.sync 3, 64;\n"
    assert "barrier 3 with 96 threads, while others wait there with another number" in fails(body, threads=96)


@pytest.mark.parametrize(
    "access",
    ["st.shared::cluster.b32 [%r5], %r1;", "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];",
     "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r5], %r1, [%r6];"],
)  # fmt: skip
def test_an_access_to_a_cta_that_has_exited(access: str) -> None:
    body = (
        "setp.eq.u32 %p2, %r2, 0; @%p2 bra GO; @%p1 mbarrier.init.shared.b64 [%r20], 1; exit; GO:\n"
        "mov.b32 %r10, 0; L: add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 100000; @%p3 bra L;\n"
        f"mapa.shared::cluster.u32 %r5, %r21, 1; mapa.shared::cluster.u32 %r6, %r20, 1;\n{access}\n"
    )
    message = fails(body, IllegalAccessError, cluster=2, threads=32)
    assert f"PTX line {line(access, body)} " in message
    assert "CTA (0, 0, 0) warp 0 lane 0: access to shared address 0x1000" in message
    assert "a CTA whose threads have all exited" in message


def test_a_block_of_which_some_was_written_is_a_note_and_one_of_which_nothing_was_a_fault() -> None:
    store = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r21], 256; cp.async.bulk.wait_group 0;\n"
    part = f"@%p1 st.shared.b32 [%r21], %r1; bar.sync 0; @!%p1 exit;\n{store}"
    _, stats = launch(part)
    (note,) = stats.notes
    assert " warp 0 lane 0: 252 bytes of what is read at shared address 0x600 (CTA rank 0, offset 512 (`buffer`" in note
    assert note.endswith(" + 0)) were never written")
    assert "read of 256 bytes at shared address 0x600" in fails(f"@!%p1 exit;\n{store}", IllegalAccessError)


# Guarded loads of some lanes, folded over a warp, of which one lane stores: as compilers sum over the warps of a CTA.
FOLD = """
    st.shared.b32 [%r21], 5; st.shared.b32 [%r21+4], 6; bar.sync 0; shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r21;
    setp.lt.u32 %p2, %r1, 2; @%p2 ld.shared.b32 %r4, [%r3]; shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1;
    add.u32 %r6, %r4, %r5; setp.eq.u32 %p3, %r1, {lane}; @%p3 st.global.b32 [%rd1], %r6;
"""


def test_lanes_that_have_no_part_in_a_sum_are_no_fault_unless_they_are_used() -> None:
    data, _ = launch(FOLD.format(lane=1), threads=32)
    assert data.view(np.uint32)[0] == 11
    with pytest.raises(IllegalAccessError) as caught:
        launch(FOLD.format(lane=2), threads=32)
    message = "use of register %r6, made of %r4, to which nothing was written in this lane"
    assert str(caught.value) == f"k: PTX line 13 `st.global.b32`, CTA (0, 0, 0) warp 0 lane 2: {message}"
    data, _ = launch(FOLD.format(lane=2), threads=32, checks=False)
    assert data.view(np.uint32)[0] != 0x01010101


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("add.u32 %r5, %r40, 1; st.global.b32 [%rd1], %r5;", "%r5, made of %r40, to which nothing was written"),
        ("add.u64 %rd5, %rd1, %rd6; st.global.b32 [%rd5], 1;", "%rd5, made of %rd6, to"),
        ("setp.eq.u32 %p5, %r40, 1; @%p5 bra L; L: mov.u32 %r5, 1;", "%p5, made of %r40, to"),
        ("mov.b32 %r5, {%rs1, %rs2}; st.global.b32 [%rd1], %r5;", "%r5, made of %rs1, %rs2, to"),
        ("@%p1 mov.u32 %r5, 1; st.global.b32 [%rd1], %r5;", "lane 1: use of register %r5 to which"),
        ("@%p1 bra L; mov.u32 %r5, 1; L: st.global.b32 [%rd1], %r5;", "lane 0: use of register %r5 to which"),
    ],
)
def test_the_use_of_a_register_that_nothing_was_written_to_is_found(body: str, message: str) -> None:
    with pytest.raises(IllegalAccessError, match=message.replace("(", r"\(")):
        launch(body)


LOOP = """
    mov.u32 %r6, 0; L: setp.eq.u32 %p5, %r6, 0; @%p5 mov.u32 %r5, 3; add.u32 %r6, %r6, %r5;
    setp.lt.u32 %p6, %r6, 9; @%p6 bra L; st.global.b32 [%rd1], %r5;
"""


@pytest.mark.parametrize(
    "body",
    [
        "mov.b16 %rs1, 7; mov.b32 %r5, {%rs1, %rs2}; st.global.b16 [%rd1], %r5;",
        "mov.f32 %f1, 0f3F800000; cvt.rn.satfinite.e4m3x2.f32 %rs1, %f2, %f1; st.global.b8 [%rd1], %rs1;",
        "@%p1 mov.u32 %r5, 1; @%p1 st.global.b32 [%rd1], %r5;",
        "@%p1 mov.u32 %r5, 1; @!%p1 mov.u32 %r5, 2; st.global.b32 [%rd1], %r5;",
        "@!%p1 bra L; mov.u32 %r5, 1; L: @!%p1 bra M; st.global.b32 [%rd1], %r5; M:",
        "@!%p1 bra L; mov.u32 %r5, 1; L: @%p1 st.global.b32 [%rd1], %r5;",
        LOOP,
    ],
)
def test_registers_that_are_written_wherever_they_matter_are_no_fault(body: str) -> None:
    launch(body)
