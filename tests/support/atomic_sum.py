"""A Triton kernel whose sum depends on the order of its warps; in a file because Triton reads its source."""
# ruff: noqa: ANN001, ANN201, N803
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def add_all(x_ptr, y_ptr, N: tl.constexpr):
    """y += every x, one float addition to memory each."""
    at = tl.arange(0, N)
    tl.atomic_add(y_ptr + at * 0, tl.load(x_ptr + at), sem="relaxed")


def party(case, tensors):
    """Both parties of a pair."""
    add_all[(1,)](tensors["x"], tensors["y"], N=128, num_warps=4)
