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
RATIO = "return pow2_ceil(cute.arch.fmax(warp_max(lane_amax(rX)).bitcast(Float32), floor) / Float32(E4M3_MAX))"
POWER = "((s.bitcast(Uint32) + 0x7FFFFF) & 0x7F800000).bitcast(Float32)"
INVERSE = "((254 << 23) - scale.bitcast(Uint32)).bitcast(Float32)"
BF16_SUMS = """

def narrow(x):
    return Float32(BFloat16(x))


def warp_sum(value):
    for distance in (16, 8, 4, 2, 1):
        value = narrow(value + cute.arch.shuffle_sync_bfly(value, offset=distance))
    return value


"""

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
        "dsa.R14 (q: FP8 code) were mantissa cut first, but in some places only",
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
    Fault(
        "240 as the largest code",
        RANDOM,
        INDEX,
        RATIO,
        RATIO.replace("E4M3_MAX", "240.0"),
        "544 of 544 heads fit ceil with 240, 2^ceil(log2(amax / 240))",
    ),
    Fault(
        "amax not divided",
        RANDOM,
        INDEX,
        RATIO,
        RATIO.replace(" / Float32(E4M3_MAX)", ""),
        "544 of 544 heads fit undivided ceil, 2^ceil(log2(amax))",
    ),
    Fault(
        "scale never a power of two",
        RANDOM,
        CONVERT,
        POWER,
        "s.bitcast(Uint32).bitcast(Float32)",
        "544 of 544 heads fit exact, amax / 448, no power of two",
        more=((CONVERT, INVERSE, "Float32(1.0) / scale"),),
    ),
    Fault(
        "scale rounded after the codes",
        RANDOM,
        INDEX,
        RATIO,
        RATIO.replace("pow2_ceil(", "("),
        "17 of 17 keys fit exact, ceil kept, codes by amax / 448, its next power of two kept",
        more=(
            (CONVERT, INVERSE, "Float32(1.0) / scale"),
            (INDEX, "bits = scale.bitcast(Uint32)\n", "bits = pow2_ceil(scale).bitcast(Uint32)\n"),
            (INDEX, "weight *= scale", "weight *= pow2_ceil(scale)"),
        ),
    ),
    Fault(
        "largest magnitude through BF16",
        "fp8-mx-f32-key-aimed-scale",
        INDEX,
        RATIO,
        RATIO.replace("warp_max(lane_amax(rX)).bitcast(Float32)", "AMAX").replace(
            "AMAX", "Float32(BFloat16(warp_max(lane_amax(rX)).bitcast(Float32)))"
        ),
        "3 of 3 keys fit floor of amax, 2^(floor(log2(amax)) - 8) (and even, amax in BF16)",
    ),
    Fault(
        "exponent of a block always the next",
        "fp4-q-amax-edges",
        CONVERT,
        "(bits >> 23) - 2 + Uint32((bits & 0x7FFFFF) > 0x400000)",
        "(bits >> 23) - 1",
        "dsa.F1 (q: exponent of a block's UE8M0 scale) were always the next",
    ),
    Fault(
        "second code of a pair left out",
        RANDOM,
        CONVERT,
        "read_only_args=[high, low]\n",
        "read_only_args=[low, low]\n",
        "each holds what belongs to channel -1",
    ),
    Fault(
        "token written flat into its page",
        RANDOM,
        INDEX,
        "store(page + token * DIM + lane * CHANNELS,",
        "store(page + token * (DIM + 4) + lane * CHANNELS,",
        "STATE FAULT in cache_rest",
        more=((INDEX, "store(page + PAGE * DIM + token * 4, bits)", "store(page + token * (DIM + 4) + DIM, bits)"),),
    ),
    Fault(
        "sums of the LayerNorm in BF16",
        RANDOM,
        INDEX,
        "from equiv.cute.warp import group_max, warp_max, warp_sum\n",
        "from equiv.cute.warp import group_max, warp_max\n",
        "every partial sum of key.sum were rounded to BF16 and every partial sum of key.squares were rounded to BF16",
        more=(
            (
                INDEX,
                "    return (rX[0] + rX[1]) + (rX[2] + rX[3])\n",
                "    return narrow(narrow(rX[0] + rX[1]) + narrow(rX[2] + rX[3]))\n",
            ),
            (INDEX, "QUERY_FLOOR = 1e-10\n", "QUERY_FLOOR = 1e-10\n" + BF16_SUMS),
        ),
    ),
    Fault(
        "pitch of the rows ignored",
        "fp8-packed-skip-even",
        INDEX,
        "load_channels(mP.iterator + Int64(request) * mP.stride[0] + self.key, lane)",
        "load_channels(mP.iterator + Int64(request) * mP.shape[1] + self.key, lane)",
        "the key's rows were as far apart as they are wide",
    ),
)


LONG = {
    "amax not divided",
    "scale never a power of two",
    "largest magnitude through BF16",
    "exponent of a block always the next",
    "second code of a pair left out",
    "token written flat into its page",
}
"""Faults whose kind another one has too: their tests are among the slow ones."""


def _run(fault: Fault, case: Case, tensors: Mapping[str, Any]) -> None:
    importlib.import_module(f"{package(fault)}.dsa.index").dsa_index(**tensors, **parties._options(case))


def __getattr__(name: str) -> Callable[..., None]:
    return partial(_run, by_name(FAULTS, name))
