"""What integer arithmetic makes of known inputs, for all threads of a CTA at a time.

Values are the bits of a register by thread, uint64 `[threads]`, a predicate's 0 or 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from equiv.emulator.isa.table import TYPE_BITS

if TYPE_CHECKING:
    from equiv.emulator.ptx import Instruction

Values = npt.NDArray[np.uint64]
WARP = 32
_COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
            "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
            "hs": np.greater_equal}  # fmt: skip
_BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def lanes(one: Instruction, given: list[Values | None]) -> Values | None:
    """The lane that each thread gets its value from, itself where the source is out of range."""
    mode, (lane, clamp, members) = one.opcode.split(".")[2], given[1:4]
    if lane is None or clamp is None or members is None or (members & 0xFFFFFFFF != 0xFFFFFFFF).any():
        return None
    own = np.arange(len(lane)).astype(np.int64) % WARP
    by, most, segment = ((given & 31).astype(np.int64) for given in (lane, clamp, clamp >> np.uint64(8)))
    least = own & segment
    last = least | (most & ~segment)
    source = {"idx": least | (by & ~segment), "bfly": own ^ by, "up": own - by, "down": own + by}[mode]
    valid = source >= last if mode == "up" else source <= last
    return np.where(valid, source & (WARP - 1), own).astype(np.uint64)


def computed(one: Instruction, given: list[Values | None], count: int) -> Values | None:
    """What an instruction makes of known inputs, by thread; None if it is not one of those known here."""
    words = one.opcode.split(".")
    if words[0] == "shfl" and words[1] == "sync" and given[0] is not None:
        source = lanes(one, given)
        start = np.arange(count) // WARP * WARP
        return None if source is None else given[0][start + source.astype(np.int64)]
    inputs = [value for value in given if value is not None]
    kind = words[-1]
    bits = 1 if kind == "pred" else TYPE_BITS.get(kind, 0)
    if len(inputs) != len(given) or not bits or kind[0] not in "usbp" or kind.startswith("bf16"):
        return None
    with np.errstate(over="ignore"):
        return _arithmetic(words, inputs, kind, bits)


def _arithmetic(words: list[str], given: list[Values], kind: str, bits: int) -> Values | None:
    base, rest = words[0], words[1:-1]
    ones = np.uint64((1 << bits) - 1)
    signed = kind[0] == "s"
    numbers = [_number(value, bits, signed=signed) for value in given]
    result: Values | None = None
    if base == "mov" and len(given) == 1 and not rest:
        result = given[0]
    elif base in {"add", "sub"} and not rest:
        result = given[0] + given[1] if base == "add" else given[0] - given[1]
    elif base in {"mul", "mad"} and rest in (["lo"], ["wide"]) and (rest == ["lo"] or bits <= 32):
        result = (numbers[0] * numbers[1]).astype(np.uint64)
        ones = ones if rest == ["lo"] else np.uint64((1 << 2 * bits) - 1)
        result = result + given[2] if base == "mad" else result
    elif base in _BITWISE and not rest:
        result = _BITWISE[base](given[0], given[1])
    elif base == "not" and not rest:
        result = ~given[0]
    elif base in {"shl", "shr"} and not rest:
        by = np.minimum(given[1] & np.uint64(0xFFFFFFFF), np.uint64(bits))
        if base == "shl":
            result = np.where(by >= bits, np.uint64(0), given[0] << by)
        else:
            moved = numbers[0] >> np.minimum(by, np.uint64(bits - 1)).astype(numbers[0].dtype)
            result = np.where((by >= bits) & (not signed), 0, moved.astype(np.uint64)).astype(np.uint64)
    elif base in {"min", "max"} and not rest:
        result = (np.minimum if base == "min" else np.maximum)(numbers[0], numbers[1]).astype(np.uint64)
    elif base == "setp" and len(rest) == 1 and rest[0] in _COMPARE:
        return np.asarray(_COMPARE[rest[0]](numbers[0], numbers[1])).astype(np.uint64)
    elif base == "selp" and not rest:
        result = np.where(given[2] & np.uint64(1) != 0, given[0], given[1])
    elif base == "cvt" and len(rest) == 1 and rest[0] in TYPE_BITS and rest[0][0] in "us":
        ones = np.uint64((1 << TYPE_BITS[rest[0]]) - 1)
        result = numbers[0].astype(np.uint64)
    return None if result is None else result & ones


def _number(value: Values, bits: int, *, signed: bool) -> npt.NDArray[np.uint64] | npt.NDArray[np.int64]:
    """The low bits as a number, in 64 bits."""
    low = value & np.uint64((1 << bits) - 1)
    if not signed:
        return low
    sign = np.uint64(1 << bits - 1)
    return ((low ^ sign) - sign).astype(np.int64)
