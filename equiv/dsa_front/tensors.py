"""Shapes, strides and contracts of the pair `dsa_front`; the cache, its bytes and the outputs are `dsa_index`'s.

Source: spec/dsa.md 1.0 (packed row), 2.3 and 2.5 (what may differ). Knows no values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from equiv.dsa_index import tensors as index
from equiv.geometry.front import OUTPUTS, RANK
from equiv.pairs import Axis
from equiv.records import TensorSpec

if TYPE_CHECKING:
    from equiv.records import AxisValue, Case, OutputSpec

_INDEX = {axis.name: axis for axis in index.AXES}

AXES = (
    _INDEX["batch"],
    _INDEX["format"],
    _INDEX["scale"],
    Axis("normalized", "bool", False, "the query latent comes normalised, as a tensor of its own", (False, True)),  # noqa: FBT003
    Axis("rows", "str", "dense", "columns of key and weights, and the row's pitch", ("dense", "packed")),
    _INDEX["key_round"],
    _INDEX["key_floor"],
    Axis("eps", "float", 1e-6, "added to the latent's mean square", low=1e-12, high=1.0),
    replace(_INDEX["eps"], name="key_eps"),
    _INDEX["pages"],
    _INDEX["page_stride"],
)
_DEFAULTS = {axis.name: axis.default for axis in AXES}

_ROWS = {
    "dense": {"width": 1696, "key_at": 1536, "weight_at": 1664, "row_pitch": 1696},
    "packed": {"width": 2272, "key_at": 2112, "weight_at": 2240, "row_pitch": 2304},
}


def axis(case: Case, name: str) -> AxisValue:
    """The value of an axis, its default where the case does not name it."""
    return case.axes.get(name, _DEFAULTS[name])


def rows(case: Case) -> dict[str, int]:
    """`width`, `key_at`, `weight_at` and `row_pitch` of the projected row, in elements; the latent is at column 0."""
    return _ROWS[str(axis(case, "rows"))]


def is_normalized(case: Case) -> bool:
    """Whether the latent comes normalised, in tensor `q_c`."""
    return bool(axis(case, "normalized"))


def layout(case: Case) -> tuple[TensorSpec, ...]:
    """The tensors both parties get; `q_c` only where the latent comes normalised."""
    batch, row = index.whole(case, "batch"), rows(case)
    beside = {spec.name: spec for spec in index.layout(case)}
    q_c = TensorSpec("q_c", "input", "bf16", (batch, RANK), (RANK, 1))
    return (
        TensorSpec("projected", "input", "bf16", (batch, row["width"]), (row["row_pitch"], 1)),
        *((q_c,) if is_normalized(case) else ()),
        TensorSpec("w_q", "input", "bf16", (OUTPUTS, RANK), (RANK, 1)),
        TensorSpec("w_qa", "input", "bf16", (RANK,), (1,)),
        *(beside[name] for name in ("norm_w", "norm_b", "cache", "slots", "q_out", "w_out")),
    )


_PAIRED = "one allowed scale explains codes and folded weight of a head (fp4: of a block)"
_PROJECTED = "products of the projection may be added in another declared order, squares of the norm too"


def output_specs(case: Case) -> tuple[OutputSpec, ...]:
    """The logical outputs of `dsa_index`; of the query, what follows the projection's order is an envelope."""
    mine = {"q_codes": f"{_PROJECTED}; {_PAIRED}", "q_scale": f"{_PROJECTED}; {_PAIRED}"}
    if not index.is_fp4(case):
        mine["weights"] = f"{_PROJECTED}; {_PAIRED}"
    return tuple(
        replace(spec, contract="envelope", promise=mine[spec.name]) if spec.name in mine else spec
        for spec in index.output_specs(case)
    )
