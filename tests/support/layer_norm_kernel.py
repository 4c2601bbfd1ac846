"""A LayerNorm over one row, for tests that compile a real Triton kernel."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def layer_norm(x, w, b, y, eps, n: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201, PLR0917
    row = tl.program_id(0)
    at = tl.arange(0, n)
    value = tl.load(x + row * n + at).to(tl.float32)
    mean = tl.sum(value) / n
    centred = value - mean
    inverse = tl.rsqrt(tl.sum(centred * centred) / n + eps)
    tl.store(y + row * n + at, (centred * inverse) * tl.load(w + at) + tl.load(b + at))
