"""Checksums of instructions over every input, measured on one H200, and the comparison of the C twins with them.

A float32 instruction of one operand has 512 binades of 2^23 inputs, one for each value of the leading nine bits. The
checksum of a binade is the sum of (m ^ m >> 32) * (2 i + 1) modulo 2^64 over its inputs i, where m is the result times
an odd constant; without that step whole binades with a wrong sign or exponent would have the same sum. All that
tests/gpu/sweep_special.py compared on the GPU itself, with no mismatch, can so be compared again without one.
"""

from __future__ import annotations

import ctypes
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from equiv import ccode
from equiv.rounding import mufu, special

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BINADES: Final = 512
INPUTS: Final = 1 << 23
_ODD: Final = 0x9E3779B97F4A7C15

TWINS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ex2.approx.ftz.f32": "eq_ex2_ftz",
        "ex2.approx.f32": "eq_ex2",
        "rcp.approx.ftz.f32": "eq_rcp_ftz",
        "rcp.approx.f32": "eq_rcp",
        "rsqrt.approx.ftz.f32": "eq_rsqrt_ftz",
        "rsqrt.approx.f32": "eq_rsqrt",
        "sqrt.approx.ftz.f32": "eq_sqrt_ftz",
        "sqrt.approx.f32": "eq_sqrt",
        "lg2.approx.ftz.f32": "eq_lg2_ftz",
        "lg2.approx.f32": "eq_lg2",
        "tanh.approx.f32": "eq_tanh",
        "rcp.rn.f32": "eq_rcp_rn",
        "rcp.rn.ftz.f32": "eq_rcp_rn_ftz",
        "sqrt.rn.f32": "eq_sqrt_rn",
        "sqrt.rn.ftz.f32": "eq_sqrt_rn_ftz",
        "cvt.rn.bf16.f32": "eq_cvt_bf16_rn",
        "cvt.rz.bf16.f32": "eq_cvt_bf16_rz",
        "cvt.rn.f16.f32": "eq_cvt_f16_rn",
        "cvt.rna.tf32.f32": "eq_cvt_tf32_rna",
        "cvt.rn.tf32.f32": "eq_cvt_tf32_rn",
        "cvt.rz.tf32.f32": "eq_cvt_tf32_rz",
    }
)
"""Measured instructions and the functions that compute them in csrc."""


@cache
def measured() -> Mapping[str, npt.NDArray[np.uint64]]:
    """The H200's checksums: instruction -> uint64 [512]."""
    with np.load(mufu.TABLES / "h200_sweep.npz") as stored:
        return MappingProxyType({name: stored[name] for name in TWINS})


def checksum(results: npt.NDArray[Any]) -> int:
    """The checksum of the results of consecutive inputs."""
    mixed = results.astype(np.uint64) * np.uint64(_ODD)
    weights = np.arange(1, 2 * results.size, 2, dtype=np.uint64)
    return int(np.sum((mixed ^ mixed >> np.uint64(32)) * weights, dtype=np.uint64))


@cache
def _library() -> ctypes.CDLL:
    loops = "".join(
        f"uint64_t sum_{twin}(uint32_t start) {{ uint64_t sum = 0; for (uint32_t i = 0; i < {INPUTS}u; i++)"
        f" {{ uint64_t m = (uint64_t){twin}(start + i) * {_ODD:#x}u; sum += (m ^ m >> 32) * (2 * (uint64_t)i + 1); }}"
        " return sum; }\n"
        for twin in TWINS.values()
    )
    library = ccode.library("sweeps", f'#include "{special.SOURCES[0].parent}/special.h"\n{loops}', special.SOURCES)
    for twin in TWINS.values():
        getattr(library, f"sum_{twin}").restype = ctypes.c_uint64
    return library


def differing(instruction: str, binades: Iterable[int] = range(BINADES)) -> list[int]:
    """Binades (leading nine bits) in which the C twin does not reproduce the H200; about 0.06 s a binade.

    Raises:
        UnsupportedError: gcc is not there.
    """
    function, expected = getattr(_library(), f"sum_{TWINS[instruction]}"), measured()[instruction]
    return [binade for binade in binades if function(ctypes.c_uint32(binade << 23)) != int(expected[binade])]
