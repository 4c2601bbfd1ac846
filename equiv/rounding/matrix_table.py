"""Which matrix instructions are modelled, and with which parameters: the table of spec numerics 1.2 as records.

An instruction is named as PTX spells it. What `tcgen05.mma` takes from its instruction descriptor and not from its
name, the types of D, A, B and of the block scales, is appended: `tcgen05.mma.cta_group::1.kind::f16.f32.bf16.bf16`,
`tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16.f32.e2m1.e2m1.ue4m3`. Anything else raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn

from equiv.errors import UnknownInstructionError
from equiv.rounding.conversions import Mode
from equiv.rounding.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, FORMATS, TF32, UE4M3, UE8M0, Format

if TYPE_CHECKING:
    from collections.abc import Sequence

MEASURED: Final = "measured on an H200"
SAME_AS_MEASURED: Final = "as measured on an H200; for this architecture by published models"
PUBLISHED: Final = "published models"
PAIR_ASSUMED: Final = "published models; that a CTA pair computes as one CTA does is an assumption"


@dataclass(frozen=True, slots=True)
class Result:
    """C and D, and how a fused sum becomes D.

    Attributes:
        format: of C and D.
        zero_exponent: the largest exponent of a sum is never taken as less than this.
        kept: fraction bits of the result; those of `format` below them are zeros.
        mode: RZ or RN; an overflow gives Inf in both.
    """

    format: Format
    zero_exponent: int
    kept: int
    mode: Mode


TO_F32: Final = Result(F32, -133, 23, Mode.RZ)
TO_F16: Final = Result(F16, -21, 10, Mode.RN)
TO_E8M13: Final = Result(F32, -133, 13, Mode.RZ)
TO_F32_GROUPED: Final = Result(F32, -139, 23, Mode.RZ)


@dataclass(frozen=True, slots=True)
class Scales:
    """Block scales: their format, and how many consecutive k share one."""

    format: Format
    block: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: instructions which share their parameters.

    Attributes:
        family: `mma.sync`, `wgmma` or `tcgen05`.
        kind: the `.kind::` qualifier, "" for none.
        architectures: where it exists.
        operands: formats that A and B may have.
        results: what C and D may be.
        depths: values of k, products per output of one instruction.
        align: bits kept below the largest exponent of a fused sum; every term is cut there.
        mixed: A and B may differ.
        dropped: low bits of an operand's element that are not read.
        unpacked: operands become F16; one fused sum over the k with k % 4 in {0, 1} from zero, one over the others, and
            C is added last, to nearest. This is how ptxas expands 8-bit `mma.sync` (spec numerics 1.4).
        scales: the block scales it may have; none means that it has none.
        group: consecutive k whose products are added exactly and count as one term.
    """

    family: str
    kind: str
    architectures: tuple[str, ...]
    operands: tuple[Format, ...]
    results: tuple[Result, ...]
    depths: tuple[int, ...]
    align: int = 25
    mixed: bool = False
    dropped: int = 0
    unpacked: bool = False
    scales: tuple[Scales, ...] = ()
    group: int = 1


_BOTH: Final = ("sm_90", "sm_100")
_HOPPER: Final = ("sm_90",)
_BLACKWELL: Final = ("sm_100",)
_ANY: Final = (TO_F32, TO_F16)
_FP8: Final = (E4M3, E5M2)
_NARROW: Final = (E4M3, E5M2, E2M3, E3M2, E2M1)
_PER_32: Final = Scales(UE8M0, 32)

ROWS: Final = (
    Row("mma.sync", "", _BOTH, (F16,), _ANY, (8, 16)),
    Row("mma.sync", "", _BOTH, (BF16,), (TO_F32,), (8, 16)),
    Row("mma.sync", "", _BOTH, (TF32,), (TO_F32,), (4, 8), dropped=13),
    Row("mma.sync", "", _BOTH, _FP8, _ANY, (16, 32), mixed=True, unpacked=True),
    Row("wgmma", "", _HOPPER, (F16,), _ANY, (16,)),
    Row("wgmma", "", _HOPPER, (BF16,), (TO_F32,), (16,)),
    Row("wgmma", "", _HOPPER, (TF32,), (TO_F32,), (8,), dropped=13),
    Row("wgmma", "", _HOPPER, _FP8, (TO_E8M13, TO_F16), (32,), align=13, mixed=True),
    Row("tcgen05", "f16", _BLACKWELL, (F16,), _ANY, (16,)),
    Row("tcgen05", "f16", _BLACKWELL, (BF16,), (TO_F32,), (16,)),
    Row("tcgen05", "tf32", _BLACKWELL, (TF32,), (TO_F32,), (8,), dropped=13),
    Row("tcgen05", "f8f6f4", _BLACKWELL, _NARROW, _ANY, (32,), mixed=True),
    Row("tcgen05", "mxf8f6f4", _BLACKWELL, _NARROW, (TO_F32,), (32,), mixed=True, scales=(_PER_32,)),
    Row("tcgen05", "mxf4", _BLACKWELL, (E2M1,), (TO_F32_GROUPED,), (64,), align=35, scales=(_PER_32,), group=16),
    Row("tcgen05", "mxf4nvf4", _BLACKWELL, (E2M1,), (TO_F32_GROUPED,), (64,), align=35, group=16,
        scales=(_PER_32, Scales(UE8M0, 16), Scales(UE4M3, 16))),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MatrixVariant:
    """One instruction on one architecture.

    Attributes:
        instruction: as it was asked for.
        architecture: `sm_90` or `sm_100`.
        row: its line of the table.
        a, b: formats of the operands.
        result: C and D.
        k: products per output.
        blocks: the k which one fused sum takes, a tuple for each sum, in the order of the sums.
        scales: of the blocks of A and of B, or None.
        evidence: where the parameters come from.
    """

    instruction: str
    architecture: str
    row: Row
    a: Format
    b: Format
    result: Result
    k: int
    blocks: tuple[tuple[int, ...], ...]
    scales: Scales | None
    evidence: str

    @property
    def multiplied(self) -> tuple[Format, Format]:
        """The formats in which the products of A and B are taken."""
        return (F16, F16) if self.row.unpacked else (self.a, self.b)


_NAMES: Final = (
    ("mma.sync", re.compile(
        r"mma\.sync\.aligned\.m16n8k(?P<k>\d+)\.row\.col\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)\.(?P<c>\w+)")),
    ("wgmma", re.compile(
        r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k(?P<k>\d+)\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)")),
    ("tcgen05", re.compile(
        r"tcgen05\.mma\.cta_group::(?P<pair>[12])\.kind::(?P<kind>\w+)(?:\.block_scale)?"
        r"(?:\.(?P<block>block\d+|scale_vec::\dX))?(?:\.collector::\w+(?:::\w+)*)*"
        r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)(?:\.(?P<scale>u\w+))?")),
)  # fmt: skip


@cache
def variant(instruction: str, arch: str) -> MatrixVariant:
    """The model of an instruction.

    Args:
        instruction: PTX's name, see the module's docstring.
        arch: `sm_90`, `sm_90a`, `sm_100`, `sm_100a` or `sm_100f`.

    Raises:
        UnknownInstructionError: it is not modelled, or the architecture does not have it; the text says which.
    """

    def refuse(reason: str) -> NoReturn:
        raise UnknownInstructionError(instruction, reason)

    architecture = arch.rstrip("af")
    if architecture not in _BOTH:
        refuse(f"no matrix instructions are modelled for {arch}; modelled: {', '.join(_BOTH)}")
    family, found = next(((f, m) for f, p in _NAMES if (m := p.fullmatch(instruction))), (None, None))
    if found is None:
        refuse("this form of a matrix instruction is not modelled")
    part = found.groupdict()
    unknown = [part[name] for name in ("d", "a", "b") if part[name] not in FORMATS]
    if unknown:
        refuse(f"no model for operands of type {', '.join(unknown)}")
    if part.get("c", part["d"]) != part["d"]:
        refuse(f"no model for C of type {part['c']} with D of type {part['d']}")
    d, a, b = (FORMATS[part[name]] for name in ("d", "a", "b"))
    rows: Sequence[Row] = [
        row for row in ROWS
        if (row.family, row.kind) == (family, part.get("kind") or "") and a in row.operands and b in row.operands
        and (a is b or row.mixed) and any(result.format is d for result in row.results)
    ]  # fmt: skip
    if not rows:
        refuse(f"no model for D, A, B of types {d.name}, {a.name}, {b.name}")
    row = rows[0]
    if architecture not in row.architectures:
        refuse(f"{arch} does not have it, only {', '.join(row.architectures)}")
    k = int(part.get("k") or row.depths[0])
    if k not in row.depths:
        refuse(f"no model for k = {k}; modelled: {', '.join(map(str, row.depths))}")
    scales = _scales(row, part.get("scale"), part.get("block"))
    if bool(row.scales) != (scales is not None):
        allowed = ", ".join(f"block{s.block} {s.format.name}" for s in row.scales) or "none"
        asked = " ".join(filter(None, (part.get("block"), part.get("scale")))) or "none"
        refuse(f"no model for these block scales: {asked}; modelled: {allowed}")
    if row.unpacked:
        blocks = tuple(tuple(i for i in range(k) if i % 4 // 2 == half) for half in (0, 1))
    else:
        blocks = (tuple(range(k)),)
    evidence = MEASURED if architecture == "sm_90" else SAME_AS_MEASURED if family == "mma.sync" else PUBLISHED
    if part.get("pair") == "2":
        evidence = PAIR_ASSUMED
    result = next(result for result in row.results if result.format is d)
    return MatrixVariant(instruction, architecture, row, a, b, result, k, blocks, scales, evidence)


def _scales(row: Row, name: str | None, block: str | None) -> Scales | None:
    """The row's scales of that format name and block; a block that is not spelt is the only one, or none."""
    found = [scales for scales in row.scales if scales.format.name == name]
    if block is not None:
        size = int(block[5:]) if block.startswith("block") else row.depths[0] // int(block[-2])
        found = [scales for scales in found if scales.block == size]
    return found[0] if len(found) == 1 else None


def modelled() -> tuple[MatrixVariant, ...]:
    """Every variant of the table once, at its shortest name, for checks that go through all of them."""
    variants = []
    for row in ROWS:
        pairs = [(a, b) for a in row.operands for b in row.operands if a is b or row.mixed]
        for arch in row.architectures:
            for result in row.results:
                for a, b in pairs:
                    d = result.format.name
                    types = f"{d}.{a.name}.{b.name}"
                    if row.family == "mma.sync":
                        names = [f"mma.sync.aligned.m16n8k{k}.row.col.{types}.{d}" for k in row.depths]
                    elif row.family == "wgmma":
                        names = [f"wgmma.mma_async.sync.aligned.m64n8k{k}.{types}" for k in row.depths]
                    else:
                        start = f"tcgen05.mma.cta_group::1.kind::{row.kind}"
                        names = [f"{start}.block_scale.block{s.block}.{types}.{s.format.name}" for s in row.scales]
                        names = names or [f"{start}.{types}"]
                    variants += [variant(name, arch) for name in names]
    return tuple(variants)
