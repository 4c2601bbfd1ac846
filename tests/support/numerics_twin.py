"""The C twin behind ctypes: one array loop for each function of numerics.h and special.h, compiled once a session."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import equiv.rounding

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER = Path(equiv.rounding.__file__).parent / "csrc" / "special.h"


class Twin:
    """`Twin(folder, {"eq_add_rn": 2})("eq_add_rn", a, b)` runs the C function over arrays of bit patterns."""

    def __init__(self, folder: Path, arity: dict[str, int]) -> None:
        self.arity = arity
        self.library = compiled(
            folder,
            f'#include "{HEADER}"\n#include <stddef.h>\n' + "".join(_loop(name, n) for name, n in arity.items()),
        )

    def __call__(self, name: str, *operands: npt.ArrayLike) -> npt.NDArray[np.uint32]:
        """Results as uint32, narrow codes in the low bits."""
        arrays = [np.ascontiguousarray(x) for x in np.broadcast_arrays(*(np.asarray(x, np.uint32) for x in operands))]
        assert len(arrays) == self.arity[name]
        out = np.empty(arrays[0].shape, dtype=np.uint32)
        getattr(self.library, f"run_{name}")(*(pointer(x) for x in (*arrays, out)), ctypes.c_size_t(out.size))
        return out


def compiled(folder: Path, text: str) -> ctypes.CDLL:
    """A library built from C text the way the emulator builds its own, warnings being errors."""
    source, library = folder / "twin.c", folder / "twin.so"
    source.write_text(text)
    flags = ["-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
    subprocess.run(["gcc", *flags, "-shared", "-fPIC", "-o", library, source, "-lm"], check=True)
    return ctypes.CDLL(str(library))


def pointer(array: npt.NDArray[np.uint32]) -> ctypes.c_void_p:
    """Address of an array for a call."""
    return ctypes.c_void_p(array.ctypes.data)


def weighted_sum(results: npt.NDArray[np.unsignedinteger[Any]]) -> int:
    """Sum of result * (2 i + 1) modulo 2^64: the checksum that came with the measured tables."""
    weights = np.arange(1, 2 * results.size, 2, dtype=np.uint64)
    return int(np.sum(results.astype(np.uint64) * weights, dtype=np.uint64))


def _loop(name: str, count: int) -> str:
    operands = "abc"[:count]
    parameters = ", ".join(f"const uint32_t *{x}" for x in operands)
    return (
        f"void run_{name}({parameters}, uint32_t *out, size_t n)"
        f" {{ for (size_t i = 0; i < n; i++) out[i] = {name}({', '.join(f'{x}[i]' for x in operands)}); }}\n"
    )


EDGES = np.array(
    [sign | bits for sign in (0, 0x80000000) for bits in (
        0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000, 0x33000000,
        0x33800000, 0x34000000, 0x3A800000, 0x3E800000, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FFFFFFF,
        0x40000000, 0x40400000, 0x40C00000, 0x42FBFFFF, 0x42FC0000, 0x42FC0001, 0x42FE0000, 0x43000000, 0x43150000,
        0x43160000, 0x43E00000, 0x43E00001, 0x43E80000, 0x43E80001, 0x47600000, 0x47600001, 0x47700000, 0x477FEFFF,
        0x477FF000, 0x4B800000, 0x7E7FFFFF, 0x7E800000, 0x7E800001, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001,
        0x7FC00000, 0x7FFFFFFF)],
    dtype=np.uint32,
)  # fmt: skip


def samples(seed: int, count: int = 1 << 17) -> npt.NDArray[np.uint32]:
    """Edges, every BF16 value as float32, and random bit patterns."""
    random = np.random.default_rng(seed).integers(0, 1 << 32, count, dtype=np.uint32)
    bf16 = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    return np.concatenate([EDGES, bf16, random])


def near(seed: int, center: npt.NDArray[np.uint32], spread: int) -> npt.NDArray[np.uint32]:
    """Random patterns whose exponents lie within `spread` of those of `center`, so that sums interact."""
    rng = np.random.default_rng(seed)
    field = (center >> np.uint32(23) & np.uint32(0xFF)).astype(np.int64) + rng.integers(
        -spread, spread + 1, center.size
    )
    mantissa = rng.integers(0, 1 << 23, center.size) & ~np.where(rng.integers(0, 2, center.size), 0xFFFF, 0)
    sign = rng.integers(0, 2, center.size) << 31
    return np.asarray(sign | np.clip(field, 0, 255) << 23 | mantissa, dtype=np.uint32)


def pairs(values: Iterable[int]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """All ordered pairs of edge values."""
    x = np.array(list(values), dtype=np.uint32)
    return np.repeat(x, x.size), np.tile(x, x.size)
