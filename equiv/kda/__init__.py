"""The pair `kda`: one decode step of a KDA layer, from the projected rows to the gated norm, with its state in place.

The oracle is the stock chain of Triton kernels, the candidates are fused CuTe DSL kernels (spec/kda.md). This package
states what both get (`tensors`), with what values (`regimes`), how they are called (`parties`), and what is promised of
the results; it loads neither torch nor a compiler.
"""

from __future__ import annotations

import importlib

from equiv.kda.regimes import REGIMES, check, inputs
from equiv.kda.subset import recut, subset
from equiv.kda.tensors import AXES, FORMS, form, layout, output_specs, outputs, seconds
from equiv.kda.words import place, shared
from equiv.pairs import Pair, Party, Soak, late

PAIR = Pair(
    name="kda",
    summary="KDA decode: convolution, gate projection, delta rule by slot, gated norm; or records and commit",
    axes=AXES,
    regimes=REGIMES,
    oracle=Party("equiv.kda.parties:oracle", ("triton",)),
    candidate=Party("equiv.kda.parties:candidate", ("nvidia-cutlass-dsl",)),
    layout=layout,
    inputs=inputs,
    check=check,
    output_specs=output_specs,
    outputs=outputs,
    undefined=late("equiv.rounding.kda:undefined"),
    model=late("equiv.rounding.kda:model"),
    envelope=late("equiv.envelope.kda:kda_envelope"),
    declaration=late("equiv.rounding.declarations:find", "kda"),
    place=place,
    shared=shared,
    soak=Soak(
        compiled=("tokens", "heads", "mode", "kernel", "gate_mode", "bias", "window", "state", "ctas"),
        seconds=seconds,
        most=1.2,
    ),
    ledger=lambda: importlib.import_module("equiv.rounding.kda_ledger").LEDGER,
    misreadings=late("equiv.kda.misreadings:misreadings"),
    misread=late("equiv.kda.misreadings:misread"),
    forms=FORMS,
    form=form,
    terms=lambda: importlib.import_module("equiv.rounding.declarations").TERMS["kda"],
    subset=subset,
    recut=recut,
)
"""What the entry point `equiv.pairs` gives."""
