"""Float64: arithmetic in every rounding and all conversions from and to it (`rounding/csrc/double.h`).

Unlike in float32, a NaN operand's payload survives; which operand's is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDINGS = "rn|rz|rm|rp"
_INTEGRAL = "rni|rzi|rmi|rpi"
_INTS = "u8|s8|u16|s16|u32|s32|u64|s64"
_ONE, _TWO, _THREE = "d=f64 a:f64", "d=f64 a:f64 b:f64", "d=f64 a:f64 b:f64 c:f64"
FORMATS = {"f16": (10, -14, 16), "bf16": (7, -126, 16), "f32": (23, -126, 32), "f64": (52, -1022, 64)}
"""Fraction bits, least normal exponent, width."""


def mode(mods: Mods) -> str:
    """C constant of the rounding that an opcode spells; nearest where it spells none."""
    return f"EQ_{(mods.get('rnd') or 'rn').upper()}"


def _operation(name: str, arguments: str) -> Callable[[Mods], str]:
    return lambda mods: f"d = eq64_{name}_{mods.get('rnd') or 'rn'}({arguments});"


def _saturated(mods: Mods, value: str) -> str:
    return f"d = eq64_sat({value});" if mods.get("sat") else f"d = {value};"


def _narrow(mods: Mods) -> str:
    fraction, emin, bits = FORMATS[mods["dtype"]]
    value = f"eq64_narrow(a, {mode(mods)}, {fraction}, {emin}, {bits})"
    if mods.get("ftz"):
        value = f"eq_ftz((uint32_t){value})"
    if mods.get("sat"):
        value = f"{'eq_sat' if bits == 32 else 'f16_sat'}((uint32_t){value})"
    return f"d = {value};"


def _widen(mods: Mods) -> str:
    fraction, _, bits = FORMATS[mods["atype"]]
    flushed = "eq_ftz(eq_canon(a))" if mods.get("ftz") else "a"
    return _saturated(mods, f"eq64_widen({flushed}, {fraction}, {bits})")


def _to_integer(mods: Mods) -> str:
    kind = "signed" if mods["dtype"][0] == "s" else "unsigned"
    return f"d = eq64_to_{kind}(eq64_{mods['rnd']}(a), {TYPE_BITS[mods['dtype']]});"


def _from_integer(mods: Mods) -> str:
    kind = "signed" if mods["atype"][0] == "s" else "unsigned"
    return _saturated(mods, f"eq_exact_code(eq_exact_{kind}(a), {mode(mods)}, 52, -1022, 64)")


ENTRIES = (
    *(Entry(f"{name} rnd?={_ROUNDINGS} type=f64", _TWO, _operation(name, "a, b")) for name in ("add", "sub", "mul")),
    *(Entry(f"{name} rnd={_ROUNDINGS} type=f64", _THREE, _operation("fma", "a, b, c")) for name in ("fma", "mad")),
    Entry(f"div rnd={_ROUNDINGS} type=f64", _TWO, _operation("div", "a, b")),
    Entry(f"rcp rnd={_ROUNDINGS} type=f64", _ONE, _operation("rcp", "a")),
    Entry(f"sqrt rnd={_ROUNDINGS} type=f64", _ONE, _operation("sqrt", "a")),
    *(Entry(f"{name} type=f64", _TWO, f"d = eq64_{name}(a, b);") for name in ("min", "max")),
    *(Entry(f"{name} type=f64", _ONE, f"d = eq64_{name}(a);") for name in ("neg", "abs")),
    Entry("copysign type=f64", _TWO, "d = (a & EQ64_SIGN) | (b & EQ64_MAGNITUDE);"),
    Entry(f"cvt rnd={_ROUNDINGS} ftz? sat? dtype=f32 atype=f64", "d=f32 a:f64", _narrow),
    Entry(f"cvt rnd={_ROUNDINGS} sat? dtype=f16 atype=f64", "d=f16 a:f64", _narrow),
    Entry(f"cvt rnd={_ROUNDINGS} dtype=bf16 atype=f64", "d=bf16 a:f64", _narrow),
    Entry("cvt ftz? sat? dtype=f64 atype=f32", "d=f64 a:f32", _widen),
    Entry("cvt sat? dtype=f64 atype=f16", "d=f64 a:f16", _widen),
    Entry(f"cvt rnd?={_ROUNDINGS} dtype=f64 atype=bf16", "d=f64 a:bf16", _widen, hints=("rnd",)),
    Entry("cvt sat? dtype=f64 atype=f64", _ONE, lambda mods: "d = eq64_sat(a);" if mods["sat"] else "d = a;"),
    Entry(
        f"cvt rnd={_INTEGRAL} sat? dtype=f64 atype=f64", _ONE, lambda mods: _saturated(mods, f"eq64_{mods['rnd']}(a)")
    ),
    Entry(
        f"cvt rnd={_INTEGRAL} sat? dtype={_INTS} atype=f64",
        "d=dtype~ a:f64",
        _to_integer,
        note="always saturates; NaN gives the top bit alone",
    ),
    Entry(f"cvt rnd={_ROUNDINGS} sat? dtype=f64 atype={_INTS}", "d=f64 a:atype~", _from_integer),
)
