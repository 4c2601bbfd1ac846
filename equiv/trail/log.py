"""A launch recorded: who executed which instruction, what its registers held before and what it made of them.

The handlers of a program are wrapped (csrc/trail.c); a program that is not wrapped costs nothing. A log holds some CTAs
of one launch, or only some instructions of all of them.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from equiv import ccode
from equiv.emulator.backend import INCLUDES
from equiv.emulator.layout import LANES
from equiv.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from equiv.emulator.bytecode import Decoded, Place
    from equiv.emulator.engine import Program
    from equiv.emulator.ptx import Instruction
    from equiv.emulator.shapes import Slot

MOST_BYTES = 3 << 30
MOST_EVENTS = 1 << 25
_MAP_NORESERVE = 0x4000
"""Of Linux; `mmap` has it from Python 3.13 on."""
_EVENT = np.dtype([("pc", "<u4"), ("mask", "<u4"), ("cta", "<u4"), ("warp", "<u4"), ("at", "<u8")])
_KEPT = np.dtype([("run", "<u8"), ("part", "<u8"), ("reads", "<u4"), ("writes", "<u4"), ("size", "<u4"),
                  ("guard", "<u4"), ("flip", "<u4"), ("reserved", "<u4")])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """One scalar operand of an instruction as a log keeps it.

    Attributes:
        slot: its name and type; place: what it refers to.
        at: of its lanes behind the first byte of an event; -1: it is a constant, `place.value`.
        lane_bytes: of each lane; 0: a predicate, one mask.
        before: whether the register was read before the instruction; else afterwards.
    """

    slot: Slot
    place: Place
    at: int
    lane_bytes: int
    before: bool

    @property
    def register(self) -> str:
        """Name of the register, or ""."""
        return self.place.name if self.place.kind == "register" else ""


def operands_of(decoded: Decoded) -> tuple[Operand, ...]:
    """The operands of an instruction in the order of its slots, those that are read first; where a log keeps them."""
    if decoded.shape is None:
        return ()
    slots = [one for one in decoded.shape.slots if one.kind not in {"sink", "absent"}]
    pairs = list(zip(slots, decoded.places, strict=False))
    accumulates = decoded.shape.entry.base == "wgmma"
    read = [one for one in pairs if not one[0].out or accumulates]
    written = [one for one in pairs if one[0].out]
    found, at = [], 0
    for before, group in ((True, read), (False, written)):
        for slot, place in group:
            if place.kind not in {"register", "special"}:
                found.append(Operand(slot, place, -1, 0, before))
                continue
            size = 0 if slot.type == "pred" else _bits(slot, place) // 8
            found.append(Operand(slot, place, at, size, before))
            at += size * LANES or 4
    return tuple(found)


def _bits(slot: Slot, place: Place) -> int:
    return place.bits if place.kind == "special" else slot.bits


def _size(operands: Iterable[Operand]) -> int:
    return sum(one.lane_bytes * LANES or 4 for one in operands if one.at >= 0)


class Recorded:
    """A program that keeps what it does in a log.

    Args:
        program: what to launch; stays as it is.
        only: indices of the instructions that are kept; None: all.
    """

    def __init__(self, program: Program, only: frozenset[int] | None = None) -> None:
        self.plain = program
        self.operands = tuple(operands_of(one) for one in program.bytecode.instructions)
        kept = np.zeros(len(program.code), _KEPT)
        parts: list[tuple[int, int]] = []
        starts = []
        for index, operands in enumerate(self.operands):
            starts.append(len(parts))
            arguments = program.bytecode.arguments[index]
            offsets = dict(zip(program.bytecode.instructions[index].places, arguments, strict=True))
            held = [one for one in operands if one.at >= 0]
            parts += [(offsets[one.place], one.lane_bytes * LANES or 4) for one in held]
            reads = sum(one.before for one in held)
            guard, negated = program.bytecode.guards[index]
            flip = 0xFFFF_FFFF if negated else 0
            kept[index] = (program.code["run"][index], 0, reads, len(held) - reads, _size(held), guard, flip, 0)
        table = np.array(parts or [(0, 0)], np.uint32)
        kept["part"] = table.ctypes.data + 8 * np.array(starts, np.uint64)
        self._tables = (kept, table)
        code = program.code.copy()
        chosen = sorted(only) if only is not None else list(range(len(code)))
        code["run"][chosen] = ctypes.cast(_library().trail, ctypes.c_void_p).value
        self.program = replace(program, code=code)

    def begin(self, first: int = 0, last: int = 0xFFFF_FFFF) -> Recording:
        """The next launch of `program` in this process goes into a new recording, of CTAs `first` to `last`."""
        library = _library()
        events = _memory(MOST_EVENTS * _EVENT.itemsize)
        data = _memory(MOST_BYTES)
        for name, pointer in (
            ("trail_kept", self._tables[0].ctypes.data),
            ("trail_event", events.ctypes.data),
            ("trail_data", data.ctypes.data),
        ):
            ctypes.c_void_p.in_dll(library, name).value = pointer
        for name, value in (
            ("trail_events", 0), ("trail_most_events", MOST_EVENTS), ("trail_bytes", 0),
            ("trail_most_bytes", MOST_BYTES),
        ):  # fmt: skip
            ctypes.c_uint64.in_dll(library, name).value = value
        for name, value in (("trail_first", first), ("trail_last", last), ("trail_full", 0)):
            ctypes.c_uint32.in_dll(library, name).value = value
        return Recording(self, events.view(_EVENT), data)


@dataclass(frozen=True, slots=True)
class Recording:
    """A launch under way."""

    recorded: Recorded
    events: npt.NDArray[np.void]
    data: npt.NDArray[np.uint8]

    def end(self) -> Log:
        """The log of the launch that has run.

        Raises:
            DeviceError: it did more than there is room for.
        """
        library = _library()
        if ctypes.c_uint32.in_dll(library, "trail_full").value:
            raise DeviceError(
                f"{self.recorded.plain.name}: more than {MOST_BYTES >> 30} GiB to record; take a smaller case"
            )
        count = ctypes.c_uint64.in_dll(library, "trail_events").value
        return Log(self.recorded, self.events[:count], self.data)


def _memory(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory that costs what is used of it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


@cache
def _library() -> ctypes.CDLL:
    source = INCLUDES[0] / "trail.c"
    return ccode.library("trail", source.read_text(), [INCLUDES[0] / "runtime.h"])


class Log:
    """What one launch did, event by event in the order of execution.

    Attributes:
        events: records of pc, mask (lanes), cta (linear), warp, at.
    """

    def __init__(self, recorded: Recorded, events: npt.NDArray[np.void], data: npt.NDArray[np.uint8]) -> None:
        self.recorded = recorded
        self.program = recorded.plain
        self.events = events
        self._data = data
        self._columns = {name: np.ascontiguousarray(events[name]) for name in ("pc", "mask", "cta", "warp", "at")}

    def __len__(self) -> int:
        return len(self.events)

    def of_ctas(self, members: tuple[int, ...]) -> Log:
        """The events of some CTAs."""
        return Log(self.recorded, self.events[np.isin(self._columns["cta"], members)], self._data)

    def column(self, name: str) -> npt.NDArray[np.integer]:
        """One field of all events."""
        return self._columns[name]

    def pc(self, event: int) -> int:
        """Index of its instruction."""
        return int(self._columns["pc"][event])

    def mask(self, event: int) -> int:
        """Lanes that executed it."""
        return int(self._columns["mask"][event])

    def instruction(self, event: int) -> Instruction:
        """What was executed."""
        return self.program.kernel.instructions[self.pc(event)]

    def decoded(self, event: int) -> Decoded:
        """The same as the engine took it."""
        return self.program.bytecode.instructions[self.pc(event)]

    def operands(self, event: int) -> tuple[Operand, ...]:
        """Its operands."""
        return self.recorded.operands[self.pc(event)]

    def value(self, event: int, operand: Operand, lane: int) -> int:
        """Bits of an operand in a lane, of the register's width."""
        if operand.at < 0:
            return operand.place.value
        start = int(self._columns["at"][event]) + operand.at
        if not operand.lane_bytes:
            bit = int.from_bytes(self._data[start : start + 4].tobytes(), "little") >> lane & 1
            return bit ^ (operand.slot.kind == "not")
        start += lane * operand.lane_bytes
        return int.from_bytes(self._data[start : start + operand.lane_bytes].tobytes(), "little")

    def lanes(self, events: npt.NDArray[np.int64], operand: Operand) -> npt.NDArray[np.uint64]:
        """Bits of one operand of one instruction in all lanes at several of its events, `[events, 32]`."""
        if operand.at < 0:
            return np.full((len(events), LANES), operand.place.value & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
        starts = self._columns["at"][events].astype(np.int64) + operand.at
        width = operand.lane_bytes * LANES or 4
        raw = self._data[starts[:, None] + np.arange(width)]
        if not operand.lane_bytes:
            masks = raw.copy().view("<u4")
            bits = (masks >> np.arange(LANES, dtype=np.uint32) & 1).astype(np.uint64)
            return np.asarray(bits ^ np.uint64(operand.slot.kind == "not"))
        return np.ascontiguousarray(raw).view(f"<u{operand.lane_bytes}").astype(np.uint64)

    @cached_property
    def by_pc(self) -> Mapping[int, npt.NDArray[np.int64]]:
        """Index of an instruction -> its events in order."""
        order = np.argsort(self._columns["pc"], kind="stable")
        pcs, starts = np.unique(self._columns["pc"][order], return_index=True)
        groups = np.split(order, starts[1:]) if len(pcs) else []
        return {int(pc): group for pc, group in zip(pcs, groups, strict=True)}

    def of_warp(self, pc: int, cta: int, warp: int) -> npt.NDArray[np.int64]:
        """Events of one instruction in one warp, in order."""
        key = (pc, cta, warp)
        found = self._warps.get(key)
        if found is None:
            events = self.by_pc.get(pc, np.zeros(0, np.int64))
            mine = (self._columns["cta"][events] == cta) & (self._columns["warp"][events] == warp)
            found = self._warps[key] = events[mine]
        return found

    @cached_property
    def _warps(self) -> dict[tuple[int, int, int], npt.NDArray[np.int64]]:
        return {}

    def turn(self, event: int, lane: int) -> int:
        """How often the lane had executed that instruction before."""
        events = self.of_warp(self.pc(event), *self.thread(event))
        before = events[: int(np.searchsorted(events, event))]
        return int((self._columns["mask"][before] >> np.uint32(lane) & 1).sum())

    def nth(self, pc: int, cta: int, warp: int, lane: int, turn: int) -> int | None:
        """The event at which a lane executes an instruction for the `turn`-th time, from 0; None: it does not."""
        events = self.of_warp(pc, cta, warp)
        mine = events[(self._columns["mask"][events] >> np.uint32(lane) & 1).astype(bool)]
        return int(mine[turn]) if turn < len(mine) else None

    def thread(self, event: int) -> tuple[int, int]:
        """CTA (linear) and warp that executed it."""
        return int(self._columns["cta"][event]), int(self._columns["warp"][event])

    @cached_property
    def writers(self) -> Mapping[str, tuple[int, ...]]:
        """Register -> indices of the instructions that write it."""
        found: dict[str, list[int]] = {}
        for pc, operands in enumerate(self.recorded.operands):
            for one in operands:
                if not one.before and one.register:
                    found.setdefault(one.register, []).append(pc)
        return {name: tuple(dict.fromkeys(pcs)) for name, pcs in found.items()}

    def definition(self, event: int, lane: int, register: str, thread: tuple[int, int] | None = None) -> int | None:
        """The event before this one that last wrote a register of the lane; None: no recorded one did.

        `thread`: CTA and warp, where the event is the end of the log.
        """
        cta, warp = thread or self.thread(event)
        latest = -1
        for pc in self.writers.get(register, ()):
            events = self.of_warp(pc, cta, warp)
            at = int(np.searchsorted(events, event))
            while at > 0:
                at -= 1
                one = int(events[at])
                if one <= latest:
                    break
                if self.mask(one) >> lane & 1:
                    latest = one
                    break
        return None if latest < 0 else latest
