"""Arguments of a Triton launch as the bytes of kernel parameters, exactly as Triton's own launcher makes them."""

from __future__ import annotations

import ctypes
import operator
import re
import struct
from typing import TYPE_CHECKING, Any

from equiv.emulator import tensormap
from equiv.errors import DeviceError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from equiv.emulator.ptx import Param

INTEGERS = {"i1": 1, "i8": 1, "u1": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
"""Triton type -> bytes of the parameter."""

TENSOR_MAP = "tensor map"
"""Type of a `tensormap.TensorMap` among flattened arguments."""

_DESCRIPTOR = re.compile(r"tensordesc<([^[>]*)\[")
_ELEMENT_TYPES = tuple(tensormap.ELEMENTS)
_TF32 = "tf32"


def flatten(
    signature: Sequence[tuple[str, Any]], arguments: Sequence[Any], descriptors: Sequence[Mapping[str, Any]] | None
) -> Iterator[tuple[str, str, Any]]:
    """(name, type, value) of every kernel parameter: constants, `None` and ints equal to 1 do not become one.

    Args:
        signature: (name, Triton's type, or a tuple of types) of each argument.
        arguments: what the caller passed.
        descriptors: Triton's `tensordesc_meta`: how the compiler wants each tensor descriptor of the signature laid
            out, in order; none at all if it reads them as pointer, shape and strides.

    Raises:
        UnsupportedError: an im2col descriptor, or one of packed elements.
    """
    yield from _flatten(signature, arguments, iter(descriptors) if descriptors else None)


def _flatten(
    signature: Sequence[tuple[str, Any]], arguments: Sequence[Any], descriptors: Iterator[Mapping[str, Any]] | None
) -> Iterator[tuple[str, str, Any]]:
    for (name, kind), value in zip(signature, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _flatten([(f"{name}.{index}", one) for index, one in enumerate(kind)], value, descriptors)
        elif kind.startswith("tensordesc"):
            yield from _descriptor(name, kind, value, descriptors)
        elif kind != "constexpr":
            yield name, kind, value


def _descriptor(
    name: str,
    kind: str,
    value: Any,  # noqa: ANN401
    descriptors: Iterator[Mapping[str, Any]] | None,
) -> Iterator[tuple[str, str, Any]]:
    """The parameters of a host tensor descriptor: a tensor map or what it is made of, then its shape and strides."""
    found = _DESCRIPTOR.match(kind)
    if found is None:
        raise UnsupportedError(
            f"triton:argument:{kind}", f"argument {name}; only tiled tensor descriptors are emulated"
        )
    shape, strides = list(value.shape), list(value.strides)
    if descriptors is None:
        yield f"{name}.base", f"*{found[1]}", value.base
        for index, size in enumerate([*shape, *strides]):
            yield f"{name}.{index}", "i64", size
        yield f"{name}.padding", "i1", value.padding == "nan"
        yield f"{name}.round", "i1", value.round_f32_to_tf32
    else:
        yield name, TENSOR_MAP, _tensor_map(name, value, next(descriptors))
    for index, size in enumerate(shape):
        yield f"{name}.shape{index}", "i32", size
    for index, stride in enumerate(strides):
        yield f"{name}.stride{index}", "i64", stride


def _tensor_map(name: str, value: Any, wanted: Mapping[str, Any]) -> tensormap.TensorMap:  # noqa: ANN401
    """What Triton's launcher asks the driver to encode; sizes are listed contiguous dimension first."""
    code = wanted["elem_type"]
    if wanted["fp4_padded"] or wanted.get("is_im2col") or code >= len(_ELEMENT_TYPES):
        raise UnsupportedError("triton:tensor-descriptor", f"argument {name}: {dict(wanted)}")
    spans = {code: span for span, code in tensormap.SWIZZLES.items()}
    return tensormap.TensorMap(
        address=value.base.data_ptr(),
        element=_TF32 if value.round_f32_to_tf32 else _ELEMENT_TYPES[code],
        shape=tuple(value.shape[::-1]),
        strides=tuple(wanted["elem_size"] * stride for stride in value.strides[-2::-1]),
        box=tuple(wanted["block_size"][::-1]),
        swizzle=spans[wanted["swizzle"]],
        nan_fill=value.padding == "nan",
    )


def pack(name: str, kind: str, value: Any) -> bytes:  # noqa: ANN401
    """One argument as the bytes of its kernel parameter.

    Args:
        name: of the argument, for messages.
        kind: Triton's type in the signature: `*bf16`, `i32`, `fp32`; or `TENSOR_MAP`. A `bf16` scalar is cut off, not
            rounded.
        value: what the caller passed.

    Raises:
        UnsupportedError: a type that has no bytes here.
        DeviceError: a tensor map that the hardware cannot take.
        TypeError, OverflowError: the value does not fit the type.
    """
    if kind == TENSOR_MAP:
        return tensormap.encode(value)
    if kind.startswith("*"):
        return struct.pack("<Q", 0 if value is None else value if isinstance(value, int) else value.data_ptr())
    if kind in INTEGERS:
        number = operator.index(value)
        if not -(2**63) <= number < 2**64:
            raise OverflowError(f"argument {name}: {number} does not fit 64 bits")
        return (number & ((1 << 8 * INTEGERS[kind]) - 1)).to_bytes(INTEGERS[kind], "little")
    if kind == "fp64":
        return struct.pack("<d", float(value))
    if kind == "fp16":
        return struct.pack("<e", float(value))
    if kind in {"fp32", "f32", "bf16"}:
        single = bytes(memoryview(ctypes.c_float(float(value))))
        return single[2:] if kind == "bf16" else single
    raise UnsupportedError(f"triton:argument:{kind}", f"argument {name} of a type that is not known")


def lay_out(kernel: str, parameters: Sequence[Param], values: Sequence[bytes]) -> bytes:
    """The parameter block of a kernel.

    Raises:
        DeviceError: number or sizes of the values do not fit the kernel's parameter list; the first misfit is named.
    """
    sizes = [len(value) for value in values]
    wanted = [parameter.size for parameter in parameters]
    # A compiler may leave scratch pointers out of the list; they are null then.
    if sizes[: len(wanted)] != wanted or any(any(value) for value in values[len(wanted) :]):
        raise DeviceError(f"{kernel}: its parameters take {wanted} bytes, the launch gives {sizes}")
    block = bytearray(max((parameter.offset + parameter.size for parameter in parameters), default=0))
    for parameter, value in zip(parameters, values, strict=False):
        block[parameter.offset : parameter.offset + parameter.size] = value
    return bytes(block)
