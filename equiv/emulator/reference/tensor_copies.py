"""Copies of boxes of a tensor that a tensor map describes, and instructions that change tensor maps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from equiv.emulator import faults, tensormap
from equiv.emulator.reference import spaces
from equiv.emulator.reference.atomics import reduce_bytes
from equiv.emulator.reference.copies import deliver
from equiv.emulator.reference.spaces import FaultError, Place
from equiv.emulator.reference.steps import lanes_of
from equiv.emulator.reference.warps import addresses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from equiv.emulator.reference.machine import Warp
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Observer
    from equiv.emulator.tensormap import TensorMap

ALIGN = 128
_CHUNK = 16
(_TYPE, _INTERLEAVED, _BASE, _ROW, _RANK, _SPAN), _REDUCTION, _DIMENSION, _PUBLISHED = range(1, 7), 8, 9, 10
_ROUNDS, _FILL, _FIRST, _NEGATIVE = range(11, 15)
"""Which of the problems of copies in `equiv.emulator.faults`."""
_INTEGERS, _HALVES, _FLOATS = {"u32", "s32", "u64", "s64"}, {"f16", "bf16"}, {"f32", "f32.ftz", "f64"}
_NAN = bytes.fromhex("f77f")
"""Of all float types (measured on an H200)."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box at its coordinates.

    Attributes:
        counts: elements along each dimension in shared memory.
        pitch: bytes between its rows there.
    """

    tensor: TensorMap
    element: int
    counts: tuple[int, ...]
    at: tuple[int, ...]
    pitch: int

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.counts[0] * self.element

    @property
    def span(self) -> int:
        """Bytes of shared memory from its first to behind its last."""
        return (self.tensor.box_bytes // self.row - 1) * self.pitch + self.row

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Of each row its number, and of the part within the tensor: global address, first byte, count of bytes."""
        tensor = self.tensor
        low, high = max(-self.at[0], 0), min(tensor.shape[0] - self.at[0], self.counts[0])
        steps = tensor.steps[1:] or (1,) * (len(self.at) - 1)
        for number, index in enumerate(product(*(range(count) for count in reversed(self.counts[1:])))):
            place = [start + one * step for start, one, step in zip(self.at[1:], reversed(index), steps, strict=True)]
            inside = low < high and all(0 <= one < limit for one, limit in zip(place, tensor.shape[1:], strict=True))
            address = tensor.address + (self.at[0] + low) * self.element
            address += sum(one * stride for one, stride in zip(place, tensor.strides, strict=True))
            yield number, address, low * self.element if inside else 0, (high - low) * self.element if inside else 0

    def chunks(self, where: Place, row: int) -> Iterator[tuple[int, Place]]:
        """Of a row every 16 bytes: their offset in it, and where in shared memory they lie."""
        mask = self.tensor.swizzle // _CHUNK - 1 if self.tensor.swizzle else 0
        for offset in range(0, self.row, _CHUNK):
            address = spaces.shared_address(where) + row * self.pitch + offset
            moved = address ^ (address >> 7 & mask) << 4
            yield offset, Place("shared", where.number, where.at + moved - spaces.shared_address(where))


def _decode(lane: int, address: int, data: bytes, rank: int) -> tuple[TensorMap, int]:
    """A tensor map and the bytes of its elements.

    Raises:
        FaultError: it cannot be used.
    """

    def fault(problem: int, size: int = 0) -> FaultError:
        return FaultError(faults.COPY, lane, address, size, problem)

    word = int.from_bytes(data[8:12], "little")
    if (word >> 4 & 7) + 1 != rank:
        raise fault(_RANK, (word >> 4 & 7) + 1)
    kind = word >> 7 & 15
    if kind > tensormap.ELEMENTS["bf16"]:
        raise fault(_TYPE)
    if word >> 16 & 1:
        raise fault(_ROUNDS)
    if word >> 15 & 1 and kind < tensormap.ELEMENTS["f16"]:
        raise fault(_FILL)
    if word >> 11 & 3:
        raise fault(_INTERLEAVED)
    found = tensormap.decode(data)
    size = tensormap.ELEMENT_BYTES[found.element]
    row = found.box[0] * size
    if found.address % _CHUNK:
        raise fault(_BASE, size)
    if row % _CHUNK:
        raise fault(_ROW, size)
    if found.swizzle and row > found.swizzle:
        raise fault(_SPAN, size)
    return found, size


def _reduces(operation: str, element: str) -> bool:
    """Whether the elements of a tensor have a reduction."""
    if element in _HALVES:
        return operation in {"add", "min", "max"}
    return operation == "add" if element in _FLOATS else element in _INTEGERS


def _put(
    warp: Warp, box: Box, where: Place, rows: Sequence[tuple[int, int, int, int]], observer: Observer | None
) -> None:
    fill = _NAN if box.tensor.nan_fill else b"\0\0"
    for number, address, first, count in rows:
        data = bytearray(fill * (box.row // 2))
        if count:
            data[first : first + count] = spaces.read(warp, Place("global", 0, address), count)
        for offset, there in box.chunks(where, number):
            spaces.write(warp, there, bytes(data[offset : offset + _CHUNK]))
            for at in range(offset, offset + _CHUNK, box.element) if observer is not None else ():
                assert observer is not None
                inside = box.element if first <= at < first + count else 0
                element = Place("shared", there.number, there.at + at - offset)
                observer.copied(warp, element, Place("global", 0, address + at - first), inside, box.element)


def _store(warp: Warp, box: Box, where: Place, operation: str, observer: Observer | None) -> None:
    kind = box.tensor.element.removesuffix(".ftz")
    for number, address, first, count in box.rows():
        if not count:
            continue
        places = list(box.chunks(where, number))
        data = b"".join(spaces.read(warp, there, _CHUNK) for _, there in places)[first : first + count]
        target = Place("global", 0, address)
        if operation:
            reduce_bytes(warp, operation, kind, target, data, flush=box.tensor.element == "f32.ftz")
            continue
        spaces.write(warp, target, data)
        for at in range(first, first + count, box.element) if observer is not None else ():
            assert observer is not None
            chunk = places[at // _CHUNK][1]
            source = Place("shared", chunk.number, chunk.at + at % _CHUNK)
            observer.copied(warp, Place("global", 0, address + at - first), source, box.element, box.element)


def move_box(warp: Warp, step: Step, mask: int, observer: Observer | None) -> None:
    """`cp.async.bulk.tensor` in both directions, and `cp.reduce.async.bulk.tensor`."""
    rank = int(step.mods["dim"][0])
    load, operation = "dst" in step.mods, step.mods.get("op", "")
    space, maps = addresses(warp, step, "t")
    shared = addresses(warp, step, "a")[1]
    barriers = addresses(warp, step, "b")[1] if load else shared
    coordinates = [step.source(warp, f"c{d}") for d in range(rank)]
    ranks = step.source(warp, "ranks") if step.mods.get("multicast") else None
    pair = step.mods.get("group") == "cta_group::2"
    held = {
        lane: spaces.place(warp, space, lane, maps[lane], tensormap.BYTES, write=False, align=64)
        for lane in lanes_of(mask)
    }
    for lane, place in held.items():
        tensor, element = _decode(lane, maps[lane], spaces.read(warp, place, tensormap.BYTES), rank)
        if operation and not _reduces(operation, tensor.element):
            raise FaultError(faults.COPY, lane, maps[lane], element, _REDUCTION)
        at = tuple(one[lane] for one in coordinates)
        if at[0] * element % _CHUNK:
            raise FaultError(faults.COPY, lane, 0, at[0] & 0xFFFF_FFFF, _FIRST)
        negative = next((one for one in at if one < 0), None)
        if not load and negative is not None:
            raise FaultError(faults.COPY, lane, 0, negative & 0xFFFF_FFFF, _NEGATIVE)
        counts = [
            -(-size // (step_ if d else 1))
            for d, (size, step_) in enumerate(zip(tensor.box, tensor.steps, strict=True))
        ]
        box = Box(tensor, element, tuple(counts), at, tensor.swizzle or counts[0] * element)
        rows = list(box.rows())
        for _, address, _, count in rows:
            if count:
                warp.grid.memory.check(lane, address, count, write=not load)
        if load:

            def put(where: Place, box: Box = box, rows: Sequence[tuple[int, int, int, int]] = rows) -> None:
                _put(warp, box, where, rows, observer)

            named = None if ranks is None else ranks[lane]
            span = (box.span, ALIGN, tensor.box_bytes)
            deliver(warp, lane, (shared[lane], barriers[lane]), span, put, ranks=named, pair=pair)
            continue
        where = spaces.place(warp, "shared", lane, shared[lane], box.span, write=False, align=ALIGN)
        _store(warp, box, where, operation, observer)
        warp.grid.events += 1


_DIMENSIONS = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}


def _bits(field: str, d: int, value: int) -> list[tuple[int, int, int]]:
    """What a field changes: byte of a word, mask, new bits."""
    low = value & 0xFFFF_FFFF
    if field == "global_address":
        return [(0, 0xFFFF_FFFF, low), (4, 0xFFFF_FFFF, value >> 32)]
    if field == "rank":
        return [(8, 0x70, low << 4)]
    if field == "box_dim":  # one byte each from byte 0x37 on
        shift = 8 * ((0x37 + d) % 4)
        return [((0x37 + d) // 4 * 4, 255 << shift, (low - 1 & 255) << shift)]
    if field == "global_dim":
        return [(0x20 + 4 * d, 0xFFFF_FFFF, low - 1)]
    if field == "global_stride":
        return [(0xC + 4 * d, 0xFFFF_FFFF, value >> 4), (0x1C, 15 << 4 * d, value >> 36 << 4 * d)]
    if field == "element_stride":
        return [(0x34, 7 << 3 * d, low - 1 << 3 * d)]
    if field == "elemtype":  # tf32 is f32 with a bit that says to round
        rounds = [(8, 1 << 16, 1 << 16)] if low >= 11 else []
        return [*rounds, (8, 15 << 7, (low - 4 if low >= 11 else low) << 7)]
    shift, mask = {
        "interleave_layout": (11, 3 << 11),
        "swizzle_mode": (13, 3 << 13 | 1 << 22),
        "fill_mode": (15, 1 << 15),
    }[field]
    return [(8, mask, low << shift)]


def replace(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`tensormap.replace`."""
    field = step.mods["field"]
    d = step.source(warp, "d")[0] if field in _DIMENSIONS else 0
    values = step.source(warp, "v")
    space, at = addresses(warp, step, "a")
    places = {
        lane: spaces.place(warp, space, lane, at[lane], tensormap.BYTES, write=True, align=64)
        for lane in lanes_of(mask)
    }
    if d >= _DIMENSIONS.get(field, 5):
        raise FaultError(faults.COPY, 0, 0, d, _DIMENSION)
    for lane, where in places.items():
        for byte, bits, value in _bits(field, d, values[lane]):
            word = Place(where.owner, where.number, where.at + byte)
            old = int.from_bytes(spaces.read(warp, word, 4), "little")
            spaces.write(warp, word, (old & ~bits | value & bits).to_bytes(4, "little"))


def publish(warp: Warp, step: Step, mask: int, _: Observer | None) -> None:
    """`tensormap.cp_fenceproxy`: a map from shared to global memory."""
    size = step.source(warp, "i")[0]
    ends = []
    for name, space, write in (("a", "global", True), ("s", "shared", False)):
        at = addresses(warp, step, name)[1]
        ends.append(
            [spaces.place(warp, space, lane, at[lane], tensormap.BYTES, write=write) for lane in lanes_of(mask)]
        )
    if size != tensormap.BYTES:
        raise FaultError(faults.COPY, 0, 0, size, _PUBLISHED)
    spaces.write(warp, ends[0][0], spaces.read(warp, ends[1][0], tensormap.BYTES))
