from __future__ import annotations

import numpy as np
import pytest
from ptx_run import Array, aligned, each, module_text, run

from equiv.emulator import engine
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse
from equiv.errors import EmulatorError, IllegalAccessError

WARP = LaunchConfig((1, 1, 1), (32, 1, 1))
HEAD = (
    "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; ld.param.b64 %rd2, [b]; "
    "mad.wide.u32 %rd3, %r1, {size}, %rd1; mad.wide.u32 %rd4, %r1, {size}, %rd2;"
)
SHARED = ".shared .align 16 .b8 buffer[1024];"


def _copy(
    load: str, store: str, size: int, *, outside: str = "", extra: str = "", checks: bool = True
) -> tuple[Array, Array]:
    source, target = aligned(32 * size), aligned(32 * size)
    source[:] = np.random.default_rng(5).integers(0, 256, 32 * size, np.uint8)
    run(
        module_text(HEAD.format(size=size) + extra + load + store + "ret;", ("a", "b"), outside=outside),
        [source, target],
        WARP,
        checks=checks,
    )
    return source.view(np.uint32), target.view(np.uint32)


@pytest.mark.parametrize(
    ("width", "registers", "size"),
    [
        ("b8", "%rs1", 1),
        ("b16", "%rs1", 2),
        ("b32", "%r2", 4),
        ("b64", "%rd5", 8),
        ("v2.b32", "{%r2,%r3}", 8),
        ("v4.b32", "{%r2,%r3,%r4,%r5}", 16),
        ("v2.b64", "{%rd5,%rd6}", 16),
        ("v4.b16", "{%rs1,%rs2,%rs3,%rs4}", 8),
        ("v8.b32", "{%r2,%r3,%r4,%r5,%r6,%r7,%r8,%r9}", 32),
    ],
)
def test_loads_and_stores_of_every_width_move_the_bytes(width: str, registers: str, size: int) -> None:
    source, target = _copy(f"ld.global.{width} {registers}, [%rd3];", f"st.global.{width} [%rd4], {registers};", size)
    np.testing.assert_array_equal(source, target)


def test_narrow_loads_extend_by_their_type() -> None:
    source = np.array([0x80, 0x7F, 0xFF, 1] * 8, np.uint8)
    out = np.zeros(64, np.int32)
    body = (
        "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; ld.param.b64 %rd2, [b]; cvt.u64.u32 %rd3, %r1; "
        "add.s64 %rd3, %rd1, %rd3;"
        "mad.wide.u32 %rd4, %r1, 8, %rd2; ld.global.s8 %r2, [%rd3]; ld.global.u8 %r3, [%rd3]; "
        "st.global.v2.b32 [%rd4], {%r2, %r3}; ret;"
    )
    run(module_text(body, ("a", "b")), [source, out.view(np.uint32)], WARP)
    np.testing.assert_array_equal(out[0::2], source.view(np.int8))
    np.testing.assert_array_equal(out[1::2], source)


def test_cache_hints_and_qualifiers_change_no_value() -> None:
    load = (
        "createpolicy.fractional.L2::evict_first.b64 %rd7, 1.0; "
        "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%r2,%r3,%r4,%r5}, [%rd3], %rd7;"
    )
    source, target = _copy(load, "st.relaxed.sys.global.v4.u32 [%rd4], {%r2,%r3,%r4,%r5};", 16)
    np.testing.assert_array_equal(source, target)


def test_shared_memory_is_addressed_by_symbol_register_and_generic_pointer() -> None:
    extra = "mov.u32 %r20, buffer; mad.lo.u32 %r21, %r1, 4, %r20; cvta.shared.u64 %rd8, %rd9;"
    load = (
        "ld.global.b32 %r2, [%rd3]; st.shared.b32 [%r21], %r2; bar.sync 0;"
        "mov.u64 %rd8, buffer; cvta.shared.u64 %rd8, %rd8; xor.b32 %r22, %r1, 1; "
        "mad.wide.u32 %rd8, %r22, 4, %rd8; ld.b32 %r3, [%rd8];"
        "ld.shared.b32 %r4, [buffer+8];"
    )
    source, target = _copy(load, "add.u32 %r3, %r3, %r4; st.global.b32 [%rd4], %r3;", 4, outside=SHARED, extra=extra)
    np.testing.assert_array_equal(target, source[np.arange(32) ^ 1] + source[2])


def test_shared_memory_starts_as_poison() -> None:
    _, target = _copy("ld.shared.b32 %r2, [buffer];", "st.global.b32 [%rd4], %r2;", 4, outside=SHARED, checks=False)
    assert set(target) == {0xFFFFFFFF}


def test_asynchronous_copy_fills_what_it_does_not_read_with_zeros() -> None:
    extra = "mov.u32 %r20, buffer; mad.lo.u32 %r21, %r1, 16, %r20; and.b32 %r22, %r1, 3; shl.b32 %r22, %r22, 2;"
    load = (
        "cp.async.cg.shared.global [%r21], [%rd3], 16, %r22; cp.async.commit_group; "
        "cp.async.wait_group 0; ld.shared.v4.b32 {%r2,%r3,%r4,%r5}, [%r21];"
    )
    source, target = _copy(load, "st.global.v4.b32 [%rd4], {%r2,%r3,%r4,%r5};", 16, outside=SHARED, extra=extra)
    rows, got = source.reshape(32, 4), target.reshape(32, 4)
    kept = np.arange(4)[None, :] < (np.arange(32) % 4)[:, None]
    np.testing.assert_array_equal(got, np.where(kept, rows, 0))


def test_an_asynchronous_copy_that_reads_nothing_needs_no_address() -> None:
    extra = "mov.u32 %r20, buffer; mad.lo.u32 %r21, %r1, 16, %r20; mov.b64 %rd3, 0;"
    load = "cp.async.cg.shared.global [%r21], [%rd3], 16, 0; cp.async.wait_all;"
    load += "ld.shared.v4.b32 {%r2,%r3,%r4,%r5}, [%r21];"
    _, target = _copy(load, "st.global.v4.b32 [%rd4], {%r2,%r3,%r4,%r5};", 16, outside=SHARED, extra=extra)
    assert not target.any()


def test_an_asynchronous_copy_of_another_size_is_refused() -> None:
    extra = "mov.u32 %r20, buffer;"
    with pytest.raises(EmulatorError, match=r"a copy of 12 bytes: cp\.async copies 4, 8 or 16"):
        _copy("cp.async.ca.shared.global [%r20], [%rd3], 12;", "", 16, outside=SHARED, extra=extra)


def test_atomics_return_the_old_value_and_lanes_follow_each_other() -> None:
    counter = np.array([5], np.uint32)
    out = np.zeros(32, np.uint32)
    body = (
        "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; ld.param.b64 %rd2, [b]; mad.wide.u32 %rd4, %r1, 4, %rd2;"
        "atom.relaxed.gpu.global.add.u32 %r2, [%rd1], 3; st.global.b32 [%rd4], %r2; ret;"
    )
    run(module_text(body, ("a", "b")), [counter, out], WARP)
    np.testing.assert_array_equal(out, 5 + 3 * np.arange(32))
    assert counter[0] == 5 + 96


@pytest.mark.parametrize(
    ("operation", "start", "want"),
    [
        ("max.u32", 7, 31),
        ("min.s32", 7, 0),
        ("or.b32", 32, 63),
        ("exch.b32", 9, 31),
        ("inc.u32", 0, None),
        ("add.f32", 0, None),
    ],
)
def test_atomic_operations(operation: str, start: int, want: int | None) -> None:
    cell = np.array([start], np.uint32)
    body = (
        "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a];"
        + ("cvt.rn.f32.u32 %r1, %r1;" if operation.endswith("f32") else "")
        + f"atom.global.{operation} %r2, [%rd1], %r1; ret;"
    )
    run(module_text(body, ("a",)), [cell], WARP)
    if operation == "add.f32":
        assert cell.view(np.float32)[0] == 496.0
    elif operation == "inc.u32":
        value = start
        for lane in range(32):
            value = 0 if value >= lane else value + 1
        assert cell[0] == value
    else:
        assert cell[0] == want


def test_compare_and_swap_replaces_only_what_it_expects() -> None:
    cell, out = np.array([1], np.uint32), np.zeros(32, np.uint32)
    body = (
        "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; ld.param.b64 %rd2, [b]; "
        "mad.wide.u32 %rd4, %r1, 4, %rd2; add.u32 %r3, %r1, 1;"
        "atom.global.cas.b32 %r2, [%rd1], %r3, 77; st.global.b32 [%rd4], %r2; ret;"
    )
    run(module_text(body, ("a", "b")), [cell, out], WARP)
    assert cell[0] == 77
    np.testing.assert_array_equal(out, [1] + [77] * 31)


def test_local_memory_is_a_lanes_own() -> None:
    body = (
        ".local .align 8 .b8 mine[64]; mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; mad.wide.u32 %rd1, %r1, 4, %rd1;"
        "st.local.b32 [mine+12], %r1; mov.u64 %rd2, mine; cvta.local.u64 %rd2, %rd2; "
        "ld.b32 %r2, [%rd2+12]; st.global.b32 [%rd1], %r2; ret;"
    )
    out = np.zeros(32, np.uint32)
    run(module_text(body, ("a",)), [out], WARP)
    np.testing.assert_array_equal(out, np.arange(32))


def test_constant_variables_hold_their_initialiser() -> None:
    outside = ".global .align 4 .b32 table[4] = {10, 20, 30, 40}; .const .align 4 .b32 other[1] = {7};"
    body = (
        "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; mad.wide.u32 %rd1, %r1, 4, %rd1; "
        "and.b32 %r2, %r1, 3; mov.u64 %rd2, table;"
        "mad.wide.u32 %rd2, %r2, 4, %rd2; ld.global.b32 %r3, [%rd2]; ld.const.b32 %r4, [other]; "
        "add.u32 %r3, %r3, %r4; st.global.b32 [%rd1], %r3; ret;"
    )
    out = np.zeros(32, np.uint32)
    run(module_text(body, ("a",), outside=outside), [out], WARP)
    np.testing.assert_array_equal(out, np.tile([17, 27, 37, 47], 8))


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("ld.shared.b32 %r2, [buffer+1024];", "shared address 0x800 (CTA rank 0, offset 1024); the CTA has 1024 bytes"),
        ("mov.u32 %r3, 16; ld.shared.b32 %r2, [%r3];", "the CTA has 1024 bytes"),
        ("ld.shared.b32 %r2, [buffer+2];", "shared address 0x402 is not a multiple of 4"),
        ("ld.global.b64 %rd5, [%rd1+4];", "is not a multiple of 8"),
        ("ld.global.v4.b32 {%r2,%r3,%r4,%r5}, [%rd1+128];", "just past the end of `first` (128 bytes at"),
        ("ld.global.b32 %r2, [%rd1+-4];", "4 bytes before the start of `first`"),
        ("mad.lo.u64 %rd6, 8, 16, %rd1; ld.global.b32 %r2, [%rd6+16];", "16 bytes past the end of `first`"),
        ("st.global.b32 [%rd2], %r1;", ", read-only)"),
        ("mov.u32 %r3, 0x1000400; ld.shared::cluster.b32 %r2, [%r3];", "CTA rank 1"),
    ],
)
def test_a_bad_access_is_an_error_that_says_where(access: str, message: str) -> None:
    block = aligned(4096)
    start = block.ctypes.data
    memory = Memory()
    memory.register(start, 128, "first")
    memory.register(start + 2048, 128, "second", writable=False)
    text = module_text(
        "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [a]; ld.param.b64 %rd2, [b];\n" + access + "\nret;",
        ("a", "b"),
        outside=SHARED,
    )
    params = start.to_bytes(8, "little") + (start + 2048).to_bytes(8, "little")
    with pytest.raises(IllegalAccessError) as caught:
        engine.launch(engine.load(parse(text), "k", "sm_90a"), LaunchConfig((2, 1, 1), (32, 1, 1)), params, memory)
    assert message in str(caught.value)
    assert "k: PTX line 11 `" in str(caught.value)
    assert "CTA (0, 0, 0) warp 0 lane 0:" in str(caught.value)


def test_lanes_that_are_off_access_nothing() -> None:
    got = each(
        "mov.b32 %r20, 5; mov.b64 %rd50, 0; @%p1 ld.global.b32 %r20, [%rd50];",
        {"%p1": np.zeros(32, np.uint8)},
        {"%r20": 32},
    )
    assert set(got["%r20"]) == {5}


@pytest.mark.parametrize(("width", "registers", "size"), [("b32", "%r2", 4), ("v2.b32", "{%r2,%r3}", 8)])
def test_an_instruction_that_was_in_bounds_before_is_still_checked(width: str, registers: str, size: int) -> None:
    body = (
        "mov.u32 %r1, %tid.x; mov.u32 %r4, %ctaid.x; mad.lo.u32 %r1, %r4, 32, %r1; ld.param.b64 %rd1, [a];"
        f"mad.wide.u32 %rd1, %r1, {size}, %rd1; ld.global.{width} {registers}, [%rd1]; ret;"
    )
    # One word short: only the very last access leaves the buffer, so nothing else can give it away.
    words = 64 * size // 4 - 1
    buffer = aligned(4 * words).view(np.uint32)
    with pytest.raises(IllegalAccessError) as caught:
        run(module_text(body, ("a",)), [buffer], LaunchConfig((2, 1, 1), (32, 1, 1)))
    assert f"CTA (1, 0, 0) warp 0 lane 31: read of {size} bytes" in str(caught.value)
    assert ("just past the end" if size == 4 else "4 of 8 bytes past its end") in str(caught.value)


def test_shared_cta_addresses_stay_in_the_own_cta() -> None:
    body = "mov.u32 %r3, 0x1000400; ld.shared.b32 %r2, [%r3]; ret;"
    with pytest.raises(IllegalAccessError, match=r"shared address 0x1000400 \(CTA rank 1, offset 0 "):
        run(module_text(body, (), outside=SHARED), [], LaunchConfig((2, 1, 1), (32, 1, 1), (2, 1, 1)))


def test_a_bulk_store_sets_shared_memory_to_zero_on_sm_100() -> None:
    out = np.zeros(64, np.uint32)
    body = (
        "mov.u32 %r1, %tid.x; mov.b32 %r20, buffer; ld.param.b64 %rd1, [out]; setp.eq.u32 %p1, %r1, 3;"
        "@%p1 st.bulk.weak.shared::cta [%r20+16], 40, 0; bar.sync 0; shl.b32 %r2, %r1, 2; add.u32 %r3, %r20, %r2;"
        "ld.shared.b32 %r4, [%r3]; cvt.u64.u32 %rd2, %r2; add.u64 %rd2, %rd2, %rd1; st.global.b32 [%rd2], %r4;"
    )
    shared = ".shared .align 16 .b8 buffer[256];"
    run(module_text(body, ("out",), outside=shared), [out], engine.LaunchConfig((1, 1, 1), (64, 1, 1)), checks=False)
    np.testing.assert_array_equal(out, np.where((np.arange(64) >= 4) & (np.arange(64) < 14), 0, 0xFFFFFFFF))
