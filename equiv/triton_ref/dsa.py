"""The stock DSA indexer quantisation chain as plain Triton kernels, one a stage: the oracle of `dsa_index`.

Each kernel keeps formulas, instruction choices and rounding points of the production chain (spec dsa 1.3 to 1.8, 3):
`exp2(ceil(log2(s)))` for the power-of-two scale (libdevice's polynomial, then `ex2.approx`), `x / scale`
(`div.full.f32`), `tl.clamp` before the FP8 cast of the query only, a key LayerNorm on four warps whose result is stored
before it is quantised.
Letters: B requests, H = 32 heads, D = 128 channels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from equiv.errors import UsageError
from equiv.geometry.dsa import DIM, HEADS, PAGE

E4M3_MAX = 448.0
E2M1_MAX = 6.0
QUERY_FLOOR = 1e-10
MX_FLOOR = 6.0 * 2.0**-126
KEY_WARPS = 4


@triton.jit
def pow2_ceil(b_s):
    """Power of two >= b_s, as the stock kernels get it: up to 22 ulps above a power of two it may give that power."""
    return tl.exp2(tl.ceil(tl.log2(b_s)))


@triton.jit
def mxfp4_exponent(b_amax, MX_FLOOR: tl.constexpr, E2M1_MAX: tl.constexpr):
    """Exponent e of the block scale 2^e (float32, an integer in [-127, 127]) for the largest magnitude of a block."""
    b_s = tl.maximum(b_amax, MX_FLOOR) * (1.0 / E2M1_MAX)
    return tl.minimum(tl.maximum(tl.ceil(tl.log2(b_s)), -127.0), 127.0)


@triton.jit
def e2m1x2(b_low, b_high, HAS_E2M1: tl.constexpr):
    """Two E2M1 codes in the low byte of an int32, that of b_low in the low nibble: nearest even, saturating."""
    if HAS_E2M1:
        return tl.inline_asm_elementwise(
            "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1; cvt.u32.u8 $0, pair; }",
            "=r,f,f",
            [b_low, b_high],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    return e2m1(b_low) | (e2m1(b_high) << 4)


@triton.jit
def e2m1(b_x):
    """E2M1 code by comparisons; a midpoint belongs to the even code beside it, so they are strict by turns."""
    b_a = tl.abs(b_x)
    b_code = (
        (b_a > 0.25).to(tl.int32) + (b_a >= 0.75).to(tl.int32) + (b_a > 1.25).to(tl.int32) + (b_a >= 1.75).to(tl.int32)
    )
    b_code += (b_a > 2.5).to(tl.int32) + (b_a >= 3.5).to(tl.int32) + (b_a > 5.0).to(tl.int32)
    return b_code | ((b_x.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def quantise_query_fp8_kernel(
    q, q_out, q_scale, q_pitch, H: tl.constexpr, D: tl.constexpr, FLOOR: tl.constexpr, E4M3_MAX: tl.constexpr
):
    """One program a (request, head): q [B, H, D] BF16 -> q_out [B, H*D] E4M3, q_scale [B, H] FP32 powers of two."""
    i_b, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_d = tl.arange(0, D)
    b_x = tl.load(q + i_b * q_pitch + i_h * D + o_d).to(tl.float32)
    b_amax = tl.maximum(tl.max(tl.abs(b_x)), FLOOR)
    b_scale = pow2_ceil(b_amax * (1.0 / E4M3_MAX))
    b_y = tl.clamp(b_x / b_scale, -E4M3_MAX, E4M3_MAX)
    b_byte = b_y.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    tl.store(q_out + i_b * (H * D) + i_h * D + o_d, b_byte)
    tl.store(q_scale + i_b * H + i_h, b_scale)


@triton.jit
def quantise_query_mxfp4_kernel(
    q,
    q_out,
    q_pitch,
    H: tl.constexpr,
    D: tl.constexpr,
    FLOOR: tl.constexpr,
    E2M1_MAX: tl.constexpr,
    HAS_E2M1: tl.constexpr,
):
    """One program a (request, head): q [B, H, D] BF16 -> q_out [B, H*D/2 nibble pairs, then H*D/32 UE8M0 bytes]."""
    i_b, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    BLOCKS: tl.constexpr = D // 32
    b_x = tl.load(q + i_b * q_pitch + i_h * D + tl.arange(0, BLOCKS)[:, None] * 32 + tl.arange(0, 32)[None, :]).to(
        tl.float32
    )
    b_e = mxfp4_exponent(tl.max(tl.abs(b_x), axis=1), FLOOR, E2M1_MAX)
    b_y = b_x * tl.exp2(-b_e)[:, None]
    b_low, b_high = tl.split(tl.reshape(b_y, (BLOCKS, 16, 2)))
    p_row = q_out + i_b * (H * D // 2 + H * BLOCKS)
    o_pair = tl.arange(0, BLOCKS)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(p_row + i_h * (D // 2) + o_pair, e2m1x2(b_low, b_high, HAS_E2M1).to(tl.uint8))
    tl.store(p_row + H * D // 2 + i_h * BLOCKS + tl.arange(0, BLOCKS), (b_e + 127.0).to(tl.int32).to(tl.uint8))


@triton.jit
def fold_weights_kernel(
    projected, q_scale, w_out, row_pitch, weight_at, H: tl.constexpr, D: tl.constexpr, FOLD_SCALE: tl.constexpr
):
    """One program a request: head weights * query scale (FP8 only) * D^-0.5 * H^-0.5 -> w_out [B, H] BF16."""
    i_b = tl.program_id(0).to(tl.int64)
    o_h = tl.arange(0, H)
    b_w = tl.load(projected + i_b * row_pitch + weight_at + o_h).to(tl.float32)
    if FOLD_SCALE:
        b_w = b_w * tl.load(q_scale + i_b * H + o_h)
    tl.store(w_out + i_b * H + o_h, ((b_w * (D**-0.5)) * (H**-0.5)).to(tl.bfloat16))


@triton.jit
def normalise_key_kernel(projected, norm_w, norm_b, normed, row_pitch, key_at, eps, D: tl.constexpr):
    """One program a request: LayerNorm of the index key's D channels, two passes, biased variance -> normed [B, D]."""
    i_b = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, D)
    b_x = tl.load(projected + i_b * row_pitch + key_at + o_d).to(tl.float32)
    b_d = b_x - tl.sum(b_x) / D
    b_rstd = tl.rsqrt(tl.sum(b_d * b_d) / D + eps)
    b_y = (b_d * b_rstd) * tl.load(norm_w + o_d) + tl.load(norm_b + o_d)
    tl.store(normed + i_b * D + o_d, b_y.to(normed.dtype.element_ty))


@triton.jit
def insert_key_fp8_kernel(
    normed,
    cache,
    slots,
    page_stride,
    floor,
    D: tl.constexpr,
    TOKENS: tl.constexpr,
    E4M3_MAX: tl.constexpr,
    MX: tl.constexpr,
):
    """One program a request: normed [B, D] -> D E4M3 bytes and 4 scale bytes of its page; nothing for a negative slot.

    A page holds TOKENS * D values, token after token, then TOKENS * 4 scale bytes: FP32, or its exponent four times.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i_slot = tl.load(slots + i_b)
    if i_slot < 0:
        return
    o_d = tl.arange(0, D)
    b_x = tl.load(normed + i_b * D + o_d).to(tl.float32)
    b_amax = tl.maximum(tl.max(tl.abs(b_x)), floor)
    b_scale = pow2_ceil(tl.math.div_rn(b_amax, E4M3_MAX))
    b_byte = (b_x / b_scale).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    p_page = cache + (i_slot // TOKENS) * page_stride
    i_t = i_slot % TOKENS
    tl.store(p_page + i_t * D + o_d, b_byte)
    b_bits = b_scale.to(tl.int32, bitcast=True)
    if MX:
        b_bits = ((b_bits >> 23) & 255) * 0x01010101
    tl.store((p_page + TOKENS * D + i_t * 4).to(tl.pointer_type(tl.int32)), b_bits)


@triton.jit
def insert_key_mxfp4_kernel(
    normed,
    cache,
    slots,
    page_stride,
    D: tl.constexpr,
    TOKENS: tl.constexpr,
    FLOOR: tl.constexpr,
    E2M1_MAX: tl.constexpr,
    HAS_E2M1: tl.constexpr,
):
    """One program a request: normed [B, D] -> D/2 nibble pairs, D/32 UE8M0 bytes of its page; none for slot < 0."""
    i_b = tl.program_id(0).to(tl.int64)
    i_slot = tl.load(slots + i_b)
    if i_slot < 0:
        return
    BLOCKS: tl.constexpr = D // 32
    b_x = tl.load(normed + i_b * D + tl.arange(0, BLOCKS)[:, None] * 32 + tl.arange(0, 32)[None, :]).to(tl.float32)
    b_e = mxfp4_exponent(tl.max(tl.abs(b_x), axis=1), FLOOR, E2M1_MAX)
    b_y = b_x * tl.exp2(-b_e)[:, None]
    b_low, b_high = tl.split(tl.reshape(b_y, (BLOCKS, 16, 2)))
    p_page = cache + (i_slot // TOKENS) * page_stride
    i_t = i_slot % TOKENS
    o_pair = tl.arange(0, BLOCKS)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(p_page + i_t * (D // 2) + o_pair, e2m1x2(b_low, b_high, HAS_E2M1).to(tl.uint8))
    o_block = tl.arange(0, BLOCKS)
    tl.store(p_page + TOKENS * (D // 2) + i_t * BLOCKS + o_block, (b_e + 127.0).to(tl.int32).to(tl.uint8))


def dsa_index(
    q: torch.Tensor,
    projected: torch.Tensor,
    norm_w: torch.Tensor,
    norm_b: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    q_out: torch.Tensor,
    w_out: torch.Tensor,
    *,
    key_at: int,
    weight_at: int,
    fp4: bool = False,
    mx: bool = False,
    key_round: str = "bf16",
    key_floor: float = 1e-4,
    eps: float = 1e-6,
) -> None:
    """Runs the chain on the active Triton driver: four launches; results go into `q_out`, `w_out` and `cache`.

    The query's scales (FP8) and the normalised key are scratch tensors beside them.

    Args:
        q: BF16 [B, H, D], heads dense.
        projected: BF16 [B, width], rows dense.
        norm_w: FP32 [D], weight of the key's LayerNorm.
        norm_b: FP32 [D], its bias.
        cache: uint8 [pages, 64 * 132] (FP8) or [pages, 64 * 68] (FP4), pages dense.
        slots: int64 [B]: page * 64 + token of the page; a request with a negative slot inserts nothing.
        q_out: uint8 [B, H * D] E4M3 codes; FP4: [B, H * D / 2 + H * D / 32] E2M1 pairs, then UE8M0 bytes.
        w_out: BF16 [B, H].
        key_at: column of `projected` where the index key begins.
        weight_at: column of `projected` where the head weights begin.
        fp4: quantise to MXFP4 instead of FP8.
        mx: store a key's FP8 scale as its UE8M0 byte four times.
        key_round: "bf16" stores the normalised key as BF16 before it is quantised, "f32" as float32.
        key_floor: smallest magnitude that the key's FP8 scale is made for.
        eps: added to the key's variance.

    Raises:
        UsageError: `key_round` is unknown.
    """
    rounded = {"bf16": torch.bfloat16, "f32": torch.float32}
    if key_round not in rounded:
        raise UsageError(f"key_round must be 'bf16' or 'f32'; got key_round={key_round!r}")
    batch = q.shape[0]
    row_pitch, q_pitch, page_stride = projected.stride(0), q.stride(0), cache.stride(0)
    q_scale = torch.empty((batch, HEADS), dtype=torch.float32, device=q.device)
    normed = torch.empty((batch, DIM), dtype=rounded[key_round], device=q.device)
    has_e2m1 = triton.runtime.driver.active.get_current_target().arch >= 100
    shape: dict[str, Any] = {"H": HEADS, "D": DIM}

    if fp4:
        quantise_query_mxfp4_kernel[(batch, HEADS)](
            q, q_out, q_pitch, **shape, FLOOR=MX_FLOOR, E2M1_MAX=E2M1_MAX, HAS_E2M1=has_e2m1, num_warps=1
        )
    else:
        quantise_query_fp8_kernel[(batch, HEADS)](
            q, q_out, q_scale, q_pitch, **shape, FLOOR=QUERY_FLOOR, E4M3_MAX=E4M3_MAX, num_warps=1
        )
    fold_weights_kernel[(batch,)](
        projected, q_scale, w_out, row_pitch, weight_at, **shape, FOLD_SCALE=not fp4, num_warps=1
    )
    normalise_key_kernel[(batch,)](
        projected, norm_w, norm_b, normed, row_pitch, key_at, eps, D=DIM, num_warps=KEY_WARPS
    )
    if fp4:
        insert_key_mxfp4_kernel[(batch,)](
            normed,
            cache,
            slots,
            page_stride,
            D=DIM,
            TOKENS=PAGE,
            FLOOR=MX_FLOOR,
            E2M1_MAX=E2M1_MAX,
            HAS_E2M1=has_e2m1,
            num_warps=1,
        )
    else:
        insert_key_fp8_kernel[(batch,)](
            normed,
            cache,
            slots,
            page_stride,
            key_floor,
            D=DIM,
            TOKENS=PAGE,
            E4M3_MAX=E4M3_MAX,
            MX=mx,
            num_warps=KEY_WARPS,
        )
