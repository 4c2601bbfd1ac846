"""`DsaIndex`: query quantisation, folded head weights and index-key insertion of the DSA indexer in one launch.

Letters: B requests, H = 32 heads, D = 128 channels. One warp a (request, head) quantises the query; one warp a request
normalises, quantises and inserts the key; no warp waits for another. Scales are exact powers of two taken from bits, so
a value is multiplied by the exact inverse of its scale, not divided. Formulas and layouts: spec dsa 1.3 to 1.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cutlass
from cutlass import BFloat16, Float32, Int32, Int64, Uint8, Uint16, Uint32, cute

from equiv.cute.access import load_vector, store
from equiv.cute.convert import E4M3_MAX, e2m1x2, e4m3x4, magnitude, mxfp4_scale, pow2_ceil, reciprocal_pow2
from equiv.cute.fixed import Fixed
from equiv.cute.host import compiled, dynamic, stream_of
from equiv.cute.warp import group_max, warp_max, warp_sum
from equiv.errors import UsageError
from equiv.geometry.dsa import BLOCK, DIM, HEADS, PAGE

if TYPE_CHECKING:
    from collections.abc import Hashable

    import torch

QUERY_FLOOR = 1e-10
WEIGHT_SCALE = (HEADS * DIM) ** -0.5
"""Softmax scale times head scale, 2^-6 exactly."""
CHANNELS = 4
"""Neighbouring channels a lane owns."""
WARPS = 11
"""A request's 32 heads and its key are 33 warps, three blocks of 11."""


class DsaIndex(Fixed):
    """The DSA indexer's quantisation stage for an already projected query.

    Args:
        key: column of `projected` where the index key's 128 channels begin; a multiple of 4.
        weight: column of `projected` where the 32 head weights begin.
        mx: store the key's scale as its UE8M0 byte four times instead of as float32 (FP8 pages).
        fp4: quantise query and key to MXFP4 (blocks of 32 channels) instead of FP8.
        key_round: "bf16" rounds the normalised key to BF16 before it is quantised, "f32" does not.
        key_floor: smallest magnitude that the key's FP8 scale is made for.

    Operands of the call, in order (the first stride is free, a multiple of 4 elements; rows are dense):
        projected: BF16 [B, width]; q: BF16 [B, H, D]; norm_w, norm_b: FP32 [D].
        cache: uint8 [pages, 64 * 132] (FP8) or [pages, 64 * 68] (FP4): a page's values token after token, then 4 scale
            bytes for each token.
        slots: int64 [B]: page * 64 + token of the page; a request with a negative slot inserts nothing.
        q_out: uint8 [B, H * D] E4M3 codes; FP4: [B, H * D / 2 + H * D / 32] E2M1 pairs (low nibble = even channel),
            then UE8M0 bytes.
        w_out: BF16 [B, H]: weight * 2^-6, times the query's scale for FP8.
        key_eps: float32 added to the key's variance. stream: CUDA stream.

    Raises:
        UsageError: `key` is no multiple of 4 or `key_round` is unknown.
    """

    def __init__(
        self,
        key: int,
        weight: int,
        mx: bool = False,
        fp4: bool = False,
        key_round: str = "bf16",
        key_floor: float = 1e-4,
    ):
        if key % CHANNELS:
            raise UsageError(
                f"key must be a multiple of {CHANNELS} columns, a lane loads that many at once; got key={key}"
            )
        if key_round not in ("bf16", "f32"):
            raise UsageError(f"key_round must be 'bf16' or 'f32'; got key_round={key_round!r}")
        self.key = key
        self.weight = weight
        self.mx = mx
        self.fp4 = fp4
        self.key_round = key_round
        self.key_floor = key_floor

    @property
    def variant(self) -> tuple[Hashable, ...]:
        """What distinguishes the generated code of two instances."""
        return (self.key, self.weight, self.mx, self.fp4, self.key_round, self.key_floor)

    @cute.jit
    def __call__(
        self,
        mP: cute.Tensor,
        mQ: cute.Tensor,
        mNormW: cute.Tensor,
        mNormB: cute.Tensor,
        mCache: cute.Tensor,
        mSlots: cute.Tensor,
        mQOut: cute.Tensor,
        mWOut: cute.Tensor,
        key_eps: Float32,
        stream,
    ):
        """One launch for all requests; being a programmatic dependent one it may start before its predecessor ends."""
        self.kernel(mP, mQ, mNormW, mNormB, mCache, mSlots, mQOut, mWOut, key_eps).launch(
            grid=(mQ.shape[0], (HEADS + WARPS) // WARPS, 1), block=(32 * WARPS, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self,
        mP: cute.Tensor,
        mQ: cute.Tensor,
        mNormW: cute.Tensor,
        mNormB: cute.Tensor,
        mCache: cute.Tensor,
        mSlots: cute.Tensor,
        mQOut: cute.Tensor,
        mWOut: cute.Tensor,
        key_eps: Float32,
    ):
        """Grid (B, 3), 11 warps: warp (y, w) takes item 11 y + w of the request: a head, or the key as item 32."""
        tidx, _, _ = cute.arch.thread_idx()
        request, part, _ = cute.arch.block_idx()
        lane = tidx % 32
        item = part * WARPS + tidx // 32
        cute.arch.griddepcontrol_wait()
        if item < HEADS:
            self.quantise_query(mP, mQ, mQOut, mWOut, request, item, lane)
        else:
            self.insert_key(mP, mNormW, mNormB, mCache, mSlots, request, key_eps, lane)
        cute.arch.griddepcontrol_launch_dependents()

    @cute.jit
    def quantise_query(self, mP, mQ, mQOut, mWOut, request: Int32, head: Int32, lane: Int32):
        """Codes, block scales (FP4) and folded weight of one head; a lane owns channels 4 * lane .. + 3."""
        rX = load_channels(mQ.iterator + Int64(request) * mQ.stride[0] + head * DIM, lane)
        row = mQOut.iterator + Int64(request) * mQOut.stride[0]
        weight = Float32(mP[request, self.weight + head])
        if cutlass.const_expr(self.fp4):
            inverse, byte = mxfp4_scale(block_amax(rX))
            store(row + head * (DIM // 2) + lane * 2, e2m1_codes(rX, inverse))
            if lane % (BLOCK // CHANNELS) == 0:
                store(row + HEADS * (DIM // 2) + head * (DIM // BLOCK) + lane // (BLOCK // CHANNELS), Uint8(byte))
        else:
            scale = fp8_scale(rX, Float32(QUERY_FLOOR))
            store(row + head * DIM + lane * CHANNELS, e4m3_codes(rX, reciprocal_pow2(scale)))
            weight *= scale
        if lane == 0:
            mWOut[request, head] = BFloat16(weight * Float32(WEIGHT_SCALE))

    @cute.jit
    def insert_key(self, mP, mNormW, mNormB, mCache, mSlots, request: Int32, key_eps: Float32, lane: Int32):
        """LayerNorm over the request's index key, quantisation, the write to its slot; nothing for a negative slot."""
        slot = mSlots[request]
        if slot >= 0:
            rY = self.normalise(mP, mNormW, mNormB, request, key_eps, lane)
            page = mCache.iterator + (slot // PAGE) * mCache.stride[0]
            token = Int32(slot % PAGE)
            if cutlass.const_expr(self.fp4):
                inverse, byte = mxfp4_scale(block_amax(rY))
                store(page + token * (DIM // 2) + lane * 2, e2m1_codes(rY, inverse))
                if lane % (BLOCK // CHANNELS) == 0:
                    store(page + PAGE * (DIM // 2) + token * (DIM // BLOCK) + lane // (BLOCK // CHANNELS), Uint8(byte))
            else:
                scale = fp8_scale(rY, Float32(self.key_floor))
                store(page + token * DIM + lane * CHANNELS, e4m3_codes(rY, reciprocal_pow2(scale)))
                if lane == 0:
                    bits = scale.bitcast(Uint32)
                    if cutlass.const_expr(self.mx):
                        bits = (bits >> 23) * 0x01010101
                    store(page + PAGE * DIM + token * 4, bits)

    @cute.jit
    def normalise(self, mP, mNormW, mNormB, request: Int32, key_eps: Float32, lane: Int32):
        """This lane's four channels of the key's LayerNorm (float32): two passes, biased variance."""
        rX = load_channels(mP.iterator + Int64(request) * mP.stride[0] + self.key, lane)
        mean = warp_sum(sum4(rX)) * Float32(1 / DIM)
        rD = cute.make_rmem_tensor(CHANNELS, Float32)
        rSquare = cute.make_rmem_tensor(CHANNELS, Float32)
        for c in cutlass.range_constexpr(CHANNELS):
            rD[c] = rX[c] - mean
            rSquare[c] = rD[c] * rD[c]
        variance = warp_sum(sum4(rSquare)) * Float32(1 / DIM)
        rstd = cute.math.rsqrt(variance + key_eps, approx=True, ftz=True)
        rW = load_channels(mNormW.iterator, lane)
        rB = load_channels(mNormB.iterator, lane)
        rY = cute.make_rmem_tensor(CHANNELS, Float32)
        for c in cutlass.range_constexpr(CHANNELS):
            rY[c] = cute.math.fma(rD[c] * rstd, rW[c], rB[c])
            if cutlass.const_expr(self.key_round == "bf16"):
                rY[c] = Float32(BFloat16(rY[c]))
        return rY


@cute.jit
def load_channels(row: cute.Pointer, lane: Int32):
    """Channels 4 * lane .. + 3 of a dense row as float32, loaded at once; the row is aligned to four elements."""
    return load_vector(row + lane * CHANNELS, CHANNELS).to(Float32)


@cute.jit
def sum4(rX) -> Float32:
    """(x0 + x1) + (x2 + x3)."""
    return (rX[0] + rX[1]) + (rX[2] + rX[3])


@cute.jit
def lane_amax(rX) -> Uint32:
    """Bits of the largest magnitude among a lane's four channels."""
    amax = magnitude(rX[0])
    for c in cutlass.range_constexpr(1, CHANNELS):
        amax = cutlass.max(amax, magnitude(rX[c]))
    return amax


@cute.jit
def block_amax(rX) -> Uint32:
    """Bits of the largest magnitude of the 32 channels (8 lanes) around this lane."""
    return group_max(lane_amax(rX), BLOCK // CHANNELS)


@cute.jit
def fp8_scale(rX, floor: Float32) -> Float32:
    """Power-of-two scale of the warp's 128 channels: the smallest that brings max(amax, floor) to 448 or below."""
    return pow2_ceil(cute.arch.fmax(warp_max(lane_amax(rX)).bitcast(Float32), floor) / Float32(E4M3_MAX))


@cute.jit
def e4m3_codes(rX, inverse: Float32) -> Uint32:
    """The lane's four E4M3 bytes, first channel lowest."""
    return e4m3x4(rX[0] * inverse, rX[1] * inverse, rX[2] * inverse, rX[3] * inverse)


@cute.jit
def e2m1_codes(rX, inverse: Float32) -> Uint16:
    """The lane's four E2M1 nibbles, first channel lowest."""
    return Uint16(e2m1x2(rX[0] * inverse, rX[1] * inverse) | (e2m1x2(rX[2] * inverse, rX[3] * inverse) << 8))


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
    """Runs `DsaIndex` on torch tensors, on the device that CuTe DSL is set to: one launch on the current stream.

    Tensors and options are those of `DsaIndex` (`key_at` and `weight_at` its `key` and `weight`); `eps` is added to the
    key's variance. Results go into `q_out`, `w_out` and `cache`; compiled once per process and set of options.
    """
    kernel = DsaIndex(key_at, weight_at, mx=mx, fp4=fp4, key_round=key_round, key_floor=key_floor)
    tensors = (projected, q, norm_w, norm_b, cache, slots, q_out, w_out)
    operands = (*map(dynamic, tensors), Float32(eps), stream_of(q))
    compiled(kernel, operands, on_gpu=q.is_cuda)(*operands)
