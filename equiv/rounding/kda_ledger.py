"""The ledger of the pair `kda`: its rounding points, from the projected rows to the gated norm and the commit.

Numbers are those of spec kda 2.1; letters split a point into its steps (13: approximations and the operations around
them). The functions are in `kda_steps`. Reductions that the model reads from a declaration: `gate.0`, `gate.1` (F_B, by
axis `gate_mode`), `q.squares` (q and k), `dot`, `out`, `norm.squares`, and for a commit `commit.squares` (of the
recorded keys). The order of a commit's sum over tokens is a variant of row kda.13p.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypedDict

from equiv.rounding import kda_steps as steps
from equiv.rounding.kda_faults import FAULTS
from equiv.rounding.ledger import Ledger, Row


class _Where(TypedDict):
    oracle: str
    candidate: str


_GATE: _Where = {"oracle": "F_B projection", "candidate": "gate projection"}
_CONV: _Where = {"oracle": "causal convolution", "candidate": "preparation"}
_PREPARE: _Where = {"oracle": "recurrence", "candidate": "preparation"}
_SCAN: _Where = {"oracle": "recurrence", "candidate": "scan"}
_COMMIT: _Where = {"oracle": "commit", "candidate": "RecoverCommit"}
_NORM: _Where = {"oracle": "gated norm", "candidate": "epilogue"}
_EACH: _Where = {"oracle": "every kernel", "candidate": "every stage"}

_EXACT = Row("", "", "bf16", "f32", "rn", "exact", steps.WIDEN, off="decode", why="BF16 is the upper half of float32")
_BF16 = Row(
    id="",
    value="",
    source="f32",
    target="bf16",
    mode="rn",
    kind="rounding",
    steps=steps.ROUND,
    off="keep",
    ties="even",
    saturation="none: Inf",
    nan="0x7fff",
    zero="sign kept; subnormals kept",
)
_STORED = replace(_BF16, steps=steps.CODE, off="cut")
_STEP = Row("", "", "f32", "f32", "rn", "rounding", steps.MUL, off="rz", ties="even")
_APPROX = Row("", "", "f32", "f32", "table", "rounding", steps.EXP, variants=2, off="correct")
_SIGMOID = replace(
    _APPROX,
    steps=steps.SIGMOID,
    why="1 / (1 + ex2(-x log2 e)); both forms agree up to 1 + e = 2^126, where rcp flushes to 0",
)

_ROWS: Final = (
    replace(_EXACT, id="kda.1", value="q, k, v, gates, F_A, beta: widened", **_EACH),
    replace(_BF16, id="kda.2", value="raw gate = F_A F_B^T", why="stock reads a BF16 tensor; recorded so", **_GATE),
    replace(
        _EXACT,
        id="kda.3",
        value="x into the convolution's window",
        target="bf16",
        steps=steps.COPY,
        off="encode",
        why="raw x, never its SiLU",
        **_CONV,
    ),
    replace(
        _STEP,
        id="kda.4",
        value="convolution: acc = x_i w_i + acc, taps ascending",
        steps=steps.FMA,
        off="mul_add",
        why="a fixed chain from the bias or +0; a BF16 weight would round the product to BF16; the oracle's taps are "
        "spelt as fma: with a bias and T > 1 the sm_100a compiler rounds the products of some tokens' taps in stock",
        **_CONV,
    ),
    replace(
        _APPROX,
        id="kda.5a",
        value="convolution: SiLU = acc / (1 + exp(-acc))",
        kind="variant",
        steps=steps.SILU,
        why="acc * rcp(d) is div.full up to d = 2^126; beyond (acc < -87) rcp flushes to 0",
        **_CONV,
    ),
    replace(_BF16, id="kda.5", value="q, k, v after SiLU", why="a BF16 buffer that the recurrence reloads", **_CONV),
    replace(
        _EXACT,
        id="kda.11",
        value="recorded k and raw gate",
        target="bf16",
        steps=steps.COPY,
        off="encode",
        why="BF16 values already",
        **_SCAN,
    ),
    replace(
        _STEP,
        id="kda.13a",
        value="q, k: n = sum of squares + 1e-6",
        steps=steps.ADD,
        why="order `q.squares`",
        **_PREPARE,
    ),
    replace(
        _APPROX,
        id="kda.13b",
        value="k normalised: k / sqrt(n)",
        kind="variant",
        steps=steps.KEY,
        variants=3,
        why="div.full and rcp give the same bits, as sqrt(n) <= 2^64; the stock verify takes rsqrt",
        **_PREPARE,
    ),
    replace(
        _APPROX,
        id="kda.13c",
        value="q normalised: q / sqrt(n) * scale",
        kind="variant",
        steps=steps.QUERY,
        variants=3,
        why="as k; with rsqrt the scale goes into the factor first",
        **_PREPARE,
    ),
    replace(_APPROX, id="kda.13d", value="a = exp(A_log)", why="not ftz", **_PREPARE),
    replace(_STEP, id="kda.13e", value="z = raw gate + dt_bias", steps=steps.ADD, **_PREPARE),
    replace(_STEP, id="kda.13f", value="a z", **_PREPARE),
    replace(_SIGMOID, id="kda.13g", value="sigmoid(a z)", **_PREPARE),
    replace(_STEP, id="kda.13h", value="gate g = lower bound * sigmoid", **_PREPARE),
    replace(
        _APPROX,
        id="kda.13i",
        value="decay = exp(g)",
        why="ftz shows below 2^-126 only; g >= -5 or so",
        **_PREPARE,
    ),
    replace(_SIGMOID, id="kda.13j", value="beta = sigmoid(raw beta)", **_PREPARE),
    replace(_EXACT, id="kda.6", value="state loaded from a BF16 pool", **_SCAN),
    replace(_STEP, id="kda.13k", value="S decay", why="before the dot", **_SCAN),
    replace(_STEP, id="kda.13l", value="v - S k", steps=steps.SUB, why="order `dot`", **_SCAN),
    replace(_STEP, id="kda.13m", value="correction u = (v - S k) beta", **_SCAN),
    replace(
        _STEP,
        id="kda.10",
        value="recorded u",
        kind="exact",
        steps=steps.KEEP,
        off="",
        ties="",
        why="float32 as it is",
        **_SCAN,
    ),
    replace(
        _STEP,
        id="kda.13n",
        value="S = k u + S",
        steps=steps.FMA,
        off="mul_add",
        why="contracted by every compiler",
        **_SCAN,
    ),
    replace(_BF16, id="kda.8", value="o = S q", why="order `out`; the norm reloads BF16", **_SCAN),
    replace(
        _STEP,
        id="kda.7a",
        value="state stored to a float32 pool",
        kind="exact",
        steps=steps.KEEP,
        off="",
        ties="",
        why="as it is",
        **_SCAN,
    ),
    replace(_STORED, id="kda.7", value="state stored to a BF16 pool", why="what is carried stays float32", **_SCAN),
    replace(
        _APPROX,
        id="kda.13o",
        value="commit: k normalised",
        kind="variant",
        steps=steps.KEY,
        variants=3,
        why="order `commit.squares`; as kda.13b",
        **_COMMIT,
    ),
    replace(
        _STEP,
        id="kda.13p",
        value="commit: fold of n tokens into the state",
        mode="rn",
        kind="variant",
        steps=steps.FOLD,
        variants=2,
        off="",
        why="stock folds backwards with a product of decays; forward is the recurrence itself",
        **_COMMIT,
    ),
    replace(_EXACT, id="kda.12", value="norm weight: widened", **_NORM),
    replace(
        _STEP,
        id="kda.13q",
        value="norm: sum of squares / 128 + eps",
        steps=steps.MEAN,
        variants=2,
        off="no_eps",
        why="order `norm.squares`, of the rounded o; the division is exact, so fma and mul, add agree",
        **_NORM,
    ),
    replace(
        _APPROX,
        id="kda.13r",
        value="norm: rstd = 1 / sqrt",
        kind="variant",
        steps=steps.RSTD,
        variants=3,
        why="div.full and rcp agree",
        **_NORM,
    ),
    replace(_STEP, id="kda.13s", value="norm: o rstd", **_NORM),
    replace(_STEP, id="kda.13t", value="norm: (o rstd) w", **_NORM),
    replace(_SIGMOID, id="kda.13u", value="norm: sigmoid of the output gate", kind="variant", **_NORM),
    replace(_STEP, id="kda.13v", value="norm: y = (o rstd w) sigmoid", **_NORM),
    replace(_STORED, id="kda.9", value="y", why="the model's format", **_NORM),
)
LEDGER: Final = Ledger(tuple(replace(row, faults=FAULTS.get(row.id, {})) for row in _ROWS))
"""All rows of `kda`, in the order in which they happen."""
