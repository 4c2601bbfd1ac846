"""What the matrix unit refuses or finds wrong, in the order of `Problem` in csrc/matrix_api.h.

`{0}` and `{1}` are the fault's value and second number; both may be formatted as hexadecimal.
"""

from __future__ import annotations

from typing import Final

PROBLEMS: Final = (
    "all 32 lanes of the warp must execute it together; lanes {0:#010x} do not",
    "an operand that must be the same in all lanes of the warp is not",
    "warp {0} is not in a whole warpgroup: the CTA has {1} warps",
    "imm-scale-a and imm-scale-b must be 1 or -1",
    "shared memory descriptor {0:#018x} has bits set that are reserved or not known here",
    "shared memory descriptor {0:#018x} has base offset {1}; only 0 is supported",
    "shared memory descriptor {0:#018x}: swizzle mode {1} is not supported here",
    "instruction descriptor {0:#010x} has bits set that are reserved or not supported (sparsity, .ws): {1:#010x}",
    "instruction descriptor {0:#010x} names operand types that are not modelled for this kind",
    "M = {0}, N = {1} is not a shape of this instruction",
    "no host memory",
    "{0} columns: tcgen05.alloc takes 32, 64, 128, 256 or 512",
    "the CTA has given up its right to allocate (tcgen05.relinquish_alloc_permit)",
    "{1} columns from tensor memory address {0:#010x} are not all allocated",
    "tensor memory address {0:#010x} does not start an allocation of {1} columns",
    "tensor memory address {0:#010x}: the warp may only use lanes {1} to {1}+31, from a multiple of the shape's rows",
    "{0} columns of tensor memory are still allocated when the CTA ends",
    "the copies of a scale factor of row {0} in the four quarters of tensor memory differ (lane {1})",
    "scale factor id {0} is not a multiple of the {1} scale factors that the instruction reads of a row",
    "operand of 4- or 6-bit elements that is MN-major, or in tensor memory: its packing is not known here",
    "cta_group::2 is issued by the CTA of even rank of a pair: this is rank {0} of {1}",
    "the operand cannot be transposed: only 16-bit types can",
    "{1} words of tensor memory from {0:#010x} are read, and none of them was ever written",
)
