"""Races planted in small kernels, and the same kernels made right, under `check="race"`."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator import races
from equiv.emulator.engine import LaunchConfig, LaunchStats
from equiv.errors import EmulatorError

SHARED = ".shared .align 128 .b8 scratch[512]; .shared .align 128 .b8 buffer[2048]; .shared .align 8 .b64 bar[4];"
HEAD = (
    "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.b32 %r20, bar; mov.b32 %r21, buffer; ld.param.b64 %rd1, [a];"
    "mov.u32 %r2, %cluster_ctarank; shl.b32 %r3, %r1, 2; add.u32 %r4, %r21, %r3; xor.b32 %r5, %r3, 128;"
    "add.u32 %r5, %r5, %r21; shr.u32 %r6, %r1, 5; setp.eq.u32 %p2, %r6, 1;\n"
)
INIT = "@%p1 mbarrier.init.shared.b64 [%r20], 1; @%p1 mbarrier.init.shared.b64 [%r20+8], 64; bar.sync 0;\n"
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 256;\n"
LOAD = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r21], [%rd1], 256, [%r20];\n"
WAIT = "W{0}: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r20+{1}], {2}; @!%p8 bra W{0};\n"
STORE = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r21], 256; @%p1 cp.async.bulk.commit_group;\n"
PUT, GET = "st.shared.b32 [%r4], %r1;\n", "ld.shared.b32 %r7, [%r5];\n"


def launch(
    body: str, *, cluster: int = 1, threads: int = 64, completion: str = "eager", seed: int | None = None
) -> LaunchStats:
    data: Array = np.ones(4096 + 256, np.uint8)
    data = data[-data.ctypes.data % 256 :][:4096]
    config = LaunchConfig((cluster, 1, 1), (threads, 1, 1), (cluster, 1, 1))
    text = module_text(HEAD + body + "\nret;", ("a",), arch="sm_90a", outside=SHARED)
    return run(text, [data], config, "sm_90a", completion=completion, seed=seed, checks=False, check="race")


def line(text: str, body: str, which: int = 1) -> int:
    """The line of the PTX on which an occurrence of `text` in the body stands."""
    full = module_text(HEAD + body + "\nret;", ("a",), arch="sm_90a", outside=SHARED)
    at = -1
    for _ in range(which):
        at = full.index(text, at + 1)
    return full[:at].count("\n") + 1


def races_in(body: str, **how: int) -> str:
    with pytest.raises(EmulatorError) as caught:
        launch(body, **how)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_missing_barrier_between_a_write_and_a_read_names_both(seed: int | None) -> None:
    body = "bar.sync 0;\n" + PUT + GET
    with pytest.raises(EmulatorError) as caught:
        launch(PUT + "bar.sync 0;\n" + PUT + "bar.sync 0;\n" + GET + PUT, seed=seed)  # a write after a read
    assert "nothing orders the two" in str(caught.value)
    launch(PUT + "bar.sync 0;\n" + GET + "bar.sync 0;\n" + PUT, seed=seed)
    with pytest.raises(EmulatorError):
        launch(body, seed=seed)


def test_the_report_of_a_race_says_who_where_and_what() -> None:
    body = PUT + "bar.sync 0;\n" + GET + PUT
    assert races_in(body) == (
        f"k: PTX line {line('ld.shared', body)} `ld.shared.b32`, CTA (0, 0, 0) warp 0 lane 0: read of shared address"
        f" 0x680 (CTA rank 0, offset 640 (`buffer` + 128)) after the write by PTX line {line('st.shared', body, 2)}"
        " `st.shared.b32`, CTA (0, 0, 0) warp 1: nothing orders the two"
    )


@pytest.mark.parametrize(
    "order",
    ["bar.sync 0, 64;", "barrier.sync 3, 64;", "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;",
     "fence.acq_rel.cta; barrier.cluster.arrive.relaxed; barrier.cluster.wait;",
     "mbarrier.arrive.shared.b64 %rd9, [%r20+8]; " + WAIT.format("X", 8, 0)],
)  # fmt: skip
def test_whatever_orders_the_warps_will_do(order: str) -> None:
    launch(INIT + PUT + order + GET)
    assert "nothing orders the two" in races_in(
        INIT + PUT + order.split(";", maxsplit=1)[0].replace("sync", "arrive") + ";" + GET
    )


def test_one_named_barrier_orders_only_those_who_come_to_it() -> None:
    body = (
        PUT
        + "setp.lt.u32 %p3, %r1, 64;\n@%p3 bar.sync 1, 64;\n{}"
        + "xor.b32 %r5, %r3, 256; add.u32 %r5, %r5, %r21;"
        + GET
    )
    assert "nothing orders the two" in races_in(body.format(""), threads=128)
    launch(body.format("bar.sync 0;"), threads=128)


def test_an_ordinary_write_before_an_asynchronous_read_needs_a_proxy_fence() -> None:
    body = PUT + "{}bar.sync 0;\n{}" + STORE
    message = races_in(body.format("", ""))
    assert f"PTX line {line('cp.async.bulk.global', body)} `cp.async.bulk.global.shared::cta.bulk_group`" in message
    assert f"after the write by PTX line {line('st.shared', body)} `st.shared.b32`, CTA (0, 0, 0) warp 0: no" in message
    assert message.endswith("no fence.proxy.async stands between them")
    launch(body.format("fence.proxy.async.shared::cta;", ""))
    launch(body.format("", "fence.proxy.async;"))
    assert "nothing orders the two" in races_in(PUT + "fence.proxy.async;\n" + STORE)


def test_a_source_is_free_when_its_group_has_been_read() -> None:
    body = PUT + "fence.proxy.async; bar.sync 0;\n" + STORE + "{}bar.sync 0;\n" + PUT
    assert (
        f"write of shared address 0x600 (CTA rank 0, offset 512 (`buffer` + 0)) after the read by PTX line"
        f" {line('cp.async', body)} " in races_in(body.format(""))
    )
    launch(body.format("@%p1 cp.async.bulk.wait_group.read 0;"))
    assert "nothing orders" in races_in(body.format("@%p1 cp.async.bulk.wait_group.read 1;"))


def test_what_a_copy_brings_is_read_behind_its_mbarrier() -> None:
    body = INIT + EXPECT + LOAD + "{}bar.sync 0;\n" + GET
    message = races_in(body.format(""))
    assert f"PTX line {line('ld.shared', body)} `ld.shared.b32`, CTA (0, 0, 0) warp 0 lane 0: read of shared" in message
    assert f"after the write by PTX line {line('cp.async', body)} `cp.async.bulk" in message
    launch(body.format(WAIT.format("A", 0, 0)))
    launch(body.format(WAIT.format("A", 0, 0)), completion="late")


def test_a_stage_is_filled_again_when_its_readers_have_arrived() -> None:
    """Two rounds through one stage; readers free it by the second mbarrier."""
    round_one = INIT + EXPECT + LOAD + WAIT.format("A", 0, 0) + GET + "mbarrier.arrive.shared.b64 %rd9, [%r20+8];\n"
    round_two = EXPECT + LOAD + WAIT.format("B", 0, 1) + GET
    launch(round_one + WAIT.format("F", 8, 0) + round_two)
    weak = round_one.replace("mbarrier.arrive.shared.b64 %rd9", "mbarrier.arrive.relaxed.cta.shared::cta.b64 %rd9")
    message = races_in(weak + WAIT.format("F", 8, 0) + round_two)
    assert "cp.async.bulk.shared::cluster" in message.partition("after the read by")[0]
    assert "`ld.shared.b32`" in message.partition("after the read by")[2]


def test_groups_of_cp_async_are_known_to_their_warp_alone() -> None:
    copy = "cp.async.ca.shared.global [%r4], [%rd1], 4; cp.async.commit_group;\n"
    launch(copy + "cp.async.wait_group 0; bar.sync 0;\n" + GET)
    assert "nothing orders" in races_in(copy + "bar.sync 0;\n" + GET)
    assert "nothing orders" in races_in(
        copy + copy.replace("%r4]", "%r4+512]") + "cp.async.wait_group 2; bar.sync 0;\n" + GET
    )
    launch(copy + copy.replace("%r4]", "%r4+512]") + "cp.async.wait_group 1; bar.sync 0;\n" + GET)
    launch(
        copy.replace("%r4]", "%r4+512]") + copy + "cp.async.wait_group 0; cp.async.wait_group 1; bar.sync 0;\n" + GET
    )


def test_an_mbarrier_is_used_after_its_initialisation() -> None:
    body = "@%p1 mbarrier.init.shared.b64 [%r20], 64;\n{}mbarrier.arrive.shared.b64 %rd9, [%r20];\n"
    message = races_in(body.format(""))
    assert f"PTX line {line('mbarrier.arrive', body)} `mbarrier.arrive.shared.b64`, CTA (0, 0, 0) warp 1" in message
    launch(body.format("bar.sync 0;"))


def test_atomics_do_not_race_with_each_other_but_with_stores() -> None:
    zero, add = "setp.eq.u32 %p3, %r1, 32; @%p3 st.shared.b32 [%r21], 0;\n", "atom.shared.add.u32 %r7, [%r21], 1;\n"
    launch(zero + "bar.sync 0;\n" + add)
    assert "`st.shared.b32`, CTA (0, 0, 0) warp 1 lane 0: write of shared" in races_in(zero + add)
    launch(zero + "bar.sync 0;" + add + "bar.sync 0; ld.shared.b32 %r7, [%r21];")


def test_a_store_into_another_cta_is_ordered_by_the_cluster_barrier_and_waited_for() -> None:
    both = "barrier.cluster.arrive; barrier.cluster.wait;"
    put = "xor.b32 %r8, %r2, 1; mapa.shared::cluster.u32 %r9, %r4, %r8;\nst.shared::cluster.b32 [%r9], %r1;\n"
    launch(put + both + GET, cluster=2)
    assert "nothing orders the two" in races_in(put + both + put + GET + both, cluster=2)
    message = races_in(both + put, cluster=2)
    assert f"PTX line {line('st.shared::cluster', both + put)} `st.shared::cluster.b32`" in message
    assert "nothing makes CTA rank 0 of the cluster wait for this access before it exits" in message


def test_opcodes_and_what_they_mean() -> None:
    want = {"ld.shared.v4.b32": "read", "st.volatile.shared.b32": "atomic", "red.shared.add.u32": "atomic",
            "red.async.relaxed.cluster": "none", "fence.proxy.async.shared::cta": "proxy fence", "membar.cta": "fence",
            "cp.async.cg.shared.global": "copy", "cp.async.bulk.tensor.2d.shared::cta.global": "none"}  # fmt: skip
    assert {opcode: races.action(opcode) for opcode in want} == want
