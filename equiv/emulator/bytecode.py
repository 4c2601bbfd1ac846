"""The byte code of a kernel: what the decoder makes, the engines execute, and the layout of registers follows from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.emulator.assignment import Tracking
    from equiv.emulator.ptx import Kernel
    from equiv.emulator.shapes import Shape
    from equiv.emulator.variables import SharedVariable


@dataclass(frozen=True, slots=True)
class Place:
    """What an operand's slot refers to before registers have offsets: `register`, `special`, `value` or `label`."""

    kind: str
    name: str = ""
    value: int = 0
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Decoded:
    """One instruction: its handler's shape (None: no effect), the places of its slots, in the handler's order."""

    shape: Shape | None
    places: tuple[Place, ...]
    outputs: frozenset[str]
    inputs: frozenset[str]
    flow: str

    @property
    def writes_late(self) -> bool:
        """Whether destinations may be written after it: accumulators of `wgmma`, until their group is waited for."""
        return self.shape is not None and self.shape.entry.base == "wgmma"


@dataclass(frozen=True)
class ByteCode:
    """A decoded kernel.

    Attributes:
        instructions: as in the kernel, with an exit behind the last.
        arguments: per instruction the 64-bit arguments of its handler.
        guards: per instruction (offset of the guard predicate, whether it is negated).
        specials: (kind, offset, bytes a lane, value) of each register slot that is filled when a warp starts.
        registers_size: bytes of one warp's register file.
        local_size: bytes of local memory a lane.
        dynamic_at: offset of dynamic shared memory within a CTA's.
        shared: the variables in shared memory.
        tracking: what to do about registers of which it is not certain that something was written to them.
        shadows: where the mask of each of these lies.
        scratch: offset of 256 bytes for following shuffles.
    """

    kernel: Kernel
    arch: str
    instructions: tuple[Decoded, ...]
    arguments: tuple[tuple[int, ...], ...]
    guards: tuple[tuple[int, bool], ...]
    specials: tuple[tuple[int, int, int, int], ...]
    registers_size: int
    dynamic_at: int
    local_size: int
    shared: tuple[SharedVariable, ...] = ()
    tracking: Mapping[int, Tracking] = field(default_factory=dict)
    shadows: Mapping[str, int] = field(default_factory=dict)
    scratch: int = 0
