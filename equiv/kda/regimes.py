"""Values of the pair `kda`: which regimes each piece knows, and how the pieces make up the tensors.

A regime is named in the case file by piece: columns of the rows (`q`, `k`, `v`, `out_gate`, `f_a`, `beta`), weights,
the windows and states of the slots that hold a request's (`conv_state`, `state`), and what `equiv.kda.plan` decides:
slots, absent requests, accepted counts, the commit's destinations. `values` says what stands for the first regime of
every piece: "by_head", each head has values of its own kind (`equiv.kda.mixed`); "gated", all heads are of one of these
kinds; "mirrored" and "residues", sums cancel (`equiv.kda.residues`). Every other slot, and every record, starts as NaNs
with random payloads, so that reading a wrong one cannot pass for right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv import inputs as make
from equiv.geometry.kda import DIM, RANK, TAPS
from equiv.inputs import Draws
from equiv.kda import aimed, mixed, plan, residues, states, tensors
from equiv.kda.residues import mirrored
from equiv.kda.tensors import whole
from equiv.rounding.formats import BF16, F32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.inputs import Ints, Reals, Shape
    from equiv.records import Bits, Case, TensorSpec

    Fill = Callable[[Draws, Shape], Bits]

BY_HEAD = mixed.VALUES[0]


# How many neighbouring elements of a piece belong to one channel, for `mirrored`.


def _one(_: Shape) -> int:
    """Where a row, or the only row, has an element a channel."""
    return 1


def _row(shape: Shape) -> int:
    """Where a row is a channel: weights."""
    return shape[1]


def _window(shape: Shape) -> int:
    """Where a row is a head's windows, one channel's columns after the other's."""
    return shape[1] // DIM


def _amplitudes(draws: Draws, shape: Shape) -> Bits:
    """Groups of bell-shaped values of sizes from 1 down to 2**-14, dealt in turn."""
    exponents = -draws.order("deal", 15)[np.arange(shape[0]) % 15][:, None]
    return make.truncated(np.ldexp(draws.bell("value", shape), exponents.astype(np.int32)), BF16)


def _flat(draws: Draws, shape: Shape) -> Bits:
    """Of both signs, 8 to 256: where a sigmoid is 0 or 1 to within a BF16 ulp, and where its exponential overflows."""
    magnitude = (127 + 3 + draws.below("exponent", 5, shape) << 7) + draws.below("mantissa", 128, shape)
    return (magnitude | draws.signs("sign", shape) << 15).astype(np.uint16)


def _one_hot(draws: Draws, shape: Shape) -> Bits:
    """One element of ordinary size a group, +0 elsewhere."""
    bits = np.zeros(shape, dtype=np.uint16)
    at = draws.below("place", shape[1], (shape[0],))
    bits[np.arange(shape[0]), at] = make.wide(draws, (shape[0], 1), low=-1, high=1)[:, 0]
    return bits


ROW: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.normal(d, shape, center=-1, spread=1),
    "amplitudes": _amplitudes,
    "wide": lambda d, shape: make.wide(d, shape, low=-10, high=2),
    "ties": aimed.row_ties,
    "one_hot": _one_hot,
    "constant": make.constant,
    "zero": lambda _d, shape: np.zeros(shape, dtype=np.uint16),
    "signed_zeros": make.signed_zeros,
    "subnormals": make.subnormals,
    "mirrored": mirrored(lambda d, shape: make.normal(d, shape, center=-1, spread=1), _one),
    "level": residues.level,
}
GATE: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.normal(d, shape, center=0, spread=1),
    "flat": _flat,
    "zero": ROW["zero"],
    "signed_zeros": make.signed_zeros,
    "subnormals": make.subnormals,
}
OUT_GATE: Mapping[str, Fill] = {**GATE, "open": aimed.open_gates, "pairs": aimed.paired_gates}
F_A: Mapping[str, Fill] = {
    "normal": ROW["normal"],
    "cancelling": make.cancelling,
    "ties": aimed.f_a_ties,
    "zero": ROW["zero"],
    "signed_zeros": make.signed_zeros,
    "subnormals": make.subnormals,
}
F_B: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.normal(d, shape, center=-3, spread=1),
    "flat": lambda d, shape: np.repeat(make.wide(d, (shape[0], 1), low=-4, high=-2) & 0xFF80, shape[1], axis=1),
    "ties": aimed.f_b_ties,
    "subnormals": make.subnormals,
    "zero": ROW["zero"],
    "mirrored": mirrored(lambda d, shape: make.normal(d, shape, center=-3, spread=1), _row),
}
NORM_W: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.truncated(1.0 + d.bell("value", shape) / 8, BF16),
    "ones": lambda _d, shape: make.exact_bf16(np.ones(shape)),
    "wide": lambda d, shape: make.wide(d, shape, low=-8, high=4),
    "zero": ROW["zero"],
}


def _taps(*taps: float) -> Fill:
    return lambda _d, shape: make.exact_f32(np.broadcast_to(np.array(taps), shape))


CONV_W: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.truncated(d.bell("value", shape) / 2, F32),
    "wide": lambda d, shape: make.wide(d, shape, F32, low=-12, high=0),
    "last_tap": _taps(0, 0, 0, 1),
    "first_tap": _taps(1, 0, 0, 0),
    "ties": aimed.tap_ties,
    "negative_zero": _taps(-0.0, -0.0, -0.0, -0.0),
    "mirrored": mirrored(lambda d, shape: make.truncated(d.bell("value", shape) / 2, F32), _row),
    "cancelling": residues.cancelling_taps,
}
CONV_BIAS: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.normal(d, shape, F32, center=-2, spread=1),
    "zero": lambda _d, shape: np.zeros(shape, dtype=np.uint32),
    "negative_zero": lambda _d, shape: np.full(shape, 0x80000000, dtype=np.uint32),
    "mirrored": mirrored(lambda d, shape: make.normal(d, shape, F32, center=-2, spread=1), _one),
}
A_LOG: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.truncated(0.5 + d.bell("value", shape) / 2, F32),
    "zero": CONV_BIAS["zero"],
    "wide": lambda d, shape: make.truncated(1.5 * d.bell("value", shape), F32),
    "largest": lambda d, shape: make.truncated(_evenly(d, shape, 87.5, 88.5), F32),
    "least": lambda d, shape: make.truncated(_evenly(d, shape, -88.5, -87.5), F32),
}
"""The rates exp(A_log) of `largest` are 2**126 and more, those of `least` under 2**-126."""


def _biases(low: float, high: float) -> Fill:
    """Evenly spread between two numbers; the decay's sigmoid sees them times exp(A_log)."""
    return lambda draws, shape: make.truncated(_evenly(draws, shape, low, high), F32)


def _evenly(draws: Draws, shape: Shape, low: float, high: float) -> Reals:
    share = np.asarray(draws.below("value", 1 << 24, shape) * 2.0**-24, dtype=np.float64)
    return np.asarray(low + (high - low) * share)


def _mixed_biases(draws: Draws, shape: Shape) -> Bits:
    """Channels that keep everything, forget all they can, and anything between, by chance."""
    kinds = np.stack([DT_BIAS[name](draws, shape) for name in ("normal", "near_one", "near_floor")])
    mixed: Bits = np.take_along_axis(kinds, draws.below("kind", 3, (1, *shape)), axis=0)[0]
    return mixed


DT_BIAS: Mapping[str, Fill] = {
    "normal": lambda d, shape: make.truncated(d.bell("value", shape), F32),
    "near_one": _biases(-18.0, -7.0),
    "near_floor": _biases(7.0, 18.0),
    "mixed": _mixed_biases,
    "zero": CONV_BIAS["zero"],
    "subnormals": lambda d, shape: (d.words("value", shape) >> 32 & 0x807FFFFF).astype(np.uint32),
    "huge": lambda d, shape: make.wide(d, shape, F32, low=123, high=126),
    "mirrored": mirrored(lambda d, shape: make.truncated(d.bell("value", shape), F32), _one),
}
WINDOW: Mapping[str, Fill] = {
    "normal": ROW["normal"],
    "zero": ROW["zero"],
    "signed_zeros": make.signed_zeros,
    "subnormals": make.subnormals,
    "wide": ROW["wide"],
    "mirrored": mirrored(ROW["normal"], _window),
    "level": residues.level,
}


def _state(low: int, high: int) -> Callable[[Draws, tuple[int, ...], bool], Bits]:
    """Random significands and signs, exponents as of evenly spread values under 2**(e + 1), low <= e <= high by page.

    One 32-bit word an element, as pools have tens of millions. No value is zero.
    """
    reach = np.array([max(1, number).bit_length() - 8 for number in range(256)])
    exponents = np.array([127 + exponent + reach for exponent in range(low, high + 1)], dtype=np.uint32) << 23

    def fill(draws: Draws, shape: tuple[int, ...], wide: bool) -> Bits:  # noqa: FBT001  -- a table's entry
        words = draws.words("state", (*shape[:-1], shape[-1] // 2)).astype("<u8", copy=False).view(np.uint8)
        words = words.reshape(*shape[:2], -1, 4)
        dealt = draws.below("page", len(exponents), shape[:2])
        bits = np.empty((*shape[:2], words.shape[2]), dtype=np.uint32)
        for page in np.ndindex(*shape[:2]):
            word = words[page].view("<u4")[:, 0]
            np.take(exponents[dealt[page]], words[page][:, 3], out=bits[page], mode="clip")  # `raise` copies
            bits[page] |= word & 0x7FFFFF
            bits[page] |= word << 8 & 0x80000000
        return (bits if wide else (bits >> 16).astype(np.uint16)).reshape(shape)

    return fill


def _each(fill: Fill) -> Callable[[Draws, tuple[int, ...], bool], Bits]:
    """A regime of BF16 rows for states: FP32 ones have its values."""

    def fill_state(draws: Draws, shape: tuple[int, ...], wide: bool) -> Bits:  # noqa: FBT001
        bits = fill(draws, (int(np.prod(shape[:-1])), shape[-1])).reshape(shape)
        return (bits.astype(np.uint32) << 16).astype(np.uint32) if wide else bits

    return fill_state


def _tiny(draws: Draws, shape: tuple[int, ...], wide: bool) -> Bits:  # noqa: FBT001
    """Subnormals of the pool's format, zero included."""
    words = draws.words("state", shape)
    return ((words >> 32) & 0x807FFFFF).astype(np.uint32) if wide else ((words >> 48) & 0x807F).astype(np.uint16)


STATE: Mapping[str, Callable[[Draws, tuple[int, ...], bool], Bits]] = {
    "normal": _state(-3, 0),
    "wide": _state(-40, 3),
    "zero": _each(ROW["zero"]),
    "signed_zeros": _each(make.signed_zeros),
    "subnormals": _tiny,
    "powers": _each(lambda d, shape: make.wide(d, shape, low=-8, high=3) & np.uint16(0xFF80)),
    "mirrored": residues.mirrored_states(_state(15, 18)),
}
"""`powers`, of two: times a decay of nine significant bits, as in cases of BF16 states, they are BF16 ties."""
_ROWS: tuple[tuple[str, Mapping[str, Fill]], ...] = (("q", ROW), ("k", ROW), ("v", ROW), ("out_gate", OUT_GATE))
REGIMES: Mapping[str, tuple[str, ...]] = {
    **{piece: tuple(table) for piece, table in _ROWS},
    "f_a": tuple(F_A),
    "beta": tuple(GATE),
    "conv_w": tuple(CONV_W),
    "conv_bias": tuple(CONV_BIAS),
    "a_log": tuple(A_LOG),
    "dt_bias": tuple(DT_BIAS),
    "f_b": tuple(F_B),
    "norm_w": tuple(NORM_W),
    "conv_state": tuple(WINDOW),
    "state": (*STATE, *states.AIMED),
    **plan.REGIMES,
    "values": ("plain", *mixed.VALUES, *residues.VALUES),
}


def regime(case: Case, piece: str) -> str:
    """The regime of a piece: what the case names; if that is the first one, or none, what `values` stands for."""
    first = REGIMES[piece][0]
    name, values = case.regimes.get(piece, first), case.regimes.get("values", "plain")
    if name != first:
        return name
    if values in mixed.VALUES:
        return BY_HEAD if piece in mixed.PIECES else name
    return residues.VALUES.get(values, {}).get(piece, name)


def inputs(case: Case) -> dict[str, Bits]:
    """Logical bit patterns of every input tensor and of pools and records as they are before the run.

    Shapes and formats are those of `layout`; integers are the bits of int32.
    """
    steps, batch, tokens, heads = (whole(case, name) for name in ("steps", "batch", "tokens", "heads"))
    rows, dim = steps * batch * tokens, heads * DIM

    def fill(piece: str, table: Mapping[str, Fill], *shape: int) -> Bits:
        name, draws, size = regime(case, piece), Draws(case.seed, piece), (shape[0], shape[1])
        return mixed.fill(piece, table, draws, size, mixed.kinds(case)) if name == BY_HEAD else table[name](draws, size)

    pieces = [fill(piece, table, rows * heads, DIM).reshape(rows, dim) for piece, table in _ROWS]
    pieces += [fill("f_a", F_A, rows, RANK), fill("beta", GATE, rows, heads)]
    found: dict[str, Bits] = {
        "rows": np.concatenate(pieces, axis=1),
        "conv_w": fill("conv_w", CONV_W, 3 * dim, TAPS),
        "a_log": fill("a_log", A_LOG, 1, heads)[0],
        "dt_bias": fill("dt_bias", DT_BIAS, 1, dim)[0],
        "f_b": fill("f_b", F_B, dim, RANK),
        "norm_w": fill("norm_w", NORM_W, 1, DIM)[0],
    }
    if tensors.axis(case, "bias"):
        found["conv_bias"] = fill("conv_bias", CONV_BIAS, 1, 3 * dim)[0]
    found |= plan.decide(case, {piece: regime(case, piece) for piece in plan.REGIMES})
    specs = {spec.name: spec for spec in tensors.layout(case)}
    for name in ("corrections", "key_gate"):
        if name in specs:
            found[name] = make.nan_words(Draws(case.seed, name), specs[name].shape, specs[name].format)
    real = np.flatnonzero(tensors.present(found))
    table = found["slots"].view(np.int32)
    window = fill("conv_state", WINDOW, batch * 3 * heads, DIM * (tokens + 2)).reshape(batch, 3 * dim, tokens + 2)
    found["conv_state"] = _pool(case, specs["conv_state"], table[real, 0], window[real])
    source = table[real, found["accepted"].view(np.int32)[0, real] - 1]
    name, wide = regime(case, "state"), tensors.axis(case, "state") == "f32"
    if name == BY_HEAD:
        names = mixed.states(case, len(real))
        start = np.empty((*names.shape, DIM, DIM), dtype=np.uint32 if wide else np.uint16)
        for one in np.unique(names):
            some = names == one
            draws = Draws(case.seed, f"state/{one}")
            start[some] = STATE[one if one in STATE else "normal"](draws, (1, int(some.sum()), DIM, DIM), wide)[0]
    else:
        names = np.full((len(real), heads), name)
        draws = Draws(case.seed, "state")
        start = STATE[name if name in STATE else "normal"](draws, (batch, heads, DIM, DIM), wide)[real]
    found["state"] = _pool(case, specs["state"], source, start)
    if regime(case, "conv_w") == BY_HEAD:
        states.adjust_taps(case, found, real, np.flatnonzero(mixed.kinds(case) == mixed.GATED))
    states.adjust(case, found, real, source, names)
    return found


def _pool(case: Case, spec: TensorSpec, slots: Ints, values: Bits) -> Bits:
    """A pool with values in some slots and NaNs in all others."""
    pool = np.empty(spec.shape, dtype=values.dtype)
    rest = np.setdiff1d(np.arange(len(pool)), slots)
    pool[rest] = make.nan_words(Draws(case.seed, f"{spec.name}/rest"), (len(rest), *spec.shape[1:]), spec.format)
    pool[slots] = values
    return pool


def check(case: Case) -> list[tuple[str, str]]:
    """What is wrong with the combination of axes and regimes, as (path below the case, problem) pairs."""
    found = []
    mode, tokens, steps, heads = tensors.axis(case, "mode"), *(whole(case, n) for n in ("tokens", "steps", "heads"))
    if mode != "step" and tokens == 1:
        found.append(("axes.mode", f'"{mode}" needs more than one token a request, got tokens=1'))
    if mode != "step" and steps > 1:
        found.append(("axes.steps", f'only mode "step" runs several steps, got steps={steps} with mode="{mode}"'))
    if tensors.axis(case, "state") == "bf16" and tensors.axis(case, "kernel") == "ws":
        found.append(("axes.state", 'the ws kernel keeps FP32 states: write kernel = "wide", got state="bf16"'))
    if tensors.pool(case) < (least := tensors.needed(case) + 2):
        problem = (
            f"the requests, the null block and a slot that nothing uses make {least}, got slots={tensors.pool(case)}"
        )
        found.append(("axes.slots", problem))
    if tensors.slot_stride(case) < heads * tensors.PAGE:
        problem = f"a slot has {heads * tensors.PAGE} elements, got slot_stride={tensors.slot_stride(case)}"
        found.append(("axes.slot_stride", problem))
    if tensors.slot_stride(case) % 16:  # Triton compiles for those; it adds in another order for others
        found.append(("axes.slot_stride", f"must be a multiple of 16 elements, got {tensors.slot_stride(case)}"))
    if tensors.axis(case, "kernel") == "wide" and whole(case, "ctas"):
        found.append(
            ("axes.ctas", f"the wide kernel gives every item a CTA: write ctas = 0, got {whole(case, 'ctas')}")
        )
    if not tensors.axis(case, "bias") and case.regimes.get("conv_bias", "normal") != REGIMES["conv_bias"][0]:
        found.append(("regimes.conv_bias", "the case has no bias: write bias = true"))
    found += plan.check(case, {piece: regime(case, piece) for piece in plan.REGIMES})
    if (name := regime(case, "state")) in states.AIMED:
        if tensors.axis(case, "state") != "f32":
            found.append(("regimes.state", f'"{name}" needs the bits of FP32 states, got state="bf16"'))
        if whole(case, "batch") * heads > states.MOST:
            found.append(
                ("axes.batch", f'"{name}" is for {states.MOST} heads in all, got {whole(case, "batch")} x {heads}')
            )
    return found
