"""The stock front: the instructions it must consist of, the orders it adds in, and its results against float64.

Contract: the latent is the RMSNorm of float64 but for one BF16 ulp, whole numbers are projected exactly, and what
follows is the chain of `dsa_index` on the projected query.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import dsa_checks
import ml_dtypes
import numpy as np
import pytest
import torch
import triton
from front_cases import FP4, case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from equiv.device import device
from equiv.dsa_front import PAIR
from equiv.emulator.reductions import Finder
from equiv.emulator.tracing import TracingDevice
from equiv.rounding.declaration import Declaration
from equiv.rounding.declarations.front import MATRIX, ROW_ORDERS, projection, row_order
from equiv.rounding.dsa import runner
from equiv.rounding.formats import BF16, decode
from equiv.rounding.front import project
from equiv.rounding.front_ledger import LEDGER
from equiv.rounding.orders import Order, matrix_chain
from equiv.rounding.projection import part_of
from equiv.runner import run_party
from equiv.triton_ref import dsa_front as front

if TYPE_CHECKING:
    from equiv.records import Bits

ARCHES = ("sm_90a", "sm_100a")
NORM = {"K": 1536, "BLOCK": 2048}
TILE = {"N": 4096, "K": 1536, "BN": front.TILE_OUTPUTS, "BB": front.TILE_ROWS, "BK": front.TILE_COLUMNS}


@cache
def ptx(name: str, arch: str) -> str:
    """PTX of a kernel, made without a GPU, for arguments aligned as the pair's tensors are."""
    kernel, options, constants = {
        "norm": (front.normalise_rows_kernel, {"num_warps": front.NORM_WARPS}, NORM),
        "project": (front.project_kernel, {"num_warps": front.TILE_WARPS, "num_stages": front.STAGES}, TILE),
    }[name]
    types = {"eps": "fp32", "batch": "i32", "row_pitch": "i32", "latent_pitch": "i32"}
    names = kernel.arg_names
    signature = {arg: "constexpr" if arg in constants else types.get(arg, "*bf16") for arg in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, arg in enumerate(names) if signature[arg][0] in "*i"}
    values = {(names.index(arg),): value for arg, value in constants.items()}
    target = GPUTarget("cuda", int(re.sub(r"\D", "", arch)), 32)
    text: str = triton.compile(ASTSource(kernel, signature, values, aligned), target=target, options=options).asm["ptx"]
    return text


@pytest.mark.parametrize("arch", ARCHES)
def test_the_norm_divides_by_div_full_and_rounds_once(arch: str) -> None:
    text = ptx("norm", arch)
    assert text.count("div.full.f32") == 1
    assert text.count("rsqrt.approx.ftz.f32") == 1
    assert text.count("cvt.rn.bf16x2.f32") == 4
    assert text.count("shfl.sync.bfly") == 8
    assert ".local" not in text


@pytest.mark.parametrize(
    ("arch", "instruction", "count"),
    [("sm_90a", "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16", 8), ("sm_100a", "tcgen05.mma.cta_group::1", 8)],
)
def test_the_projection_is_the_declared_instruction_and_no_other(arch: str, instruction: str, count: int) -> None:
    text = ptx("project", arch)
    assert text.count(instruction) == count
    assert len(re.findall(r"\b(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)\b", text)) == count
    assert MATRIX[arch].startswith(instruction)
    assert ".local" not in text


def traced(arch: str, tensors: dict[str, torch.Tensor], launch: Any) -> list[Any]:
    """The reductions that the tensors depend on after a launch on a tracing device."""
    tracing = TracingDevice(arch)
    for name, tensor in tensors.items():
        tracing.register(name, tensor)
    with tracing.active():
        launch()
    return list(Finder(tracing.tracer.graph).all(tracing.tracer.outputs))


@pytest.mark.parametrize("arch", ARCHES)
def test_the_squares_of_a_row_are_added_in_the_declared_order(arch: str) -> None:
    torch.manual_seed(1)
    rows, gamma, out = torch.randn(1, 1536).bfloat16(), torch.randn(1536).bfloat16(), torch.zeros(1, 1536).bfloat16()
    found = traced(
        arch,
        {"rows": rows, "gamma": gamma, "out": out},
        lambda: front.normalise_rows_kernel[(1,)](rows, gamma, out, 1536, 1e-6, **NORM, num_warps=front.NORM_WARPS),
    )
    (squares,) = [one for one in found if one.form == "squares"]
    assert (len(squares.terms), squares.buffers) == (1536, ("rows",))
    assert squares.order.digest == row_order(ROW_ORDERS[triton.__version__, arch]).digest


@pytest.mark.parametrize("arch", ARCHES)
def test_products_that_cancel_leave_the_bits_of_the_declared_order_and_of_no_other(arch: str) -> None:
    """What is left of sums that cancel is all rounding: BF16 holds most of it, and another order leaves other bits."""
    given = PAIR.inputs(case({"latent": "mirrored", "w_q": "mirrored"}, normalized=True, batch=16))
    latent, weights = given["q_c"], given["w_q"]
    out = torch.zeros(16, 4096).bfloat16()
    x, w = (torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) for bits in (latent, weights))
    with device(f"emulated:{arch}").active():
        front.project_kernel[(32, 1)](x, w, out, 16, 1536, **TILE, num_warps=front.TILE_WARPS, num_stages=front.STAGES)
    found = out.view(torch.int16).numpy().view(np.uint16)
    declared = projection(MATRIX[arch])
    np.testing.assert_array_equal(found, computed(declared, latent, weights))
    reverse = [k for at in range(1520, -1, -16) for k in range(at, at + 16)]
    backward = Order.of(1536, matrix_chain(reverse, 16, MATRIX[arch]))
    for rival in (projection(MATRIX[arch], 2), projection(MATRIX[arch], 4), backward):
        assert (found != computed(rival, latent, weights)).mean() > 0.1


def computed(order: Order, latent: Bits, weights: Bits) -> Bits:
    """The model's projection of these operands in one order, rounded to BF16."""
    run = runner(Declaration("x", {}, "", {}, {}), LEDGER)
    rounded: Bits = run("dsa.R10", project(part_of(order), weights, latent, run))
    return rounded


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("axes", [{}, {"rows": "packed", "scale": "mx"}, FP4], ids=str)
def test_whole_numbers_go_through_the_projection_exactly(axes: dict[str, Any], arch: str) -> None:
    one = case({"latent": "integers", "w_q": "integers", "slots": "skip_even"}, normalized=True, batch=18, **axes)
    given = PAIR.inputs(one)
    outputs = dict(run_party(PAIR, "oracle", one, given, device(f"emulated:{arch}")).outputs)
    q = decode(given["q_c"], BF16) @ decode(given["w_q"], BF16).T
    rounded = q.astype(ml_dtypes.bfloat16).view(np.uint16).reshape(18, 32, 128)
    index = replace(one, axes={**one.axes, "eps": one.axes["key_eps"]})
    projected = given["projected"] if axes.get("rows") == "packed" else given["projected"][:, 1536:]
    dsa_checks.query_is_exact(index, {**given, "projected": projected, "q": rounded}, outputs)
    dsa_checks.key_is_within_float32(index, {**given, "projected": projected}, outputs)
    dsa_checks.nothing_else_is_written(index, given, outputs)


@pytest.mark.parametrize("arch", ARCHES)
def test_latents_are_those_of_float64_but_for_an_ulp(arch: str) -> None:
    torch.manual_seed(3)
    rows = torch.randn(9, 1664) * torch.exp2(torch.arange(-4.0, 5).unsqueeze(1))
    gamma, out = (1 + torch.randn(1536) / 8).bfloat16(), torch.zeros(9, 1536).bfloat16()
    rows[4], eps = 0, 1e-3
    given = rows.bfloat16()
    with device(f"emulated:{arch}").active():
        front.normalise_rows_kernel[(9,)](given, gamma, out, 1664, eps, **NORM, num_warps=front.NORM_WARPS)
    x = given[:, :1536].double()
    expected = (x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + eps) * gamma.double()).bfloat16()
    apart = (out.view(torch.int16).int() - expected.view(torch.int16).int()).abs()
    assert int(apart.max()) <= 1
    assert float((apart > 0).float().mean()) < 1e-3
