"""The fused kernel: facts of its PTX, its constructor's checks, and its results against the reference.

Contract: query codes, scales and folded weights are exact; a key's scale and codes are those of some value that float32
arithmetic may give for the LayerNorm; a negative slot writes nothing; no byte beside the written tokens changes.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import dsa_checks
import pytest
import torch
import triton
from cuda.bindings.driver import CUstream
from cutlass import Float32, cute
from dsa_reference import ARCHES, VARIANTS, case, inputs, run

import equiv
from equiv.cute import host
from equiv.cute.dsa.index import DsaIndex
from equiv.dsa_index import PAIR
from equiv.errors import UsageError

OPERATORS: dict[str, dict[str, Any]] = {
    "fp8": {},
    "fp8-f32": {"key_round": "f32", "key_floor": 1e-10},
    "fp8-mx": {"mx": True},
    "fp4": {"fp4": True},
    "fp4-f32": {"fp4": True, "key_round": "f32"},
}
TORCH = {"bf16": torch.bfloat16, "f32": torch.float32, "u8": torch.uint8, "i64": torch.int64}
OPERANDS = ("projected", "q", "norm_w", "norm_b", "cache", "slots", "q_out", "w_out")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(operator name, architecture) -> PTX and cubin, made without a GPU."""
    made: dict[tuple[str, str], tuple[str, bytes]] = {}

    def get(name: str, arch: str) -> tuple[str, bytes]:
        if (name, arch) not in made:
            options = OPERATORS[name]
            one = case(format="fp4", scale="mx") if options.get("fp4") else case()
            specs = {spec.name: spec for spec in PAIR.layout(one)}
            tensors = [
                host.dynamic(torch.zeros(specs[operand].shape, dtype=TORCH[specs[operand].format]))
                for operand in OPERANDS
            ]
            folder = tmp_path_factory.mktemp("cute")
            with equiv.device(f"emulated:{arch}").active():
                function = cute.compile(
                    DsaIndex(0, 128, **options),
                    *tensors,
                    Float32(1e-6),
                    CUstream(0),
                    options=f"--keep-ptx --keep-cubin --dump-dir={folder}",
                )
            made[name, arch] = function.__ptx__.rstrip("\0"), function.__cubin__
        return made[name, arch]

    return get


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", OPERATORS)
def test_no_kernel_uses_local_memory_or_a_stack(compiled: Any, name: str, arch: str, tmp_path: Path) -> None:
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
@pytest.mark.parametrize("name", OPERATORS)
def test_scales_are_made_without_a_logarithm_and_values_are_never_divided(compiled: Any, name: str, arch: str) -> None:
    ptx, _ = compiled(name, arch)
    assert not re.findall(r"\b(?:lg2|ex2|rcp)\.", ptx)
    assert "div.full" not in ptx
    assert ptx.count("div.rn.f32") == (0 if "fp4" in name else 2)
    assert ptx.count("rsqrt.approx.ftz.f32") == 1


@pytest.mark.parametrize("arch", ARCHES)
def test_one_square_of_each_pair_of_channels_is_fused(compiled: Any, arch: str) -> None:
    ptx, _ = compiled("fp8", arch)
    squares = re.findall(r"fma\.rn\.f32 +\t?%r\d+, (%r\d+), \1, (%r\d+);", ptx)
    assert len(squares) == 2
    for _, rounded in squares:
        assert re.search(rf"mul\.f32 +\t?{rounded}, (%r\d+), \1;", ptx), f"{rounded} is no rounded square"


def test_only_sm_100a_converts_to_e2m1_by_instruction(compiled: Any) -> None:
    assert compiled("fp4", "sm_100a")[0].count("cvt.rn.satfinite.e2m1x2.f32") == 4
    assert "e2m1x2" not in compiled("fp4", "sm_90a")[0]


@pytest.mark.parametrize("arch", ARCHES)
def test_the_page_address_is_computed_in_64_bits(compiled: Any, arch: str) -> None:
    ptx, _ = compiled("fp8", arch)
    page = re.search(r"shr\.[us]64 +\t?(%rd\d+), %rd\d+, 6;", ptx)
    assert page is not None
    assert re.search(rf"mad\.lo\.s64 +\t?%rd\d+, {page[1]}, %rd\d+, %rd\d+;", ptx)


def test_a_key_column_that_a_lane_cannot_load_at_once_is_refused() -> None:
    with pytest.raises(UsageError, match=r"key must be a multiple of 4 columns, .* got key=2110"):
        DsaIndex(2110, 128)


def test_an_unknown_rounding_of_the_key_is_refused() -> None:
    with pytest.raises(UsageError, match=r"key_round must be 'bf16' or 'f32'; got key_round='fp16'"):
        DsaIndex(0, 128, key_round="fp16")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("axes", VARIANTS, ids=lambda axes: "-".join(str(value) for value in axes.values()))
def test_results_agree_with_the_reference(axes: dict[str, Any], arch: str) -> None:
    one = case(**axes)
    given = inputs(one)
    outputs = run("candidate", one, given, arch)
    dsa_checks.query_is_exact(one, given, outputs)
    dsa_checks.key_is_within_float32(one, given, outputs)
    dsa_checks.nothing_else_is_written(one, given, outputs)
