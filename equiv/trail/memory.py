"""Which instruction of a log last wrote some bytes, with what, and where a load reads.

Addresses are those that instructions use: of global memory host addresses; of shared memory 32 bits, the rank of the
CTA in its cluster in the top byte. Asynchronous copies count where they are issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.isa.table import TYPE_BITS
from equiv.emulator.layout import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from equiv.emulator.bytecode import Decoded
    from equiv.trail.log import Log, Operand

    Words = npt.NDArray[np.uint64]
    Events = npt.NDArray[np.int64]
    Codes = npt.NDArray[np.uint8]
    Mine = Callable[[Events, Events], npt.NDArray[np.bool_]]
    """Whether an event in a lane is of the thread whose memory it is."""

GLOBAL, SHARED, LOCAL, PARAM, OTHER = range(5)
SPACES = ("global", "shared", "local", "parameter", "other")
_WINDOWS = {0x01000000: SHARED, 0x02000000: LOCAL}
_NARROW = np.uint64(0xFFFF_FFFF)
_ROW = 16


@dataclass(frozen=True, slots=True)
class Bytes:
    """`size` bytes of memory at an address of a space; `owner` tells one thread's local memory from another's."""

    space: int
    address: int
    size: int
    owner: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """The instruction that last wrote a byte.

    Attributes:
        event, lane: who did.
        operand: what was stored, or None.
        byte: which of its bytes, or of the bytes copied.
        source: where a copy took that byte from, or None (of a copy: it filled that byte with zero).
        size: bytes that this one store wrote from that byte on.
    """

    event: int
    lane: int
    operand: Operand | None
    byte: int
    source: Bytes | None
    size: int


def named(operands: Iterable[Operand], name: str) -> Operand:
    """The operand of that name.

    Raises:
        KeyError: there is none.
    """
    for one in operands:
        if one.slot.name == name:
            return one
    raise KeyError(name)


def vector(operands: Iterable[Operand], stem: str, *, before: bool) -> list[Operand]:
    """The operands `b`, or `b0`, `b1`, ... in order."""
    return [
        one
        for one in operands
        if one.before == before and one.slot.name.rstrip("0123456789") == stem and one.slot.kind != "address"
    ]


def _stored(operands: Iterable[Operand]) -> list[Operand]:
    """What a store writes, in order: `b...`, of an asynchronous one `v...`."""
    known = list(operands)
    return vector(known, "b", before=True) or vector(known, "v", before=True)


def mods(decoded: Decoded) -> dict[str, str]:
    """Spelling of each group of its modifiers, without those that have no effect."""
    assert decoded.shape is not None
    return dict(decoded.shape.mods)


def addresses(log: Log, events: Events, name: str) -> tuple[Words, npt.NDArray[np.uint8]]:
    """An address operand of one instruction at several of its events: addresses and spaces, both `[events, 32]`."""
    operands = log.operands(int(events[0]))
    base, offset = named(operands, name), named(operands, f"{name}+")
    at = log.lanes(events, base) + np.uint64(offset.place.value & 0xFFFF_FFFF_FFFF_FFFF)
    space = base.slot.type.partition("::")[0]
    known = {"global": GLOBAL, "const": GLOBAL, "shared": SHARED, "local": LOCAL, "param": PARAM}
    if space in known:
        spaces = np.full(at.shape, known[space], np.uint8)
    elif space in {"", "generic"}:
        spaces = np.full(at.shape, GLOBAL, np.uint8)
        for window, one in _WINDOWS.items():
            spaces[at >> np.uint64(32) == window] = one
    else:
        spaces = np.full(at.shape, OTHER, np.uint8)
    return np.where(spaces == GLOBAL, at, at & _NARROW), spaces


def reads(log: Log, event: int, lane: int) -> tuple[Bytes, ...]:
    """What a load reads in a lane, one for each of its results; of `ldmatrix` two for each, low half first."""
    decoded = log.decoded(event)
    operands = log.operands(event)
    assert decoded.shape is not None
    at, spaces = addresses(log, np.array([event]), "a")
    if decoded.shape.entry.base == "ldmatrix":
        found = []
        for i in range(len(vector(operands, "d", before=False))):
            first, second = lane // 4, 2 * (lane % 4)
            trans = bool(mods(decoded).get("trans"))
            cells = [(second, first), (second + 1, first)] if trans else [(first, second), (first, second + 1)]
            for row, column in cells:
                found.append(Bytes(int(spaces[0, 8 * i + row]), int(at[0, 8 * i + row]) + 2 * column, 2))
        return tuple(found)
    size = TYPE_BITS[mods(decoded)["type"]] // 8
    space = int(spaces[0, lane])
    owner = (*log.thread(event), lane) if space == LOCAL else None
    count = max(len([one for one in decoded.shape.slots if one.out]), 1)
    return tuple(Bytes(space, int(at[0, lane]) + i * size, size, owner) for i in range(count))


class _Writes:
    """Writes to one space, by address.

    Attributes:
        start, size, event, lane: of each write (of `stmatrix` each row, under the lane that gives its address).
        most: bytes of the largest.
    """

    def __init__(self, writes: list[tuple[Events, Events, Words, Events]]) -> None:
        event, lane, start, size = (np.concatenate(columns) for columns in zip(*writes, strict=True))
        order = np.lexsort((event, start))
        self.event, self.lane, self.start, self.size = event[order], lane[order], start[order], size[order]
        self.most = int(size.max(initial=0))

    def last(self, address: int, size: int, before: int, mine: Mine | None) -> list[int]:
        """Places of the writes of the last event ahead of `before` that overlaps some bytes."""
        low = int(self.start.searchsorted(np.uint64(max(address - self.most + 1, 0))))
        high = int(self.start.searchsorted(np.uint64(address + size)))
        kept = self.event[low:high] < before
        kept &= self.start[low:high] + self.size[low:high].view(np.uint64) > np.uint64(address)
        if mine is not None:
            kept &= mine(self.event[low:high], self.lane[low:high])
        some = np.flatnonzero(kept)
        if not len(some):
            return []
        events = self.event[low:high][some]
        return [low + int(one) for one in some[events == events.max()]]


class Memory:
    """Stores of a log, to be searched.

    Attributes:
        opaque: indices of executed instructions that write memory in ways that are not followed (tensor copies).
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        found: dict[tuple[int, bool], list[tuple[Events, Events, Words, Events]]] = {}
        opaque = []
        for pc, events in log.by_pc.items():
            kind = writes(log.program.bytecode.instructions[pc])
            if kind == "opaque":
                opaque.append(pc)
            elif kind:
                at, spaces, sizes, active = self._of(events, kind)
                for space in np.unique(spaces):
                    rows, lanes = np.nonzero(active & (spaces == space))
                    size = sizes[rows, lanes].astype(np.int64)
                    large = bool(size.max(initial=0) > _ROW)  # apart: where large ones may begin is a wide field
                    found.setdefault((int(space), large), []).append((events[rows], lanes, at[rows, lanes], size))
        self._writes = {key: _Writes(some) for key, some in found.items()}
        self.opaque = tuple(sorted(opaque))

    def _of(self, events: Events, kind: str) -> tuple[Words, Codes, Words, npt.NDArray[np.bool_]]:
        """Addresses, spaces, sizes of what one instruction writes at its events, and which of the lanes do."""
        log = self.log
        operands = log.operands(int(events[0]))
        start, space = addresses(log, events, "a")
        active = (log.column("mask")[events][:, None] >> np.arange(LANES, dtype=np.uint32) & 1).astype(bool)
        if kind == "rows":
            rows = 8 * len(vector(operands, "s", before=True))
            return start, space, np.full_like(start, _ROW), active & (np.arange(LANES) < rows)
        if kind in {"bulk", "copy"}:
            return start, space, log.lanes(events, named(operands, "n" if kind == "bulk" else "e")), active
        known = mods(log.decoded(int(events[0])))
        size = TYPE_BITS[known["type"]] // 8 * max(len(_stored(operands)), 1)
        return start, space, np.full_like(start, size), active

    def pieces(
        self, where: Bytes, before: int, apart: npt.NDArray[np.integer] | None = None
    ) -> list[tuple[int, int, Store | None]]:
        """Who last wrote each byte ahead of an event: (first byte, bytes, store), together all of `where`, in order.

        `apart`: CTAs whose writes do not count.
        """
        whole = self._last(where, where.address, where.size, before, apart)
        if whole is None:
            return [(0, where.size, None)]
        one = self._at(whole, where.address)
        if one is not None and one.size >= where.size:
            return [(0, where.size, one)]
        found: list[tuple[int, int, Store | None]] = []
        for at in range(where.size):
            last = self._last(where, where.address + at, 1, before, apart)
            one = None if last is None else self._at(last, where.address + at)
            start, count, earlier = found[-1] if found else (0, 0, None)
            follows = (
                one is not None and earlier is not None and _place(one) == (*_place(earlier)[:4], earlier.byte + count)
            )
            if found and (follows or (one is None and earlier is None)):
                found[-1] = (start, count + 1, earlier)
            else:
                found.append((at, 1, one))
        return found

    def _last(
        self, where: Bytes, address: int, size: int, before: int, apart: npt.NDArray[np.integer] | None
    ) -> tuple[_Writes, int] | None:
        """The last write that overlaps `size` bytes at an address of the space of `where`."""
        mine: Mine | None = None
        if apart is not None:

            def mine(events: Events, _: Events) -> npt.NDArray[np.bool_]:
                return ~np.isin(self.log.column("cta")[events], apart)

        elif where.owner is not None:
            owner = where.owner

            def mine(events: Events, lanes: Events) -> npt.NDArray[np.bool_]:
                column = self.log.column
                return np.asarray(
                    (column("cta")[events] == owner[0]) & (column("warp")[events] == owner[1]) & (lanes == owner[2])
                )

        best: tuple[_Writes, int] | None = None
        for (space, _), one in self._writes.items():
            places = one.last(address, size, before, mine) if space == where.space else ()
            if places and (best is None or one.event[places[0]] > best[0].event[best[1]]):
                # of lanes that store to one address the last one stays: see equiv/emulator/isa/memory.py
                step = 128 // min(max(int(one.size[places[0]]), 4), 128)
                best = one, max(places, key=lambda at: int(one.lane[at]) ^ (step - 1))
        return best

    def _at(self, found: tuple[_Writes, int], address: int) -> Store | None:
        """What a write left at an address; None: it begins behind."""
        one, at = found
        byte = address - int(one.start[at])
        return None if byte < 0 else self._store(int(one.event[at]), int(one.lane[at]), byte, int(one.size[at]))

    def touched(self, space: int) -> npt.NDArray[np.uint64]:
        """Spans of a space that were written, (address, bytes), `[n, 2]`, ascending."""
        found = [np.zeros((0, 2), np.uint64)]
        for (own, _), one in self._writes.items():
            if own == space:
                found.append(np.stack([one.start, one.size.astype(np.uint64)], axis=1))
        every = np.concatenate(found)
        every = every[np.lexsort((every[:, 1], every[:, 0]))]
        fresh = np.ones(len(every), np.bool_)
        fresh[1:] = (every[1:] != every[:-1]).any(axis=1)
        return np.asarray(every[fresh])

    def read(self, space: int) -> npt.NDArray[np.int64]:
        """Spans of a space that loads and copies read, (address, bytes), `[n, 2]`."""
        log, found = self.log, [np.zeros((0, 2), np.int64)]
        for pc, events in log.by_pc.items():
            decoded = log.program.bytecode.instructions[pc]
            kind = writes(decoded)
            if decoded.shape is None or (decoded.shape.entry.base != "ld" and kind not in {"copy", "bulk"}):
                continue
            at, spaces = addresses(log, events, "s" if kind else "a")
            if kind:
                size = _copied(log, events, kind)
            else:
                count = sum(slot.out for slot in decoded.shape.slots)
                size = np.full_like(at, TYPE_BITS[mods(decoded)["type"]] // 8 * max(count, 1))
            mine = (log.column("mask")[events][:, None] >> np.arange(LANES, dtype=np.uint32) & 1).astype(bool)
            mine &= (spaces == space) & (size > 0)
            found.append(np.stack([at[mine], size[mine]], axis=1).astype(np.int64))
        return np.unique(np.concatenate(found), axis=0)

    def _store(self, event: int, lane: int, byte: int, size: int) -> Store:
        """What byte `byte` of what a lane wrote is."""
        log, operands = self.log, self.log.operands(event)
        decoded = log.decoded(event)
        kind = writes(decoded)
        if kind == "rows":
            value = vector(operands, "s", before=True)[lane // 8]
            row, column = lane % 8, byte // 2
            first, second = (column, row) if mods(decoded).get("trans") else (row, column)
            return Store(event, 4 * first + second // 2, value, 2 * (second % 2) + byte % 2, None, 2 - byte % 2)
        if kind in {"bulk", "copy"}:
            count = int(_copied(log, np.array([event]), kind)[0, lane])
            if byte >= count:
                return Store(event, lane, None, byte, None, size - byte)
            at, spaces = addresses(log, np.array([event]), "s")
            source = Bytes(int(spaces[0, lane]), int(at[0, lane]) + byte, 1)
            return Store(event, lane, None, byte, source, count - byte)
        if kind == "plain":
            values = _stored(operands)
            each = size // len(values)
            return Store(event, lane, values[byte // each], byte % each, None, each - byte % each)
        return Store(event, lane, None, byte, None, size - byte)


def _copied(log: Log, events: Events, kind: str) -> Words:
    """Bytes that a copy reads, `[events, 32]`; the others of what it writes `cp.async` fills with zeros."""
    operands = log.operands(int(events[0]))
    if kind == "bulk":
        return log.lanes(events, named(operands, "n"))
    size = log.lanes(events, named(operands, "e"))
    part = next((one for one in operands if one.slot.name == "b"), None)
    if part is None:
        return size
    given = log.lanes(events, part)
    return np.where(given != 0, 0, size) if part.slot.type == "pred" else np.minimum(given & _NARROW, size)


def writes(decoded: Decoded) -> str:
    """How an instruction writes memory: `plain`, `rows`, `copy`, `bulk`, `atomic`, `opaque`, or "" if it does not."""
    if decoded.shape is None:
        return ""
    known, base = mods(decoded), decoded.shape.entry.base
    groups = {group.name for group in decoded.shape.entry.groups}
    if base == "st":
        return "opaque" if "bulk" in groups else "plain"
    if base == "stmatrix":
        return "rows"
    if base in {"atom", "red"}:
        return "opaque" if "async" in groups else "atomic"
    if base != "cp" or not any(slot.name == "a" for slot in decoded.shape.slots):
        return ""
    if "arrive" in groups:
        return ""
    if "bulk" not in groups:
        return "copy"
    return "opaque" if "tensor" in groups or "reduce" in groups or known.get("multicast") else "bulk"


def stores_global(decoded: Decoded) -> bool:
    """Whether an instruction may write global memory in a way that is followed."""
    kind = writes(decoded)
    if not kind or kind == "opaque":
        return False
    assert decoded.shape is not None
    space = next(slot.type for slot in decoded.shape.slots if slot.name == "a")
    return space in {"global", "generic", ""}


def _place(one: Store) -> tuple[int, int, Operand | None, bool, int]:
    return one.event, one.lane, one.operand, one.source is None, one.byte
