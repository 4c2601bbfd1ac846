"""Integer and bit instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods

if TYPE_CHECKING:
    from collections.abc import Callable

_INT = "s16|u16|s32|u32|s64|u64"
_BITS = "b16|b32|b64"
_WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
_DOUBLE = {
    "s16": "int32_t",
    "u16": "uint32_t",
    "s32": "int64_t",
    "u32": "uint64_t",
    "s64": "__int128",
    "u64": "unsigned __int128",
}


def _high(mods: Mods) -> str:
    double, bits = _DOUBLE[mods["type"]], TYPE_BITS[mods["type"]]
    return f"d = (({double})a * ({double})b) >> {bits};"


def _mad_high(mods: Mods) -> str:
    double, bits = _DOUBLE[mods["type"]], TYPE_BITS[mods["type"]]
    return f"d = ((({double})a * ({double})b) >> {bits}) + c;"


def _divide(operator: str) -> Callable[[Mods], str]:
    # By zero: all ones (quotient), the dividend (remainder); the lowest number by -1 must not trap on the host.
    def text(mods: Mods) -> str:
        zero = "-1" if operator == "/" else "a"
        if mods["type"][0] == "u":
            return f"d = b == 0 ? {zero} : a {operator} b;"
        overflow = "-a" if operator == "/" else "0"
        return f"d = b == 0 ? {zero} : b == -1 ? {overflow} : a {operator} b;"

    return text


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


def _extract(mods: Mods) -> str:
    """Bits p to p + n - 1 of a; outside the field, for signed types, its top bit, which sticks to the register's."""
    bits, signed = TYPE_BITS[mods["type"]], mods["type"][0] == "s"
    wide, top = f"uint{bits}_t", bits - 1
    sign = (
        f" const uint32_t last = p + n > {bits} ? {top} : p + n - 1;"
        f" r |= n != 0 && (x >> (last & {top}) & 1) ? ~(p > {top} ? 0 : keep & ~({wide})0 >> p) : 0;"
    )
    return (
        f"{{ const uint32_t p = b & 255, n = c & 255; const {wide} x = ({wide})a;"
        f" const {wide} keep = n > {top} ? ~({wide})0 : (({wide})1 << n) - 1;"
        f" {wide} r = (p > {top} ? 0 : x >> p) & keep;{sign if signed else ''} d = r; }}"
    )


def _insert(mods: Mods) -> str:
    """The low n bits of a at bit p of b."""
    bits = TYPE_BITS[mods["type"]]
    wide, top = f"uint{bits}_t", bits - 1
    return (
        f"{{ const uint32_t p = c & 255, n = e & 255;"
        f" const {wide} field = n > {top} ? ~({wide})0 : (({wide})1 << n) - 1;"
        f" const {wide} keep = p > {top} ? 0 : field << p;"
        f" d = (b & ~keep) | (p > {top} ? 0 : (a << p) & keep); }}"
    )


def _find_top(mods: Mods) -> str:
    """Position of the highest bit that differs from the sign, or the shift that would bring it to bit 31."""
    place = "(uint32_t)__builtin_clz(x)" if mods["shiftamt"] else "31 - (uint32_t)__builtin_clz(x)"
    value = "(uint32_t)(a < 0 ? ~a : a)" if mods["type"] == "s32" else "a"
    return f"{{ const uint32_t x = {value}; d = x ? {place} : ~0u; }}"


def _dot(count: int) -> Callable[[Mods], str]:
    """Sum of `count` products of parts of a (32 / count bits each) and bytes of b."""

    def text(mods: Mods) -> str:
        bits = 32 // count
        a, b = ("u" if mods[kind] == "u32" else "" for kind in ("atype", "btype"))
        start = 16 if mods.get("half") == "hi" else 0
        return (
            f"d = c; for (int i = 0; i < {count}; i++)"
            f" d += (uint32_t)((int32_t)({a}int{bits}_t)(a >> ({bits} * i))"
            f" * (int32_t)({b}int8_t)(b >> (8 * i + {start})));"
        )

    return text


def _add_carry(mods: Mods) -> str:
    keep = " w->carry = (w->carry & ~(1u << l)) | (uint32_t)(s >> 32) << l;" if mods["cc"] else ""
    return (
        "LANES(l) if (HAS(l)) {"
        " const uint64_t s = (uint64_t)(uint32_t)a_[l] + (uint32_t)b_[l] + (w->carry >> l & 1);"
        f" d_[l] = (uint32_t)s;{keep} }}"
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


def _logic3(_: Mods) -> str:
    return (
        "d = 0; for (int i = 0; i < 8; i++) if (e >> i & 1)"
        " d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);"
    )


def _compare(mods: Mods) -> str:
    unsigned = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
    operator = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", **unsigned}[mods["cmp"]]
    return f"a {operator} b"


def _setp(mods: Mods) -> str:
    combine = {"": "", "and": " & c", "or": " | c", "xor": " ^ c"}[mods.get("bool", "")]
    return f"{{ const uint32_t r = {_compare(mods)}; p = r{combine}; q = (r ^ 1){combine}; }}"


def _set(mods: Mods) -> str:
    one = "0x3f800000u" if mods["dtype"] == "f32" else "~0u"
    combine = {"": "", "and": " & c", "or": " | c", "xor": " ^ c"}[mods.get("bool", "")]
    return f"d = (uint32_t)({_compare(mods)}){combine} ? {one} : 0;"


_SIGNED = "eq|ne|lt|le|gt|ge"
_ANY = _SIGNED + "|lo|ls|hi|hs"

ENTRIES = (
    Entry(f"add type={_INT}", "d=type a:type b:type", "d = a + b;"),
    Entry(
        "add sat type=s32",
        "d=type a:type b:type",
        "{ const int64_t s = (int64_t)a + b; d = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : (int32_t)s; }",
    ),
    Entry(
        "add type=u16x2|s16x2",
        "d=b32 a:b32 b:b32",
        "d = ((a + b) & 0xffffu) | ((a & 0xffff0000u) + (b & 0xffff0000u));",
    ),
    Entry(f"sub type={_INT}", "d=type a:type b:type", "d = a - b;"),
    Entry(
        "sub sat type=s32",
        "d=type a:type b:type",
        "{ const int64_t s = (int64_t)a - b; d = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : (int32_t)s; }",
    ),
    Entry(
        "add cc type=u32|s32",
        "d=type a:type b:type",
        "LANES(l) { uint32_t s; const uint32_t c = __builtin_add_overflow((uint32_t)a_[l], (uint32_t)b_[l], &s);"
        " if (HAS(l)) { d_[l] = s; w->carry = (w->carry & ~(1u << l)) | c << l; } }",
        "warp",
    ),
    Entry("addc cc? type=u32|s32", "d=type a:type b:type", _add_carry, "warp"),
    Entry("mul side=lo type=s16|u16|s32|u32|s64|u64", "d=type a:type b:type", "d = a * b;"),
    Entry("mul side=hi type=s16|u16|s32|u32|s64|u64", "d=type a:type b:type", _high),
    *(
        Entry(f"mul wide type={narrow}", f"d={wide} a:type b:type", f"d = ({_DOUBLE[narrow]})a * ({_DOUBLE[narrow]})b;")
        for narrow, wide in _WIDE.items()
    ),
    Entry("mad side=lo type=s16|u16|s32|u32|s64|u64", "d=type a:type b:type c:type", "d = a * b + c;"),
    Entry("mad side=hi type=s16|u16|s32|u32|s64|u64", "d=type a:type b:type c:type", _mad_high),
    *(
        Entry(
            f"mad wide type={narrow}",
            f"d={wide} a:type b:type c:{wide}",
            f"d = ({_DOUBLE[narrow]})a * ({_DOUBLE[narrow]})b + c;",
        )
        for narrow, wide in _WIDE.items()
    ),
    Entry(
        "mul24 side=lo type=s32",
        "d=type a:type b:type",
        "d = (int32_t)(((int64_t)(int32_t)((uint32_t)a << 8) >> 8) * ((int64_t)(int32_t)((uint32_t)b << 8) >> 8));",
    ),
    Entry(
        "mul24 side=lo type=u32", "d=type a:type b:type", "d = (uint32_t)((uint64_t)(a & 0xffffffu) * (b & 0xffffffu));"
    ),
    Entry(f"div type={_INT}", "d=type a:type b:type", _divide("/")),
    Entry(f"rem type={_INT}", "d=type a:type b:type", _divide("%")),
    Entry(f"min type={_INT}", "d=type a:type b:type", "d = a < b ? a : b;"),
    Entry(f"max type={_INT}", "d=type a:type b:type", "d = a > b ? a : b;"),
    Entry("min relu type=s32", "d=type a:type b:type", "d = a < b ? a : b; d = d < 0 ? 0 : d;"),
    Entry("max relu type=s32", "d=type a:type b:type", "d = a > b ? a : b; d = d < 0 ? 0 : d;"),
    Entry("neg type=s16|s32|s64", "d=type a:type", "d = -a;"),
    Entry("abs type=s16|s32|s64", "d=type a:type", "d = a < 0 ? -a : a;"),
    Entry("sad type=s32|u32", "d=type a:type b:type c:type", "d = c + (a < b ? b - a : a - b);"),
    Entry(f"and type={_BITS}", "d=type a:type b:type", "d = a & b;"),
    Entry(f"or type={_BITS}", "d=type a:type b:type", "d = a | b;"),
    Entry(f"xor type={_BITS}", "d=type a:type b:type", "d = a ^ b;"),
    Entry(f"not type={_BITS}", "d=type a:type", "d = ~a;"),
    Entry(f"cnot type={_BITS}", "d=type a:type", "d = a == 0;"),
    Entry("and type=pred", "p=pred a:pred b:pred", "p_ = a_ & b_;", "warp"),
    Entry("or type=pred", "p=pred a:pred b:pred", "p_ = a_ | b_;", "warp"),
    Entry("xor type=pred", "p=pred a:pred b:pred", "p_ = a_ ^ b_;", "warp"),
    Entry("not type=pred", "p=pred a:pred", "p_ = ~a_;", "warp"),
    Entry("lop3 type=b32", "d=b32 a:b32 b:b32 c:b32 e:imm", _logic3, note="any function of three bits"),
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
    Entry("prmt type=b32 mode?=f4e|b4e|rc8|ecl|ecr|rc16", "d=b32 a:b32 b:b32 c:b32", _permute),
    Entry("popc type=b32", "d=u32 a:b32", "d = (uint32_t)__builtin_popcount(a);"),
    Entry("popc type=b64", "d=u32 a:b64", "d = (uint32_t)__builtin_popcountll(a);"),
    Entry("clz type=b32", "d=u32 a:b32", "d = a ? (uint32_t)__builtin_clz(a) : 32;"),
    Entry("clz type=b64", "d=u32 a:b64", "d = a ? (uint32_t)__builtin_clzll(a) : 64;"),
    Entry("bfind shiftamt? type=u32|s32", "d=u32 a:type", _find_top),
    Entry(
        "brev type=b32",
        "d=b32 a:b32",
        "{ uint32_t x = a; x = x >> 16 | x << 16; x = (x >> 8 & 0xff00ffu) | (x & 0xff00ffu) << 8;"
        " x = (x >> 4 & 0xf0f0f0fu) | (x & 0xf0f0f0fu) << 4; x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;"
        " d = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1; }",
    ),
    Entry("brev type=b64", "d=b64 a:b64", "d = 0; for (int i = 0; i < 64; i++) d |= (a >> i & 1) << (63 - i);"),
    Entry("dp4a atype=u32|s32 btype=u32|s32", "d=b32 a:b32 b:b32 c:b32", _dot(4)),
    Entry("dp2a half=lo|hi atype=u32|s32 btype=u32|s32", "d=b32 a:b32 b:b32 c:b32", _dot(2)),
    Entry(f"setp cmp={_SIGNED} type=s16|s32|s64", "p|q=pred a:type b:type", _setp),
    Entry(f"setp cmp={_ANY} type=u16|u32|u64", "p|q=pred a:type b:type", _setp),
    Entry(f"setp cmp=eq|ne type={_BITS}", "p|q=pred a:type b:type", _setp),
    Entry(f"setp cmp={_SIGNED} bool=and|or|xor type=s16|s32|s64", "p|q=pred a:type b:type c:pred", _setp),
    Entry(f"setp cmp={_ANY} bool=and|or|xor type=u16|u32|u64", "p|q=pred a:type b:type c:pred", _setp),
    Entry(f"setp cmp=eq|ne bool=and|or|xor type={_BITS}", "p|q=pred a:type b:type c:pred", _setp),
    Entry(f"set cmp={_SIGNED} dtype=u32|s32|f32 type=s16|s32|s64", "d=b32 a:type b:type", _set),
    Entry(f"set cmp={_ANY} dtype=u32|s32|f32 type=u16|u32|u64", "d=b32 a:type b:type", _set),
    Entry(f"set cmp=eq|ne dtype=u32|s32|f32 type={_BITS}", "d=b32 a:type b:type", _set),
    Entry(f"set cmp={_SIGNED} bool=and|or|xor dtype=u32|s32|f32 type=s16|s32|s64", "d=b32 a:type b:type c:pred", _set),
    Entry(f"set cmp={_ANY} bool=and|or|xor dtype=u32|s32|f32 type=u16|u32|u64", "d=b32 a:type b:type c:pred", _set),
    Entry(f"selp type={_BITS}|{_INT}|f32|f64", "d=type a:type b:type c:pred", "d = c ? a : b;"),
    Entry("slct dtype=b32|u32|s32|f32|b64|u64|s64 ctype=s32", "d=dtype a:dtype b:dtype c:s32", "d = c >= 0 ? a : b;"),
)
