"""What the PTX of the stock KDA chain must contain to be the stock chain: chains, approximations, contractions."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from equiv.triton_ref.kda import convolve, norm, project, recover, recur

ARCHES = ("sm_90a", "sm_100a")
HEAD = {"H": 12, "K": 128, "EPS": 1e-6}
KERNELS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "project.0": (project.project_kernel, 4, {"N": 1536, "K": 128, "CHAINS": 1, "BM": 16, "BN": 32}),
    "project.1": (project.project_kernel, 4, {"N": 1536, "K": 128, "CHAINS": 4, "BM": 16, "BN": 32}),
    "convolve": (
        convolve.convolve_kernel,
        4,
        {"T": 1, "C": 4608, "BC": 256, "TAPS": 4, "HAS_BIAS": False, "HAS_ACCEPTED": False},
    ),
    "packed": (recur.packed_kernel, 4, HEAD | {"BV": 32}),
    "multi": (recur.multi_kernel, 1, HEAD | {"BV": 8, "ROUNDED": False}),
    "verify": (recover.verify_kernel, 4, HEAD | {"BV": 32, "T": 2}),
    "fold": (recover.fold_kernel, 4, HEAD | {"BV": 32, "T": 2}),
    "norm": (norm.norm_kernel, 8, {"H": 12, "K": 128, "BM": 16}),
}
BF16 = ("f_a", "f_b", "raw", "rows", "window", "mixed", "beta", "out", "key_gate", "x", "gate")
FLOATS = ("weight", "bias", "a_log", "dt_bias", "state", "corrections")
INTEGERS = ("slots", "accepted", "counts", "final", "boundary", "boundary_counts")
TYPES = (
    dict.fromkeys(BF16, "*bf16")
    | dict.fromkeys(FLOATS, "*fp32")
    | dict.fromkeys(INTEGERS, "*i32")
    | dict.fromkeys(("lower_bound", "scale", "eps"), "fp32")
)
UNALIGNED = ("T", "M", "beta_pitch", "slots_stride", "column_stride")


@cache
def ptx(name: str, arch: str) -> str:
    """PTX of a kernel with an FP32 state, made without a GPU; pointers and pitches are multiples of 16."""
    kernel, warps, constants = KERNELS[name]
    types = TYPES | ({"weight": "*bf16"} if name == "norm" else {})
    names = kernel.arg_names
    signature = {arg: "constexpr" if arg in constants else types.get(arg, "i32") for arg in names}
    aligned = {
        (at,): [["tt.divisibility", 16]]
        for at, arg in enumerate(names)
        if signature[arg][0] in "*i" and arg not in UNALIGNED
    }
    source = ASTSource(kernel, signature, {(names.index(arg),): value for arg, value in constants.items()}, aligned)
    target = GPUTarget("cuda", int(re.sub(r"\D", "", arch)), 32)
    text: str = triton.compile(source, target=target, options={"num_warps": warps}).asm["ptx"]
    assert f".target {arch}" in text
    return text


MATRIX = re.compile(r"mma\.sync\.aligned\.m16n8k16\S+ \{ ([^}]*) \}, \{[^}]*\}, \{[^}]*\}, \{ ([^}]*) \}")
MOVE = re.compile(r"mov\.b32\s+(%r\d+), (%r\d+|0);")


def chains(text: str) -> list[int]:
    """Lengths of the chains of matrix instructions; the first of each must find zeros in its accumulator."""
    depth: dict[str, int] = {}
    ends: dict[str, int] = {}
    for line in text.splitlines():
        if found := MOVE.search(line):
            depth[found[1]] = 0 if found[2] == "0" else depth.get(found[2], -1)
        elif found := MATRIX.search(line):
            first, *others = (depth.get(register, -1) for register in found[2].split(", "))
            assert first >= 0, line
            assert set(others) <= {first}, line
            depth |= dict.fromkeys(found[1].split(", "), first + 1)
            ends[found[1]] = first + 1
    return list(ends.values())


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("name", "expected"), [("project.0", [8]), ("project.1", [2, 2, 2, 2])])
def test_the_projection_is_one_chain_of_eight_or_four_of_two_from_zero(
    name: str, expected: list[int], arch: str
) -> None:
    text = ptx(name, arch)
    assert chains(text) == expected
    assert "wgmma" not in text
    assert "tcgen05" not in text


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["packed", "multi"])
def test_a_step_divides_by_the_square_root_and_verification_multiplies_by_its_inverse(name: str, arch: str) -> None:
    assert ptx(name, arch).count("sqrt.approx.ftz.f32") == 2
    assert "rsqrt" not in ptx(name, arch)
    for other, count in (("verify", 4), ("fold", 2)):
        text = ptx(other, arch)
        assert text.count("rsqrt.approx.ftz.f32") == count
        assert len(re.findall(r"\ssqrt\.", text)) == 0


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"project.0", "project.1"}))
def test_exponentials_are_approximate_and_keep_subnormals_and_divisions_are_full(name: str, arch: str) -> None:
    text = ptx(name, arch)
    assert "ex2.approx.f32" in text
    assert "ex2.approx.ftz" not in text
    assert "div.full.f32" in text
    assert not re.search(r"div\.(rn|approx)|rcp\.", text)


@pytest.mark.parametrize("arch", ARCHES)
def test_taps_are_fused_one_by_one(arch: str) -> None:
    text = ptx("convolve", arch)
    channels = 2
    fused = text.count("fma.rn.f32x2") * 2 + len(re.findall(r"fma\.rn\.f32(\.bf16)?\s", text))
    assert fused == 4 * channels
