"""How fast the DSA front is on a GPU: one fused kernel against the stock chain, its projection by cuBLAS.

The stock chain is the Triton RMSNorm, `torch.matmul` and the Triton kernels that quantise; all as graph replays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from equiv.bench import Measure, gpu
from equiv.geometry.dsa import DIM, HEADS, PAGE
from equiv.geometry.front import OUTPUTS, RANK

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCHES: Final = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
KEY_AT: Final = 2112
WEIGHT_AT: Final = KEY_AT + DIM
PITCH: Final = 2304


def figures() -> Iterator[Measure]:
    """The figures of `equiv bench dsa_front`: microseconds of both, their ratio and GB/s.

    Raises:
        UnsupportedError: there is no GPU.
    """
    gpu.require_gpu()
    for batch in BATCHES:
        yield from front(batch)


def front(batch: int) -> Iterator[Measure]:
    """One batch, FP8 with FP32 scales, rows packed as the model's projection leaves them."""
    from equiv.cute.dsa import front_host

    given = tensors(batch)
    options: dict[str, Any] = {"key_at": KEY_AT, "weight_at": WEIGHT_AT}
    before = gpu.replayed(partial(stock, given, options))
    yield Measure(f"DSA front, B={batch}: Triton norm, cuBLAS, Triton quantise", before * 1e6, "us")
    seconds = gpu.replayed(partial(front_host.dsa_front, q_c=None, **given, **options))
    name = f"DSA front, B={batch}: fused"
    yield Measure(name, seconds * 1e6, "us")
    yield Measure(f"{name}, speed over stock", before / seconds, "x")
    yield Measure(f"{name}, weights read once", OUTPUTS * RANK * 2 / seconds / 1e9, "GB/s")


def stock(given: dict[str, Any], options: dict[str, Any]) -> None:
    """The stock chain with the library's matrix product."""
    import torch

    from equiv.triton_ref.dsa import dsa_index
    from equiv.triton_ref.dsa_front import normalise_rows

    latent = normalise_rows(given["projected"], given["w_qa"], 1e-6)
    q = torch.matmul(latent, given["w_q"].T).view(-1, HEADS, DIM)
    names = ("projected", "norm_w", "norm_b", "cache", "slots", "q_out", "w_out")
    dsa_index(q, *(given[name] for name in names), **options)


def tensors(batch: int) -> dict[str, Any]:
    """Random operands on the GPU, every token with a slot of its own."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(1)

    def normal(*shape: int, dtype: Any = torch.bfloat16, size: float = 1.0) -> Any:  # noqa: ANN401
        return (torch.randn(shape, generator=generator, device="cuda") * size).to(dtype)

    pages = -(-batch // PAGE) + 1
    return {
        "projected": normal(batch, PITCH),
        "w_q": normal(OUTPUTS, RANK, size=0.03),
        "w_qa": normal(RANK),
        "norm_w": normal(DIM, dtype=torch.float32),
        "norm_b": normal(DIM, dtype=torch.float32),
        "cache": torch.zeros(pages, PAGE * (DIM + 4), dtype=torch.uint8, device="cuda"),
        "slots": torch.randperm(pages * PAGE, generator=generator, device="cuda")[:batch],
        "q_out": torch.empty(batch, OUTPUTS, dtype=torch.uint8, device="cuda"),
        "w_out": torch.empty(batch, HEADS, dtype=torch.bfloat16, device="cuda"),
    }
