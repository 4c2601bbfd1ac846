"""The stock chain: what its PTX must contain to be the stock chain, and its results against the reference.

Contract: query codes, scales and folded weights are exact; a key's scale and codes are those of some value that float32
arithmetic may give for the LayerNorm; a negative slot writes nothing; no byte beside the written tokens changes.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import dsa_checks
import pytest
import triton
from dsa_reference import ARCHES, VARIANTS, case, inputs, run
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from equiv.triton_ref import dsa

SHAPE = {"H": 32, "D": 128}
KEY = {"D": 128, "TOKENS": 64}
FP8 = {"E4M3_MAX": 448.0}
FP4 = {"FLOOR": dsa.MX_FLOOR, "E2M1_MAX": 6.0}
POINTERS = {"q": "*bf16", "projected": "*bf16", "w_out": "*bf16", "q_out": "*u8", "cache": "*u8", "slots": "*i64"}
FLOATS = {"q_scale": "*fp32", "norm_w": "*fp32", "norm_b": "*fp32", "normed": "*fp32", "eps": "fp32", "floor": "fp32"}
KERNELS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "query_fp8": (dsa.quantise_query_fp8_kernel, 1, SHAPE | FP8 | {"FLOOR": 1e-10}),
    "query_fp4": (dsa.quantise_query_mxfp4_kernel, 1, SHAPE | FP4),
    "weights_fp8": (dsa.fold_weights_kernel, 1, SHAPE | {"FOLD_SCALE": True}),
    "weights_fp4": (dsa.fold_weights_kernel, 1, SHAPE | {"FOLD_SCALE": False}),
    "normalise": (dsa.normalise_key_kernel, 4, {"D": 128}),
    "key_fp8": (dsa.insert_key_fp8_kernel, 4, KEY | FP8 | {"MX": False}),
    "key_mx": (dsa.insert_key_fp8_kernel, 4, KEY | FP8 | {"MX": True}),
    "key_fp4": (dsa.insert_key_mxfp4_kernel, 1, KEY | FP4),
}


@cache
def compiled(name: str, arch: str) -> tuple[str, bytes]:
    """PTX and cubin of a kernel, made without a GPU."""
    kernel, warps, constants = KERNELS[name]
    number = int(re.sub(r"\D", "", arch))
    constants = constants | ({"HAS_E2M1": number >= 100} if "HAS_E2M1" in kernel.arg_names else {})
    types = POINTERS | FLOATS | {"page_stride": "i64"}
    signature = {arg: "constexpr" if arg in constants else types.get(arg, "i32") for arg in kernel.arg_names}
    # As in the pair's tensors: 16-byte aligned, offsets and pitches multiples of 16 elements.
    aligned = {(at,): [["tt.divisibility", 16]] for at, arg in enumerate(kernel.arg_names) if signature[arg][0] in "*i"}
    values = {(kernel.arg_names.index(arg),): value for arg, value in constants.items()}
    source = ASTSource(kernel, signature, values, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", number, 32), options={"num_warps": warps})
    return made.asm["ptx"], made.asm["cubin"]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_uses_local_memory_or_a_stack(name: str, arch: str, tmp_path: Path) -> None:
    ptx, cubin = compiled(name, arch)
    assert f".target {arch}" in ptx
    assert ".local" not in ptx
    image = tmp_path / "kernel.cubin"
    image.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([tool, "--dump-resource-usage", image], check=True, capture_output=True, text=True).stdout
    assert "STACK:0 " in usage
    assert "LOCAL:0 " in usage


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["query_fp8", "query_fp4", "key_fp8", "key_fp4"])
def test_the_scale_goes_through_the_libdevice_polynomial_and_ex2(name: str, arch: str) -> None:
    ptx, _ = compiled(name, arch)
    assert "lg2.approx" not in ptx
    # First and last coefficient of libdevice's log2f, and the multiplication by log2(e) that ends it.
    assert all(coefficient in ptx for coefficient in ("0f3DC6B27F", "0fBF38AA3B", "0f3FB8AA3B"))
    assert "cvt.rpi.ftz.f32.f32" in ptx
    assert "ex2.approx.ftz.f32" in ptx


@pytest.mark.parametrize("arch", ARCHES)
def test_values_are_divided_with_div_full_and_only_the_query_is_clamped(arch: str) -> None:
    query, key = compiled("query_fp8", arch)[0], compiled("key_fp8", arch)[0]
    assert query.count("div.full.f32") == 4
    assert key.count("div.full.f32") == 1
    assert query.count("min.xorsign.abs.f32") == 4
    assert "min.xorsign.abs.f32" not in key
    assert "div.rn.f32" not in query
    assert key.count("div.rn.f32") == 1


@pytest.mark.parametrize("arch", ARCHES)
def test_the_layer_norm_fuses_one_square_of_each_pair_and_the_affine(arch: str) -> None:
    ptx, _ = compiled("normalise", arch)
    fused = re.findall(r"fma\.rn\.f32 +\t?%r\d+, (%r\d+), (%r\d+), %r\d+;", ptx)
    assert len(fused) == 2
    assert fused[0][0] == fused[0][1]
    assert fused[1][0] != fused[1][1]
    assert ptx.count("rsqrt.approx.ftz.f32") == 1


@pytest.mark.parametrize("name", ["query_fp4", "key_fp4"])
def test_only_sm_100a_converts_to_e2m1_by_instruction(name: str) -> None:
    assert "cvt.rn.satfinite.e2m1x2.f32" in compiled(name, "sm_100a")[0]
    assert "e2m1" not in compiled(name, "sm_90a")[0].partition(".entry")[2].replace("mxfp4", "")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("axes", VARIANTS, ids=lambda axes: "-".join(str(value) for value in axes.values()))
def test_results_agree_with_the_reference(axes: dict[str, Any], arch: str) -> None:
    one = case(**axes)
    given = inputs(one)
    outputs = run("oracle", one, given, arch)
    dsa_checks.query_is_exact(one, given, outputs)
    dsa_checks.key_is_within_float32(one, given, outputs)
    dsa_checks.nothing_else_is_written(one, given, outputs)
