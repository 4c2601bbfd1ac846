from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ptx_run import Array, module_text, run

from equiv.emulator import engine
from equiv.emulator.engine import LaunchConfig
from equiv.emulator.memory import Memory
from equiv.emulator.ptx_parser import parse
from equiv.emulator.tensormap import ELEMENT_BYTES, TensorMap, decode, encode
from equiv.errors import DeviceError, EmulatorError, IllegalAccessError, UnknownInstructionError

SHARED = ".shared .align 1024 .b8 buffer[16384]; .shared .align 8 .b64 bar[4];"
HEAD = (
    "mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, %cluster_ctarank; mov.b32 %r20, bar;"
    "mov.b32 %r21, buffer; ld.param.b64 %rd1, [map]; ld.param.b64 %rd2, [out];"
    # As the emulator has never-written memory; so that a GPU can run the same.
    "shl.b32 %r41, %r1, 2; Q: add.u32 %r42, %r21, %r41; st.shared.b32 [%r42], -1; mov.u32 %r43, %ntid.x;"
    " shl.b32 %r43, %r43, 2;"
    "add.u32 %r41, %r41, %r43; setp.lt.u32 %p19, %r41, 16384; @%p19 bra Q; fence.proxy.async; bar.sync 0;"
    "@%p1 mbarrier.init.shared.b64 [%r20], 1; @%p1 fence.mbarrier_init.release.cluster; bar.sync 0;\n"
)
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p8, [%r20], 0; @!%p8 bra W;"
DUMP = (
    "mul.lo.u32 %r30, %r2, 16384; shl.b32 %r32, %r1, 2; L: add.u32 %r33, %r21, %r32; ld.shared.b32 %r34, [%r33];"
    "add.u32 %r35, %r30, %r32; cvt.u64.u32 %rd30, %r35; add.u64 %rd31, %rd2, %rd30; st.global.b32 [%rd31], %r34;"
    "add.u32 %r32, %r32, 128; setp.lt.u32 %p9, %r32, 16384; @%p9 bra L;"
)
# Shared memory from the third parameter, so that a store has something to take.
FILL = (
    "shl.b32 %r32, %r1, 2; F: add.u32 %r33, %r21, %r32; cvt.u64.u32 %rd30, %r32; add.u64 %rd31, %rd2, %rd30;"
    "ld.global.b32 %r34, [%rd31]; st.shared.b32 [%r33], %r34; add.u32 %r32, %r32, 128; setp.lt.u32 %p9, %r32, 16384;"
    "@%p9 bra F; fence.proxy.async.shared::cta; bar.sync 0;"
)
BOTH = pytest.mark.parametrize("completion", ["eager", "late"])


def space(nbytes: int) -> Array:
    """Zeros at a multiple of 256."""
    block = np.zeros(nbytes + 256, np.uint8)
    return block[-block.ctypes.data % 256 :][:nbytes]


def launch(
    body: str, tensor: TensorMap | bytes, data: Array, out: Array, *, cluster: int = 1, completion: str = "eager"
) -> int:
    """Run a body on a tensor map (parameter `map`) of `data`; returns the count of additions."""
    held = space(128)
    held[:] = np.frombuffer(encode(tensor) if isinstance(tensor, TensorMap) else tensor, np.uint8)
    text = module_text(HEAD + body + "\nret;", ("map", "out", "unused"), arch="sm_90a", outside=SHARED)
    config = LaunchConfig((cluster, 1, 1), (32, 1, 1), (cluster, 1, 1))
    return run(text, [held, out, data], config, "sm_90a", completion=completion, checks=False).order_dependent


def coordinates(at: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, at)) + "}"


def load_text(rank: int, at: tuple[int, ...], nbytes: int, state: str = "shared::cluster") -> str:
    return (
        f"@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], {nbytes};"
        f"@%p1 cp.async.bulk.tensor.{rank}d.{state}.global.tile.mbarrier::complete_tx::bytes"
        f" [%r21], [%rd1, {coordinates(at)}], [%r20];"
    )


def elements(tensor: TensorMap, at: tuple[int, ...], data: Array) -> list[tuple[int, int | None]]:
    """Of every element of a box in order: offset in shared memory, and in `data`, or None outside the tensor."""
    size = ELEMENT_BYTES[tensor.element]
    steps = (1, *(tensor.steps or (1,) * len(at))[1:])
    counts = [range(0, box, step) for box, step in zip(tensor.box, steps, strict=True)]
    found = []
    row = len(counts[0]) * size
    for number, index in enumerate(itertools.product(*reversed(counts))):
        place = [start + one for start, one in zip(at, reversed(index), strict=True)]
        inside = all(0 <= one < limit for one, limit in zip(place, tensor.shape, strict=True))
        strides = (size, *tensor.strides)
        source = sum(one * stride for one, stride in zip(place, strides, strict=True)) if inside else None
        address = number * size // row * (tensor.swizzle or row) + number * size % row
        mask = {0: 0, 32: 1, 64: 3, 128: 7}[tensor.swizzle]
        found.append((address ^ (address >> 7 & mask) << 4, source))
    return found


def expected(tensor: TensorMap, at: tuple[int, ...], data: Array, fill: bytes) -> Array:
    out = np.full(16384, 0xFF, np.uint8)
    size = ELEMENT_BYTES[tensor.element]
    for shared, source in elements(tensor, at, data):
        out[shared : shared + size] = np.frombuffer(fill, np.uint8) if source is None else data[source : source + size]
    return out


def random_data(nbytes: int) -> Array:
    data = space(nbytes)
    data[:] = np.random.default_rng(nbytes).integers(0, 250, nbytes, np.uint8)
    return data


def tensor_of(data: Array, element: str, shape: tuple[int, ...], box: tuple[int, ...], **other: object) -> TensorMap:
    """Dense but for 16 bytes behind each row."""
    strides, stride = [], shape[0] * ELEMENT_BYTES[element] + 16
    for size in shape[1:]:
        strides.append(stride)
        stride *= size
    assert (stride if len(shape) > 1 else shape[0] * ELEMENT_BYTES[element]) <= data.nbytes
    return TensorMap(data.ctypes.data, element, shape, tuple(strides), box, **other)  # type: ignore[arg-type]


Case = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]
CASES: list[Case] = [
    ("f32", (40,), (32,), (4,), {}),
    ("f32", (40,), (32,), (20,), {}),
    ("u8", (64,), (64,), (-16,), {}),
    ("bf16", (64, 30), (64, 16), (0, 7), {"swizzle": 128}),
    ("bf16", (64, 30), (64, 16), (-8, 20), {"swizzle": 128}),
    ("bf16", (72, 30), (32, 16), (48, -2), {"swizzle": 64}),
    ("bf16", (64, 30), (24, 16), (16, 3), {"swizzle": 128}),
    ("bf16", (64, 30), (8, 16), (8, 20), {"swizzle": 32}),
    ("f32", (24, 20, 5), (8, 16, 3), (4, 2, 3), {"swizzle": 32}),
    ("f32", (24, 20, 5), (8, 16, 3), (100, 2, 3), {}),
    ("u64", (10, 4, 5, 3), (4, 2, 3, 2), (6, 1, 2, -1), {}),
    ("f16", (16, 3, 3, 3, 4), (8, 3, 2, 2, 4), (8, 0, 2, -1, 1), {}),
    ("u32", (24, 20), (8, 16), (4, 3), {"steps": (2, 3)}),
    ("u32", (24, 20, 7), (8, 7, 6), (4, 3, -4), {"steps": (1, 8, 4)}),
]
# A store to a negative coordinate is an illegal instruction on an H200.
STORES: list[Case] = [(one[0], one[1], one[2], tuple(max(at, 0) for at in one[3]), one[4]) for one in CASES]


@BOTH
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_load_fills_the_box_with_the_tensors_elements_and_zeros(case: Case, completion: str) -> None:
    element, shape, box, at, other = case
    data = random_data(40000)
    tensor = tensor_of(data, element, shape, box, **other)
    out = space(16384)
    launch(load_text(len(at), at, tensor.box_bytes) + WAIT + DUMP, tensor, data, out, completion=completion)
    np.testing.assert_array_equal(out, expected(tensor, at, data, bytes(ELEMENT_BYTES[element])))


@pytest.mark.parametrize(
    ("element", "fill"), [("bf16", "f77f"), ("f16", "f77f"), ("f32", "f77ff77f"), ("f64", "f77f" * 4)]
)
def test_a_fill_with_nan_writes_one_pattern_for_all_float_types(element: str, fill: str) -> None:
    data = random_data(40000)
    tensor = tensor_of(data, element, (40, 8), (32, 8), nan_fill=True)
    out = space(16384)
    launch(load_text(2, (24, 4), tensor.box_bytes) + WAIT + DUMP, tensor, data, out)
    np.testing.assert_array_equal(out, expected(tensor, (24, 4), data, bytes.fromhex(fill)))


def test_the_swizzle_follows_the_address_not_the_box() -> None:
    data = random_data(40000)
    tensor = tensor_of(data, "bf16", (64, 30), (64, 4), swizzle=128)
    out, shifted = space(16384), space(16384)
    text = load_text(2, (0, 3), 512) + WAIT + DUMP
    launch(text, tensor, data, out)
    launch(text.replace("[%r21], [%rd1", "[%r21+384], [%rd1"), tensor, data, shifted)
    rows = out[:512].reshape(4, 8, 16)
    moved = shifted[384:896].reshape(4, 8, 16)
    for row, piece in itertools.product(range(4), range(8)):
        np.testing.assert_array_equal(rows[row, piece ^ row], moved[row, piece ^ (row + 3)])


@BOTH
@pytest.mark.parametrize("case", STORES, ids=str)
def test_a_store_writes_what_lies_inside_the_tensor(case: Case, completion: str) -> None:
    element, shape, box, at, other = case
    data, shared = random_data(40000), random_data(16384)
    tensor = tensor_of(data, element, shape, box, **other)
    want = data.copy()
    size = ELEMENT_BYTES[element]
    for source, to in elements(tensor, at, data):
        if to is not None:
            want[to : to + size] = shared[source : source + size]
    store = (
        f"@%p1 cp.async.bulk.tensor.{len(at)}d.global.shared::cta.bulk_group [%rd1, {coordinates(at)}], [%r21];"
        "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"
    )
    launch(FILL + store, tensor, data, shared, completion=completion)
    np.testing.assert_array_equal(data, want)


@BOTH
@pytest.mark.parametrize(
    ("element", "operation", "kind"), [("f32", "add", np.float32), ("s32", "min", np.int32), ("u32", "xor", np.uint32)]
)
def test_a_reduction_combines_with_the_tensor_and_counts_float_additions(
    element: str, operation: str, kind: type, completion: str
) -> None:
    data, shared = random_data(40000), random_data(16384)
    if element == "f32":
        for array in (data, shared):
            array.view(np.float32)[:] = np.random.default_rng(7).standard_normal(array.nbytes // 4)
    tensor = tensor_of(data, element, (40, 8), (32, 8))
    want = data.copy()
    function = {"add": np.add, "min": np.minimum, "xor": np.bitwise_xor}[operation]
    inside = 0
    for source, to in elements(tensor, (20, 4), data):
        if to is not None:
            inside += 1
            value = function(want[to : to + 4].view(kind), shared[source : source + 4].view(kind))
            want[to : to + 4] = value.view(np.uint8)
    reduce = (
        f"@%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta.{operation}.tile.bulk_group [%rd1, {{20, 4}}], [%r21];"
        "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group.read 0;"
    )
    count = launch(FILL + reduce, tensor, data, shared, completion=completion)
    np.testing.assert_array_equal(data, want)
    assert count == (inside if operation == "add" else 0)


def test_multicast_of_a_box_and_the_map_in_a_parameter() -> None:
    data, out = random_data(40000), space(4 * 16384)
    tensor = tensor_of(data, "bf16", (64, 30), (64, 16), swizzle=128)
    body = (
        "@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r20], 2048; barrier.cluster.arrive; barrier.cluster.wait;"
        "setp.eq.u32 %p2, %r2, 1; and.pred %p2, %p2, %p1; mov.b16 %rs1, 13; mov.b64 %rd5, 0;"
        "@%p2"
        " cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%r21], [%rd1, {0, 20}], [%r20], %rs1, %rd5;"
        f"setp.eq.u32 %p3, %r2, 1; @%p3 bra OUT; {WAIT} OUT: barrier.cluster.arrive; barrier.cluster.wait; {DUMP}"
    )
    head = HEAD.replace("ld.param.b64 %rd1, [map]", "mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1")
    text = module_text(head + body + "\nret;", ("map", "out"), arch="sm_90a", outside=SHARED)
    text = text.replace(".param .u64 map", ".param .align 64 .b8 map[128]")
    memory = Memory()
    memory.register(data.ctypes.data, data.nbytes, "data", writable=False)
    memory.register(out.ctypes.data, out.nbytes, "out")
    params = encode(tensor) + out.ctypes.data.to_bytes(8, "little")
    config = LaunchConfig((4, 1, 1), (32, 1, 1), (4, 1, 1))
    engine.launch(engine.load(parse(text), "k", "sm_90a"), config, params, memory, checks=False)
    for rank, part in enumerate(out.reshape(4, 16384)):
        want = expected(tensor, (0, 20), data, bytes(2))
        np.testing.assert_array_equal(part, np.full(16384, 0xFF) if rank == 1 else want)


def test_a_box_beyond_the_registered_memory_is_an_illegal_access() -> None:
    data, out = random_data(4096), space(16384)
    tensor = TensorMap(data.ctypes.data, "f32", (64, 100), (256,), (32, 8))
    with pytest.raises(IllegalAccessError, match=r"read of 128 bytes at 0x\w+, just past the end of `buffer 2`"):
        launch(load_text(2, (0, 16), 1024) + WAIT, tensor, data, out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({8: 0x90, 9: 0x05}, "has an element type that is not supported"),
        ({10: 1}, "rounds to tf32, which is not supported"),
        ({8: 0x10, 9: 0x81}, "fills integers with NaN"),
        ({9: 0x0B}, "is interleaved, which is not supported"),
        ({0: 8}, "has a base address that is no multiple of 16"),
        ({0x37: 2}, "has boxes with rows that are no multiple of 16 bytes"),
        ({8: 0xA0}, "has rank 3, not that of the instruction"),
        ({9: 0x23}, "has boxes with rows longer than its swizzle"),
    ],
)
def test_a_tensor_map_that_cannot_be_used_is_named(change: dict[int, int], message: str) -> None:
    data, out = random_data(4096), space(16384)
    raw = bytearray(encode(TensorMap(data.ctypes.data // 256 * 256, "f32", (32, 8), (128,), (32, 8))))
    for at, value in change.items():
        raw[at] = value
    with pytest.raises(EmulatorError, match=message):
        launch(load_text(2, (0, 0), 1024) + WAIT, bytes(raw), data, out)


def test_coordinates_that_the_hardware_does_not_take_are_named() -> None:
    data, out = random_data(4096), space(16384)
    tensor = TensorMap(data.ctypes.data, "f32", (32, 8), (128,), (32, 8))
    with pytest.raises(
        EmulatorError, match="the first coordinate -3 of a tensor copy: its bytes must be a multiple of 16"
    ):
        launch(load_text(2, (-3, 0), 1024) + WAIT, tensor, data, out)
    store = "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {0, -2}], [%r21];"
    with pytest.raises(EmulatorError, match="a store to coordinate -2 of a tensor: it must not be negative"):
        launch(store, tensor, data, out)


@pytest.mark.parametrize("mode", ["im2col", "im2col::w", "tile::gather4"])
def test_other_ways_through_a_tensor_are_refused_by_name(mode: str) -> None:
    data, out = random_data(4096), space(16384)
    tensor = TensorMap(data.ctypes.data, "f32", (32, 8), (128,), (32, 8))
    text = load_text(2, (0, 0), 1024).replace(".tile.", f".{mode}.")
    with pytest.raises(UnknownInstructionError, match=mode):
        launch(text, tensor, data, out)


def test_a_tensor_map_is_read_back_as_it_was_written() -> None:
    tensor = TensorMap(
        0x7F12_3456_7890, "bf16", (1 << 32, 5, 1, 3, 7), (1 << 39, 48, (1 << 40) - 16, 16), (8, 256, 1, 2, 3),
        (1, 8, 2, 3, 4), 64, nan_fill=True,
    )  # fmt: skip
    assert decode(encode(tensor)) == tensor


def test_the_layout_is_that_of_tensormap_replace() -> None:
    """Fields by byte, from the code that ptxas makes of tensormap.replace for sm_90a."""
    raw = encode(TensorMap(0x1230, "bf16", (100, 200), (0x10_0000_0040,), (64, 16), (1, 5), 128, nan_fill=True))
    assert raw[:8] == (0x1230).to_bytes(8, "little")
    assert int.from_bytes(raw[8:12], "little") == 1 << 4 | 10 << 7 | 3 << 13 | 1 << 15
    assert int.from_bytes(raw[12:16], "little") == 0x4
    assert raw[0x1C] == 1
    assert (int.from_bytes(raw[0x20:0x24], "little"), int.from_bytes(raw[0x24:0x28], "little")) == (99, 199)
    assert (raw[0x34], raw[0x37], raw[0x38]) == (4 << 3, 63, 15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"element": "f8"}, "no element type 'f8'"),
        ({"swizzle": 16}, "swizzle of 16 bytes; there are 0, 32, 64, 128"),
        ({"address": 8}, "address 8 must be 0 to 18446744073709551615 and a multiple of 16"),
        ({"strides": (40,)}, "strides 40 must be 0 to 1099511627760 and a multiple of 16"),
        ({"strides": (48, 48)}, "2 strides for 2 dimensions"),
        ({"box": (8, 257)}, "box 257 must be 1 to 256"),
        ({"steps": (1, 9)}, "steps 9 must be 1 to 8"),
        ({"shape": (8, 0)}, "shape 0 must be 1 to 4294967296"),
        ({"shape": (1,) * 6}, "6 dimensions; 1 to 5 are possible"),
        ({"box": (4, 8)}, "a row of the box has 8 bytes, which is no multiple of 16"),
        ({"swizzle": 32, "box": (32, 8)}, "a row of the box has 64 bytes, more than the swizzle's 32"),
    ],
)
def test_a_tensor_map_beyond_a_limit_is_not_encoded(change: dict[str, object], message: str) -> None:
    tensor = TensorMap(0, "f16", (64, 8), (128,), (8, 8))
    with pytest.raises(DeviceError, match=message):
        encode(replace(tensor, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(64), "64 bytes, not 128"),
        (bytes(8) + b"\x70" + bytes(119), "8 dimensions"),
        (bytes(8) + b"\x80\x07" + bytes(118), "element type 15 is not supported"),
        (bytes(8) + b"\x00\x08" + bytes(118), "interleaved layouts are not supported"),
    ],
)
def test_bytes_that_are_no_supported_tensor_map_are_not_decoded(data: bytes, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        decode(data)


REPLACE = """
    .shared .align 128 .b8 own[128];
    mov.b32 %r22, own; shl.b32 %r3, %r1, 2;
    add.u32 %r4, %r22, %r3; st.shared.b32 [%r4], 0; bar.sync 0; @!%p1 bra SKIP;
    tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r22], %rd3;
    tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r22], 1;
    tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r22], 0, 64;
    tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r22], 1, %r40;
    tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r22], 0, 64;
    tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r22], 1, 30;
    tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r22], 0, 144;
    tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r22], 0, 1;
    tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r22], 1, 1;
    tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r22], 10;
    tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%r22], 0;
    tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r22], 3;
    tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r22], 1;
    SKIP: bar.sync 0;
    tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r22], 128;
    fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;
"""


def test_a_kernel_builds_its_own_tensor_map() -> None:
    data, out, held = random_data(40000), space(16384), space(128)
    tensor = tensor_of(data, "bf16", (64, 30), (64, 16), swizzle=128, nan_fill=True)
    head = HEAD + "ld.param.b64 %rd3, [unused]; mov.b32 %r40, 16;"
    body = REPLACE + load_text(2, (8, 20), tensor.box_bytes) + WAIT + DUMP
    text = module_text(head + body + "\nret;", ("map", "out", "unused"), arch="sm_90a", outside=SHARED)
    run(text, [held, out, data], LaunchConfig((1, 1, 1), (32, 1, 1)), "sm_90a", checks=False)
    np.testing.assert_array_equal(out, expected(tensor, (8, 20), data, b"\xf7\x7f"))
    assert decode(held.tobytes()) == replace(tensor, steps=(1, 1))
    assert held[:64].tobytes() == encode(tensor)[:64]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensormap.replace.tile.global_stride.global.b1024.b64 [%rd1], 4, 16;", "a tensor map has no dimension 4"),
        (
            (
                "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                " [%rd1], [%r21], 64;"
            ),
            "tensormap.cp_fenceproxy of 64 bytes: only 128 are possible",
        ),
    ],
)
def test_misuse_of_tensor_map_changes_is_named(text: str, message: str) -> None:
    data, out = random_data(4096), space(16384)
    with pytest.raises(EmulatorError, match=message):
        launch(text, TensorMap(data.ctypes.data, "f32", (32, 8), (128,), (32, 8)), data, out)
