"""Origins of values: through lanes, shared memory, packed halves and atomics."""

from __future__ import annotations

import numpy as np
from traced import trace

LOAD = (
    "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [x]; ld.param.b64 %rd2, [y]; mad.wide.u32 %rd3, %r1, 4, %rd1;"
    " mad.wide.u32 %rd4, %r1, 4, %rd2; ld.global.f32 %f1, [%rd3];"
)
STORE = "st.global.f32 [%rd4], %f9;"
X = np.arange(32, dtype=np.float32).view(np.uint32)
Y = np.zeros(32, np.uint32)


def _stored(body: str, lane: int = 0, **options: str) -> str:
    tracer, _ = trace(LOAD + body + STORE, {"x": X, "y": Y}, **options)  # type: ignore[arg-type]
    return str(tracer.outputs["y", 4 * lane, 4])


def test_float_operations_have_one_name_and_what_commutes_is_sorted() -> None:
    assert _stored("add.rn.f32 %f9, %f1, %f1;") == "add.f32(x[0:4], x[0:4])"
    assert _stored("mul.f32 %f2, %f1, %f1; fma.rn.f32 %f9, %f2, %f1, %f2;") == (
        "fma.f32(x[0:4], mul.f32(x[0:4], x[0:4]), mul.f32(x[0:4], x[0:4]))"
    )
    assert _stored("sub.ftz.f32 %f9, 0f3F800000, %f1;") == "sub.ftz.f32(0x3f800000, x[0:4])"


def test_a_shuffle_moves_a_value_and_leaves_no_operation() -> None:
    said = _stored("mov.b32 %r2, %f1; shfl.sync.bfly.b32 %r3, %r2, 16, 31, 0xffffffff; mov.b32 %f9, %r3;", lane=3)
    assert said == "x[76:80]"


def test_shared_memory_and_a_wider_load_keep_the_element() -> None:
    said = _stored(
        "mov.u32 %r4, buffer; shl.b32 %r5, %r1, 2; add.u32 %r6, %r4, %r5; st.shared.f32 [%r6], %f1; bar.sync 0;"
        " ld.shared.v2.f32 {%f2, %f3}, [%r4+8]; add.f32 %f9, %f2, %f3;",
        outside=".shared .align 16 .b8 buffer[1024];",
    )
    assert said == "add.f32(x[8:12], x[12:16])"


def test_halves_of_a_register_are_bf16_elements_however_they_are_taken_out() -> None:
    ways = (
        "mov.b32 %r2, %f1; mov.b32 {%rs1, %rs2}, %r2; cvt.f32.bf16 %f9, %rs2;",
        "mov.b32 %r2, %f1; and.b32 %r3, %r2, 0xffff0000; mov.b32 %f9, %r3;",
        "mov.b32 %r2, %f1; shr.u32 %r3, %r2, 16; shl.b32 %r3, %r3, 16; mov.b32 %f9, %r3;",
        "mov.b32 %r2, %f1; prmt.b32 %r3, %r2, 0, 0x3244; mov.b32 %f9, %r3;",
    )
    assert {_stored(way) for way in ways} == {"bf16(x[2:4])"}


def test_a_packed_addition_is_two() -> None:
    tracer, _ = trace(
        LOAD + "mov.b64 %rd5, {%f1, %f1}; add.rn.f32x2 %rd6, %rd5, %rd5; mov.b64 {%f2, %f9}, %rd6;" + STORE,
        {"x": X, "y": Y},
    )
    assert str(tracer.outputs["y", 4, 4]) == "add.f32(x[4:8], x[4:8])"


def test_a_packed_conversion_is_two() -> None:
    packed = "cvt.rn.bf16x2.f32 %r2, %f8, %f1; mov.b32 {%rs1, %rs2}, %r2; cvt.f32.bf16 %f9, "
    low, high = (_stored(f"add.f32 %f8, %f1, %f1; {packed}{half};", lane=2) for half in ("%rs1", "%rs2"))
    assert low == _stored("cvt.rn.bf16.f32 %rs1, %f1; cvt.f32.bf16 %f9, %rs1;", lane=2)
    assert (low, high) == (
        "bf16(cvt.rn.bf16.f32(x[8:12]))",
        "bf16(cvt.rn.bf16.f32(add.f32(x[8:12], x[8:12])))",
    )


def test_a_selection_has_the_origin_of_what_was_chosen_and_a_constant_has_none() -> None:
    assert _stored("setp.lt.f32 %p1, %f1, 0f41000000; selp.f32 %f9, %f1, 0f00000000, %p1;", lane=7) == "x[28:32]"
    assert _stored("setp.lt.f32 %p1, %f1, 0f41000000; selp.f32 %f9, %f1, 0f00000000, %p1;", lane=8) == "0x0"


def test_an_atomic_sum_is_no_sum_of_the_code() -> None:
    tracer, left = trace(LOAD + "red.global.add.f32 [%rd2], %f1;", {"x": X, "y": Y})
    node = tracer.outputs["y", 0, 4]
    assert node.op.startswith("red.")
    assert left["y"].view(np.float32)[0] == 496.0


def test_what_one_launch_leaves_is_known_to_the_next_until_the_host_changes_it() -> None:
    body = LOAD + "add.f32 %f9, %f1, %f1; ld.global.f32 %f8, [%rd4]; add.f32 %f9, %f9, %f8;" + STORE
    tracer, _ = trace(body, {"x": X, "y": Y})
    assert str(tracer.outputs["y", 8, 4]) == "add.f32(add.f32(x[8:12], x[8:12]), y[8:12])"


def test_a_redux_is_one_node_over_all_lanes() -> None:
    tracer, _ = trace(
        LOAD + "mov.b32 %r2, %f1; redux.sync.max.u32 %r3, %r2, 0xffffffff; mov.b32 %f9, %r3;" + STORE, {"x": X, "y": Y}
    )
    node = tracer.outputs["y", 0, 4]
    assert (node.op, len(node.args)) == ("redux.sync.max.u32", 32)


def test_an_asynchronous_store_keeps_the_element() -> None:
    said = _stored(
        "mov.u32 %r4, buffer; mov.u32 %r7, barrier; mapa.shared::cluster.u32 %r4, %r4, 0;"
        " mapa.shared::cluster.u32 %r7, %r7, 0; setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [barrier], 1;"
        " bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 128; shl.b32 %r5, %r1, 2;"
        " add.u32 %r6, %r4, %r5; mov.b32 %r8, %f1;"
        " st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], %r8, [%r7]; bar.sync 0;"
        " ld.shared.f32 %f9, [buffer+12];",
        outside=".shared .align 16 .b8 buffer[128]; .shared .align 8 .b8 barrier[8];",
    )
    assert said == "x[12:16]"


def test_products_of_a_warpgroup_are_hidden_and_what_they_may_be_made_of_is_remembered() -> None:
    tracer, _ = trace(
        LOAD + "add.f32 %f1, %f1, %f1; mov.u32 %r4, buffer; shl.b32 %r5, %r1, 2; add.u32 %r6, %r4, %r5;"
        " st.shared.f32 [%r6], %f1; bar.sync 0; shr.u32 %r4, %r4, 4; cvt.u64.u32 %rd6, %r4; mov.pred %p1, 0;"
        " wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f2, %f3, %f4, %f5},"
        " %rd6, %rd6, %p1, 1, 1, 0, 0; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
        " add.f32 %f9, %f2, 0f3F800000;" + STORE,
        {"x": np.resize(X, 128), "y": np.resize(Y, 128)},
        128,
        outside=".shared .align 1024 .b8 buffer[4096];",
        arch="sm_90a",
    )
    assert str(tracer.outputs["y", 4, 4]) == "add.f32(not followed(), 0x3f800000)"
    assert "add.f32(x[8:12], x[8:12])" in {str(one) for one in tracer.sunk.values()}
