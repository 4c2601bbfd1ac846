"""Bit instructions: logic on words and predicates, shifts, fields, byte permutation, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods

if TYPE_CHECKING:
    from collections.abc import Callable

_BITS = "b16|b32|b64"
_INT = "s16|u16|s32|u32|s64|u64"


def _shift(operator: str) -> Callable[[Mods], str]:
    # The amount is 32 bits, unsigned, and clamped to the width.
    def text(mods: Mods) -> str:
        bits = TYPE_BITS[mods["type"]]
        over = f"a {operator} {bits - 1}" if mods["type"][0] == "s" else "0"
        return f"d = b > {bits - 1} ? {over} : a {operator} b;"

    return text


def _funnel(mods: Mods) -> str:
    amount = "c & 31" if mods["mode"] == "wrap" else "c > 32 ? 32 : c"
    both = "((uint64_t)b << 32 | a)"
    if mods["side"] == "l":
        return f"{{ const uint32_t n = {amount}; d = n == 32 ? a : (uint32_t)({both} << n >> 32); }}"
    return f"{{ const uint32_t n = {amount}; d = (uint32_t)({both} >> n); }}"


# In the 32-bit forms position and length count modulo 256; the 64-bit ones take all 32 bits of both.
_FIELD = {32: "& 255", 64: "& 0xffffffffu"}


def _extract(mods: Mods) -> str:
    """Bits p to p + n - 1 of a; outside the field, for signed types, its top bit, which sticks to the register's."""
    bits, signed = TYPE_BITS[mods["type"]], mods["type"][0] == "s"
    wide, top, part = f"uint{bits}_t", bits - 1, _FIELD[bits]
    sign = (
        f" const uint64_t last = p + n > {bits} ? {top} : p + n - 1;"
        f" r |= n != 0 && (x >> (last & {top}) & 1) ? ~(p > {top} ? 0 : keep & ~({wide})0 >> p) : 0;"
    )
    return (
        f"{{ const uint64_t p = b {part}, n = c {part}; const {wide} x = ({wide})a;"
        f" const {wide} keep = n > {top} ? ~({wide})0 : (({wide})1 << n) - 1;"
        f" {wide} r = (p > {top} ? 0 : x >> p) & keep;{sign if signed else ''} d = r; }}"
    )


def _insert(mods: Mods) -> str:
    """The low n bits of a at bit p of b."""
    bits = TYPE_BITS[mods["type"]]
    wide, top, part = f"uint{bits}_t", bits - 1, _FIELD[bits]
    return (
        f"{{ const uint64_t p = c {part}, n = e {part};"
        f" const {wide} field = n > {top} ? ~({wide})0 : (({wide})1 << n) - 1;"
        f" const {wide} keep = p > {top} ? 0 : field << p;"
        f" d = (b & ~keep) | (p > {top} ? 0 : (a << p) & keep); }}"
    )


def _find_top(mods: Mods) -> str:
    """Position of the highest bit that differs from the sign, or the shift that would bring it to the top."""
    bits = TYPE_BITS[mods["type"]]
    zeros = f"(uint32_t)__builtin_clz{'ll' if bits == 64 else ''}(x)"
    place = zeros if mods["shiftamt"] else f"{bits - 1} - {zeros}"
    value = f"(uint{bits}_t)(a < 0 ? ~a : a)" if mods["type"][0] == "s" else "a"
    return f"{{ const uint{bits}_t x = {value}; d = x ? {place} : ~0u; }}"


_FIND_NTH = (
    "{ const int32_t start = (int32_t)b, n = (int32_t)c; d = ~0u; if (n == 0) { if (b < 32 && a >> b & 1) d = b; }"
    " else { int32_t left = n > 0 ? n : -n; for (int32_t i = start; i >= 0 && i < 32; i += n > 0 ? 1 : -1)"
    " if (a >> i & 1 && --left == 0) { d = (uint32_t)i; break; } } }"
)


def _extend(mods: Mods) -> str:
    """The low b bits of a, extended by zeros or by their sign."""
    wide = "b > 31" if mods["mode"] == "clamp" else "0"
    sign = "n && (uint32_t)a >> (n - 1) & 1 ? ~keep : 0" if mods["type"] == "s32" else "0"
    return (
        f"{{ const uint32_t n = b & 31, keep = (1u << n) - 1;"
        f" d = {wide} ? (uint32_t)a : ((uint32_t)a & keep) | ({sign}); }}"
    )


def _permute(mods: Mods) -> str:
    mode = mods["mode"]
    if not mode:
        return (
            "{ const uint64_t x = (uint64_t)b << 32 | a; d = 0; for (int i = 0; i < 4; i++) {"
            " const uint32_t s = c >> (4 * i) & 15; uint32_t v = (uint32_t)(x >> (8 * (s & 7))) & 255;"
            " v = s & 8 ? (v & 128 ? 255 : 0) : v; d |= v << (8 * i); } }"
        )
    pick = {
        "f4e": "(n + i) & 7",
        "b4e": "(n - i) & 7",
        "rc8": "n",
        "ecl": "i < (int)n ? n : (uint32_t)i",
        "ecr": "i > (int)n ? n : (uint32_t)i",
        "rc16": "((n & 1) << 1) + (i & 1)",
    }[mode]
    return (
        "{ const uint64_t x = (uint64_t)b << 32 | a; const uint32_t n = c & 3; d = 0; for (int i = 0; i < 4; i++)"
        f" d |= ((uint32_t)(x >> (8 * ({pick}))) & 255) << (8 * i); }}"
    )


_LOGIC3 = (
    "d = 0; for (int i = 0; i < 8; i++) if (e >> i & 1) d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);"
)

ENTRIES = (
    Entry(f"and type={_BITS}", "d=type a:type b:type", "d = a & b;"),
    Entry(f"or type={_BITS}", "d=type a:type b:type", "d = a | b;"),
    Entry(f"xor type={_BITS}", "d=type a:type b:type", "d = a ^ b;"),
    Entry(f"not type={_BITS}", "d=type a:type", "d = ~a;"),
    Entry(f"cnot type={_BITS}", "d=type a:type", "d = a == 0;"),
    Entry("and type=pred", "p=pred a:pred b:pred", "p_ = a_ & b_;", "warp"),
    Entry("or type=pred", "p=pred a:pred b:pred", "p_ = a_ | b_;", "warp"),
    Entry("xor type=pred", "p=pred a:pred b:pred", "p_ = a_ ^ b_;", "warp"),
    Entry("not type=pred", "p=pred a:pred", "p_ = ~a_;", "warp"),
    Entry("lop3 type=b32", "d=b32 a:b32 b:b32 c:b32 e:imm", _LOGIC3, note="any function of three bits"),
    Entry(
        "lop3 bool=or|and type=b32",
        "d|p=b32 a:b32 b:b32 c:b32 e:imm q:pred",
        lambda mods: f"{_LOGIC3} p = (d != 0) {'&' if mods['bool'] == 'and' else '|'} q;",
    ),
    Entry(f"shl type={_BITS}", "d=type a:type b:b32", _shift("<<")),
    Entry(f"shr type={_BITS}|{_INT}", "d=type a:type b:b32", _shift(">>")),
    Entry("shf side=l|r mode=wrap|clamp type=b32", "d=b32 a:b32 b:b32 c:b32", _funnel),
    Entry("bfe type=u32|s32|u64|s64", "d=type a:type b:b32 c:b32", _extract),
    Entry("bfi type=b32|b64", "d=type a:type b:type c:b32 e:b32", _insert),
    Entry(
        "bmsk mode=wrap type=b32",
        "d=b32 a:b32 b:b32",
        "{ const uint32_t n = b & 31; d = ((1u << n) - 1) << (a & 31); }",
    ),
    Entry(
        "bmsk mode=clamp type=b32",
        "d=b32 a:b32 b:b32",
        "{ const uint32_t ones = b > 31 ? ~0u : (1u << b) - 1; d = a > 31 ? 0 : ones << a; }",
    ),
    Entry("szext mode=wrap|clamp type=u32|s32", "d=type a:type b:u32", _extend),
    Entry("prmt type=b32 mode?=f4e|b4e|rc8|ecl|ecr|rc16", "d=b32 a:b32 b:b32 c:b32", _permute),
    Entry("popc type=b32", "d=u32 a:b32", "d = (uint32_t)__builtin_popcount(a);"),
    Entry("popc type=b64", "d=u32 a:b64", "d = (uint32_t)__builtin_popcountll(a);"),
    Entry("clz type=b32", "d=u32 a:b32", "d = a ? (uint32_t)__builtin_clz(a) : 32;"),
    Entry("clz type=b64", "d=u32 a:b64", "d = a ? (uint32_t)__builtin_clzll(a) : 64;"),
    Entry("bfind shiftamt? type=u32|s32|u64|s64", "d=u32 a:type", _find_top),
    Entry("fns type=b32", "d=b32 a:b32 b:b32 c:b32", _FIND_NTH, note="the n-th set bit from a position"),
    Entry(
        "brev type=b32",
        "d=b32 a:b32",
        "{ uint32_t x = a; x = x >> 16 | x << 16; x = (x >> 8 & 0xff00ffu) | (x & 0xff00ffu) << 8;"
        " x = (x >> 4 & 0xf0f0f0fu) | (x & 0xf0f0f0fu) << 4; x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;"
        " d = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1; }",
    ),
    Entry("brev type=b64", "d=b64 a:b64", "d = 0; for (int i = 0; i < 64; i++) d |= (a >> i & 1) << (63 - i);"),
)
