"""Numbers of the matrix models that handlers name: entries of the C table `MODELS`, in the order of `names()`."""

from __future__ import annotations

from functools import cache
from typing import Final

TENSOR_KINDS: Final = ("f16", "tf32", "f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4")
"""Kinds of `tcgen05.mma`, in the order of `TensorKind` in csrc/tensor_mma.h."""

# Codes of the instruction descriptor -> format (spec numerics 1.6).
RESULT_CODES: Final = {0: "f16", 1: "f32"}
OPERAND_CODES: Final = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "mxf8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
SCALE_CODES: Final = {0: "ue4m3", 1: "ue8m0"}
_FP8: Final = ("e4m3", "e5m2")


def mma_name(k: str, d: str, a: str, b: str) -> str:
    """A `mma.sync` as `equiv.rounding.matrix_table` spells it."""
    return f"mma.sync.aligned.m16n8k{k}.row.col.{d}.{a}.{b}.{d}"


def wgmma_name(k: str, d: str, a: str, b: str) -> str:
    """A `wgmma` of any n."""
    return f"wgmma.mma_async.sync.aligned.m64n8k{k}.{d}.{a}.{b}"


def tensor_name(kind: str, d: str, a: str, b: str, *, scale: str = "", block: int = 0) -> str:
    """A `tcgen05.mma` of one CTA."""
    scaled = f".block_scale.block{block}" if scale else ""
    return f"tcgen05.mma.cta_group::1.kind::{kind}{scaled}.{d}.{a}.{b}" + (f".{scale}" if scale else "")


def _warp_names() -> list[tuple[str, str]]:
    found = []
    for family, depths in (("mma", ("8", "16")), ("wgmma", ("16",))):
        name = mma_name if family == "mma" else wgmma_name
        for k in depths:
            found += [name(k, "f32", "f16", "f16"), name(k, "f16", "f16", "f16"), name(k, "f32", "bf16", "bf16")]
        found += [name(k, "f32", "tf32", "tf32") for k in (("4", "8") if family == "mma" else ("8",))]
        found += [
            name(k, d, a, b) for k in (("16", "32") if family == "mma" else ("32",)) for d in ("f32", "f16")
            for a in _FP8 for b in _FP8
        ]  # fmt: skip
    return [(one, "sm_90") for one in found]


def tensor_names() -> dict[tuple[int, int, int, int, int, int], str]:
    """Every `tcgen05.mma` by kind, codes of D, A and B, code of the scale's format, and whether 16 k share a scale."""
    found = {}
    for number, kind in enumerate(TENSOR_KINDS):
        for d_code, d in RESULT_CODES.items():
            for a_code, a in OPERAND_CODES[kind].items():
                for b_code, b in OPERAND_CODES[kind].items():
                    mixed = kind in {"f8f6f4", "mxf8f6f4"} or a == b
                    allowed = d == "f32" or (kind == "f8f6f4" or (kind == "f16" and a == "f16"))
                    if not (mixed and allowed):
                        continue
                    if not kind.startswith("mx"):
                        found[number, d_code, a_code, b_code, 0, 0] = tensor_name(kind, d, a, b)
                        continue
                    scales = [(1, 32)] + ([(1, 16), (0, 16)] if kind == "mxf4nvf4" else [])
                    for code, block in scales:
                        key = (number, d_code, a_code, b_code, code, int(block == 16))
                        found[key] = tensor_name(kind, d, a, b, scale=SCALE_CODES[code], block=block)
    return found


@cache
def names() -> tuple[tuple[str, str], ...]:
    """(instruction, architecture) of every model, by number; both architectures compute what both have alike."""
    return (*_warp_names(), *((name, "sm_100") for name in tensor_names().values()))


@cache
def number(name: str) -> int:
    """Number of a model."""
    return [known for known, _ in names()].index(name)
