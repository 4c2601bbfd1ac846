"""`tcgen05`: allocation, loads, stores and copies of tensor memory, every element where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
from both_engines import agree
from ptx_run import Array, aligned, module_text, run
from smem_layout import TENSOR_CODE, descriptor, place
from tensor_lab import BASE, COMMIT, lab, text, unique

from equiv.emulator.engine import LaunchConfig
from equiv.errors import EmulatorError, UnknownInstructionError

# Thread and value layouts of CuTe DSL's copy atoms (`layout_dst_tv` of tcgen05.Ld*Op): (thread, value) -> (row, column)
# of one repetition, sizes from the fastest on. In the packed forms the column counts 16-bit elements.
THREAD = np.arange(32)


def _cells(shape: str, count: int, *, packed: bool, split: int = 0) -> tuple[Array, Array]:
    """(row, column) of [register, thread] and, packed, of [register, thread, half]."""
    register = np.arange(count)[:, None]
    t = THREAD[None]
    row, column = {
        "32x32b": lambda: (t + 0 * register, register + 0 * t),
        "16x64b": lambda: (t // 4 + 8 * (t % 2) + 0 * register, t // 2 % 2 + 2 * register),
        "16x128b": lambda: (t // 4 + 8 * (register % 2), t % 4 + 4 * (register // 2)),
        "16x256b": lambda: (t // 4 + 8 * (register // 2 % 2), 2 * (t % 4) + register % 2 + 8 * (register // 4)),
        "16x32bx2": lambda: (t % 16 + 0 * register, register + 0 * t),
    }[shape]()
    if packed:
        row, column = row[..., None] + np.zeros(2, int), column[..., None] * 2 + np.arange(2)
    if shape == "16x32bx2":
        column = column + (split * (t >= 16)).reshape((1, 32) + (1,) * packed)
    return row, column


FORMS = [
    ("32x32b", "x1", 1), ("32x32b", "x8", 8), ("32x32b", "x128", 128), ("16x64b", "x1", 1), ("16x64b", "x2", 2),
    ("16x64b", "x16", 16), ("16x128b", "x1", 2), ("16x128b", "x4", 8), ("16x128b", "x64", 128), ("16x256b", "x1", 4),
    ("16x256b", "x4", 16), ("16x256b", "x32", 128), ("16x32bx2", "x1", 1), ("16x32bx2", "x16", 16),
]  # fmt: skip


def _vector(count: int) -> str:
    return "{" + ", ".join(f"%w{i}" for i in range(count)) + "}"


def _width(shape: str, count: int, *, packed: bool) -> int:
    return count * (2 if packed else 1) * (2 if shape in {"16x64b", "16x128b", "16x256b"} else 1)


LOADS = [
    (*form, half, packed) for form in FORMS for packed in (False, True) for half in (0, 16)
    if not (half and form[0] == "32x32b") and _width(form[0], form[2], packed=packed) <= 256
]  # fmt: skip


@pytest.mark.parametrize(("shape", "number", "count", "half", "packed"), LOADS)
def test_a_load_gives_each_thread_the_cells_of_its_shape(
    shape: str, number: str, count: int, half: int, *, packed: bool
) -> None:
    state, split = unique(512 if _width(shape, count, packed=packed) > 128 else 256), 37
    pack = ".pack::16b" if packed else ""
    imm = f", {split}" if shape == "16x32bx2" else ""
    stores = "".join(f"st.global.b32 [%rd3+{4 * i}], %w{i};" for i in range(count))
    load = f"tcgen05.ld.sync.aligned.{shape}.{number}{pack}.b32 {_vector(count)}, [%x]{imm};"
    body = f"add.u32 %x, %ta, {(half << 16) + 3}; {load} tcgen05.wait::ld.sync.aligned; {stores}"
    after, out = lab(body, state)
    np.testing.assert_array_equal(after, state)
    row, column = _cells(shape, count, packed=packed, split=split)
    for warp in range(4):
        cells = state[row + 32 * warp + half, column + 3]
        want = (cells[..., 0] & 0xFFFF) | cells[..., 1] << 16 if packed else cells
        np.testing.assert_array_equal(out[32 * warp : 32 * warp + 32, :count], want.T)


@pytest.mark.parametrize(("shape", "number", "count"), [form for form in FORMS if form[2] <= 16])
@pytest.mark.parametrize("packed", [False, True])
def test_a_store_writes_the_cells_of_its_shape_and_no_others(
    shape: str, number: str, count: int, *, packed: bool
) -> None:
    state, split = unique(128), 40
    unpack = ".unpack::16b" if packed else ""
    imm = f"{split}, " if shape == "16x32bx2" else ""
    values = "".join(f"mad.lo.u32 %w{i}, %tid, 65599, {i * 77001};" for i in range(count))
    store = f"tcgen05.st.sync.aligned.{shape}.{number}{unpack}.b32 [%x], {imm}{_vector(count)};"
    after, _ = lab(f"{values} add.u32 %x, %ta, 5; {store} tcgen05.wait::st.sync.aligned;", state)
    row, column = _cells(shape, count, packed=packed, split=split)
    want = state.copy()
    for warp in range(4):
        value = ((32 * warp + THREAD)[None] * 65599 + np.arange(count)[:, None] * 77001).astype(np.uint32)
        if packed:
            value = np.stack([value & 0xFFFF, value >> 16], axis=-1)
        want[row + 32 * warp, column + 5] = value
    np.testing.assert_array_equal(after, want)


@pytest.mark.parametrize(
    ("shape", "rows", "size", "source"),
    [
        ("128x256b", 128, 32, lambda lane: lane),
        ("128x128b", 128, 16, lambda lane: lane),
        ("64x128b.warpx2::02_13", 64, 16, lambda lane: lane % 64),
        ("64x128b.warpx2::01_23", 64, 16, lambda lane: lane // 64 * 32 + lane % 32),
        ("32x128b.warpx4", 32, 16, lambda lane: lane % 32),
    ],
)
@pytest.mark.parametrize("swizzle", ["none", "128"])
def test_a_copy_puts_rows_of_shared_memory_into_lanes(
    shape: str, rows: int, size: int, source: object, swizzle: str
) -> None:
    words = (np.arange(rows * size // 4, dtype=np.uint32) * np.uint32(2654435761)).reshape(rows, size // 4)
    image = aligned(1 << 15)
    lead, stride = (4096, 128) if swizzle == "none" else (16, 1024)
    place(words, 0, (swizzle, "K"), (lead, stride), image)
    word = descriptor(BASE, lead, stride, TENSOR_CODE[swizzle], tensor=True)
    state = unique(64)
    body = f"add.u32 %x, %tm, 6; mov.b64 %rd9, {word}; @%pe tcgen05.cp.cta_group::1.{shape} [%x], %rd9; {COMMIT}"
    after, _ = lab(body, state, image)
    want = state.copy()
    want[:, 6 : 6 + size // 4] = words[source(np.arange(128))]  # type: ignore[operator]
    np.testing.assert_array_equal(after, want)


ALLOC = "@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot],"
LOAD = "tcgen05.ld.sync.aligned"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{LOAD}.32x32b.x1.b32 {{%w0}}, [%tm];", r"warp ([123]) .*may only use lanes (\d+) to \2\+31"),
        (f"add.u32 %x, %ta, 524288; {LOAD}.16x64b.x1.b32 {{%w0}}, [%x];", "from a multiple of the shape's rows"),
        (f"{LOAD}.32x32b.x32.b32 {_vector(32)}, [%ta+40];", "32 columns from .* 0x00.00028 are not all allocated"),
        (f"add.u32 %x, %ta, %tid; {LOAD}.32x32b.x1.b32 {{%w0}}, [%x];", "must be the same in all lanes"),
        (f"{ALLOC} 48;", "takes 32, 64, 128, 256 or 512"),
        ("@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tm, 32;", "does not start an allocation of 32 columns"),
        (f"{ALLOC} 32;", "32 columns of tensor memory are still allocated"),
        (
            f"@%p1 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; {ALLOC} 32;",
            "given up its right to allocate",
        ),
    ],
)
def test_misuse_of_tensor_memory_is_named(body: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        lab(body, unique(64))


@pytest.mark.parametrize("given", ["", "@%p1 bra SKIP; tcgen05.st.sync.aligned.16x64b.x1.b32 [%tm], {%r1}; SKIP:"])
def test_tensor_memory_that_was_never_written_is_told(given: str) -> None:
    body = f"""
        .reg .b32 %tm; mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [out];
        mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32; ld.shared.b32 %tm, [slot];
        setp.eq.u32 %p1, 0, 1; {given}
        tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r2}}, [%tm]; tcgen05.wait::ld.sync.aligned; st.global.b32 [%rd1], %r2;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tm, 32; ret;"""
    out = np.zeros(32, np.uint32)
    text = module_text(body, ("out",), outside=".shared .b32 slot;")
    config = LaunchConfig((1, 1, 1), (32, 1, 1))
    if given:
        (note,) = run(text, [out], config).notes
        assert note.endswith("16 words of what is read of tensor memory at 0x00000000 were never written")
    else:
        with pytest.raises(EmulatorError, match="32 words of tensor memory from 0x00000000 are read, and none of them"):
            run(text, [out], config)
    run(text, [out], config, checks=False)
    assert (out == 0xFFFFFFFF).sum() == (16 if given else 32)


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("tcgen05.cp.cta_group::1.4x256b [%r1], %rd1;", "which lanes it writes is not documented"),
        ("tcgen05.shift.cta_group::1.down [%r1];", "shifts of tensor memory are not emulated"),
        ("tcgen05.ld.red.sync.aligned.32x32b.x2.min.f32 {%r1,%r2}, %r3, [%r4];", "loads that reduce are not emulated"),
        ("tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;", r"\.ws"),
        (
            "tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd2, [%r3], %r2, %p1;",
            "sparse matrices are not emulated",
        ),
        ("tcgen05.mma.cta_group::1.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;", "emulated are the kinds f16, tf32"),
        ("tcgen05.mma.cta_group::2.kind::i8 [%r1], %rd1, %rd2, %r2, %p1;", "of CTA pairs emulated are the kinds f16"),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(instruction: str, reason: str) -> None:
    with pytest.raises(UnknownInstructionError, match=reason):
        run(module_text(instruction + "ret;", ()), [], LaunchConfig((1, 1, 1), (32, 1, 1)))


SLOTS = ".shared .align 4 .b32 one[2];"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"


def _two_warps(second: str) -> str:
    """The first warp holds all columns until the second one has tried; then it frees what it was told to."""
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
    body = f"""
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 32; mov.u32 %r2, one; ld.param.b64 %rd1, [out];
    @!%p1 bra SECOND;
    {alloc} [%r2], 512; ld.shared.b32 %r3, [%r2]; bar.sync 0; {second}
    bra END;
SECOND: bar.sync 0; {alloc} [%r2+4], 128; ld.shared.b32 %r4, [%r2+4]; {DEALLOC} %r4, 128;
    add.u32 %r4, %r4, 77; st.global.b32 [%rd1], %r4;
END: ret;
"""
    return module_text(body, ("out",), outside=SLOTS)


def test_an_allocation_waits_until_another_warp_frees_columns() -> None:
    out = np.zeros(64, np.uint32)
    loops = " ".join(f"add.u32 %r5, %r5, {number};" for number in range(50))
    text = _two_warps(f"mov.u32 %r5, 0; {loops} {DEALLOC} %r3, 512;")
    error, (left,) = agree(text, [out.view(np.uint8)], LaunchConfig((1, 1, 1), (64, 1, 1)))
    assert not error
    assert left.view(np.uint32)[0] == 77


def test_an_allocation_that_nobody_makes_room_for_is_a_deadlock() -> None:
    text = _two_warps("bar.sync 1;")
    error, _ = agree(text, [np.zeros(256, np.uint8)], LaunchConfig((1, 1, 1), (64, 1, 1)))
    assert error.startswith("DeadlockError")
    assert "warp 1 lanes 0xffffffff wait for 128 columns of tensor memory in a row, 0 are free: PTX line" in error
    assert "tcgen05.alloc" in error


SHARED_BARRIER = "mov.b32 %x, barrier; cvt.u64.u32 %rd20, %x;"
ELSEWHERE = COMMIT.replace(".shared::cluster.b64 [barrier]", ".b64 [%rd20]")


@pytest.mark.parametrize(
    "address",
    ["mov.b64 %rd20, barrier; cvta.shared.u64 %rd20, %rd20;", SHARED_BARRIER],
    ids=["generic", "shared as it is"],
)
def test_the_barrier_of_a_commit_is_a_generic_or_a_shared_address(address: str) -> None:
    held = unique(32).view(np.uint8).ravel()
    given = [aligned(16), held, np.zeros(128 * 128 * 4, np.uint8)]
    error, after = agree(text(address + ELSEWHERE, 32, 16), given, LaunchConfig((1, 1, 1), (128, 1, 1)))
    assert not error
    np.testing.assert_array_equal(after[1], held)


def test_a_commit_to_an_address_that_is_neither_is_told() -> None:
    with pytest.raises(EmulatorError, match=r"`tcgen05\.commit.* write of 8 bytes at 0x1000"):
        lab(SHARED_BARRIER + "add.u64 %rd20, %rd20, 0x100000000;" + ELSEWHERE, unique(32))
