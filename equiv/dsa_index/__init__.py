"""The pair `dsa_index`: quantise the DSA indexer's query, fold its head weights, normalise and insert its key.

The oracle is the stock chain of Triton kernels, the candidate one fused CuTe DSL kernel (spec/dsa.md). This package
states what both get (`tensors`), with what values (`regimes`), how they are called (`parties`), and what is promised of
the results; it loads neither torch nor a compiler.
"""

from __future__ import annotations

import importlib

from equiv.dsa_index.regimes import REGIMES, check, inputs
from equiv.dsa_index.subset import subset
from equiv.dsa_index.tensors import AXES, layout, output_specs, outputs, place, shared, whole
from equiv.pairs import Pair, Party, Soak, late

PAIR = Pair(
    name="dsa_index",
    summary="DSA indexer front: query to FP8 or MXFP4, folded head weights, key LayerNorm and quantised insert by slot",
    axes=AXES,
    regimes=REGIMES,
    oracle=Party("equiv.dsa_index.parties:oracle", ("triton",)),
    candidate=Party("equiv.dsa_index.parties:candidate", ("nvidia-cutlass-dsl",)),
    layout=layout,
    inputs=inputs,
    check=check,
    output_specs=output_specs,
    outputs=outputs,
    undefined=late("equiv.rounding.dsa:undefined"),
    model=late("equiv.rounding.dsa:model"),
    envelope=late("equiv.envelope.dsa:dsa_envelope"),
    declaration=late("equiv.rounding.declarations:find", "dsa_index"),
    place=place,
    shared=shared,
    misreadings=late("equiv.dsa_index.misreadings:misreadings"),
    quantised=late("equiv.rounding.dsa_quantised:of_index"),
    soak=Soak(
        compiled=("format", "scale", "key_round", "key_floor", "rows"),
        seconds=lambda case: 0.1 + 0.003 * whole(case, "batch"),
        most=0.2,
    ),
    terms=lambda: importlib.import_module("equiv.rounding.declarations").TERMS["dsa_index"],
    subset=subset,
    ledger=lambda: importlib.import_module("equiv.rounding.dsa_ledger").LEDGER,
)
"""What the entry point `equiv.pairs` gives."""
