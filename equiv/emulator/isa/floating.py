"""Float arithmetic: f32 in every rounding, packed f32x2, mixed f32 with 16-bit operands, f16 and bf16, comparisons.

Semantics are calls into `rounding/csrc/numerics.h`; `.ftz` and `.sat` apply only where they are spelt.
"""

from __future__ import annotations

from collections.abc import Callable

from equiv.emulator.isa.table import Entry, Mods

Text = Callable[[Mods], str]
_ROUNDINGS = "rn|rz|rm|rp"
_HALF_BITS = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}


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


def _half(operation: str, *arguments: str) -> Text:
    """16-bit arithmetic, one or two values in a register."""

    def text(mods: Mods) -> str:
        kind = mods["type"].removesuffix("x2")
        flush, relu = mods.get("ftz"), mods.get("relu")

        def one(*values: str) -> str:
            values = tuple(f"half_ftz({value})" for value in values) if flush else values
            call = f"{kind}_{operation}({', '.join(values)})"
            call = f"half_ftz({call})" if flush else call
            call = f"eq_cvt_f16_rn(eq_sat(eq_f16_to_f32({call})))" if mods.get("sat") else call
            return f"half_relu({call})" if relu else call

        if kind == mods["type"]:
            return f"d = {one(*arguments)};"
        low, high = one(*(f"({name} & 0xffffu)" for name in arguments)), one(*(f"({name} >> 16)" for name in arguments))
        return f"d = {low} | {high} << 16;"

    return text


def _extreme(mods: Mods) -> str:
    """`min`/`max` on f32 with two or three operands."""
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


def _extreme_half(mods: Mods) -> str:
    suffix = "_xorsign_abs" if mods.get("xorsign") else "_nan" if mods.get("NaN") else ""
    return _half(mods["op"] + suffix, "a", "b")(mods)


def _compare(mods: Mods) -> str:
    """An IEEE comparison; `u` forms are true for NaN."""
    kind, operation = mods["type"], mods["cmp"]
    widen = "" if kind == "f32" else f"eq_{kind}_to_f32"
    flush = "eq_ftz" if mods.get("ftz") else ""
    a, b = (f"eq_float({flush}({widen}({value})))" for value in "ab")
    unordered = f"(eq_is_nan({widen}(a)) | eq_is_nan({widen}(b)))"
    if operation in {"num", "nan"}:
        return unordered if operation == "nan" else f"!{unordered}"
    ordered = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    relation = f"({a} {ordered[operation.removesuffix('u') if operation != 'equ' else 'eq'][:2]} {b})"
    return f"({relation} | {unordered})" if operation.endswith("u") else f"({relation} & !{unordered})"


def _setp(mods: Mods) -> str:
    combine = {"": "", "and": " & c", "or": " | c", "xor": " ^ c"}[mods.get("bool", "")]
    return f"{{ const uint32_t r = {_compare(mods)}; p = r{combine}; q = (r ^ 1){combine}; }}"


def _set(mods: Mods) -> str:
    one = "0x3f800000u" if mods["dtype"] == "f32" else "~0u"
    combine = {"": "", "and": " & c", "or": " | c", "xor": " ^ c"}[mods.get("bool", "")]
    return f"{{ const uint32_t r = {_compare(mods)}; d = (r{combine}) ? {one} : 0; }}"


def _testp(mods: Mods) -> str:
    magnitude = "(a & 0x7fffffffu)"
    return (
        "p = "
        + {
            "finite": f"{magnitude} < EQ_INF",
            "infinite": f"{magnitude} == EQ_INF",
            "number": f"{magnitude} <= EQ_INF",
            "notanumber": f"{magnitude} > EQ_INF",
            "normal": f"{magnitude} < EQ_INF && {magnitude} >= 0x800000u",
            "subnormal": f"{magnitude} < 0x800000u && {magnitude} != 0",
        }[mods["what"]]
        + ";"
    )


def _approximate(name: str, *arguments: str) -> Text:
    return lambda mods: f"d = eq_{name}{'_ftz' if mods['ftz'] else ''}({', '.join(arguments)});"


_COMPARISONS = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
_F32 = "d=f32 a:f32 b:f32"


def _extremes(operation: str) -> tuple[Entry, ...]:
    def body(function: Text) -> Text:
        return lambda mods: function({**mods, "op": operation})

    return (
        Entry(f"{operation} ftz? NaN? type=f32", _F32, body(_extreme)),
        Entry(f"{operation} ftz? NaN? xorsign abs type=f32", _F32, body(_extreme)),
        Entry(f"{operation} ftz? NaN? abs? type=f32", "d=f32 a:f32 b:f32 c:f32", body(_extreme3), arch=100),
        *(
            Entry(f"{operation} {flush} NaN? type={kind}", f"d={bits} a:{bits} b:{bits}", body(_extreme_half))
            for kind, bits in _HALF_BITS.items()
            for flush in (("ftz?",) if kind[0] == "f" else ("",))
        ),
        *(
            Entry(f"{operation} xorsign abs type={kind}", f"d={bits} a:{bits} b:{bits}", body(_extreme_half))
            for kind, bits in _HALF_BITS.items()
        ),
    )


def _half_arithmetic(operation: str, arguments: tuple[str, ...]) -> tuple[Entry, ...]:
    rounding = "rn" if operation == "fma" else "rnd?=rn"
    entries = []
    for kind, bits in _HALF_BITS.items():
        operands = " ".join([f"d={bits}", *(f"{name}:{bits}" for name in arguments)])
        modifiers = ["ftz? sat?"] if kind[0] == "f" else [""]
        if operation == "fma":
            modifiers.append("ftz? relu" if kind[0] == "f" else "relu")
        entries += [
            Entry(f"{operation} {rounding} {modifier} type={kind}", operands, _half(operation, *arguments))
            for modifier in modifiers
        ]
    return tuple(entries)


ENTRIES = (
    *(
        Entry(f"{name} rnd?={_ROUNDINGS} ftz? sat? type=f32", _F32, _scalar(name, "a", "b"))
        for name in ("add", "sub", "mul")
    ),
    Entry(f"fma rnd={_ROUNDINGS} ftz? sat? type=f32", "d=f32 a:f32 b:f32 c:f32", _scalar("fma", "a", "b", "c")),
    Entry(f"mad rnd={_ROUNDINGS} ftz? sat? type=f32", "d=f32 a:f32 b:f32 c:f32", _scalar("fma", "a", "b", "c")),
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
    *_half_arithmetic("add", ("a", "b")),
    *_half_arithmetic("sub", ("a", "b")),
    *_half_arithmetic("mul", ("a", "b")),
    *_half_arithmetic("fma", ("a", "b", "c")),
    *_extremes("min"),
    *_extremes("max"),
    Entry("neg ftz? type=f32", "d=f32 a:f32", lambda mods: f"d = eq_neg({'eq_ftz' if mods['ftz'] else ''}(a));"),
    Entry("abs ftz? type=f32", "d=f32 a:f32", lambda mods: f"d = eq_abs({'eq_ftz' if mods['ftz'] else ''}(a));"),
    Entry("neg type=bf16|f16", "d=b16 a:b16", "d = a ^ 0x8000u;"),
    Entry("abs type=bf16|f16", "d=b16 a:b16", "d = a & 0x7fffu;"),
    Entry("neg type=bf16x2|f16x2", "d=b32 a:b32", "d = a ^ 0x80008000u;"),
    Entry("abs type=bf16x2|f16x2", "d=b32 a:b32", "d = a & 0x7fff7fffu;"),
    Entry("neg type=f64", "d=f64 a:f64", "d = a ^ 0x8000000000000000u;"),
    Entry("abs type=f64", "d=f64 a:f64", "d = a & 0x7fffffffffffffffu;"),
    Entry("copysign type=f32", _F32, "d = (a & EQ_SIGN) | (b & ~EQ_SIGN);"),
    Entry("testp what=finite|infinite|number|notanumber|normal|subnormal type=f32", "p=pred a:f32", _testp),
    Entry("div rnd=rn ftz? type=f32", _F32, _scalar("div", "a", "b")),
    Entry("div full ftz? type=f32", _F32, _approximate("div_full", "a", "b")),
    Entry("div approx ftz? type=f32", _F32, _approximate("div_approx", "a", "b")),
    Entry("rcp rnd=rn ftz? type=f32", "d=f32 a:f32", _scalar("rcp", "a")),
    Entry("sqrt rnd=rn ftz? type=f32", "d=f32 a:f32", _scalar("sqrt", "a")),
    *(
        Entry(f"{name} approx ftz? type=f32", "d=f32 a:f32", _approximate(name, "a"))
        for name in ("rcp", "rsqrt", "sqrt", "ex2")
    ),
    Entry(f"setp cmp={_COMPARISONS} ftz? type=f32", "p|q=pred a:f32 b:f32", _setp),
    Entry(f"setp cmp={_COMPARISONS} bool=and|or|xor ftz? type=f32", "p|q=pred a:f32 b:f32 c:pred", _setp),
    Entry(f"setp cmp={_COMPARISONS} type=f16|bf16", "p|q=pred a:type b:type", _setp),
    Entry(f"setp cmp={_COMPARISONS} bool=and|or|xor type=f16|bf16", "p|q=pred a:type b:type c:pred", _setp),
    Entry(f"set cmp={_COMPARISONS} ftz? dtype=u32|s32|f32 type=f32", "d=b32 a:f32 b:f32", _set),
    Entry(f"set cmp={_COMPARISONS} bool=and|or|xor ftz? dtype=u32|s32|f32 type=f32", "d=b32 a:f32 b:f32 c:pred", _set),
)
