"""The pair `skeleton_name`: RMSNorm of rows of 128 channels. Replace it by your operator, piece by piece.

`oracle.py` and `candidate.py` hold the two kernels, `numbers.py` the model: what both promise, bit for bit. This module
says what they get and what is compared; it loads neither torch nor a compiler, so that `equiv list` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equiv import inputs as make
from equiv.inputs import Draws
from equiv.pairs import Axis, Pair, Party, late
from equiv.records import OutputSpec, TensorSpec
from equiv.rounding.formats import F32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from equiv.records import Bits, Case

    Fill = Callable[[Draws, tuple[int, int]], Bits]

DIM = 128
PITCH = DIM + 16
"""Elements from one input row to the next: what a kernel reads or writes between rows is found out."""

AXES = (
    Axis("rows", "int", 17, "rows to normalise", low=1, high=65536),
    Axis("eps", "float", 1e-6, "added to the mean square", low=1e-12, high=1.0),
)

# Named value distributions; the first one of a tensor is its default. Random values alone find few faults: add the
# edges of your operator (ties of each rounding, zeros of both signs, sums that cancel).
X: Mapping[str, Fill] = {
    "normal": make.normal,
    "wide": lambda draws, shape: make.wide(draws, shape, low=-20, high=20),
    "zero_rows": make.zero_groups,
    "one_hot": make.one_hot,
}
W: Mapping[str, Fill] = {
    "normal": lambda draws, shape: make.normal(draws, shape, F32, center=0, spread=1),
    "wide": lambda draws, shape: make.wide(draws, shape, F32, low=-12, high=12),
}


def layout(case: Case) -> tuple[TensorSpec, ...]:
    """The tensors both kernels get. State that is updated in place would have the role "inout"."""
    rows = int(case.axes["rows"])
    return (
        TensorSpec("x", "input", "bf16", (rows, DIM), (PITCH, 1)),
        TensorSpec("w", "input", "f32", (DIM,), (1,)),
        TensorSpec("y", "output", "bf16", (rows, DIM), (DIM, 1)),
    )


def inputs(case: Case) -> dict[str, Bits]:
    """Bits of x uint16 [rows, 128] and w uint32 [128]; a row of x is what a regime calls a group."""
    rows = int(case.axes["rows"])
    return {
        "x": X[case.regimes["x"]](Draws(case.seed, "x"), (rows, DIM)),
        "w": W[case.regimes["w"]](Draws(case.seed, "w"), (1, DIM))[0],
    }


def output_specs(case: Case) -> tuple[OutputSpec, ...]:
    """What is compared: `envelope` may differ as the parties declare, `bitwise` may not."""
    del case
    return (OutputSpec("y", "bf16", ("row", "channel"), "envelope", "the sum of squares may be taken in any order"),)


def outputs(case: Case, inputs: Mapping[str, Bits], tensors: Mapping[str, Bits]) -> dict[str, Bits]:
    """The logical outputs cut from the tensors after the run."""
    del case, inputs
    return {"y": tensors["y"]}


PAIR = Pair(
    name="skeleton_name",
    summary="RMSNorm of rows of 128 channels, weight in FP32",
    axes=AXES,
    regimes={"x": tuple(X), "w": tuple(W)},
    oracle=Party("skeleton_name.oracle:run", ("triton",)),
    candidate=Party("skeleton_name.candidate:run", ("nvidia-cutlass-dsl",)),
    layout=layout,
    inputs=inputs,
    check=lambda _case: [],
    output_specs=output_specs,
    outputs=outputs,
    undefined=lambda _case, _inputs: {},
    # Named as text, so that they are imported when a case runs.
    model=late("skeleton_name.numbers:model"),
    envelope=late("skeleton_name.numbers:envelope"),
    declaration=late("skeleton_name.numbers:declaration"),
    ledger=late("skeleton_name.numbers:ledger"),
    terms=late("skeleton_name.numbers:terms"),
)
