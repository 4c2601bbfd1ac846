"""Guarded memory: what may change may, everything else is said with its place."""

from __future__ import annotations

import itertools
import os
import re

import numpy as np
import pytest

from equiv.buffers import GUARD, PAGE, GuardedBuffer, Image, poison, span
from equiv.errors import UsageError
from equiv.records import TensorSpec

ROWS = TensorSpec("cache", "inout", "u8", (3, 5), (8, 1))
WORDS = TensorSpec("y", "output", "f32", (7,), (1,))


def placed(spec: TensorSpec, fill: int | None = 1, party: str = "oracle") -> GuardedBuffer:
    buffer = GuardedBuffer(spec, seed=3, party=party)
    buffer.place(None if fill is None else np.full(spec.shape, fill, dtype=buffer.storage.bits))
    return buffer


def test_elements_of_an_inout_tensor_may_change() -> None:
    buffer = placed(ROWS)
    buffer.elements[1] = 9
    assert buffer.faults() == ()


def test_a_byte_after_the_last_element_is_guarded() -> None:
    buffer = placed(WORDS, None)
    before = int(buffer.image.bytes[GUARD + 28])
    buffer.image.bytes[GUARD + 28] ^= 0xFF
    assert buffer.faults() == (
        (
            f"`y` guard after must not change: 1 byte(s) changed, the first at byte offset 28 "
            f"(0x{before:02x} -> 0x{before ^ 0xFF:02x}), the last at 28"
        ),
    )


def test_a_byte_before_the_first_element_is_guarded() -> None:
    buffer = placed(WORDS, None)
    buffer.image.bytes[GUARD - 1] ^= 1
    (fault,) = buffer.faults()
    assert fault.startswith("`y` guard before must not change: 1 byte(s) changed, the first at byte offset -1 ")


def test_the_gap_between_strided_rows_is_guarded_though_the_rows_may_change() -> None:
    buffer = placed(ROWS)
    buffer.image.bytes[GUARD : GUARD + 21] ^= 0xFF
    (fault,) = buffer.faults()
    assert "stride gap must not change: 6 byte(s) changed, the first at byte offset 5 " in fault
    assert fault.endswith("the last at 15")


def test_an_input_must_keep_its_elements_and_each_kind_of_fault_is_said() -> None:
    buffer = placed(TensorSpec("q", "input", "bf16", (2, 2), (3, 1)))
    buffer.elements[1, 0] ^= 0x0101
    buffer.image.bytes[GUARD + 4] ^= 1
    assert [fault.partition(":")[0] for fault in buffer.faults()] == [
        "`q` an input that must not change",
        "`q` stride gap must not change",
    ]
    assert "2 byte(s) changed, the first at byte offset 6 (0x01 -> 0x00), the last at 7" in buffer.faults()[0]


def test_unwritten_floats_are_nans_that_differ_between_parties_and_seeds() -> None:
    oracle, candidate = placed(WORDS, None, "oracle").elements, placed(WORDS, None, "candidate").elements
    assert np.isnan(oracle.view(np.float32)).all()
    assert (oracle != candidate).any()
    assert (oracle == placed(WORDS, None, "oracle").elements).all()
    assert (poison(64, WORDS, 3, "oracle") != poison(64, WORDS, 4, "oracle")).any()
    halves = poison(4096, TensorSpec("w", "output", "bf16", (2048,), (1,)), 0, "oracle").view(np.uint16)
    assert ((halves & 0x7FC0) == 0x7FC0).all()
    assert len(np.unique(halves)) == 128


def test_a_sparse_tensor_of_gigabytes_costs_its_touched_pages_only() -> None:
    buffer = placed(TensorSpec("cache", "inout", "u8", (5, 8448), ((1 << 29) + 4096, 1), sparse=True))
    assert buffer.span > 1 << 31
    assert sum(end - start for start, end in buffer.image.extents()) < 1 << 18
    assert buffer.faults() == ()
    buffer.elements[4, 8447] = 77
    assert buffer.faults() == ()
    blocks = os.fstat(buffer.image._file).st_blocks
    assert blocks * 512 < 1 << 18
    buffer.close()


def test_a_stray_write_into_a_hole_of_a_sparse_tensor_is_found() -> None:
    buffer = placed(TensorSpec("cache", "inout", "u8", (2, 8), (1 << 31, 1), sparse=True))
    buffer.image.bytes[GUARD + (1 << 30)] = 0xAB
    (fault,) = buffer.faults()
    assert fault == (
        "`cache` stride gap must not change: 1 byte(s) changed, the first at byte offset 1073741824 (0x00 -> 0xab), "
        "the last at 1073741824"
    )


def test_reading_a_hole_is_no_fault() -> None:
    buffer = placed(TensorSpec("cache", "inout", "u8", (2, 8), (1 << 31, 1), sparse=True))
    assert buffer.image.bytes[GUARD + (1 << 29)] == 0
    assert buffer.faults() == ()


def test_the_gap_inside_touched_pages_of_a_sparse_tensor_is_poisoned_and_guarded() -> None:
    buffer = placed(TensorSpec("cache", "inout", "u8", (2, 8), (1 << 31, 1), sparse=True))
    assert buffer.image.bytes[GUARD + 8 : GUARD + 1024].any()
    buffer.image.bytes[GUARD + 8] ^= 1
    (fault,) = buffer.faults()
    assert "stride gap must not change: 1 byte(s) changed, the first at byte offset 8 " in fault


def test_an_empty_tensor_has_guards_only() -> None:
    buffer = placed(TensorSpec("q", "input", "bf16", (0, 128), (128, 1)))
    assert buffer.span == 0
    assert buffer.elements.shape == (0, 128)
    assert buffer.faults() == ()
    buffer.image.bytes[GUARD] ^= 1
    assert "guard after must not change" in buffer.faults()[0]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (TensorSpec("q", "input", "e5m7", (2,), (1,)), "tensor 'q': format 'e5m7' has no storage; known: u8, i32"),
        (TensorSpec("q", "input", "u8", (2, 4), (3, 1)), "tensor 'q': elements overlap, shape (2, 4), strides (3, 1)"),
        (TensorSpec("q", "input", "u8", (2, 4), (4,)), "tensor 'q': shape (2, 4) and strides (4,) do not fit"),
        (TensorSpec("q", "input", "u8", (2,), (-1,)), "tensor 'q': shape (2,) and strides (-1,) do not fit"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(spec: TensorSpec, text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        span(spec)


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(UsageError, match=r"tensor 'y': inputs gave uint32 \(8,\), wanted uint32 \(7,\)"):
        GuardedBuffer(WORDS, 0, "oracle").place(np.zeros(8, np.uint32))


def test_a_forked_process_has_its_own_copy_unless_the_memory_is_sparse() -> None:
    for sparse, seen in ((False, 0), (True, 7)):
        image = Image(PAGE, sparse=sparse)
        image.bytes[0] = 0
        child = os.fork()
        if child == 0:
            image.bytes[0] = 7
            os._exit(0)
        os.waitpid(child, 0)
        assert image.bytes[0] == seen
        image.close()


def test_what_leaves_a_buffer_does_not_come_to_the_next() -> None:
    buffers = [placed(ROWS) for _ in range(6)]
    starts = sorted((one.address - GUARD, one.image.size) for one in buffers)
    for (first, size), (second, _) in itertools.pairwise(starts):
        assert second - first >= 2 * size
