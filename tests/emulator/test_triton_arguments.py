"""Arguments of Triton launches become the bytes that Triton's own launcher makes."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
import torch

from equiv.emulator import tensormap, triton_arguments
from equiv.emulator.ptx import Param
from equiv.emulator.triton_arguments import TENSOR_MAP
from equiv.errors import DeviceError, UnsupportedError

MAPPED = {"swizzle": 2, "elem_size": 4, "elem_type": 7, "block_size": [16, 8], "fp4_padded": False}


def descriptor(**changes: object) -> SimpleNamespace:
    """A host tensor descriptor: 64 rows of 20 floats, 32 apart."""
    fields = {"base": torch.zeros(64 * 32), "shape": [64, 20], "strides": [32, 1], "padding": "zero"}
    return SimpleNamespace(**{**fields, "round_f32_to_tf32": False, **changes})


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("i32", -2, "feffffff"),
        ("u32", 2**32 - 2, "feffffff"),
        ("i1", True, "01"),
        ("i64", -1, "ff" * 8),
        ("u8", 200, "c8"),
        ("fp32", 0.1, "cdcccc3d"),
        ("fp32", 1e300, "0000807f"),
        ("fp64", 0.1, "9a9999999999b93f"),
        ("fp16", 0.1, "662e"),
        ("bf16", 1.00390624, "803f"),  # just below halfway to 0x3f81: cut off, as is everything
        ("bf16", 1.0078124, "803f"),  # nearest would be 0x3f81
        ("*fp32", None, "00" * 8),
        ("*fp32", 0x1234, "3412000000000000"),
    ],
)
def test_a_scalar_becomes_the_bytes_that_tritons_launcher_makes(kind: str, value: float | None, expected: str) -> None:
    assert triton_arguments.pack("x", kind, value).hex() == expected


def test_an_argument_of_an_unknown_type_is_named() -> None:
    with pytest.raises(UnsupportedError, match="needs triton:argument:fp8: argument x of a type that is not known"):
        triton_arguments.pack("x", "fp8", 1.0)


def test_values_that_do_not_fit_the_parameter_list_are_refused_with_both_sizes() -> None:
    parameters = [Param("p0", 8, 8, 0), Param("p1", 4, 4, 8)]
    with pytest.raises(DeviceError, match=r"k: its parameters take \[8, 4\] bytes, the launch gives \[8, 8\]"):
        triton_arguments.lay_out("k", parameters, [bytes(8), bytes(8)])
    with pytest.raises(DeviceError, match=r"gives \[8, 4, 8\]"):
        triton_arguments.lay_out("k", parameters, [bytes(8), bytes(4), b"\1" + bytes(7)])
    assert triton_arguments.lay_out("k", parameters, [bytes(8), b"abcd", bytes(8)]) == bytes(8) + b"abcd"


def test_nested_arguments_are_named_by_their_place_and_constants_dropped() -> None:
    flat = list(
        triton_arguments.flatten([("a", ("i32", "constexpr", ("*i8",))), ("b", "fp32")], [(1, 2, (3,)), 4], None)
    )
    assert flat == [("a.0", "i32", 1), ("a.2.0", "*i8", 3), ("b", "fp32", 4)]


def test_a_descriptor_becomes_a_tensor_map_its_shape_and_its_strides() -> None:
    given = descriptor(padding="nan")
    flat = list(triton_arguments.flatten([("d", "tensordesc<fp32[16, 8]>"), ("n", "i32")], [given, 5], [MAPPED]))
    expected = tensormap.TensorMap(
        given.base.data_ptr(), "f32", (20, 64), (128,), (8, 16), swizzle=64, nan_fill=True
    )  # fmt: skip
    assert flat == [
        ("d", TENSOR_MAP, expected),
        ("d.shape0", "i32", 64),
        ("d.shape1", "i32", 20),
        ("d.stride0", "i64", 32),
        ("d.stride1", "i64", 1),
        ("n", "i32", 5),
    ]
    data = triton_arguments.pack(*flat[0])
    assert (len(data), data[:8]) == (128, struct.pack("<Q", given.base.data_ptr()))


def test_a_descriptor_may_ask_for_rounding_to_tf32() -> None:
    ((_, _, found), *_) = triton_arguments.flatten(
        [("d", "tensordesc<fp32[16, 8]>")], [descriptor(round_f32_to_tf32=True)], [MAPPED]
    )
    assert found.element == "tf32"


def test_a_descriptor_without_a_layout_is_passed_in_pieces() -> None:
    given = descriptor(padding="nan")
    flat = list(triton_arguments.flatten([("d", "tensordesc<fp32[16, 8]>")], [given], []))
    assert [(kind, value) for _, kind, value in flat] == [
        ("*fp32", given.base),
        *(("i64", value) for value in (64, 20, 32, 1)),
        ("i1", True),
        ("i1", False),
        ("i32", 64),
        ("i32", 20),
        ("i64", 32),
        ("i64", 1),
    ]


def test_descriptors_that_are_not_emulated_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="argument d; only tiled tensor descriptors are emulated"):
        list(triton_arguments.flatten([("d", "tensordesc_im2col<fp16[8, 8],input_rank=4>")], [descriptor()], [MAPPED]))
    packed = {**MAPPED, "fp4_padded": True}
    with pytest.raises(UnsupportedError, match=r"needs triton:tensor-descriptor: argument d: .*'fp4_padded': True"):
        list(triton_arguments.flatten([("d", "tensordesc<u8[16, 8]>")], [descriptor()], [packed]))
