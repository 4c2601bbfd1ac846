"""Integer arithmetic: 16 to 64 bits, pairs of 16 bits in one register, dot products, and chains through the carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods

if TYPE_CHECKING:
    from collections.abc import Callable

_INT = "s16|u16|s32|u32|s64|u64"
_CARRY = "u32|s32|u64|s64"
_WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
_DOUBLE = {
    "s16": "int32_t",
    "u16": "uint32_t",
    "s32": "int64_t",
    "u32": "uint64_t",
    "s64": "__int128",
    "u64": "unsigned __int128",
}
_TWO, _THREE = "d=type a:type b:type", "d=type a:type b:type c:type"
_PAIR = "d=b32 a:b32 b:b32"
_SATURATE = "d = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : (int32_t)s;"


def _high(mods: Mods) -> str:
    double, bits = _DOUBLE[mods["type"]], TYPE_BITS[mods["type"]]
    return f"d = (({double})a * ({double})b) >> {bits};"


def _mad_high(mods: Mods) -> str:
    double, bits = _DOUBLE[mods["type"]], TYPE_BITS[mods["type"]]
    return f"d = ((({double})a * ({double})b) >> {bits}) + c;"


def _product24(mods: Mods) -> str:
    """The product of the low 24 bits: its low or high 32 of 48 bits."""
    shift = 16 if mods["side"] == "hi" else 0
    if mods["type"] == "u32":
        return f"(uint32_t)((uint64_t)(a & 0xffffffu) * (b & 0xffffffu) >> {shift})"
    low = "(int64_t)((int32_t)((uint32_t)a << 8) >> 8) * ((int32_t)((uint32_t)b << 8) >> 8)"
    return f"(int32_t)(({low}) >> {shift})"


def _mad24(mods: Mods) -> str:
    if mods.get("sat"):
        return f"{{ const int64_t s = (int64_t){_product24(mods)} + c; {_SATURATE} }}"
    return f"d = {_product24(mods)} + c;"


def _divide(operator: str) -> Callable[[Mods], str]:
    # By zero: all ones; the lowest number by -1 must not trap on the host.
    def text(mods: Mods) -> str:
        if mods["type"][0] == "u":
            return f"d = b == 0 ? -1 : a {operator} b;"
        overflow = "-a" if operator == "/" else "0"
        return f"d = b == 0 ? -1 : b == -1 ? {overflow} : a {operator} b;"

    return text


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


def _chain(sources: Callable[[Mods], tuple[str, str, str]], *, reads: bool = False) -> Callable[[Mods], str]:
    """One step of a chain: x + y, or x - y, with the lanes' carry bits in `w->carry`.

    A subtraction sets the carry when there is no borrow, as the hardware's adder does, and one that reads it borrows
    when it is clear.

    Args:
        sources: C of the two operands, and the operator.
        reads: whether the carry of an earlier instruction is added.
    """

    def text(mods: Mods) -> str:
        bits = TYPE_BITS[mods["type"]]
        wide = "unsigned __int128" if bits == 64 else "uint64_t"
        x, y, operator = sources(mods)
        y = f"(uint{bits}_t)~({y})" if operator == "-" else f"(uint{bits}_t)({y})"
        carried = "(w->carry >> l & 1)" if reads else "1" if operator == "-" else "0"
        keep = f" w->carry = (w->carry & ~(1u << l)) | (uint32_t)(s >> {bits}) << l;" if mods.get("cc") else ""
        return (
            "LANES(l) if (HAS(l)) {"
            f" const {wide} s = ({wide})(uint{bits}_t)({x}) + {y} + {carried}; d_[l] = (uint{bits}_t)s;{keep} }}"
        )

    return text


def _plain(operator: str) -> Callable[[Mods], tuple[str, str, str]]:
    return lambda _: ("a_[l]", "b_[l]", operator)


def _multiplied(mods: Mods) -> tuple[str, str, str]:
    kind = mods["type"]
    lane = f"{'u' if kind[0] == 'u' else ''}int{TYPE_BITS[kind]}_t"
    product = f"(({_DOUBLE[kind]})({lane})a_[l] * ({_DOUBLE[kind]})({lane})b_[l])"
    shift = f" >> {TYPE_BITS[kind]}" if mods["side"] == "hi" else ""
    return f"{product}{shift}", "c_[l]", "+"


def _halves(expression: str) -> str:
    """The same on both 16-bit parts; `x` and `y` are the parts of a and b, T their C type."""
    return (
        "{ const uint32_t p = a, q = b; uint32_t r = 0; for (int i = 0; i < 32; i += 16) {"
        f" const T x = (T)(p >> i), y = (T)(q >> i); r |= (uint32_t)(uint16_t)({expression}) << i; }} d = r; }}"
    )


def _extreme_pair(operator: str) -> Callable[[Mods], str]:
    def text(mods: Mods) -> str:
        lane = "int16_t" if mods["type"][0] == "s" else "uint16_t"
        chosen = f"x {operator} y ? x : y"
        chosen = f"({chosen}) < 0 ? 0 : ({chosen})" if mods.get("relu") else chosen
        return _halves(chosen).replace("T ", f"{lane} ").replace("(T)", f"({lane})")

    return text


def _extremes(name: str, operator: str) -> tuple[Entry, ...]:
    plain = f"d = a {operator} b ? a : b;"
    return (
        Entry(f"{name} type={_INT}", _TWO, plain),
        Entry(f"{name} relu type=s32", _TWO, f"{plain} d = d < 0 ? 0 : d;"),
        Entry(f"{name} type=u16x2|s16x2", _PAIR, _extreme_pair(operator)),
        Entry(f"{name} relu type=s16x2", _PAIR, _extreme_pair(operator)),
    )


def _chains() -> tuple[Entry, ...]:
    note = "the carry is one bit a lane"
    entries = []
    for name, operator in (("add", "+"), ("sub", "-")):
        plain = _plain(operator)
        entries.append(Entry(f"{name} cc type={_CARRY}", _TWO, _chain(plain), "warp", note=note))
        entries.append(Entry(f"{name}c cc? type={_CARRY}", _TWO, _chain(plain, reads=True), "warp", note=note))
    entries.append(Entry(f"mad side=lo|hi cc type={_CARRY}", _THREE, _chain(_multiplied), "warp", note=note))
    entries.append(
        Entry(f"madc side=lo|hi cc? type={_CARRY}", _THREE, _chain(_multiplied, reads=True), "warp", note=note)
    )
    return tuple(entries)


ENTRIES = (
    Entry(f"add type={_INT}", _TWO, "d = a + b;"),
    Entry("add sat type=s32", _TWO, f"{{ const int64_t s = (int64_t)a + b; {_SATURATE} }}"),
    Entry("add type=u16x2|s16x2", _PAIR, "d = ((a + b) & 0xffffu) | ((a & 0xffff0000u) + (b & 0xffff0000u));"),
    Entry(f"sub type={_INT}", _TWO, "d = a - b;"),
    Entry("sub sat type=s32", _TWO, f"{{ const int64_t s = (int64_t)a - b; {_SATURATE} }}"),
    *_chains(),
    Entry(f"mul side=lo type={_INT}", _TWO, "d = a * b;"),
    Entry(f"mul side=hi type={_INT}", _TWO, _high),
    *(
        Entry(f"mul wide type={narrow}", f"d={wide} a:type b:type", f"d = ({_DOUBLE[narrow]})a * ({_DOUBLE[narrow]})b;")
        for narrow, wide in _WIDE.items()
    ),
    Entry(f"mad side=lo type={_INT}", _THREE, "d = a * b + c;"),
    Entry(f"mad side=hi type={_INT}", _THREE, _mad_high),
    Entry("mad hi sat type=s32", _THREE, f"{{ const int64_t s = ((int64_t)a * b >> 32) + c; {_SATURATE} }}"),
    *(
        Entry(
            f"mad wide type={narrow}",
            f"d={wide} a:type b:type c:{wide}",
            f"d = ({_DOUBLE[narrow]})a * ({_DOUBLE[narrow]})b + c;",
        )
        for narrow, wide in _WIDE.items()
    ),
    Entry("mul24 side=lo|hi type=s32|u32", _TWO, lambda mods: f"d = {_product24(mods)};"),
    Entry("mad24 side=lo|hi type=s32|u32", _THREE, _mad24),
    Entry("mad24 side=hi sat type=s32", _THREE, _mad24),
    Entry(f"div type={_INT}", _TWO, _divide("/"), note="by zero: all ones"),
    Entry(f"rem type={_INT}", _TWO, _divide("%"), note="by zero: all ones"),
    *_extremes("min", "<"),
    *_extremes("max", ">"),
    Entry("neg type=s16|s32|s64", "d=type a:type", "d = -a;"),
    Entry("abs type=s16|s32|s64", "d=type a:type", "d = a < 0 ? -a : a;"),
    Entry(f"sad type={_INT}", _THREE, "d = c + (a < b ? b - a : a - b);"),
    Entry("dp4a atype=u32|s32 btype=u32|s32", "d=b32 a:b32 b:b32 c:b32", _dot(4)),
    Entry("dp2a half=lo|hi atype=u32|s32 btype=u32|s32", "d=b32 a:b32 b:b32 c:b32", _dot(2)),
)
