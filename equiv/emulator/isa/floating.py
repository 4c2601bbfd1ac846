"""Float32 arithmetic in every rounding, packed f32x2, f32 with 16-bit operands, and the approximations.

Semantics are calls into `rounding/csrc/{numerics,special}.h`; `.ftz` and `.sat` apply only where they are spelt.
"""

from __future__ import annotations

from collections.abc import Callable

from equiv.emulator.isa.table import Entry, Mods

Text = Callable[[Mods], str]
_ROUNDINGS = "rn|rz|rm|rp"
_ONE, _TWO, _THREE = "d=f32 a:f32", "d=f32 a:f32 b:f32", "d=f32 a:f32 b:f32 c:f32"


def _call(operation: str, mods: Mods, *arguments: str) -> str:
    """One scalar f32 operation as an expression."""
    rounding, flush = mods.get("rnd") or "rn", "_ftz" if mods.get("ftz") else ""
    name = f"fast_fma{flush}" if operation == "fma" and rounding == "rn" else f"eq_{operation}_{rounding}{flush}"
    call = f"{name}({', '.join(arguments)})"
    return f"eq_sat({call})" if mods.get("sat") else call


def _scalar(operation: str, *arguments: str) -> Text:
    return lambda mods: f"d = {_call(operation, mods, *arguments)};"


def _pair(operation: str, *arguments: str) -> Text:
    def text(mods: Mods) -> str:
        low = _call(operation, mods, *(f"(uint32_t){name}" for name in arguments))
        high = _call(operation, mods, *(f"(uint32_t)({name} >> 32)" for name in arguments))
        return f"d = (uint64_t){low} | (uint64_t){high} << 32;"

    return text


def _mixed(operation: str, narrow: tuple[str, ...], *arguments: str) -> Text:
    def text(mods: Mods) -> str:
        widen = f"eq_{mods['atype']}_to_f32"
        return f"d = {_call(operation, mods, *(f'{widen}({name})' if name in narrow else name for name in arguments))};"

    return text


def _extreme(mods: Mods) -> str:
    name = f"eq_{mods['op']}" + ("_nan" if mods.get("NaN") else "")
    flush = "eq_ftz" if mods.get("ftz") else ""
    a, b = f"{flush}(a)", f"{flush}(b)"
    if mods.get("xorsign"):
        plain = f"eq_{mods['op']}_xorsign_abs({a}, {b})"
        return f"d = eq_is_nan(a) || eq_is_nan(b) ? EQ_NAN : {plain};" if mods.get("NaN") else f"d = {plain};"
    return f"d = {name}({a}, {b});"


def _extreme3(mods: Mods) -> str:
    name = f"eq_{mods['op']}" + ("_nan" if mods.get("NaN") else "")
    flush, magnitude = "eq_ftz" if mods.get("ftz") else "", "eq_abs" if mods.get("abs") else ""
    a, b, c = (f"{flush}({magnitude}({value}))" for value in "abc")
    return f"d = {name}({name}({a}, {b}), {c});"


def _sign(operation: str) -> Text:
    """A NaN becomes canonical, as in arithmetic."""
    return lambda mods: f"d = eq_canon(eq_{operation}({'eq_ftz' if mods['ftz'] else ''}(a)));"


def _approximate(name: str, *arguments: str) -> Text:
    return lambda mods: f"d = eq_{name}{'_ftz' if mods['ftz'] else ''}({', '.join(arguments)});"


def _extremes(operation: str) -> tuple[Entry, ...]:
    def body(function: Text) -> Text:
        return lambda mods: function({**mods, "op": operation})

    return (
        Entry(f"{operation} ftz? NaN? type=f32", _TWO, body(_extreme)),
        Entry(f"{operation} ftz? NaN? xorsign abs type=f32", _TWO, body(_extreme)),
        Entry(f"{operation} ftz? NaN? abs? type=f32", _THREE, body(_extreme3), arch=100),
    )


ENTRIES = (
    *(
        Entry(f"{name} rnd?={_ROUNDINGS} ftz? sat? type=f32", _TWO, _scalar(name, "a", "b"))
        for name in ("add", "sub", "mul")
    ),
    *(
        Entry(f"{name} rnd={_ROUNDINGS} ftz? sat? type=f32", _THREE, _scalar("fma", "a", "b", "c"))
        for name in ("fma", "mad")
    ),
    *(
        Entry(f"{name} rnd?={_ROUNDINGS} ftz? type=f32x2", "d=b64 a:b64 b:b64", _pair(name, "a", "b"), arch=100)
        for name in ("add", "sub", "mul")
    ),
    Entry(f"fma rnd={_ROUNDINGS} ftz? type=f32x2", "d=b64 a:b64 b:b64 c:b64", _pair("fma", "a", "b", "c"), arch=100),
    *(
        Entry(
            f"{name} rnd?={_ROUNDINGS} sat? f32 atype=f16|bf16",
            "d=f32 a:atype c:f32",
            _mixed(name, ("a",), "a", "c"),
            arch=100,
        )
        for name in ("add", "sub")
    ),
    Entry(
        f"fma rnd={_ROUNDINGS} sat? f32 atype=f16|bf16",
        "d=f32 a:atype b:atype c:f32",
        _mixed("fma", ("a", "b"), "a", "b", "c"),
        arch=100,
    ),
    *_extremes("min"),
    *_extremes("max"),
    Entry("neg ftz? type=f32", _ONE, _sign("neg")),
    Entry("abs ftz? type=f32", _ONE, _sign("abs")),
    Entry("copysign type=f32", _TWO, "d = (a & EQ_SIGN) | (b & ~EQ_SIGN);"),
    Entry(f"div rnd={_ROUNDINGS} ftz? type=f32", _TWO, _scalar("div", "a", "b")),
    Entry(f"rcp rnd={_ROUNDINGS} ftz? type=f32", _ONE, _scalar("rcp", "a")),
    Entry(f"sqrt rnd={_ROUNDINGS} ftz? type=f32", _ONE, _scalar("sqrt", "a")),
    Entry("div full ftz? type=f32", _TWO, _approximate("div_full", "a", "b")),
    Entry("div approx ftz? type=f32", _TWO, _approximate("div_approx", "a", "b")),
    *(
        Entry(f"{name} approx ftz? type=f32", _ONE, _approximate(name, "a"))
        for name in ("rcp", "rsqrt", "sqrt", "ex2", "lg2")
    ),
    Entry("tanh approx type=f32", _ONE, "d = eq_tanh(a);"),
)
