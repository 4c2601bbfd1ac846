"""The ledger of the pair `dsa_index`: its rounding points, from the widened query to the stored bytes.

Letters behind a number split one rounding point where it takes several steps; the functions are in `dsa_steps`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypedDict

from equiv.rounding import dsa_steps as steps
from equiv.rounding.ledger import Ledger, Row


class _Where(TypedDict):
    oracle: str
    candidate: str


_QUERY: _Where = {"oracle": "quantise_query_*_kernel", "candidate": "DsaIndex.quantise_query"}
_FOLD: _Where = {"oracle": "fold_weights_kernel", "candidate": "DsaIndex.quantise_query"}
_NORM: _Where = {"oracle": "normalise_key_kernel", "candidate": "DsaIndex.normalise"}
_KEY: _Where = {"oracle": "insert_key_*_kernel", "candidate": "DsaIndex.insert_key"}
_EACH: _Where = {"oracle": "every kernel", "candidate": "every stage"}


_RATIO = Row(
    id="",
    value="",
    source="f32",
    target="f32",
    mode="rn",
    kind="exact",
    steps=steps.RATIO,
    variants=2,
    why="amax / 448 and amax * fl(1/448) lead to the same power of two for every amax: 448 * 2^k gives exactly 2^k "
    "both ways, and elsewhere an ulp too low passes none",
)
_POWER = Row(
    id="",
    value="",
    source="f32",
    target="f32",
    mode="up",
    kind="exact",
    steps=steps.POWER,
    faults=steps.POWER_FAULTS,
    variants=2,
    why="amax is a BF16 value, so s is 2^k or at least 2^-8 above it, and log2 errs only up to 22 ulps above 2^k",
)
_APPLY = Row(
    id="",
    value="",
    source="f32",
    target="f32",
    mode="rn",
    kind="exact",
    steps=steps.APPLY,
    variants=3,
    off="unrounded",
    why="a power of two; what underflows is far below half the smallest E4M3 step",
)
_EXPONENT = Row(
    id="",
    value="",
    source="f32",
    target="ue8m0",
    mode="up",
    kind="exact",
    steps=steps.EXPONENT,
    faults=steps.EXPONENT_FAULTS,
    variants=2,
    zero="zero block: 2^-126",
    why="amax is a BF16 value: where it is not 6 * 2^k, it is too far from it for log2 to round to a whole number",
)
_SCALED = Row(
    id="",
    value="",
    source="f32",
    target="f32",
    mode="rn",
    kind="exact",
    steps=steps.SCALED,
    off="unrounded",
    why="a power of two; what underflows is far below half the smallest E2M1 step",
)
_FP8 = Row(
    id="",
    value="",
    source="f32",
    target="e4m3",
    mode="rn",
    kind="rounding",
    steps=steps.E4M3_CODE,
    faults=steps.E4M3_FAULTS,
    off="cut",
    ties="even",
    saturation="+-448, Inf too",
    nan="0x7f",
    zero="sign kept; subnormals kept",
    why="what is stored",
)
_FP4 = replace(_FP8, target="e2m1", steps=steps.E2M1_CODE, saturation="+-6, Inf too", nan="0x7")
_PRODUCT = Row(
    id="",
    value="",
    source="f32",
    target="f32",
    mode="rn",
    kind="variant",
    steps=steps.FOLD,
    faults=steps.FOLD_FAULTS,
    variants=2,
    zero="gradual underflow",
    why="fl(128^-0.5) * fl(32^-0.5) is 2^-6 (1 - 3e-8); BF16 hides it except among its subnormals",
)
_WEIGHT = Row(
    id="",
    value="",
    source="f32",
    target="bf16",
    mode="rn",
    kind="rounding",
    steps=steps.BF16_CODE,
    off="cut",
    ties="even",
    saturation="none: Inf",
    nan="0x7fff",
    zero="sign kept; subnormals kept",
    why="exact for a normal folded product; rounds BF16 subnormals, and repairs the product of two constants",
)
_STEP = Row(
    id="",
    value="",
    source="f32",
    target="f32",
    mode="rn",
    kind="rounding",
    steps=steps.ADD,
    off="rz",
    ties="even",
)

LEDGER: Final = Ledger(
    (
        replace(
            _STEP,
            id="dsa.R10a",
            value="q, key, weight: widened",
            source="bf16",
            kind="exact",
            steps=steps.WIDEN,
            off="decode",
            why="BF16 is the upper half of float32",
            ties="",
            **_EACH,
        ),
        replace(
            _STEP,
            id="dsa.R10b",
            value="largest magnitude of a head, block or key",
            kind="exact",
            steps=steps.AMAX,
            variants=2,
            off="",
            ties="",
            why="max rounds nothing, in any order",
            nan="dropped, or all of it",
            **_EACH,
        ),
        replace(_RATIO, id="dsa.R11", value="q: s = amax / 448", zero="amax is at least 1e-10", **_QUERY),
        replace(_POWER, id="dsa.R12", value="q: scale, the power of two >= s", **_QUERY),
        replace(_APPLY, id="dsa.R13", value="q: v / scale", nan="clamp: +-448", **_QUERY),
        replace(_FP8, id="dsa.R14", value="q: FP8 code", **_QUERY),
        replace(_PRODUCT, id="dsa.R15a", value="w * scale * 2^-6", **_FOLD),
        replace(_WEIGHT, id="dsa.R15b", value="folded head weight", **_FOLD),
        replace(_EXPONENT, id="dsa.F1", value="q: exponent of a block's UE8M0 scale", **_QUERY),
        replace(_SCALED, id="dsa.F2a", value="q: v * 2^-e", **_QUERY),
        replace(_FP4, id="dsa.F2b", value="q: FP4 code", **_QUERY),
        replace(_PRODUCT, id="dsa.F3a", value="w * 2^-6", **_FOLD),
        replace(_WEIGHT, id="dsa.F3b", value="head weight", **_FOLD),
        replace(
            _STEP,
            id="dsa.K1a",
            value="key: mean = sum(x) / 128",
            steps=steps.MEAN,
            off="unscaled",
            why="order `key.sum`; the division is exact",
            **_NORM,
        ),
        replace(
            _STEP,
            id="dsa.K1b",
            value="key: d = x - mean",
            steps=steps.SUB,
            faults=steps.LEFT_OUT,
            why="two-pass variance",
            **_NORM,
        ),
        replace(
            _STEP,
            id="dsa.K1c",
            value="key: var = sum(d * d) / 128",
            steps=steps.MEAN,
            off="unscaled",
            why="order `key.squares`; biased; the division is exact",
            **_NORM,
        ),
        replace(
            _STEP,
            id="dsa.K1d",
            value="key: var + eps",
            faults=steps.LEFT_OUT,
            why="finite root for a constant row",
            **_NORM,
        ),
        replace(
            _STEP,
            id="dsa.K1e",
            value="key: rstd = 1 / sqrt(var + eps)",
            steps=steps.RSQRT,
            variants=2,
            mode="table",
            ties="",
            off="correct",
            why="MUFU.RSQ: 78 % of inputs correctly rounded",
            **_NORM,
        ),
        replace(
            _STEP,
            id="dsa.K2a",
            value="key: d * rstd",
            steps=steps.MUL,
            faults=steps.THROUGH_BF16,
            why="an instruction of its own",
            **_NORM,
        ),
        replace(
            _STEP,
            id="dsa.K2b",
            value="key: y = (d * rstd) * w + b",
            steps=steps.AFFINE,
            variants=2,
            off="mul_add",
            kind="variant",
            why="contracted unless the compiler is told otherwise",
            **_NORM,
        ),
        replace(
            _STEP,
            id="dsa.K2c",
            value="key: y before it is quantised",
            target="bf16",
            steps=steps.TO_BF16,
            off="keep",
            nan="0x7fff",
            why="module path rounds, fused stock path not: axis key_round",
            **_NORM,
        ),
        replace(
            _RATIO,
            id="dsa.K3a",
            value="key: s = amax / 448",
            kind="variant",
            zero="amax is at least key_floor",
            why="true power of two unmoved, but log2's error zone above it may be entered by an ulp (unrounded key)",
            **_KEY,
        ),
        replace(
            _POWER,
            id="dsa.K3b",
            value="key: scale, the power of two >= s",
            kind="variant",
            why="equal for a BF16 key; unrounded, log2 halves it just above a power of two",
            **_KEY,
        ),
        replace(_APPLY, id="dsa.K3c", value="key: y / scale", **_KEY),
        replace(_FP8, id="dsa.K3d", value="key: FP8 code", **_KEY),
        replace(
            _EXPONENT,
            id="dsa.K4a",
            value="key: exponent of a block's UE8M0 scale",
            kind="variant",
            why="equal for a BF16 key; unrounded, log2 is one low just above 6 * 2^k",
            **_KEY,
        ),
        replace(_SCALED, id="dsa.K4b", value="key: y * 2^-e", **_KEY),
        replace(_FP4, id="dsa.K4c", value="key: FP4 code", **_KEY),
    )
)
"""All rows of `dsa_index`, in the order in which they happen."""
