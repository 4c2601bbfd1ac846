"""Where the variables of a kernel lie: offsets in shared and local memory, in the order of their declarations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equiv.errors import UnknownInstructionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from equiv.emulator.ptx import Kernel, Module


@dataclass(frozen=True, slots=True)
class SharedVariable:
    """A variable in shared memory: its first byte's offset within the CTA's; dynamic ones have no size."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Variables:
    """Sizes and places.

    Attributes:
        offsets: name -> (space, offset) of every variable in shared or local space.
        shared: those in shared memory by ascending offset, dynamic ones last.
        dynamic_at: offset of dynamic shared memory, which is all of static shared memory in bytes, aligned.
        local: bytes of local memory a lane.
    """

    offsets: dict[str, tuple[str, int]]
    shared: tuple[SharedVariable, ...]
    dynamic_at: int
    local: int


def align(value: int, to: int) -> int:
    """`value` rounded up to a multiple of `to`."""
    return (value + to - 1) // to * to


def place(module: Module, kernel: Kernel) -> Variables:
    """Lay out the variables of a kernel and its module.

    Raises:
        UnknownInstructionError: one is in a space that is not supported.
    """
    sizes = {"shared": 0, "local": 0}
    offsets: dict[str, tuple[str, int]] = {}
    shared = []
    for variable in (*module.variables, *kernel.variables):
        if variable.space in {"global", "const"}:
            continue
        if variable.space not in sizes:
            raise UnknownInstructionError(f".{variable.space} {variable.name}", "no such state space here")
        if variable.extern:
            continue
        at = align(sizes[variable.space], variable.align)
        offsets[variable.name] = (variable.space, at)
        sizes[variable.space] = at + variable.size
        if variable.space == "shared":
            shared.append(SharedVariable(variable.name, at, variable.size))
    dynamic_at = sizes["shared"]
    dynamic = [one for one in module.variables if one.extern and one.space == "shared"]
    for variable in dynamic:  # behind the static shared memory; all of them are the same memory
        dynamic_at = align(dynamic_at, variable.align)
    offsets.update({variable.name: ("shared", dynamic_at) for variable in dynamic})
    shared += [SharedVariable(variable.name, dynamic_at, 0) for variable in dynamic]
    return Variables(offsets, tuple(shared), dynamic_at, align(sizes["local"], 16))


def describe(shared: Sequence[SharedVariable], offset: int) -> str:
    """A byte of shared memory by its offset and, if it lies in one, the variable: ``offset 72 (`bar` + 8)``."""
    found = ""
    for one in shared:
        if one.offset <= offset and (not one.size or offset < one.offset + one.size):
            found = f" (`{one.name}` + {offset - one.offset})"
    return f"offset {offset}{found}"
