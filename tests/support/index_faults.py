"""Seeded faults of `dsa_index`'s candidate. Importing a fault's name from here gives the party that has it."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

from seeded import Fault, by_name, package

from equiv.dsa_index import parties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.records import Case

INDEX, CONVERT = "dsa/index.py", "convert.py"
RANDOM = "fp8-b17-random"
SLOT = "        slot = mSlots[request]\n"
E4M3 = '"cvt.rn.satfinite.e4m3x2.f32 {$w0}, {$r0}, {$r1};", write_only_types=[Uint16], read_only_args=[high, low]'
HIGH_BITS = "(%s.bitcast(Uint32) & Uint32(0xFFF00000)).bitcast(Float32)"

FAULTS = (
    Fault(
        "E4M3 codes cut",
        "fp8-b17-ties",
        CONVERT,
        E4M3,
        E4M3.replace("[high, low]", f"[{HIGH_BITS % 'high'}, {HIGH_BITS % 'low'}]"),
        "dsa.R14 (q: FP8 code) were mantissa cut first and dsa.K3d (key: FP8 code) were mantissa cut first",
    ),
    Fault(
        "E4M3 codes of even channels cut",
        "fp8-b17-ties",
        CONVERT,
        E4M3,
        E4M3.replace("[high, low]", f"[high, {HIGH_BITS % 'low'}]"),
        "dsa.R14 (q: FP8 code) were mantissa cut first and dsa.K3d (key: FP8 code) were mantissa cut first, but in "
        "some places only",
    ),
    Fault(
        "scale rounded down",
        "fp8-b16-amax-edges",
        CONVERT,
        "((s.bitcast(Uint32) + 0x7FFFFF) & 0x7F800000)",
        "(s.bitcast(Uint32) & 0x7F800000)",
        "dsa.R12 (q: scale, the power of two >= s) were rounded down",
    ),
    Fault(
        "scale doubled where exact",
        "fp8-b16-amax-edges",
        CONVERT,
        "s.bitcast(Uint32) + 0x7FFFFF",
        "s.bitcast(Uint32) + 0x800000",
        "dsa.R12 (q: scale, the power of two >= s) were doubled where exact",
    ),
    Fault(
        "exponent of a block rounded down",
        "fp4-q-amax-edges",
        CONVERT,
        "(bits >> 23) - 2 + Uint32((bits & 0x7FFFFF) > 0x400000)",
        "(bits >> 23) - 2",
        "dsa.F1 (q: exponent of a block's UE8M0 scale) were rounded down",
    ),
    Fault(
        "threshold of a block not strict",
        "fp4-q-amax-edges",
        CONVERT,
        "Uint32((bits & 0x7FFFFF) > 0x400000)",
        "Uint32((bits & 0x7FFFFF) >= 0x400000)",
        "dsa.F1 (q: exponent of a block's UE8M0 scale) were one more where exact",
    ),
    Fault(
        "negative slot wraps",
        "fp8-b15-skip-even",
        INDEX,
        SLOT,
        SLOT + "        if slot < 0:\n            slot += mCache.shape[0] * PAGE\n",
        "STATE FAULT in cache_rest",
    ),
    Fault(
        "negative slot clamped to 0",
        "fp8-b15-skip-even",
        INDEX,
        SLOT,
        "        slot = cutlass.max(mSlots[request], Int64(0))\n",
        "STATE FAULT in cache_rest",
    ),
    Fault(
        "32-bit offsets of pages",
        "fp8-slots-far-pages",
        INDEX,
        "(slot // PAGE) * mCache.stride[0]",
        "Int64(Int32(slot // PAGE) * Int32(mCache.stride[0]))",
        "2147475712 bytes before the start of `cache`",
    ),
    Fault(
        "eps of the LayerNorm dropped",
        "fp8-key-tiny",
        INDEX,
        "cute.math.rsqrt(variance + key_eps,",
        "cute.math.rsqrt(variance,",
        "dsa.K1d (key: var + eps) were left out",
    ),
    Fault(
        "mean not subtracted",
        RANDOM,
        INDEX,
        "rD[c] = rX[c] - mean",
        "rD[c] = rX[c]",
        "dsa.K1b (key: d = x - mean) were left out",
    ),
    Fault(
        "variance not divided",
        RANDOM,
        INDEX,
        "variance = warp_sum(sum4(rSquare)) * Float32(1 / DIM)",
        "variance = warp_sum(sum4(rSquare))",
        "dsa.K1c (key: var = sum(d * d) / 128) were missing",
    ),
    Fault(
        "cast before the LayerNorm's weight",
        RANDOM,
        INDEX,
        "cute.math.fma(rD[c] * rstd,",
        "cute.math.fma(Float32(BFloat16(rD[c] * rstd)),",
        "dsa.K2a (key: d * rstd) were rounded to BF16",
    ),
    Fault(
        "key not rounded before it is quantised",
        "fp8-b5-key-ties",
        INDEX,
        'if cutlass.const_expr(self.key_round == "bf16")',
        'if cutlass.const_expr(self.key_round == "none")',
        "dsa.K2c (key: y before it is quantised) were missing",
    ),
    Fault(
        "scale not folded into the weight",
        RANDOM,
        INDEX,
        "            weight *= scale\n",
        "",
        "dsa.R15a (w * scale * 2^-6) were taken without the scale",
    ),
    Fault(
        "softmax scale without the heads'",
        RANDOM,
        INDEX,
        "WEIGHT_SCALE = (HEADS * DIM) ** -0.5",
        "WEIGHT_SCALE = DIM**-0.5",
        "dsa.R15a (w * scale * 2^-6) were taken with 2^-3.5 alone",
    ),
    Fault(
        "nibbles exchanged",
        "fp4-b17-random",
        INDEX,
        "e2m1x2(rX[0] * inverse, rX[1] * inverse)",
        "e2m1x2(rX[1] * inverse, rX[0] * inverse)",
        "each holds what belongs to channel xor 1",
    ),
)


def _run(fault: Fault, case: Case, tensors: Mapping[str, Any]) -> None:
    importlib.import_module(f"{package(fault)}.dsa.index").dsa_index(**tensors, **parties._options(case))


def __getattr__(name: str) -> Callable[..., None]:
    return partial(_run, by_name(FAULTS, name))
