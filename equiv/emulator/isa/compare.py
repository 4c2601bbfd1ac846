"""Comparisons and selections of every type: `setp`, `set`, `selp`, `slct`, `testp`."""

from __future__ import annotations

from equiv.emulator.isa.table import Entry, Mods

_BITS = "b16|b32|b64"
_INT = "s16|u16|s32|u32|s64|u64"
_SIGNED = "eq|ne|lt|le|gt|ge"
_ANY = _SIGNED + "|lo|ls|hi|hs"
_FLOAT = _SIGNED + "|equ|neu|ltu|leu|gtu|geu|num|nan"
_BOOL = "bool=and|or|xor"
_OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_ONES = {"f32": "0x3f800000u", "f16": "0x3c00u", "bf16": "0x3f80u", "f16x2": "0x3c00u", "bf16x2": "0x3f80u"}
_WIDEN = {"f16": "eq_f16_to_f32", "bf16": "eq_bf16_to_f32", "f32": ""}


def _relation(mods: Mods, a: str = "a", b: str = "b") -> str:
    """C of the comparison as 0 or 1; IEEE on floats, where the `u` forms are true for NaN."""
    kind, operation = mods["type"].removesuffix("x2"), mods["cmp"]
    if kind[0] in "sub" and kind != "bf16":
        return f"({a} {(_OPERATORS | _UNSIGNED)[operation]} {b})"
    if kind == "f64":
        bits, number, is_nan = (a, b), "eq64_float", "eq64_is_nan"
    else:
        bits, number, is_nan = (f"{_WIDEN[kind]}({a})", f"{_WIDEN[kind]}({b})"), "eq_float", "eq_is_nan"
    unordered = f"({is_nan}({bits[0]}) | {is_nan}({bits[1]}))"
    if operation in {"num", "nan"}:
        return unordered if operation == "nan" else f"(!{unordered})"
    flush = ("half_ftz" if kind == "f16" else "eq_ftz") if mods.get("ftz") else ""
    if flush == "half_ftz":
        bits = f"{_WIDEN[kind]}({flush}({a}))", f"{_WIDEN[kind]}({flush}({b}))"
    elif flush:
        bits = f"{flush}({bits[0]})", f"{flush}({bits[1]})"
    compared = f"({number}({bits[0]}) {_OPERATORS[operation[:2]]} {number}({bits[1]}))"
    return f"({compared} | {unordered})" if operation.endswith("u") else f"({compared} & !{unordered})"


def _combined(mods: Mods) -> str:
    return {"": "", "and": " & c", "or": " | c", "xor": " ^ c"}[mods.get("bool", "")]


def _setp(mods: Mods) -> str:
    combine = _combined(mods)
    return f"{{ const uint32_t r = {_relation(mods)}; p = r{combine}; q = (r ^ 1){combine}; }}"


def _setp_one(mods: Mods) -> str:
    return f"p = {_relation(mods)}{_combined(mods)};"


def _setp_pair(mods: Mods) -> str:
    """Two comparisons: p is that of the low halves, q that of the high ones."""
    low, high = _relation(mods, "(a & 0xffffu)", "(b & 0xffffu)"), _relation(mods, "(a >> 16)", "(b >> 16)")
    return f"p = {low}{_combined(mods)}; q = {high}{_combined(mods)};"


def _set(mods: Mods) -> str:
    return f"d = ({_relation(mods)}{_combined(mods)}) ? {_ONES.get(mods['dtype'], '~0u')} : 0;"


def _set_pair(mods: Mods) -> str:
    one = _ONES.get(mods["dtype"], "0xffffu")
    low, high = _relation(mods, "(a & 0xffffu)", "(b & 0xffffu)"), _relation(mods, "(a >> 16)", "(b >> 16)")
    combine = _combined(mods)
    return f"d = (({low}{combine}) ? {one} : 0) | (({high}{combine}) ? {one} << 16 : 0);"


def _testp(mods: Mods) -> str:
    wide = mods["type"] == "f64"
    magnitude = "(a & EQ64_MAGNITUDE)" if wide else "(a & 0x7fffffffu)"
    inf, least = ("EQ64_INF", "0x10000000000000ull") if wide else ("EQ_INF", "0x800000u")
    test = {
        "finite": f"{magnitude} < {inf}",
        "infinite": f"{magnitude} == {inf}",
        "number": f"{magnitude} <= {inf}",
        "notanumber": f"{magnitude} > {inf}",
        "normal": f"{magnitude} < {inf} && ({magnitude} >= {least} || {magnitude} == 0)",
        "subnormal": f"{magnitude} < {least} && {magnitude} != 0",
    }[mods["what"]]
    return f"p = {test};"


def _comparisons() -> tuple[Entry, ...]:
    entries = []
    for relations, types in ((_SIGNED, "s16|s32|s64"), (_ANY, "u16|u32|u64"), ("eq|ne", _BITS), (_FLOAT, "f64")):
        for group, operands in (("", ""), (_BOOL, " c:pred")):
            entries.append(
                Entry(f"setp cmp={relations} {group} type={types}", f"p|q=pred a:type b:type{operands}", _setp)
            )
            pattern = f"set cmp={relations} {group} dtype={{}} type={types}"
            entries.append(Entry(pattern.format("u32|s32|f32"), f"d=b32 a:type b:type{operands}", _set))
            entries.append(Entry(pattern.format("f16|bf16"), f"d=dtype a:type b:type{operands}", _set))
    for group, operands in (("", ""), (_BOOL, " c:pred")):
        start, sources, pair = f"cmp={_FLOAT} {group}", f"a:type b:type{operands}", f"a:b32 b:b32{operands}"
        entries += [
            Entry(f"setp {start} ftz? type=f32", f"p|q=pred {sources}", _setp),
            Entry(f"setp {start} ftz? type=f16", f"p=pred {sources}", _setp_one),
            Entry(f"setp {start} type=bf16", f"p=pred {sources}", _setp_one),
            Entry(f"setp {start} ftz? type=f16x2", f"p|q=pred {pair}", _setp_pair),
            Entry(f"setp {start} type=bf16x2", f"p|q=pred {pair}", _setp_pair),
            Entry(f"set {start} ftz? dtype=u32|s32|f32 type=f32", f"d=b32 {sources}", _set),
            Entry(f"set {start} ftz? dtype=f16 type=f32", f"d=dtype {sources}", _set),
            Entry(f"set {start} dtype=bf16 type=f32", f"d=dtype {sources}", _set),
            Entry(f"set {start} ftz? dtype=f16|u16|s16|u32|s32 type=f16", f"d=dtype {sources}", _set),
            Entry(f"set {start} dtype=bf16 type=f16", f"d=dtype {sources}", _set),
            Entry(f"set {start} dtype=bf16|u16|s16|u32|s32 type=bf16", f"d=dtype {sources}", _set),
            Entry(f"set {start} ftz? dtype=f16x2|u32|s32 type=f16x2", f"d=b32 {pair}", _set_pair),
            Entry(f"set {start} dtype=bf16x2|u32|s32 type=bf16x2", f"d=b32 {pair}", _set_pair),
        ]
    return tuple(entries)


ENTRIES = (
    *_comparisons(),
    Entry(
        "testp what=finite|infinite|number|notanumber|normal|subnormal type=f32|f64",
        "p=pred a:type",
        _testp,
        note="zeros count as normal",
    ),
    Entry(f"selp type={_BITS}|{_INT}|f32|f64", "d=type a:type b:type c:pred", "d = c ? a : b;"),
    Entry(f"slct dtype={_BITS}|{_INT}|f32|f64 ctype=s32", "d=dtype a:dtype b:dtype c:s32", "d = c >= 0 ? a : b;"),
    Entry(
        f"slct ftz? dtype={_BITS}|{_INT}|f32|f64 ctype=f32",
        "d=dtype a:dtype b:dtype c:f32",
        lambda mods: f"d = eq_float({'eq_ftz' if mods['ftz'] else ''}(c)) >= 0 ? a : b;",
        note="-0 is not below 0; a NaN chooses the second",
    ),
)
