"""`tcgen05.mma`: reads the instruction descriptor, brings A, B, scales and D together (spec numerics 1.5, 1.6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from equiv.emulator.isa import models
from equiv.emulator.reference import operands, tensor_memory
from equiv.emulator.reference.operands import Problem, problem
from equiv.emulator.reference.steps import lanes_of
from equiv.emulator.reference.tensor_memory import check, pair_member
from equiv.emulator.reference.warps import addresses
from equiv.rounding import matrix

if TYPE_CHECKING:
    from equiv.emulator.reference.machine import Cta, Warp
    from equiv.emulator.reference.operands import Codes
    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Handler, Observer
    from equiv.rounding.matrix_table import MatrixVariant

_PLAIN_RESERVED, _SCALED_RESERVED, _PACKED_RESERVED = 0xE080004F, 0x8700004F, 0x19000
_A_COLUMNS = operands.DEPTH // 4
_SCALE_ADDRESS = 0x3FFF_FFFF  # the two bits above say the byte once more


@dataclass(frozen=True, slots=True)
class Shape:
    """What opcode and instruction descriptor say.

    Attributes:
        pair: CTAs, 1 or 2, that share the product.
        m: rows of all of them; n: columns.
        transposed: A, B.
        scale_ids: first byte of A's and B's scales within a column.
        types: codes of the operands' types.
        lane: of whom a fault is told.
    """

    kind: str
    pair: int
    m: int
    n: int
    negate: bool
    transposed: tuple[bool, bool]
    scale_ids: tuple[int, int]
    types: tuple[int, int]
    model: MatrixVariant
    lane: int

    @property
    def rows(self) -> int:
        """Of each CTA."""
        return self.m // self.pair

    def bits(self, code: int) -> int:
        """Of an element in shared memory, if it is of one of the narrow types."""
        if self.kind in {"mxf4", "mxf4nvf4"}:
            return 4
        if self.kind not in {"f8f6f4", "mxf8f6f4"}:
            return 0
        return 4 if code == 5 else 6 if code >= 3 else 8

    def tensor_lane(self, row: int) -> int:
        """The lane of a CTA's row."""
        return row // 16 * 32 + row % 16 if self.m == 64 else row

    def cell(self, row: int, column: int) -> tuple[int, int]:
        """Lane and column of D's element; of half of a pair's 128 rows the right half is 64 lanes further."""
        lane, half = self.tensor_lane(row), self.n // 2
        if self.pair == 2 and self.m == 128 and column >= half:
            return lane + 64, column - half
        return lane, column


def _field(word: int, low: int, count: int) -> int:
    return word >> low & (1 << count) - 1


def _shape(kind: str, pair: int, block: int, word: int, *, lane: int, arch: str) -> Shape:
    scaled, packed = kind.startswith("mx"), kind in {"mxf4", "mxf4nvf4"}
    reserved = (_SCALED_RESERVED if scaled else _PLAIN_RESERVED) | (_PACKED_RESERVED if packed else 0)
    if word & reserved:
        raise problem(Problem.INSTRUCTION_BITS, word, word & reserved, lane)
    m = _field(word, 27, 2) << 7 if scaled else _field(word, 24, 5) << 4
    n = _field(word, 17, 6) << 3
    rows = m // pair
    if (rows != 128 and (rows != 64 or scaled)) or not 8 <= n <= 256 or (m >= 128 and not scaled and n % 16):
        raise problem(Problem.SHAPE, m, n, lane)
    d = 1 if scaled else _field(word, 4, 2)
    types = _field(word, 7, 3), _field(word, 10, 3)
    key = (models.TENSOR_KINDS.index(kind), d, *types, _field(word, 23, 1) if scaled else 0, int(block == 16))
    name = models.tensor_names().get(key)
    if name is None:
        raise problem(Problem.TYPES, word, 0, lane)
    return Shape(
        kind, pair, m, n, _field(word, 13, 1) != _field(word, 14, 1),
        (bool(_field(word, 15, 1)), bool(_field(word, 16, 1))),
        (_field(word, 29, 2), _field(word, 4, 2)) if scaled else (0, 0),
        types, matrix.variant(name, arch), lane,
    )  # fmt: skip


def _unpack(data: Codes, bits: int, depth: int, *, packed: bool) -> Codes:
    """Codes `[rows, depth]` of sub-byte elements; every 16 take 16 bytes of a row, or 8 in the packed kinds."""
    room = 8 if packed else 16
    groups = data.reshape(data.shape[0], -1, room)[:, : depth // 16]
    every = np.unpackbits(np.ascontiguousarray(groups), axis=-1, bitorder="little")[..., : 16 * bits]
    weights = 1 << np.arange(bits, dtype=np.uint8)
    codes: Codes = (every.reshape(data.shape[0], depth, bits) * weights).sum(axis=-1).astype(np.uint8)
    return codes


def _from_shared(warp: Warp, shape: Shape, cta: Cta, word: int, count: int, *, which: int) -> Codes:
    """A (`which` 0) or B of one CTA: `[count, k]`."""
    at = operands.tensor_descriptor(cta.rank, shape.lane, word)
    bits, transposed, model = shape.bits(shape.types[which]), shape.transposed[which], shape.model
    if bits in {4, 6}:
        if transposed:
            raise problem(Problem.PACKED_OPERAND, 0, 0, shape.lane)
        data = operands.rows(warp, at, 0, count)
        return _unpack(data, bits, model.k, packed=shape.kind in {"mxf4", "mxf4nvf4"})
    dtype = (model.a, model.b)[which].dtype
    return operands.operand(warp, at, 0, count, dtype, transposed=transposed)


def _from_tensor(shape: Shape, cta: Cta, address: int) -> Codes:
    """A from tensor memory: 32 bytes of k in 8 columns of the row's lane."""
    bits, packed = shape.bits(shape.types[0]), shape.kind in {"mxf4", "mxf4nvf4"}
    if shape.transposed[0]:
        raise problem(Problem.TRANSPOSED, 0, 0, shape.lane)
    if shape.pair == 2 and shape.rows == 64:  # where A lies is not known
        raise problem(Problem.SHAPE, shape.m, shape.n, shape.lane)
    if bits == 6 or (bits == 4 and not packed):
        raise problem(Problem.PACKED_OPERAND, 0, 1, shape.lane)
    if address >> 16:
        raise problem(Problem.LANE_ACCESS, address, 0, shape.lane)
    held = check(cta, shape.lane, address, _A_COLUMNS)
    lanes = [shape.tensor_lane(row) for row in range(shape.rows)]
    data = np.ascontiguousarray(held.words[lanes, address : address + _A_COLUMNS])
    if bits == 4:
        return _unpack(data.view(np.uint8), 4, shape.model.k, packed=True)
    return data.view(shape.model.a.dtype)


def _scales(warp: Warp, shape: Shape, address: int, rows: int, which: int) -> Codes:
    """Scales `[rows, count]`: row r in lane r % 32 of every quarter, column r / 32, from byte `scale_ids`."""
    assert shape.model.scales is not None
    count = shape.model.k // shape.model.scales.block
    first, at = shape.scale_ids[which], address & _SCALE_ADDRESS
    if first % count:
        raise problem(Problem.SCALE_ID, first, count, shape.lane)
    if at >> 16:
        raise problem(Problem.LANE_ACCESS, at, 0, shape.lane)
    held = check(warp.cta, shape.lane, at, -(-rows // 32))
    found = np.zeros((rows, count), np.uint8)
    for row in range(rows):
        lanes = [32 * quarter + row % 32 for quarter in range(4)]
        copies = np.ascontiguousarray(held.words[lanes, at + row // 32]).view(np.uint8).reshape(4, 4)
        wanted = copies[:, first : first + count]
        for quarter in range(1, 4):
            if (wanted[quarter] != wanted[0]).any():
                raise problem(Problem.SCALES, row, lanes[quarter], shape.lane)
        found[row] = wanted[0]
    return found


def _accumulate(
    shape: Shape,
    cta: Cta,
    address: int,
    product: tuple[Codes, Codes, Codes | None, Codes | None],
    skip: int,
    *,
    keep: bool,
) -> None:
    """D of a CTA: A B, added to what it was if `keep`; lanes of `skip` keep their values."""
    a, b, scale_a, scale_b = product
    model, held = shape.model, cta.tensor
    assert held is not None
    fmt = model.result.format
    cells = [shape.cell(row, column) for row in range(shape.rows) for column in range(shape.n)]
    lanes, columns = (np.array(one) for one in zip(*cells, strict=True))
    columns = columns + (address & 0xFFFF)
    words = held.words[lanes, columns]
    ones = np.uint32((1 << fmt.width) - 1)
    before = (words & ones).astype(fmt.dtype).reshape(shape.rows, shape.n) if keep else None
    d = matrix.fused_dot(model, a, b, before, negate=shape.negate, scale_a=scale_a, scale_b=scale_b)
    after = words & ~ones | d.reshape(-1).astype(np.uint32)
    kept = np.array([skip >> int(lane) & 1 for lane in lanes], bool)
    held.words[lanes, columns] = np.where(kept, words, after)


def multiply(warp: Warp, step: Step, mask: int, _: Observer | None, *, kind: str, pair: int) -> None:
    """`tcgen05.mma`: one product for every active lane; normally one thread has been elected."""
    targets = addresses(warp, step, "d")[1]
    sixteen = step.mods.get("vec", "") in {"block16", "scale_vec::4X"}
    in_tensor = next(one for one in step.sources if one.name == "a").kind == "address"
    first = addresses(warp, step, "a")[1] if in_tensor else step.source(warp, "a")
    second, words, keeps = step.source(warp, "b"), step.source(warp, "i"), step.source(warp, "c")
    scales = [addresses(warp, step, name)[1] for name in ("fa", "fb")] if kind.startswith("mx") else None
    skips = [step.source(warp, f"x{i}") for i in range(4)] if step.operand("x0") is not None else None
    for lane in lanes_of(mask):
        shape = _shape(kind, pair, 16 if sixteen else 32, words[lane], lane=lane, arch=warp.grid.arch)
        if targets[lane] >> 16:
            raise problem(Problem.LANE_ACCESS, targets[lane], 0, lane)
        parts = [
            _from_shared(warp, shape, pair_member(warp, lane, pair, number), second[lane], shape.n // pair, which=1)
            for number in range(pair)
        ]
        b = np.concatenate(parts).T
        scale_a = scale_b = None
        if scales is not None:
            scale_a = _scales(warp, shape, scales[0][lane], shape.m, 0)
            scale_b = _scales(warp, shape, scales[1][lane], shape.n, 1).T
        skip = 0 if skips is None else sum((one[lane] & 0xFFFF_FFFF) << 32 * i for i, one in enumerate(skips))
        columns = shape.n // 2 if pair == 2 and shape.m == 128 else shape.n
        for number in range(pair):
            cta = pair_member(warp, lane, pair, number)
            check(cta, lane, targets[lane], columns)
            if in_tensor:
                a = _from_tensor(shape, cta, first[lane])
            else:
                a = _from_shared(warp, shape, cta, first[lane], shape.rows, which=0)
            product = a, b, scale_a, scale_b
            _accumulate(shape, cta, targets[lane], product, skip, keep=bool(keeps[lane]))


def find(step: Step) -> Handler | None:
    """What executes a `tcgen05.mma`."""
    if "mma" not in step.mods:
        return tensor_memory.find(step)
    kind = next(one.removeprefix("kind::") for one in step.mods if one.startswith("kind::"))
    return partial(multiply, kind=kind, pair=2 if "cta_group::2" in step.mods else 1)
