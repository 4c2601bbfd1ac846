"""`tcgen05` with cta_group::2: a pair of CTAs multiplies together, each with its own shared and tensor memory."""

from __future__ import annotations

import numpy as np
import pytest
from matrix_cases import tiles
from ptx_run import Array, aligned
from smem_layout import TENSOR_CODE, descriptor, place
from tensor_lab import BASE, PAIR_COMMIT, pair_lab, unique

from equiv.emulator.isa.models import OPERAND_CODES, tensor_name
from equiv.errors import EmulatorError, UnknownInstructionError
from equiv.rounding.matrix import fused_dot, variant

B_AT, IMAGE = 1 << 14, 1 << 15


def _states(columns: int) -> Array:
    return np.stack([unique(columns), unique(columns) ^ np.uint32(0x0F0F0F0F)])


def _images(a: Array, b: Array, major: str) -> tuple[Array, int, int]:
    """Shared memory of both CTAs: half of the rows of A and half of the columns of B each, at the same places."""
    images = aligned(2 * IMAGE)
    lead, stride = (16, 1024) if major == "K" else (4096, 1024)
    for rank in range(2):
        own = images[rank * IMAGE : rank * IMAGE + IMAGE]
        for matrix, at in ((a, 0), (b, B_AT)):
            half = np.ascontiguousarray(np.split(matrix, 2)[rank])
            place(half, at, ("128", major), (lead, stride), own)
    words = [descriptor(BASE + at, lead, stride, TENSOR_CODE["128"], tensor=True) for at in (0, B_AT)]
    return images, words[0], words[1]


def _issue(kind: str, a: int, b: int, idesc: int) -> str:
    return (
        f"mov.b64 %rd8, {a}; mov.b64 %rd9, {b}; mov.b32 %y, {idesc}; add.u32 %x, %tm, 8;"
        f"@%pe tcgen05.mma.cta_group::2.kind::{kind} [%x], %rd8, %rd9, %y, %pt; {PAIR_COMMIT}"
    )


@pytest.mark.parametrize(("kind", "d", "a", "major"), [
    ("f16", "f32", "bf16", "K"), ("f16", "f16", "f16", "K"), ("f16", "f32", "bf16", "MN"),
    ("f8f6f4", "f32", "e4m3", "K"),
    ("tf32", "f32", "tf32", "K"),
])  # fmt: skip
@pytest.mark.parametrize("m", [256, 128])
def test_a_pair_computes_what_one_cta_would_and_splits_d(kind: str, d: str, a: str, major: str, m: int) -> None:
    n, model = 64, variant(tensor_name(kind, d, a, a), "sm_100a")
    tile = tiles(model, (m, n), 1, 2)[0]
    images, first, second = _images(tile.a, np.ascontiguousarray(tile.b.T), major)
    code = {name: code for code, name in OPERAND_CODES[kind].items()}[a]
    idesc = (d == "f32") << 4 | code << 7 | code << 10 | n >> 3 << 17 | m >> 4 << 24 | (3 << 15 if major == "MN" else 0)
    states = _states(128)

    def put(state: Array, value: Array) -> None:
        """Rows of 256 lie as in one CTA each; of 128, columns from n / 2 on lie 64 lanes further."""
        for rank, rows in enumerate(np.split(value, 2)):
            if m == 256:
                cells = np.arange(128)[:, None], 8 + np.arange(n)[None]
            else:
                column = np.arange(n)[None]
                cells = np.arange(64)[:, None] + 64 * (column >= n // 2), 8 + column % (n // 2)
            keep = np.uint32(0xFFFF0000 if value.itemsize == 2 else 0)
            state[rank][cells] = (state[rank][cells] & keep) | rows

    put(states, tile.c)
    after = pair_lab(_issue(kind, first, second, idesc), states, images)
    put(states, fused_dot(model, tile.a, tile.b, tile.c))
    np.testing.assert_array_equal(after, states)


def test_a_copy_fills_both_ctas_from_their_own_shared_memory() -> None:
    words = np.random.default_rng(1).integers(0, 2**32, (64, 4), dtype=np.uint32)
    images = aligned(2 * IMAGE)
    for rank in range(2):
        place(
            words[32 * rank : 32 * rank + 32],
            0,
            ("none", "K"),
            (2048, 128),
            images[rank * IMAGE : rank * IMAGE + IMAGE],
        )
    word = descriptor(BASE, 2048, 128, 0, tensor=True)
    states = _states(64)
    body = f"mov.b64 %rd9, {word}; @%pe tcgen05.cp.cta_group::2.32x128b.warpx4 [%tm], %rd9; {PAIR_COMMIT}"
    after = pair_lab(body, states, images)
    for rank in range(2):
        states[rank][:, :4] = np.tile(words[32 * rank : 32 * rank + 32], (4, 1))
    np.testing.assert_array_equal(after, states)


def test_only_the_even_cta_of_a_pair_may_issue() -> None:
    body = _issue("f16", 1 << 46, 1 << 46, 16 << 24).replace("@%pe tcgen05.mma", "tcgen05.mma")
    odd = "mov.u32 %r51, %cluster_ctarank; setp.eq.u32 %pe, %r51, 1; @!%pe bra SKIP; SKIP:"
    body = odd + body.replace("tcgen05.mma", "@%pe tcgen05.mma")
    with pytest.raises(EmulatorError, match="is issued by the CTA of even rank of a pair: this is rank 1 of 2"):
        pair_lab(body.replace(f"{16 << 24}", f"{16 << 24 | 1 << 4 | 2 << 17}"), _states(32), aligned(2 * IMAGE))


def test_scaled_products_of_pairs_are_refused() -> None:
    body = "@%pe tcgen05.mma.cta_group::2.kind::mxf4.block_scale [%tm], %rd8, %rd9, %y, [%tm], [%tm], %pt;"
    with pytest.raises(UnknownInstructionError, match="of CTA pairs emulated are the kinds f16, tf32 and f8f6f4"):
        pair_lab(body, _states(32), aligned(2 * IMAGE))
