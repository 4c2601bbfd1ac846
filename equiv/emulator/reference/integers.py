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
    bits = _bits(mods)
    return (lambda a, b, c: (a * b >> bits) + c) if mods.get("side") == "hi" else lambda a, b, c: a * b + c


def _mul24(mods: Mods) -> Lane:
    if mods["type"] == "s32":
        return lambda a, b: _signed(a, 24) * _signed(b, 24)
    return lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)


def _quotient(a: int, b: int) -> int:
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def _div(_: Mods) -> Lane:
    return lambda a, b: _quotient(a, b) if b else -1


def _rem(_: Mods) -> Lane:
    return lambda a, b: a - b * _quotient(a, b) if b else a


def _extreme(choose: Callable[..., int]) -> Callable[[Mods], Lane]:
    return lambda mods: (lambda a, b: max(choose(a, b), 0)) if mods.get("relu") else choose


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


def _bfe(mods: Mods) -> Lane:
    bits, signed = _bits(mods), mods["type"][0] == "s"

    def lane(a: int, b: int, c: int) -> int:
        start, length = b & 255, c & 255
        if signed:
            value = a >> min(start, bits)  # the sign goes on above the register's top bit
            return _signed(value, length) if length else 0
        return a >> start & ((1 << length) - 1)

    return lane


def _bfi(mods: Mods) -> Lane:
    bits = _bits(mods)

    def lane(a: int, b: int, c: int, e: int) -> int:
        start, length = c & 255, e & 255
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


def _lop3(_: Mods) -> Lane:
    def lane(a: int, b: int, c: int, e: int) -> int:
        result = 0
        for i in range(8):
            if e >> i & 1:
                result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        return result

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
    compare, combine, one = _COMPARE[mods["cmp"]], combined(mods), 0x3F800000 if mods["dtype"] == "f32" else -1
    return lambda a, b, c=0: one if combine(compare(a, b), c) else 0


def _cvt(mods: Mods) -> Lane:
    kind = mods["dtype"]
    return (lambda a: _clamp(a, kind)) if mods["sat"] else lambda a: a


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
    "add": _add, "sub": _sub, "mul": _mul, "mad": _mad, "mul24": _mul24, "div": _div, "rem": _rem,
    "min": _extreme(min), "max": _extreme(max), "neg": lambda _: operator.neg, "abs": lambda _: abs,
    "sad": lambda _: lambda a, b, c: c + abs(a - b), "and": lambda _: operator.and_, "or": lambda _: operator.or_,
    "xor": lambda _: operator.xor, "not": lambda _: operator.invert, "cnot": lambda _: lambda a: int(a == 0),
    "lop3": _lop3, "shl": _shl, "shr": _shr, "shf": _shf, "bfe": _bfe, "bfi": _bfi, "bmsk": _bmsk, "prmt": _prmt,
    "popc": lambda _: int.bit_count, "clz": lambda mods: lambda a: _bits(mods) - a.bit_length(), "bfind": _bfind,
    "brev": _brev, "dp4a": _dp4a, "dp2a": _dp2a, "setp": _setp, "set": _set,
    "selp": lambda _: lambda a, b, c: a if c else b, "slct": lambda _: lambda a, b, c: a if c >= 0 else b,
    "cvt": _cvt, "cvta": _cvta, "isspacep": _isspacep, "mapa": _mapa,
    "getctarank": lambda _: lambda a: (a & _WORD) >> 24, "createpolicy": lambda _: lambda: 0,
}  # fmt: skip
"""Base name -> spellings -> what one lane computes."""
