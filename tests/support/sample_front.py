"""Inputs of the DSA front, a bare way to run its CuTe kernel on an emulated device, and what it must give.

The reference is made of parts that are checked elsewhere: the declared orders executed on the rows, the matrix model
for the projection, and the middle kernel `DsaIndex` for everything behind it.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import equiv
from equiv.cute.dsa.front_host import FORMS, dsa_front
from equiv.cute.dsa.index import dsa_index
from equiv.emulator import engine
from equiv.rounding import arithmetic as fp
from equiv.rounding import conversions, special
from equiv.rounding.declarations.front import MATRIX
from equiv.rounding.declarations.front_candidate import row_order
from equiv.rounding.formats import BF16
from equiv.rounding.matrix import variant
from equiv.rounding.matrix_native import fused_dot

if TYPE_CHECKING:
    import pytest

    from equiv.device import Device

Given = dict[str, Any]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

RANK, HEADS, DIM, PAGE = 1536, 32, 128, 64
OUTPUTS = ("q_out", "w_out", "cache")
UNTOUCHED = 0x5A


def inputs(
    batch: int, *, normalized: bool = False, fp4: bool = False, integers: bool = False, pitch: int = 1696, seed: int = 3
) -> Given:
    """Random tensors: small integers where sums are to be exact in any order, else normal values over binades.

    Every seventh request has a negative slot, the others lie scattered over more pages than they need.
    """
    draw = np.random.default_rng(seed)

    def bf16(values: npt.NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)

    def matrix(rows: int) -> torch.Tensor:
        if integers:
            return bf16(draw.integers(-3, 4, (rows, RANK)).astype(np.float64))
        return bf16(draw.standard_normal((rows, RANK)) * 2.0 ** draw.integers(-4, 4, (rows, 1)))

    whole = torch.full((batch, pitch), float("nan"), dtype=torch.bfloat16)
    projected = whole[:, : pitch - 32 if pitch > 1696 else pitch]
    projected[...] = bf16(draw.standard_normal(tuple(projected.shape)))
    projected[:, :RANK] = matrix(batch)
    token_bytes = 68 if fp4 else 132
    pages = batch // PAGE + 2
    slots = draw.permutation(pages * PAGE)[:batch].astype(np.int64)
    slots[3::7] = -1
    columns = HEADS * DIM // 2 + HEADS * 4 if fp4 else HEADS * DIM
    return {
        "projected": projected,
        "q_c": matrix(batch) if normalized else None,
        "w_q": matrix(HEADS * DIM),
        "w_qa": bf16(1 + draw.standard_normal(RANK) / 4),
        "norm_w": torch.from_numpy(1 + draw.standard_normal(DIM).astype(np.float32) / 4),
        "norm_b": torch.from_numpy(draw.standard_normal(DIM).astype(np.float32) / 4),
        "cache": torch.from_numpy(draw.integers(0, 256, (pages, PAGE * token_bytes), dtype=np.uint8)),
        "slots": torch.from_numpy(slots),
        "q_out": torch.full((batch, columns), UNTOUCHED, dtype=torch.uint8),
        "w_out": torch.full((batch, HEADS), 7.0, dtype=torch.bfloat16),
    }


def options(given: Given, *, mx: bool = False) -> dict[str, Any]:
    packed = given["projected"].shape[1] > 1696
    fp4 = given["q_out"].shape[1] < HEADS * DIM
    return {"key_at": 2112 if packed else 1536, "weight_at": 2240 if packed else 1664, "fp4": fp4, "mx": mx}


def run(device: Device, given: Given, *, mx: bool = False) -> dict[str, npt.NDArray[np.uint8]]:
    """The bytes of `OUTPUTS` after one launch; the inputs stay as they are."""
    own = given | {name: given[name].clone() for name in OUTPUTS}
    # The weights' address is in device memory, where the emulator does not look for tensors.
    device.register("w_q", own["w_q"])
    try:
        with device.active():
            dsa_front(**own, **options(given, mx=mx))
    finally:
        device.unregister("w_q")
    return {name: bits(own[name]) for name in OUTPUTS}


def expected(device: Device, given: Given, *, mx: bool = False) -> dict[str, npt.NDArray[np.uint8]]:
    """What `run` must give, bit for bit."""
    own = given | {name: given[name].clone() for name in OUTPUTS}
    q = torch.from_numpy(query(given, device.arch).view(np.int16)).view(torch.bfloat16).reshape(-1, HEADS, DIM)
    names = ("projected", "norm_w", "norm_b", "cache", "slots", "q_out", "w_out")
    with device.active():
        dsa_index(q, **{name: own[name] for name in names}, **options(given, mx=mx))
    return {name: bits(own[name]) for name in OUTPUTS}


def bits(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    return np.asarray(tensor.contiguous().view(torch.uint8).numpy())


def words(tensor: torch.Tensor) -> U16:
    """BF16 bits of a tensor."""
    return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(np.uint16))


@cache
def _row_order(arch: str, split: int) -> Any:
    return row_order(arch, split)


def latent(rows: torch.Tensor, gamma: torch.Tensor, eps: float = 1e-6, arch: str = "sm_100a", split: int = 1) -> U16:
    """The norm of BF16 rows, `[B, 1536]`: spec dsa R1 to R7."""
    x = conversions.widen(words(rows[:, :RANK]), BF16)
    total = _row_order(arch, split).dot(x, x)
    factor = special.rsqrt(fp.add(fp.div(total, fp.bits_of(1536.0)), fp.bits_of(eps)), ftz=False)
    scaled = fp.mul(fp.mul(x, factor), conversions.widen(words(gamma), BF16))
    return np.asarray(conversions.named("bf16.f32.rn")(scaled), np.uint16)


def query(given: Given, arch: str) -> U16:
    """The projection's BF16 bits `[B, 4096]`: slices of K by the matrix model, added in ascending order."""
    split = tiling(arch, given["projected"].shape[0]).split
    rows = (
        words(given["q_c"])
        if given["q_c"] is not None
        else latent(given["projected"], given["w_qa"], arch=arch, split=split)
    )
    weights, width = words(given["w_q"]), RANK // split
    total: U32 | None = None
    for part in range(split):
        columns = slice(part * width, (part + 1) * width)
        one = fused_dot(variant(*MATRIX[arch].split()), weights[:, columns], rows[:, columns].T).T.astype(np.uint32)
        total = one if total is None else fp.add(total, one)
    assert total is not None
    return np.ascontiguousarray(conversions.named("bf16.f32.rn")(total), np.uint16)


def tiling(arch: str, batch: int) -> Any:
    """How the architecture's form cuts a batch."""
    return FORMS[arch].cut(batch)[0]


def same(got: dict[str, Any], want: dict[str, Any]) -> None:
    for name, one in got.items():
        different = int((one != want[name]).sum())
        assert different == 0, f"{name}: {different} of {one.size} bytes differ"


def check(arch: str, threads: int, batch: int, axes: dict[str, Any]) -> None:
    """One launch, as the tiling has it, gives every byte that the declared order gives."""
    mx = axes.get("mx", False)
    device = equiv.device(f"emulated:{arch}")
    given = inputs(batch, **{name: value for name, value in axes.items() if name != "mx"})
    got = run(device, given, mx=mx)
    (launch,) = device.launches
    (_, tiles, split, group), plan = FORMS[arch].cut(batch)
    assert (launch.grid, launch.cluster, launch.block) == ((split, 32, tiles), (split, group, 1), (threads, 1, 1))
    assert launch.dynamic_shared == plan.shared_bytes
    same(got, expected(device, given, mx=mx))


def check_integers(arch: str) -> None:
    """Small whole numbers are summed exactly, and what is made of the sums has every bit."""
    given = inputs(100, normalized=True, integers=True)
    exact = given["q_c"].double() @ given["w_q"].double().T
    np.testing.assert_array_equal(query(given, arch), words(exact.to(torch.bfloat16)))
    device = equiv.device(f"emulated:{arch}")
    same(run(device, given), expected(device, given))


def check_schedules(arch: str, batch: int, axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Late completion and other orders of warps and CTAs leave the same bytes."""
    mx = axes.get("mx", False)
    device = equiv.device(f"emulated:{arch}")
    given = inputs(batch, **{name: value for name, value in axes.items() if name != "mx"})
    in_order = run(device, given, mx=mx)
    stock = engine.launch
    for seed, completion in ((None, "late"), (1, "eager"), (2, "late")):
        monkeypatch.setattr(engine, "launch", partial(stock, seed=seed, completion=completion))
        same(run(device, given, mx=mx), in_order)


def check_ordered(arch: str, batch: int, axes: dict[str, Any]) -> None:
    """The race search has nothing to say about a launch."""
    device = equiv.device(f"emulated:{arch}", check="race")
    run(device, inputs(batch, **axes))
    (launch,) = device.launches
    assert launch.notes == ()
