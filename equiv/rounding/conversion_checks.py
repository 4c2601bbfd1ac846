"""Conversions checked over every input: the C twin against a second formulation in C and against the definition.

The second formulation (csrc/second.h) shifts the significand and compares what falls off with a half, where the twin
adds a bias or a float; its parameters are the facts of `formats`. Codes are narrowed after they were widened.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from equiv import ccode
from equiv.rounding import conversions, formats, special
from equiv.rounding.conversions import CONVERSIONS, Conversion, Mode
from equiv.rounding.formats import BF16, E2M1, E2M3, E3M2, E4M3, E5M2, F16, F32, TF32, UE8M0, Format

if TYPE_CHECKING:
    from collections.abc import Sequence

Count = tuple[int, int]
"""How many values were compared, and how many differed."""

BINADES: Final = 512
INPUTS: Final = 1 << 23
_CSRC: Final = Path(__file__).parent / "csrc"


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A conversion from float32: the function of csrc/numerics.h, and what it must do.

    Attributes:
        twin: name of the C function.
        mode: `RN`, `RNA` (ties away from zero), `RZ` or `RP`.
        saturates: what lies beyond the largest number becomes it.
        keeps: Inf and NaN lose their low bits as any other pattern (`cvt.rna.tf32`).
        dropped: low bits of the twin's result that are zeros and no part of the code.
        definition: the same in Python, where there is one.
    """

    name: str
    twin: str
    target: Format
    mode: str
    saturates: bool = False
    keeps: bool = False
    dropped: int = 0
    definition: Conversion | None = None

    @property
    def facts(self) -> str:
        """C initialiser of its `second_format`."""
        f = self.target
        beyond = f.nan if f.infinity is None else f.infinity
        past_end = f.largest if self.saturates else beyond
        small = (f.fraction, f.emin, int(f.subnormals), f"SECOND_{self.mode}", int(self.keeps), 32 - f.width)
        return f"{{{', '.join(map(str, (*small, f.largest, past_end, f.nan, f.sign_mask)))}}}"

    def against_second(self, binades: Sequence[int] = range(BINADES)) -> Count:
        """The twin and the second formulation over all 2^23 inputs of each binade (leading nine bits)."""
        count = getattr(_library(), f"differ_{self.twin}")
        return len(binades) * INPUTS, sum(count(ctypes.c_uint32(binade << 23)) for binade in binades)

    def against_definition(self, bits: npt.NDArray[np.uint32] | None = None) -> Count:
        """The twin and the definition; by default over all inputs that have few bits, and both neighbours of each.

        Every midpoint between two codes of a format of at most 10 fraction bits is among these.
        """
        assert self.definition is not None
        x = _near_short() if bits is None else bits
        return x.size, int(np.sum(self.definition(x) != _converted(self.twin, x)))


def _near_short() -> npt.NDArray[np.uint32]:
    """Patterns whose low 12 bits are zeros, one below and one above each."""
    short = np.arange(1 << 20, dtype=np.uint32) << np.uint32(12)
    return np.concatenate([short, short - np.uint32(1), short + np.uint32(1)])


def _narrowings() -> tuple[Narrowing, ...]:
    named = [
        Narrowing("cvt.rn.bf16.f32", "eq_cvt_bf16_rn", BF16, "RN", definition=CONVERSIONS["bf16.f32.rn"]),
        Narrowing("cvt.rz.bf16.f32", "eq_cvt_bf16_rz", BF16, "RZ"),
        Narrowing("cvt.rn.f16.f32", "eq_cvt_f16_rn", F16, "RN", definition=CONVERSIONS["f16.f32.rn"]),
        Narrowing("cvt.rn.tf32.f32", "eq_cvt_tf32_rn", TF32, "RN", dropped=13),
        Narrowing("cvt.rna.tf32.f32", "eq_cvt_tf32_rna", TF32, "RNA", keeps=True, dropped=13),
        Narrowing("cvt.rz.tf32.f32", "eq_cvt_tf32_rz", TF32, "RZ", dropped=13),
    ]
    for target in (E4M3, E5M2, E2M3, E3M2, E2M1):
        definition = Conversion(f"{target.name}.f32.rn.satfinite", F32, target, Mode.RN, saturates=True)
        name, twin = f"cvt.rn.satfinite.{target.name}x2", f"eq_cvt_{target.name}_rn_satfinite"
        named.append(Narrowing(name, twin, target, "RN", saturates=True, definition=definition))
    for mode in ("rz", "rp"):
        for end in ("", ".satfinite"):
            name, twin = f"cvt.{mode}{end}.ue8m0x2", f"eq_cvt_ue8m0_{mode}{end.replace('.', '_')}"
            definition = CONVERSIONS[f"ue8m0.f32.{mode}{end}"]
            named.append(Narrowing(name, twin, UE8M0, mode.upper(), saturates=bool(end), definition=definition))
    return tuple(named)


NARROWED: Final = _narrowings()
WIDENED: Final = ("bf16", "f16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "ue8m0")
"""Formats with a function `eq_NAME_to_f32`."""


@cache
def _library() -> ctypes.CDLL:
    text = ['#include "special.h"', '#include "second.h"', "#include <stddef.h>"]
    text += [
        f"uint32_t differ_{one.twin}(uint32_t start) {{ uint32_t wrong = 0;"
        f" for (uint32_t i = 0; i < {INPUTS}u; i++) {{ uint32_t x = start + i;"
        f" wrong += {one.twin}(x) >> {one.dropped} != SECOND(x, {one.facts}); }} return wrong; }}"
        for one in NARROWED
    ]
    text += [
        f"void run_{name}(const uint32_t *x, uint32_t *y, size_t n)"
        f" {{ for (size_t i = 0; i < n; i++) y[i] = {name}(x[i]); }}"
        for name in (*(one.twin for one in NARROWED), *(f"eq_{name}_to_f32" for name in WIDENED))
    ]
    library = ccode.library("conversions", "\n".join(text) + "\n", (_CSRC / "second.h", *special.SOURCES))
    for one in NARROWED:
        getattr(library, f"differ_{one.twin}").restype = ctypes.c_uint32
    return library


def _converted(function: str, bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Results of a C function over an array."""
    source = np.ascontiguousarray(bits)
    result = np.empty_like(source)
    arguments = (ctypes.c_void_p(array.ctypes.data) for array in (source, result))
    getattr(_library(), f"run_{function}")(*arguments, ctypes.c_size_t(source.size))
    return result


def round_trip(fmt: Format) -> Count:
    """Every code of a format: widened by the twin and by the definition to its exact value, and narrowed back.

    A NaN code is widened to a NaN and comes back as the format's one NaN; an infinity that saturates comes back as the
    largest number.
    """
    codes = np.arange(1 << fmt.width, dtype=np.uint32)
    wide = _converted(f"eq_{fmt.name}_to_f32", codes)
    nan = formats.is_nan(codes, fmt)
    exact = formats.decode(codes, fmt)
    with np.errstate(invalid="ignore"):
        value = wide.view(np.float32).astype(np.float64)
    wrong = (value.view(np.uint64) != exact.view(np.uint64)) & ~(nan & np.isnan(value))
    wrong |= conversions.widen(codes.astype(fmt.dtype), fmt) != wide
    for one in NARROWED:
        if one.target is not fmt or one.definition is None:
            continue
        magnitude, sign = codes & fmt.magnitude_mask, codes & fmt.sign_mask
        expected = np.where(nan, fmt.nan, codes)
        if one.saturates and fmt.infinity is not None:
            expected = np.where(magnitude == fmt.infinity, sign | fmt.largest, expected)
        wrong |= (_converted(one.twin, wide) != expected) | (one.definition(wide) != expected)
    return codes.size, int(wrong.sum())
