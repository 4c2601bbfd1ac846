"""How fast a KDA step is on a GPU: the stock Triton chain, `KdaWide` and `KdaWS` on the same tensors.

A step reads every request's state once and writes it once a token; that traffic bounds it, so each time is also given
as a share of the card's copy speed. Weights are laid out beforehand, as a server does once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from equiv.bench import Measure, gpu
from equiv.geometry.kda import DIM, RANK

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADS: Final = (12, 96)
TOKENS: Final = (1, 4)
BATCHES: Final = (16, 32, 64, 128, 256, 512)
SHAPE: Final = {"gate_mode": 0, "lower_bound": -5.0, "scale": 128**-0.5, "eps": 1e-5}


def figures() -> Iterator[Measure]:
    """The figures of `equiv bench kda`: microseconds of a step of each kernel, ratios and shares of the copy speed.

    Raises:
        UnsupportedError: there is no GPU.
    """
    gpu.require_gpu()
    copied = gpu.copy_speed()
    yield Measure("copy, bytes read and written", copied / 1e9, "GB/s")
    for heads in HEADS:
        for tokens in TOKENS:
            for batch in BATCHES:
                yield from step(batch, tokens, heads, copied)


def step(batch: int, tokens: int, heads: int, copied: float) -> Iterator[Measure]:
    """One shape: microseconds of each kernel, how much faster than stock, and its traffic over the copy speed."""
    from equiv.cute.kda import host
    from equiv.triton_ref import kda

    given = tensors(batch, tokens, heads)
    stock = partial(kda.kda_step, **given, heads=heads, tokens=tokens, **SHAPE)
    laid = {"conv_w": host.convolution_weight(given["conv_w"]), "norm_w": given["norm_w"].float()}
    fused = partial(host.kda_step, **{**given, **laid}, heads=heads, tokens=tokens, **SHAPE)
    name = f"KDA step, {heads} heads, T={tokens}, B={batch}"
    before = gpu.replayed(stock)
    yield Measure(f"{name}: stock chain", before * 1e6, "us")
    for kernel in ("wide", "ws"):
        seconds = gpu.replayed(partial(fused, kernel=kernel))
        yield Measure(f"{name}: {kernel}", seconds * 1e6, "us")
        yield Measure(f"{name}: {kernel}, speed over stock", before / seconds, "x")
        share = traffic(batch, tokens, heads) / seconds / copied
        yield Measure(f"{name}: {kernel}, bytes it must move over the copy speed", 100 * share, "%")


def traffic(batch: int, tokens: int, heads: int) -> int:
    """Bytes that a step must move: states read once and written a token, rows, windows, output."""
    width, dim = 4 * DIM * heads + RANK + heads, DIM * heads
    state = batch * heads * DIM * DIM * 4 * (1 + tokens)
    windows = batch * 3 * dim * 2 * (3 + tokens + 2)
    return state + windows + batch * tokens * 2 * (width + dim)


def tensors(batch: int, tokens: int, heads: int) -> dict[str, Any]:
    """Random operands of a step on the GPU, every request with slots of its own."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(1)
    dim, rows, slots = DIM * heads, batch * tokens, batch * tokens + 1

    def normal(*shape: int, dtype: Any = torch.float32, size: float = 1.0) -> Any:  # noqa: ANN401
        return (torch.randn(shape, generator=generator, device="cuda") * size).to(dtype)

    pitch = -(-(4 * dim + RANK + heads) // 16) * 16
    order = torch.randperm(slots - 1, generator=generator, device="cuda", dtype=torch.int32) + 1
    return {
        "rows": normal(rows, pitch, dtype=torch.bfloat16),
        "conv_w": normal(3 * dim, 4, size=0.5),
        "conv_bias": None,
        "conv_state": normal(slots, tokens + 2, 3 * dim, dtype=torch.bfloat16).transpose(1, 2),
        "a_log": normal(heads, size=0.5),
        "dt_bias": normal(dim, size=0.5),
        "f_b": normal(dim, RANK, dtype=torch.bfloat16, size=0.1),
        "norm_w": normal(DIM, dtype=torch.bfloat16),
        "slots": order.reshape(batch, tokens),
        "accepted": torch.ones(batch, dtype=torch.int32, device="cuda"),
        "state": normal(slots, heads, DIM, DIM, size=0.1),
        "y": torch.empty(rows, dim, dtype=torch.bfloat16, device="cuda"),
    }
