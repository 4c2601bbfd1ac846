"""Which function executes an instruction that a warp executes together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from equiv.emulator.reference import (
    atomics,
    copies,
    flow,
    matrix,
    mbarriers,
    tensor_copies,
    tensor_mma,
    warps,
    wgmma,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.emulator.reference.steps import Step
    from equiv.emulator.reference.warps import Handler


def _always(handler: Handler) -> Callable[[Step], Handler | None]:
    return lambda _: handler


def _async(plain: Handler | None, step: Step) -> Handler | None:
    """Memory instructions that have an asynchronous form."""
    if "async" in step.mods:
        return copies.store_async
    return copies.store_zeros if "bulk" in step.mods else plain


def _copy(step: Step) -> Handler | None:
    return tensor_copies.move_box if "tensor" in step.mods else copies.find(step)


_FIND: dict[str, Callable[[Step], Handler | None]] = {
    "shfl": _always(warps.shuffle), "vote": _always(warps.vote), "match": _always(warps.match),
    "redux": _always(warps.redux), "elect": _always(warps.elect), "activemask": _always(warps.activemask),
    **dict.fromkeys(("and", "or", "xor", "not"), _always(warps.predicate_logic)),
    "mov": lambda step: warps.clock if step.operand("k") else warps.predicate_logic,
    **dict.fromkeys(("add", "addc", "sub", "subc", "mad", "madc"), _always(warps.carry)),
    "ld": _always(warps.load), "st": partial(_async, warps.store),
    "atom": _always(atomics.atomic), "red": partial(_async, atomics.atomic),
    "cp": _copy, "mbarrier": mbarriers.find,
    "tensormap": lambda step: tensor_copies.replace if "replace" in step.mods else tensor_copies.publish,
    "mma": _always(matrix.multiply), "ldmatrix": _always(matrix.load), "stmatrix": _always(matrix.store),
    "movmatrix": _always(matrix.transpose), "wgmma": wgmma.find, "tcgen05": tensor_mma.find,
}  # fmt: skip

_NOT_FOLLOWED = frozenset({
    copies.store_zeros, tensor_copies.replace, tensor_copies.publish, matrix.transpose,
})  # fmt: skip


def find(step: Step) -> Handler | None:
    """What executes a step of several lanes together; None if there are no semantics for it."""
    chosen = _FIND.get(step.base)
    return None if chosen is None else chosen(step)


def followed(step: Step) -> bool:
    """Whether an observer hears of all values that a step makes or moves, be it that they are hidden from it."""
    if step.lane is not None:
        return True
    if step.base in flow.FLOW:
        return "red" not in step.mods
    if step.base in {"atom", "red"} and step.mods.get("vec"):
        return False
    if find(step) in _NOT_FOLLOWED:
        return False
    asynchronous = step.base == "cp" or find(step) is copies.store_async
    return not asynchronous or "op" not in step.mods
