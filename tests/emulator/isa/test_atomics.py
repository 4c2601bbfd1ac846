from __future__ import annotations

import numpy as np
import pytest
from ptx_run import SPECIALS, Array, module_text, run

from equiv.emulator.engine import LaunchConfig
from equiv.errors import IllegalAccessError, UnknownInstructionError

HEAD = "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [at]; ld.param.b64 %rd2, [in]; ld.param.b64 %rd3, [out];"


def _each(opcode: str, kind: str, memory: Array, given: Array, *, vector: int = 1, shared: bool = False) -> list[Array]:
    """One thread an element or vector: what memory held (`atom` only) and holds."""
    size = memory.dtype.itemsize
    bits = {2: "%rs", 4: "%r1", 8: "%rd1"}[size]
    old = [f"{bits}{i}" for i in range(vector)]
    new = (
        [f"{bits}{i}" for i in range(vector, 2 * vector)] if size == 2 else [f"{bits[:-1]}2{i}" for i in range(vector)]
    )
    stride = size * vector
    old_text, new_text = (", ".join(names) if vector == 1 else "{" + ", ".join(names) + "}" for names in (old, new))
    loads = "".join(f"ld.global.b{8 * size} {name}, [%rd5+{size * i}];" for i, name in enumerate(new))
    stores = "".join(f"st.global.b{8 * size} [%rd6+{size * i}], {name};" for i, name in enumerate(old))
    place = "[%rd4]"
    before = after = ""
    if shared:
        place = "[%r30]"
        before = f"mov.b32 %r30, buffer; mad.lo.u32 %r30, %r1, {size}, %r30; ld.global.b{8 * size} {old[0]}, [%rd4];"
        before += f"st.shared.b{8 * size} [%r30], {old[0]};"
        after = f"ld.shared.b{8 * size} {new[0]}, [%r30]; st.global.b{8 * size} [%rd4], {new[0]};"
    result = f"{old_text}, " if opcode.startswith("atom") else ""
    body = (
        f"{HEAD} mul.wide.u32 %rd4, %r1, {stride}; add.u64 %rd5, %rd4, %rd2; add.u64 %rd6, %rd4, %rd3;"
        f"add.u64 %rd4, %rd4, %rd1; {loads} {before} {opcode}.{kind} {result}{place}, {new_text}; {after}"
    )
    if result:
        body += stores
    after_array, out = memory.copy(), np.zeros_like(memory)
    block = np.zeros(memory.nbytes + 64, np.uint8)
    held = block[-block.ctypes.data % 32 :][: memory.nbytes].view(memory.dtype)
    held[:] = after_array
    text = module_text(body, ("at", "in", "out"), outside=".shared .align 16 .b8 buffer[4096];")
    run(text, [held, given, out], LaunchConfig((1, 1, 1), (len(memory) // vector, 1, 1)))
    return [held, out]


def _numbers(kind: str, count: int, seed: int) -> Array:
    bits = {"f16": 16, "bf16": 16}.get(kind, int(kind[1:]) if kind[1:].isdigit() else 32)
    random = np.random.default_rng(seed)
    unsigned = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
    values = random.integers(0, 1 << bits, count, unsigned)
    values[:4] = [0, 1, (1 << bits) - 1, 1 << (bits - 1)]
    values[4:8] = values[[1, 0, 3, 2]]
    return np.roll(values, seed)


OPERATIONS = [
    ("add", "u32", np.uint32, np.add), ("add", "s32", np.int32, np.add), ("add", "u64", np.uint64, np.add),
    ("min", "u32", np.uint32, np.minimum), ("min", "s32", np.int32, np.minimum), ("min", "s64", np.int64, np.minimum),
    ("max", "u64", np.uint64, np.maximum), ("max", "s32", np.int32, np.maximum), ("max", "u32", np.uint32, np.maximum),
    ("and", "b32", np.uint32, np.bitwise_and), ("or", "b64", np.uint64, np.bitwise_or),
    ("xor", "b32", np.uint32, np.bitwise_xor), ("exch", "b64", np.uint64, lambda x, y: y),
    ("inc", "u32", np.uint32, lambda x, y: np.where(x >= y, 0, x + np.uint32(1))),
    ("dec", "u32", np.uint32, lambda x, y: np.where((x == 0) | (x > y), y, x - np.uint32(1))),
]  # fmt: skip


@pytest.mark.parametrize("base", ["atom.global", "red.global", "atom.shared", "atom", "atom.acquire.cta.shared::cta"])
@pytest.mark.parametrize(("operation", "kind", "lane", "function"), OPERATIONS, ids=lambda one: str(one)[:8])
def test_integer_atomics(base: str, operation: str, kind: str, lane: type, function: object) -> None:
    if base.startswith("red") and operation == "exch":
        return
    memory, given = _numbers(kind, 64, 1), _numbers(kind, 64, 2)
    held, old = _each(f"{base}.{operation}", kind, memory, given, shared="shared" in base)
    want = function(memory.view(lane), given.view(lane)).astype(lane).view(memory.dtype)  # type: ignore[operator]
    np.testing.assert_array_equal(held, want)
    if base.startswith("atom"):
        np.testing.assert_array_equal(old, memory)


def _flushed(values: Array) -> Array:
    tiny = (values.view(np.uint32) & 0x7F800000) == 0
    return (
        np.where(tiny, values.view(np.uint32) & 0x80000000, values.view(np.uint32)).astype(np.uint32).view(np.float32)
    )


@pytest.mark.parametrize(
    ("base", "flush"), [("atom.global", True), ("red.relaxed.gpu.global", True), ("atom.shared", False)]
)
def test_f32_addition_flushes_subnormals_in_global_memory_and_keeps_them_in_shared(base: str, flush: bool) -> None:
    values = SPECIALS[SPECIALS & 0x7F800000 != 0x7F800000]
    memory, given = np.repeat(values, len(values)), np.tile(values, len(values))
    memory, given = memory[: len(memory) // 32 * 32], given[: len(memory) // 32 * 32]
    held, _ = _each(f"{base}.add", "f32", memory, given, shared="shared" in base)
    one, two = memory.view(np.float32), given.view(np.float32)
    with np.errstate(over="ignore"):
        want = _flushed(_flushed(one) + _flushed(two)) if flush else one + two
    np.testing.assert_array_equal(held, want.view(np.uint32))


def test_f64_addition() -> None:
    memory, given = np.array([1e300, 0.1, -0.0, 5e-324], np.float64), np.array([1e284, 0.2, -0.0, 5e-324], np.float64)
    memory, given = np.tile(memory, 8), np.tile(given, 8)
    held, _ = _each("atom.global.add", "f64", memory.view(np.uint64), given.view(np.uint64))
    np.testing.assert_array_equal(held, (memory + given).view(np.uint64))


@pytest.mark.parametrize("base", ["atom.global", "red.global", "atom.shared"])
def test_f16_addition_rounds_once_and_keeps_subnormals(base: str) -> None:
    bits = np.array([0x3C00, 0x0001, 0x8001, 0x7BFF, 0x0400, 0x1400, 0x83FF, 0x0000], np.uint16)
    memory, given = np.repeat(bits, 8), np.tile(bits, 8)
    held, _ = _each(f"{base}.add.noftz", "f16", memory, given, shared="shared" in base)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(held, (memory.view(np.float16) + given.view(np.float16)).view(np.uint16))


@pytest.mark.parametrize(
    ("vector", "kind", "lane"), [(2, "f32", np.float32), (4, "f32", np.float32), (8, "f16", np.float16)]
)
@pytest.mark.parametrize("base", ["atom", "red"])
def test_vector_additions_are_those_of_their_elements(base: str, vector: int, kind: str, lane: type) -> None:
    random = np.random.default_rng(3)
    memory: Array = random.standard_normal(32 * vector).astype(lane)
    given: Array = random.standard_normal(32 * vector).astype(lane)
    bits = np.uint32 if kind == "f32" else np.uint16
    noftz = "" if kind == "f32" else ".noftz"
    held, old = _each(f"{base}.global.add{noftz}.v{vector}", kind, memory.view(bits), given.view(bits), vector=vector)
    np.testing.assert_array_equal(held, (memory + given).view(bits))
    if base == "atom":
        np.testing.assert_array_equal(old, memory.view(bits))


def test_vector_minimum_of_bf16_pairs() -> None:
    memory = np.tile(np.array([0x3F80BF80, 0x80000000, 0x7FC04000, 0x00007F80], np.uint32), 32)
    given = np.tile(np.array([0x40003F80, 0x00008000, 0x3F807FC0, 0xFF800000], np.uint32), 32)
    held, _ = _each("red.global.min.noftz.v4", "bf16x2", memory, given, vector=4)
    np.testing.assert_array_equal(held[:4], [0x3F80BF80, 0x80008000, 0x3F804000, 0xFF800000])


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap(bits: int) -> None:
    name = {16: "%rs", 32: "%r2", 64: "%rd2"}[bits]
    body = (
        f"{HEAD} mul.wide.u32 %rd4, %r1, {bits // 8}; add.u64 %rd5, %rd4, %rd2; add.u64 %rd6, %rd4, %rd3;"
        " add.u64 %rd4, %rd4,"
        f"%rd1; ld.global.b{bits} {name}1, [%rd5]; atom.global.cas.b{bits} {name}2, [%rd4], {name}1, 7;"
        f"st.global.b{bits} [%rd6], {name}2;"
    )
    lane = {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits]
    memory = np.arange(32, dtype=lane)
    given, out = np.where(memory % 3 == 0, memory, memory + lane(1)).astype(lane), np.zeros(32, lane)
    held = memory.copy()
    run(module_text(body, ("at", "in", "out")), [held, given, out], LaunchConfig((1, 1, 1), (32, 1, 1)))
    np.testing.assert_array_equal(out, memory)
    np.testing.assert_array_equal(held, np.where(memory % 3 == 0, 7, memory))


def test_lanes_at_one_address_go_one_after_the_other_and_float_additions_are_counted() -> None:
    body = (
        f"{HEAD} cvt.rn.f32.u32 %f1, %r1; red.global.add.f32 [%rd1], %f1; atom.global.gpu.acq_rel.add.f32"
        " %f2, [%rd1+4], 0f3F800000;"
        "mul.wide.u32 %rd4, %r1, 4; add.u64 %rd3, %rd3, %rd4; st.global.f32 [%rd3], %f2;"
        " red.global.add.u32 [%rd1+8], %r1;"
    )
    at, out = np.zeros(4, np.float32), np.zeros(64, np.float32)
    stats = run(
        module_text(body, ("at", "in", "out")), [at, np.zeros(4, np.float32), out], LaunchConfig((1, 1, 1), (64, 1, 1))
    )
    np.testing.assert_array_equal(at[:2], [2016, 64])
    np.testing.assert_array_equal(out, np.arange(64))
    assert stats.order_dependent == 128


def test_what_is_no_atomic_operation_is_refused_by_name() -> None:
    out = np.zeros(4, np.float32)
    for text, message in (
        ("multimem.red.global.add.f32 [%rd1], %f1;", "multimem addresses reach several devices; one is emulated"),
        ("atom.global.exch.b128 %rd2, [%rd1], %rd3;", "modifier `.b128` is not known here"),
        ("atom.global.min.f32 %f1, [%rd1], %f2;", "modifier `.f32` is not known here"),
    ):
        with pytest.raises(UnknownInstructionError, match=message):
            run(module_text(text, ("out",)), [out], LaunchConfig((1, 1, 1), (32, 1, 1)))


def test_a_vector_must_be_aligned_as_a_whole() -> None:
    at = np.zeros(64, np.float32)
    body = f"{HEAD} mov.f32 %f1, 0f3F800000; and.b64 %rd1, %rd1, -16;"
    body += " red.global.add.v4.f32 [%rd1+24], {%f1, %f1, %f1, %f1};"
    with pytest.raises(IllegalAccessError, match="is not a multiple of 16"):
        run(module_text(body, ("at", "in", "out")), [at, at.copy(), at.copy()], LaunchConfig((1, 1, 1), (32, 1, 1)))
