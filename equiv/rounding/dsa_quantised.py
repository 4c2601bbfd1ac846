"""What `dsa_index` and `dsa_front` quantise: the query by heads or blocks, the key as a whole or by blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equiv.geometry.dsa import BLOCK, DIM, HEADS
from equiv.rounding import dsa, front
from equiv.rounding.formats import E2M1, E4M3
from equiv.rounding.front_ledger import LEDGER
from equiv.rounding.scales import Quantised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from equiv.records import Bits, Case
    from equiv.rounding.declaration import Declaration
    from equiv.rounding.scales import U32, Mask


def of_index(case: Case, inputs: Mapping[str, Bits], declaration: Declaration) -> tuple[Quantised, ...]:
    """Query and key of `dsa_index` as a party with this declaration quantises them."""
    run = dsa.runner(declaration)
    return _both(dsa.Shape.of(case), inputs, declaration, run, dsa.undefined(case, inputs))


def of_front(case: Case, inputs: Mapping[str, Bits], declaration: Declaration) -> tuple[Quantised, ...]:
    """Query and key of `dsa_front`: the query is what the declared projection gives."""
    run = dsa.runner(declaration, LEDGER)
    q = {"q": front.query(case, inputs, declaration, run)}
    return _both(front.shape_of(case), {**inputs, **q}, declaration, run, front.undefined(case, inputs))


def _both(
    shape: dsa.Shape,
    inputs: Mapping[str, Bits],
    declaration: Declaration,
    run: dsa.Runner,
    undefined: Mapping[str, Bits],
) -> tuple[Quantised, ...]:
    q = run("dsa.R10a", inputs["q"])
    x = run("dsa.R10a", inputs["projected"][dsa.written(inputs), shape.key_at : shape.key_at + DIM])
    y = dsa.normalise(shape, inputs, x, declaration, run)
    if shape.fp4:
        return _blocks("q", q, undefined), _blocks("key", y, undefined)
    weight = run("dsa.R10a", inputs["projected"][:, shape.weight_at : shape.weight_at + HEADS]).ravel()

    def fold(scale: U32) -> Bits:
        folded: Bits = run("dsa.R15b", run("dsa.R15a", weight, scale))
        return folded[:, None]

    return (
        Quantised(
            "q_codes",
            "weights",
            "head",
            q.reshape(-1, DIM),
            E4M3,
            np.uint32(dsa.QUERY_FLOOR),
            _open(undefined, "weights"),
            fold,
        ),
        Quantised(
            "key_codes",
            "key_scale",
            "key",
            y,
            E4M3,
            np.uint32(shape.key_floor),
            np.asarray(undefined["key_codes"], dtype=np.bool_)[:, 0],
            lambda scale: dsa.stored_scale(shape, scale).reshape(len(scale), 4 if shape.mx else 1),
            direct=not shape.mx,
        ),
    )


def _blocks(name: str, values: U32, undefined: Mapping[str, Bits]) -> Quantised:
    """Values in blocks of 32 channels, each with a UE8M0 byte."""
    return Quantised(
        f"{name}_codes",
        f"{name}_scale",
        "block",
        values.reshape(values.size // BLOCK, BLOCK),
        E2M1,
        np.uint32(dsa.MX_FLOOR),
        _open(undefined, f"{name}_scale"),
        lambda scale: (scale >> np.uint32(23)).astype(np.uint8)[:, None],
    )


def _open(undefined: Mapping[str, Bits], name: str) -> Mask:
    return np.asarray(undefined[name], dtype=np.bool_).ravel()
