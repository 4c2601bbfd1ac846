"""The pair `dsa_front`: `dsa_index` with the query computed, by an RMSNorm of its latent and the projection wq_b.

The oracle is the stock chain of Triton kernels, the candidate one fused CuTe DSL kernel on the tensor cores
(spec/dsa.md 1.1 and 1.2). Quantisation, key, cache and their regimes are those of `equiv.dsa_index`. This package loads
neither torch nor a compiler.
"""

from __future__ import annotations

import importlib

from equiv.dsa_front.regimes import REGIMES, inputs
from equiv.dsa_front.tensors import AXES, layout, output_specs
from equiv.dsa_index.regimes import check
from equiv.dsa_index.subset import subset
from equiv.dsa_index.tensors import outputs, place, shared, whole
from equiv.pairs import Pair, Party, Soak, late

PAIR = Pair(
    name="dsa_front",
    summary="DSA indexer front: RMSNorm of the query latent, projection wq_b, then what dsa_index does",
    axes=AXES,
    regimes=REGIMES,
    oracle=Party("equiv.dsa_front.parties:oracle", ("triton",)),
    candidate=Party("equiv.dsa_front.parties:candidate", ("nvidia-cutlass-dsl",)),
    layout=layout,
    inputs=inputs,
    check=check,
    output_specs=output_specs,
    outputs=outputs,
    undefined=late("equiv.rounding.front:undefined"),
    model=late("equiv.rounding.front:model"),
    envelope=late("equiv.envelope.front:front_envelope"),
    declaration=late("equiv.rounding.declarations:find", "dsa_front"),
    place=place,
    shared=shared,
    quantised=late("equiv.rounding.dsa_quantised:of_front"),
    soak=Soak(
        compiled=("batch", "format", "scale", "normalized", "rows", "key_round", "key_floor"),
        seconds=lambda case: 1.6 + 0.02 * whole(case, "batch"),
        most=3.0,
    ),
    terms=lambda: importlib.import_module("equiv.rounding.declarations").TERMS["dsa_front"],
    subset=subset,
    ledger=lambda: importlib.import_module("equiv.rounding.front_ledger").LEDGER,
    forms={"candidate": ("split1", "split2", "split4")},
    form=late("equiv.dsa_front.parties:form"),
)
"""What the entry point `equiv.pairs` gives."""
