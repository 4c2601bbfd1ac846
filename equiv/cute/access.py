"""Device helpers for vector loads and stores through raw addresses of global memory."""

from __future__ import annotations

from cutlass import Numeric, cute


@cute.jit
def load_vector(pointer: cute.Pointer, count: int):
    """`count` neighbouring elements in one load; the address is aligned to all of them."""
    align = count * pointer.value_type.width // 8
    aligned = cute.make_ptr(pointer.value_type, pointer.toint(), cute.AddressSpace.gmem, assumed_align=align)
    return cute.make_tensor(aligned, cute.make_layout(count)).load()


@cute.jit
def store(pointer: cute.Pointer, value: Numeric):
    """Writes `value` at a byte address that is aligned to its width, whatever the pointer's element type."""
    dtype = type(value)
    aligned = cute.make_ptr(dtype, pointer.toint(), cute.AddressSpace.gmem, assumed_align=dtype.width // 8)
    cute.make_tensor(aligned, cute.make_layout(1))[0] = value


@cute.jit
def store_vector(pointer: cute.Pointer, values: cute.TensorSSA):
    """Writes a vector of the pointer's element type in one store; the address is aligned to all of it."""
    count = cute.size(values.shape)
    align = count * pointer.value_type.width // 8
    aligned = cute.make_ptr(pointer.value_type, pointer.toint(), cute.AddressSpace.gmem, assumed_align=align)
    cute.make_tensor(aligned, cute.make_layout(count)).store(values)
