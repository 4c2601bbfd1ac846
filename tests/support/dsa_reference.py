"""What `dsa_index` must give, by ml_dtypes and float64, not equiv's own arithmetic; and a bare way to run a party."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch

import equiv
from equiv.dsa_index import PAIR
from equiv.dsa_index.tensors import axis, is_fp4, is_mx, rows, written
from equiv.geometry.dsa import BLOCK, DIM
from equiv.records import Case

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import AxisValue, Bits

ARCHES = ("sm_90a", "sm_100a")

VARIANTS: tuple[dict[str, AxisValue], ...] = (
    {"format": "fp8"},
    {"format": "fp8", "rows": "packed", "key_floor": 1e-10},
    {"format": "fp8", "scale": "mx"},
    {"format": "fp8", "key_round": "f32"},
    {"format": "fp4", "scale": "mx", "rows": "packed"},
    {"format": "fp4", "scale": "mx", "key_round": "f32"},
)

_TORCH = {"bf16": torch.bfloat16, "f32": torch.float32, "u8": torch.uint8, "i64": torch.int64}
_WIDTH = {"bf16": np.uint16, "f32": np.uint32, "u8": np.uint8, "i64": np.uint64}


def case(**axes: AxisValue) -> Case:
    """A case of five requests with values over many binades, one of them skipped, that need three pages."""
    filled: dict[str, AxisValue] = {one.name: one.default for one in PAIR.axes} | {"batch": 5, "pages": 3} | axes
    name = "-".join(f"{key}={value}" for key, value in axes.items())
    return Case("dsa_index", name or "default", "test", 7, (), filled, {})


def inputs(one: Case) -> dict[str, Bits]:
    """Random logical bits: q and key normal times a power of two a row, norm weights near 1, slots at page edges."""
    draw = np.random.default_rng(11)
    batch = int(one.axes["batch"])

    def bf16(values: np.ndarray[Any, Any]) -> Bits:
        return values.astype(ml_dtypes.bfloat16).view(np.uint16)

    q = draw.standard_normal((batch, 32, DIM)) * 2.0 ** draw.integers(-30, 30, (batch, 32, 1))
    q[0, 0] = 0
    q[0, 1, ::2] = -0.0
    projected = draw.standard_normal((batch, rows(one)["width"]))
    key = draw.standard_normal((batch, DIM)) * 2.0 ** draw.integers(-12, 8, (batch, 1)) + draw.integers(
        -1, 2, (batch, 1)
    )
    projected[:, rows(one)["key_at"] : rows(one)["key_at"] + DIM] = key
    specs = {spec.name: spec for spec in PAIR.layout(one)}
    slots = np.array([127, -1, 64, 0, 63, 128, 191, -64][:batch], dtype=np.int64)
    return {
        "q": bf16(q),
        "projected": bf16(projected),
        "norm_w": (1 + draw.standard_normal(DIM) / 4).astype(np.float32).view(np.uint32),
        "norm_b": (draw.standard_normal(DIM) / 4).astype(np.float32).view(np.uint32),
        "cache": draw.integers(0, 256, specs["cache"].shape, dtype=np.uint8),
        "slots": slots.view(np.uint64),
    }


def run(party: str, one: Case, given: Mapping[str, Bits], arch: str) -> dict[str, Bits]:
    """The logical outputs of `oracle` or `candidate` on an emulated device."""
    tensors, views = {}, {}
    for spec in PAIR.layout(one):
        span = 1 + sum((extent - 1) * stride for extent, stride in zip(spec.shape, spec.strides, strict=True))
        memory = np.full(span, 0x5A, dtype=_WIDTH[spec.format])
        strides = [stride * memory.itemsize for stride in spec.strides]
        views[spec.name] = np.lib.stride_tricks.as_strided(memory, spec.shape, strides)
        if spec.name in given:
            views[spec.name][...] = given[spec.name]
        raw = torch.from_numpy(memory.view(np.uint8)).view(_TORCH[spec.format])
        tensors[spec.name] = torch.as_strided(raw, spec.shape, spec.strides)
    module, _, function = getattr(PAIR, party).entry.partition(":")
    with equiv.device(f"emulated:{arch}").active():
        getattr(importlib.import_module(module), function)(one, tensors)
    return PAIR.outputs(one, given, {name: view.copy() for name, view in views.items()})


def _f64(bits: Bits, dtype: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    values: np.ndarray[Any, np.dtype[np.float64]] = bits.view(dtype).astype(np.float64)
    return values


def _exponent(amax: np.ndarray[Any, Any], top: float) -> np.ndarray[Any, Any]:
    """Smallest k with amax <= top * 2^k."""
    mantissa, exponent = np.frexp(amax)
    top_mantissa, top_exponent = np.frexp(top)
    found: np.ndarray[Any, Any] = exponent - top_exponent + (mantissa > top_mantissa)
    return found


def codes(x: np.ndarray[Any, Any], k: np.ndarray[Any, Any], *, fp4: bool) -> Bits:
    """Codes of x / 2^k, one a byte: nearest even, saturating."""
    top, dtype = (6, ml_dtypes.float4_e2m1fn) if fp4 else (448, ml_dtypes.float8_e4m3fn)
    found: Bits = np.clip(np.ldexp(x, -k), -top, top).astype(np.float32).astype(dtype).view(np.uint8)
    return np.bitwise_and(found, np.uint8(15)) if fp4 else found


def scale_exponent(x: np.ndarray[Any, Any], floor: float, *, fp4: bool) -> np.ndarray[Any, Any]:
    """Exponent of the scale of every element: a group is the last axis, or 32 neighbours of it."""
    grouped = np.abs(x).reshape(*x.shape[:-1], -1, BLOCK if fp4 else DIM)
    amax = np.maximum(grouped.max(axis=-1), 6 * 2.0**-126 if fp4 else float(np.float32(floor)))
    return np.repeat(_exponent(amax, 6.0 if fp4 else 448.0), grouped.shape[-1], axis=-1)


def query(one: Case, given: Mapping[str, Bits]) -> dict[str, Bits]:
    """`q_codes`, `weights` and (FP4) `q_scale`, to the bit."""
    fp4 = is_fp4(one)
    x = _f64(given["q"], ml_dtypes.bfloat16)
    k = scale_exponent(x, 1e-10, fp4=fp4)
    at = rows(one)["weight_at"]
    weights = _f64(given["projected"][:, at : at + 32].copy(), ml_dtypes.bfloat16)
    folded = np.ldexp(weights, -6 if fp4 else k[..., 0] - 6)
    found: dict[str, Bits] = {"q_codes": codes(x, k, fp4=fp4)}
    found["weights"] = folded.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    if fp4:
        found["q_scale"] = (k[..., ::BLOCK] + 127).astype(np.uint8)
    return found


def key(one: Case, given: Mapping[str, Bits]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The written tokens' LayerNorm in float64, and a bound of what float32 in any order may add.

    128 additions err by at most 128 * 2^-24 of the largest term each way, `rsqrt.approx` by 2^-22; d, its product with
    rstd and the affine add 3 * 2^-24 more. A result rounded to BF16 moves by at most 2^-8 of itself on top.
    """
    requests, _, _ = written(given["slots"])
    at = rows(one)["key_at"]
    x = _f64(given["projected"][requests, at : at + DIM].copy(), ml_dtypes.bfloat16)
    d = x - x.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((d * d).mean(axis=-1, keepdims=True) + float(np.float32(axis(one, "eps"))))
    w, b = _f64(given["norm_w"], np.float32), _f64(given["norm_b"], np.float32)
    y = d * rstd * w + b
    largest = np.abs(x).max(axis=-1, keepdims=True) * rstd * np.abs(w)
    return y, 2.0**-16 * largest + 2.0**-23 * np.abs(y)


def key_bounds(one: Case, given: Mapping[str, Bits]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The key before quantisation: lowest and highest value float32 in any order may give, rounded as the case says."""
    y, error = key(one, given)
    low, high = (y - error).astype(np.float32), (y + error).astype(np.float32)
    if axis(one, "key_round") == "bf16":
        low, high = low.astype(ml_dtypes.bfloat16), high.astype(ml_dtypes.bfloat16)
    return low.astype(np.float64), high.astype(np.float64)


def key_scale_exponent(one: Case, outputs: Mapping[str, Bits]) -> np.ndarray[Any, Any]:
    """Exponent of the stored scale of every channel of every token, however it is stored; it must be a power of two."""
    stored = outputs["key_scale"]
    if is_mx(one):
        if not is_fp4(one):
            assert (stored == stored[:, :1]).all(), f"the four scale bytes of a token differ: {stored}"
            stored = stored[:, :1]
        k = stored.astype(np.int64) - 127
    else:
        assert not (stored & 0x807FFFFF).any(), f"a stored scale is no power of two: {stored}"
        k = (stored.astype(np.int64) >> 23)[:, None] - 127
    return np.repeat(k, DIM // k.shape[-1], axis=-1)
