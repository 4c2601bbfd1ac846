"""Arithmetic on f16 and bf16, one or two values in a register. Every operation rounds once; `.ftz` exists for f16."""

from __future__ import annotations

from collections.abc import Callable

from equiv.emulator.isa.table import Entry, Mods

Text = Callable[[Mods], str]
_BITS = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}


def _parts(mods: Mods, arguments: tuple[str, ...], one: Callable[..., str]) -> str:
    """The operation on the register, or on both its halves."""
    if not mods["type"].endswith("x2"):
        return f"d = {one(*arguments)};"
    low, high = one(*(f"({name} & 0xffffu)" for name in arguments)), one(*(f"({name} >> 16)" for name in arguments))
    return f"d = {low} | (uint32_t){high} << 16;"


def _operation(operation: str, *arguments: str) -> Text:
    def text(mods: Mods) -> str:
        kind = mods["type"].removesuffix("x2")

        def one(*values: str) -> str:
            call = f"{kind}_{operation}{'_ftz' if mods.get('ftz') else ''}({', '.join(values)})"
            call = f"f16_sat({call})" if mods.get("sat") else call
            return f"half_relu({call})" if mods.get("relu") else call

        return _parts(mods, arguments, one)

    return text


def _extreme(operation: str) -> Text:
    def text(mods: Mods) -> str:
        suffix = ("_nan" if mods.get("NaN") else "") + ("_xorsign_abs" if mods.get("xorsign") else "")
        return _operation(operation + suffix, "a", "b")(mods)

    return text


def _sign(operation: str) -> Text:
    """A NaN becomes canonical, as in arithmetic."""
    change = {"neg": "^ 0x8000u", "abs": "& 0x7fffu"}[operation]

    def text(mods: Mods) -> str:
        kind, flush = mods["type"].removesuffix("x2"), "half_ftz" if mods.get("ftz") else ""
        return _parts(mods, ("a",), lambda value: f"{kind}_canon({flush}({value}) {change})")

    return text


def _approximate(name: str) -> Text:
    def text(mods: Mods) -> str:
        function = f"eq_{name}_{mods['type'].removesuffix('x2')}{'_ftz' if mods.get('ftz') else ''}"
        return _parts(mods, ("a",), lambda value: f"{function}({value})")

    return text


def _entries(kind: str, bits: str) -> tuple[Entry, ...]:
    ftz, sat = ("ftz?", "sat?") if kind[0] == "f" else ("", "")
    one, two, three = f"d={bits} a:{bits}", f"d={bits} a:{bits} b:{bits}", f"d={bits} a:{bits} b:{bits} c:{bits}"
    return (
        *(
            Entry(f"{name} rnd?=rn {ftz} {sat} type={kind}", two, _operation(name, "a", "b"))
            for name in ("add", "sub", "mul")
        ),
        Entry(f"fma rn {ftz} {sat} type={kind}", three, _operation("fma", "a", "b", "c")),
        Entry(f"fma rn {ftz} relu type={kind}", three, _operation("fma", "a", "b", "c")),
        *(
            Entry(f"{name} {ftz} NaN? {signs} type={kind}", two, _extreme(name))
            for name in ("min", "max")
            for signs in ("", "xorsign abs")
        ),
        *(Entry(f"{name} {ftz} type={kind}", one, _sign(name)) for name in ("neg", "abs")),
        Entry(f"ex2 approx {'' if ftz else 'ftz'} type={kind}", one, _approximate("ex2")),
        Entry(f"tanh approx type={kind}", one, _approximate("tanh")),
    )


ENTRIES = tuple(entry for kind, bits in _BITS.items() for entry in _entries(kind, bits))
