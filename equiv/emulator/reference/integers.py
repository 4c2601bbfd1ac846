"""What integer, bit, move and address instructions compute in one lane, on Python integers.

Each function takes an instruction's spellings and gives a function of its sources, which come as integers of their type
(signed types negative where their top bit is set), in the order of the operands. A result is cut to its type after.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from equiv.emulator.isa.table import TYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Mods = Mapping[str, str]
    Lane = Callable[..., Any]
    """Sources of one lane -> its result, or a tuple of results."""

GENERIC_SHARED = 1 << 56
GENERIC_LOCAL = 2 << 56
_WORD = 0xFFFF_FFFF


def _bits(mods: Mods) -> int:
    return TYPE_BITS[mods["type"]]


def _range(kind: str) -> tuple[int, int]:
    bits = TYPE_BITS[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _clamp(value: int, kind: str) -> int:
    low, high = _range(kind)
    return min(max(value, low), high)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _add(mods: Mods) -> Lane:
    kind = mods["type"]
    if kind.endswith("x2"):
        return lambda a, b: (a + b & 0xFFFF) | (a & 0xFFFF0000) + (b & 0xFFFF0000)
    return (lambda a, b: _clamp(a + b, kind)) if mods.get("sat") else operator.add


def _sub(mods: Mods) -> Lane:
    kind = mods["type"]
    return (lambda a, b: _clamp(a - b, kind)) if mods.get("sat") else operator.sub


def _mul(mods: Mods) -> Lane:
    bits = _bits(mods)
    return (lambda a, b: a * b >> bits) if mods.get("side") == "hi" else operator.mul


def _mad(mods: Mods) -> Lane:
    bits, kind = _bits(mods), mods["type"]
    if mods.get("sat"):
        return lambda a, b, c: _clamp((a * b >> bits) + c, kind)
    return (lambda a, b, c: (a * b >> bits) + c) if mods.get("side") == "hi" else lambda a, b, c: a * b + c


def _product24(mods: Mods) -> Callable[[int, int], int]:
    shift = 16 if mods.get("side") == "hi" else 0
    if mods["type"] == "s32":
        return lambda a, b: _signed(_signed(a, 24) * _signed(b, 24) >> shift, 32)
    return lambda a, b: ((a & 0xFFFFFF) * (b & 0xFFFFFF) >> shift) & _WORD


def _mad24(mods: Mods) -> Lane:
    product, kind = _product24(mods), mods["type"]
    return (lambda a, b, c: _clamp(product(a, b) + c, kind)) if mods.get("sat") else lambda a, b, c: product(a, b) + c


def _quotient(a: int, b: int) -> int:
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def _div(_: Mods) -> Lane:
    return lambda a, b: _quotient(a, b) if b else -1


def _rem(_: Mods) -> Lane:
    return lambda a, b: a - b * _quotient(a, b) if b else -1


def _extreme(choose: Callable[..., int]) -> Callable[[Mods], Lane]:
    def find(mods: Mods) -> Lane:
        relu, kind = bool(mods.get("relu")), mods["type"]

        def one(a: int, b: int) -> int:
            return max(choose(a, b), 0) if relu else choose(a, b)

        if not kind.endswith("x2"):
            return one

        def pair(a: int, b: int) -> int:
            low, high = (one(*(_half(x, shift, kind) for x in (a, b))) & 0xFFFF for shift in (0, 16))
            return high << 16 | low

        return pair

    return find


def _half(value: int, shift: int, kind: str) -> int:
    half = value >> shift & 0xFFFF
    return _signed(half, 16) if kind[0] == "s" else half


def _shl(mods: Mods) -> Lane:
    bits = _bits(mods)
    return lambda a, b: a << b if b < bits else 0


def _shr(mods: Mods) -> Lane:
    bits = _bits(mods)
    return lambda a, b: a >> min(b, bits)


def _shf(mods: Mods) -> Lane:
    left, wrap = mods["side"] == "l", mods["mode"] == "wrap"

    def lane(a: int, b: int, c: int) -> int:
        count = c & 31 if wrap else min(c, 32)
        both = b << 32 | a
        return both << count >> 32 if left else both >> count

    return lane


def _field(start: int, length: int, bits: int) -> tuple[int, int]:
    """A field's place as it counts: 8 bits of each number in a 32-bit instruction, all 32 in a 64-bit one."""
    mask = 255 if bits == 32 else _WORD
    return min(start & mask, bits), min(length & mask, bits)


def _bfe(mods: Mods) -> Lane:
    bits, signed = _bits(mods), mods["type"][0] == "s"

    def lane(a: int, b: int, c: int) -> int:
        start, length = _field(b, c, bits)
        if signed:
            value = a >> start  # the sign goes on above the register's top bit
            return _signed(value, length) if length else 0
        return a >> start & ((1 << length) - 1)

    return lane


def _bfi(mods: Mods) -> Lane:
    bits = _bits(mods)

    def lane(a: int, b: int, c: int, e: int) -> int:
        start, length = _field(c, e, bits)
        keep = ((1 << length) - 1) << start & (1 << bits) - 1
        return b & ~keep | a << start & keep

    return lane


def _bmsk(mods: Mods) -> Lane:
    if mods["mode"] == "wrap":
        return lambda a, b: ((1 << (b & 31)) - 1) << (a & 31)
    return lambda a, b: 0 if a > 31 else ((1 << min(b, 32)) - 1) << a


def permutation(mode: str, selector: int) -> list[tuple[int, bool]]:
    """Of each byte of `prmt`'s result: which byte of b:a it is, and whether its sign alone is taken."""
    if not mode:
        return [(selector >> 4 * i & 7, bool(selector >> 4 * i & 8)) for i in range(4)]
    n = selector & 3
    picks: dict[str, Callable[[int], int]] = {
        "f4e": lambda i: n + i & 7,
        "b4e": lambda i: n - i & 7,
        "rc8": lambda _: n,
        "ecl": lambda i: max(n, i),
        "ecr": lambda i: min(n, i),
        "rc16": lambda i: ((n & 1) << 1) + (i & 1),
    }
    return [(picks[mode](i), False) for i in range(4)]


def _prmt(mods: Mods) -> Lane:
    mode = mods["mode"]

    def lane(a: int, b: int, c: int) -> int:
        source = (b << 32 | a).to_bytes(8, "little")
        picked = [
            (255 if source[at] & 128 else 0) if sign_only else source[at] for at, sign_only in permutation(mode, c)
        ]
        return int.from_bytes(bytes(picked), "little")

    return lane


def _lop3(mods: Mods) -> Lane:
    """Any function of three bits, given by its table; with a `.bool` also whether the result, combined, is not zero."""
    combine = combined(mods)

    def lane(a: int, b: int, c: int, e: int, q: int | None = None) -> int | tuple[int, int]:
        result = 0
        for i in range(8):
            if e >> i & 1:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result if q is None else (result, combine(result & _WORD != 0, q))

    return lane


def _bfind(mods: Mods) -> Lane:
    def lane(a: int) -> int:
        value = ~a if a < 0 else a
        if not value:
            return -1
        return 32 - value.bit_length() if mods["shiftamt"] else value.bit_length() - 1

    return lane


def _brev(mods: Mods) -> Lane:
    bits = _bits(mods)
    return lambda a: int(f"{a:0{bits}b}"[::-1], 2)


def _part(value: int, bits: int, at: int, kind: str) -> int:
    piece = value >> bits * at & (1 << bits) - 1
    return _signed(piece, bits) if kind == "s32" else piece


def _dp4a(mods: Mods) -> Lane:
    first, second = mods["atype"], mods["btype"]
    return lambda a, b, c: c + sum(_part(a, 8, i, first) * _part(b, 8, i, second) for i in range(4))


def _dp2a(mods: Mods) -> Lane:
    first, second, half = mods["atype"], mods["btype"], 2 * (mods["half"] == "hi")
    return lambda a, b, c: c + sum(_part(a, 16, i, first) * _part(b, 8, i + half, second) for i in range(2))


ONES = {"f32": 0x3F80_0000, "f16": 0x3C00, "bf16": 0x3F80}
"""What `set` gives for true in a float format; in an integer one it is all ones."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip


def combined(mods: Mods) -> Callable[[bool, int], int]:
    """The `.and`, `.or`, `.xor` of a comparison with a predicate; without one the comparison itself."""
    return {
        "": lambda result, _: int(result),
        "and": lambda result, c: int(result) & c,
        "or": lambda result, c: int(result) | c,
        "xor": lambda result, c: int(result) ^ c,
    }[mods.get("bool", "")]


def _setp(mods: Mods) -> Lane:
    compare, combine = _COMPARE[mods["cmp"]], combined(mods)

    def lane(a: int, b: int, c: int = 0) -> tuple[int, int]:
        result = compare(a, b)
        return combine(result, c), combine(not result, c)

    return lane


def _set(mods: Mods) -> Lane:
    compare, combine, one = _COMPARE[mods["cmp"]], combined(mods), ONES.get(mods["dtype"], -1)
    return lambda a, b, c=0: one if combine(compare(a, b), c) else 0


def _slct(mods: Mods) -> Lane:
    if mods["ctype"] == "s32":
        return lambda a, b, c: a if c >= 0 else b

    def lane(a: int, b: int, c: int) -> int:
        magnitude = c & 0x7FFF_FFFF
        zero = magnitude < 0x80_0000 if mods["ftz"] else magnitude == 0
        return a if magnitude <= 0x7F80_0000 and (zero or c == magnitude) else b

    return lane


def _find_nth(_: Mods) -> Lane:
    """The place of the n-th set bit from a position, downwards for negative n; all ones if there is none."""

    def lane(a: int, b: int, c: int) -> int:
        start, count = _signed(b, 32), _signed(c, 32)
        if count == 0:
            return b if b < 32 and a >> b & 1 else -1
        places = range(start, 32) if count > 0 else range(start, -1, -1)
        found = [i for i in places if a >> i & 1] if 0 <= start < 32 else []
        return found[abs(count) - 1] if len(found) >= abs(count) else -1

    return lane


def _szext(mods: Mods) -> Lane:
    signed, clamp = mods["type"] == "s32", mods["mode"] == "clamp"

    def lane(a: int, b: int) -> int:
        if clamp and b > 31:
            return a
        length = b & 31
        low = a & (1 << length) - 1
        return _signed(low, length) if signed and length else low

    return lane


def _cvt(mods: Mods) -> Lane:
    if "pack" in mods:
        return _pack(mods)
    kind = mods["dtype"]
    return (lambda a: _clamp(a, kind)) if mods.get("sat") else lambda a: a


def _pack(mods: Mods) -> Lane:
    """`cvt.pack`: both sources clamped, the first above the second, above them what c has in its low bits."""
    kind, bits = mods["dtype"], int(mods["dtype"][1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)

    def lane(a: int, b: int, c: int = 0) -> int:
        upper, lower = (min(max(value, low), high) & (1 << bits) - 1 for value in (a, b))
        return c << 2 * bits | upper << bits | lower

    return lane


def _cvta(mods: Mods) -> Lane:
    space, to = mods["space"], "to" in mods
    if space in {"global", "const"}:
        return lambda a: a
    if to:
        return lambda a: a & _WORD
    return lambda a: a | (GENERIC_LOCAL if space == "local" else GENERIC_SHARED)


def _isspacep(mods: Mods) -> Lane:
    if mods["space"] == "global":
        return lambda a: int(a >> 56 == 0)
    window = GENERIC_LOCAL if mods["space"] == "local" else GENERIC_SHARED
    return lambda a: int(a >> 32 == window >> 32)


def _mapa(mods: Mods) -> Lane:
    window = 0 if "space" in mods else GENERIC_SHARED
    return lambda a, b: window | a & 0xFFFFFF | (b << 24 & ((1 << TYPE_BITS[mods["type"]]) - 1))


INTEGERS: dict[str, Callable[[Mods], Lane]] = {
    "add": _add, "sub": _sub, "mul": _mul, "mad": _mad, "mul24": _product24, "mad24": _mad24, "div": _div, "rem": _rem,
    "min": _extreme(min), "max": _extreme(max), "neg": lambda _: operator.neg, "abs": lambda _: abs,
    "sad": lambda _: lambda a, b, c: c + abs(a - b), "and": lambda _: operator.and_, "or": lambda _: operator.or_,
    "xor": lambda _: operator.xor, "not": lambda _: operator.invert, "cnot": lambda _: lambda a: int(a == 0),
    "lop3": _lop3, "shl": _shl, "shr": _shr, "shf": _shf, "bfe": _bfe, "bfi": _bfi, "bmsk": _bmsk, "prmt": _prmt,
    "popc": lambda _: int.bit_count, "clz": lambda mods: lambda a: _bits(mods) - a.bit_length(), "bfind": _bfind,
    "brev": _brev, "dp4a": _dp4a, "dp2a": _dp2a, "setp": _setp, "set": _set,
    "selp": lambda _: lambda a, b, c: a if c else b, "slct": _slct, "fns": _find_nth, "szext": _szext,
    "mbarrier": lambda _: lambda a: a & 0xFFFFF,  # pending_count
    "cvt": _cvt, "cvta": _cvta, "isspacep": _isspacep, "mapa": _mapa,
    "getctarank": lambda _: lambda a: (a & _WORD) >> 24, "createpolicy": lambda _: lambda: 0,
}  # fmt: skip
"""Base name -> spellings -> what one lane computes."""
